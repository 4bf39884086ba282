"""Datasets: variables that share dimensions, parts of them by place and by coordinate, several stores as one."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpuload
from gpuload.errors import ChunkError, JoinError, ReadOnlyError, SelectionError, UnsupportedArrayError
from gpuload.zarr.variable import Variable
from gpuload.zarr.view import View

from .conftest import climate, write


def opened(path: Path | list[Path], **options: Any) -> gpuload.Dataset:
    dataset = gpuload.open(path, device="cpu", **options)  # type: ignore[arg-type]
    assert isinstance(dataset, gpuload.Dataset)
    return dataset


def same(found: Any, expected: Any) -> bool:
    return bool(np.array_equal(found, expected, equal_nan=np.asarray(expected).dtype.kind == "f"))


def test_variables_share_dimensions(store: Path, values: dict[str, Any]) -> None:
    dataset = opened(store)
    assert dataset.sizes == {"time": 23, "lat": 5, "lon": 7, "level": 2}
    assert set(dataset.variables) == set(values)
    assert dataset.variables["profile"].dims == ("level", "time")
    two = dataset[["sp", "t2m"]]
    assert isinstance(two, gpuload.Dataset)
    assert list(two) == ["sp", "t2m"]
    assert len(two) == 2
    assert "sp" in two
    assert "lat" not in two
    loaded = two.load()
    assert all(same(loaded[name], values[name]) for name in ("sp", "t2m"))
    assert list(two[["t2m"]]) == ["t2m"]
    with pytest.raises(KeyError, match="no variable 'lat'; there are: sp, t2m"):
        two["lat"]
    with pytest.raises(KeyError, match="no variable 'lat'"):
        two[["lat"]]
    with pytest.raises(KeyError, match="t2mm"):
        dataset[["t2mm"]]


def test_groups_in_groups(tmp_path: Path) -> None:
    write(tmp_path / "g", {"a": (np.arange(6), ["x"], (4,))})
    zarr.open_group(str(tmp_path / "g"), mode="a").create_group("inner").create_array(
        "b", data=np.arange(6) * 2, chunks=(4,), dimension_names=["x"]
    )
    dataset = opened(tmp_path / "g")
    both = dataset[["a", "inner/b"]].isel(x=slice(1, 5))
    assert {name: array.tolist() for name, array in both.load().items()} == {
        "a": [1, 2, 3, 4],
        "inner/b": [2, 4, 6, 8],
    }
    with pytest.raises(KeyError, match="'inner' is a group"):
        dataset[["inner"]]


INDEXERS: list[dict[str, Any]] = [
    {"time": 4},
    {"time": -1, "lat": 0},
    {"time": slice(2, 17, 4)},
    {"time": slice(None, None, -3), "lon": slice(5, 1, -1)},
    {"lat": [4, 0, 0, 2]},
    {"time": [7, 3, 22], "lon": np.array([6, 1])},
    {"lon": np.arange(7) % 2 == 0},
    {"time": slice(5, 5)},
]


@pytest.mark.parametrize("indexers", INDEXERS, ids=str)
def test_isel_is_what_numpy_gives(store: Path, values: dict[str, Any], indexers: dict[str, Any]) -> None:
    view = opened(store).isel(**indexers)
    for name, (_, dims, _) in climate().items():
        expected = values[name]
        for dim in reversed(dims):  # axes in front keep their place while later ones go
            if dim in indexers:
                expected = expected[(slice(None),) * dims.index(dim) + (indexers[dim],)]
        variable = view[name]
        assert isinstance(variable, Variable)
        assert variable.shape == expected.shape
        assert variable.dims == tuple(d for d in dims if not isinstance(indexers.get(d), int))
        assert variable.nbytes == expected.nbytes
        assert same(variable[...], expected)
        assert same(np.asarray(variable), expected)
        assert variable[...].dtype == expected.dtype


@given(st.data())
def test_parts_of_parts(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "parts.zarr"
    values = np.arange(13 * 6).reshape(13, 6)
    if not path.exists():
        write(path, {"a": (values, ["x", "y"], (4, 4))})
    view: View | gpuload.Dataset = opened(path)
    for _ in range(data.draw(st.integers(0, 3))):
        n = values.shape[0]
        key = data.draw(st.slices(n) | st.lists(st.integers(-n, n - 1), max_size=9)) if n else slice(None)
        view, values = view.isel(x=key), values[key if isinstance(key, slice) else np.array(key, int)]
    variable = view.variables["a"]
    assert same(variable[...], values)
    bounds = variable.bounds(0)
    assert bounds[0] == 0
    assert bounds[-1] == len(values)
    chunk = values[:, 0] // 6 // 4  # by value: the chunk that each row is in
    between = [np.unique(chunk[a:b]) for a, b in itertools.pairwise(bounds)]
    assert all(len(chunks) == 1 for chunks in between) or not len(values)
    n = values.shape[0]
    key = data.draw(st.slices(n) | st.integers(-n, n - 1)) if n else slice(None)
    assert same(variable[key, ::-2], values[key, ::-2])


def test_sel_finds_coordinates(store: Path, values: dict[str, Any]) -> None:
    dataset = opened(store)
    t2m = values["t2m"]
    assert same(dataset.sel(time=12.0).load()["t2m"], t2m[2])
    assert same(dataset.sel(time=slice(12, 30))["t2m"][...], t2m[2:6])  # type: ignore[index]
    assert same(dataset.sel(time=slice(13, 29, 2))["t2m"][...], t2m[3:5:2])  # type: ignore[index]
    assert same(dataset.sel(lat=slice(60, 40))["t2m"][...], t2m[:, :3])  # type: ignore[index]
    assert same(dataset.sel(lat=slice(40, 60))["t2m"][...], t2m[:, :3])  # type: ignore[index]
    assert same(dataset.sel(lat=slice(30, None))["t2m"][...], t2m[:, 3:])  # type: ignore[index]
    assert same(dataset.sel(lat=slice(None, 50))["t2m"][...], t2m[:, :2])  # type: ignore[index]
    assert same(dataset.sel(lat=slice(11, 12))["t2m"][...], t2m[:, :0])  # type: ignore[index]
    assert same(dataset.sel(lat=[20, 60, 20])["t2m"][...], t2m[:, [4, 0, 4]])  # type: ignore[index]
    assert same(dataset.sel(lat=41, time=[7.0], method="nearest")["t2m"][...], t2m[[1], 2])  # type: ignore[index]


def test_sel_by_dates_and_small_floats(make_store: Callable[..., Path]) -> None:
    days = np.arange("2020-01-01", "2020-01-11", dtype="datetime64[D]").astype("datetime64[s]")
    path = make_store("dated", {"time": (days, ["time"], (4,)), "x": (np.float32([0.1, 0.2, 0.3]), ["x"], (3,))})
    dataset = opened(path)
    assert dataset.sel(time="2020-01-03").load()["time"] == days[2]
    assert dataset.sel(time=slice("2020-01-03", "2020-01-05")).sizes["time"] == 3
    assert dataset.sel(x=0.2).load()["x"] == np.float32(0.2)  # as the coordinate has it


@pytest.mark.parametrize(
    ("select", "says"),
    [
        (lambda d: d.isel(tim=0), "no variable has a dimension 'tim'; did you mean 'time'"),
        (lambda d: d.isel(zzz=0), "there are: lat, level, lon, time"),
        (lambda d: d.isel(time=23), "23"),
        (lambda d: d.isel(time=[[1]]), "several dimensions"),
        (lambda d: d.sel(tim=0), "did you mean 'time'"),
        (lambda d: d.sel(lon=0), "'lon' has no coordinate"),
        (lambda d: d.sel(time=1.0), "'time' has no value 1.0; it has from 0.0 to 132.0"),
        (lambda d: d.sel(time="monday"), "'monday' is no value of 'time'"),
        (lambda d: d.sel(time=[[0.0]]), "give a value, a list"),
        (lambda d: d.sel(time=0.0, method="pad"), "method='pad'"),
        (lambda d: d.isel(lat=[2, 0, 1]).sel(lat=slice(0, 1)), "neither ascends nor descends"),
        (lambda d: d[["t2m"]]["t2m"][[0, 1], [0, 1]], "select points"),
    ],
)
def test_what_does_not_fit_is_said(store: Path, select: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(SelectionError, match=says):
        select(opened(store))


def test_lengths_that_differ_stay_readable_apart(make_store: Callable[..., Path]) -> None:
    path = make_store("pyramid", {"a": (np.arange(8), ["x"], (4,)), "b": (np.arange(4), ["x"], (4,))})
    dataset = opened(path)
    assert dataset["b"][...].tolist() == [0, 1, 2, 3]  # type: ignore[index]
    assert dataset[["a"]].sizes == {"x": 8}
    with pytest.raises(JoinError, match="'x' has length 8 in 'a', but 4 in 'b'"):
        _ = dataset.sizes


def test_map_is_called_on_what_is_loaded(store: Path, values: dict[str, Any]) -> None:
    view = (
        opened(store)[["t2m", "time"]].map(lambda d: {**d, "kelvin": d["t2m"] + 273}).map(lambda d: {"k": d["kelvin"]})
    )
    assert same(view.isel(time=1).load()["k"], values["t2m"][1] + 273)
    assert "2 transforms" in repr(view)


def test_years_as_one_dataset(tmp_path: Path, zarr_format: int) -> None:
    years = [climate(n, seed) for n, seed in [(5, 1), (9, 2), (1, 3)]]
    paths = [write(tmp_path / f"{i}.zarr", year, zarr_format) for i, year in enumerate(years)]
    dataset = opened(paths, concat="time")
    assert dataset.sizes["time"] == 15
    for name, (first, dims, _) in years[0].items():
        whole = first if "time" not in dims else np.concatenate([y[name][0] for y in years], dims.index("time"))
        variable = dataset.variables[name]
        assert same(variable[...], whole)
        assert same(np.asarray(variable), whole)
        if "time" in dims:
            axis = dims.index("time")
            for key in (slice(3, 8), slice(12, 2, -3), [14, 0, 5, 5, 4], 13, slice(0, 0)):
                found = dataset.isel(time=key).variables[name]
                assert same(found[...], whole[(slice(None),) * axis + (key,)])
    # Chunks begin anew in each store.
    assert dataset.variables["t2m"].bounds(0).tolist() == [0, 3, 5, 8, 11, 14, 15]
    assert "3 arrays" in repr(dataset.variables["t2m"])


def test_members_are_a_new_dimension(tmp_path: Path) -> None:
    members = [climate(5, seed) for seed in range(4)]
    paths = [write(tmp_path / f"{i}.zarr", member) for i, member in enumerate(members)]
    dataset = opened(paths, concat="member")
    whole = np.stack([member["t2m"][0] for member in members])
    t2m = dataset.variables["t2m"]
    assert t2m.dims == ("member", "time", "lat", "lon")
    assert same(t2m[...], whole)
    assert same(t2m[::-2, 1:3], whole[::-2, 1:3])
    assert same(dataset.isel(member=2, time=[4, 0]).variables["t2m"][...], whole[2, [4, 0]])
    assert same(dataset.isel(member=[3, 3, 0]).variables["t2m"][...], whole[[3, 3, 0]])
    assert t2m.bounds(0).tolist() == [0, 1, 2, 3, 4]
    assert t2m.bounds(1).tolist() == [0, 3, 5]
    assert dataset.variables["time"].dims == ("time",)  # a coordinate is not stacked


def test_stores_that_do_not_fit_name_both(tmp_path: Path) -> None:
    base = {"a": (np.zeros((4, 3)), ["time", "x"], (2, 3)), "x": (np.arange(3.0), ["x"], (3,))}
    write(tmp_path / "one", base)
    wrong: dict[str, Any] = {
        "length along 'x' 3 in .*one.*, but 2 in": {"a": (np.zeros((4, 2)), ["time", "x"], (2, 2)), "x": base["x"]},
        "data type float64 in .*, but float32": {"a": (np.zeros((4, 3), "f4"), ["time", "x"], (2, 3)), "x": base["x"]},
        "dimensions .*'time', 'x'.* but .*'time', 'y'": {
            "a": (np.zeros((4, 3)), ["time", "y"], (2, 3)),
            "x": base["x"],
        },
        "other values": {"a": base["a"], "x": (np.arange(3.0) + 1, ["x"], (3,))},
        "has no variable 'x'": {"a": base["a"]},
        "has a variable 'b', which .*one.* has not": {**base, "b": base["a"]},
    }
    for i, (says, variables) in enumerate(wrong.items()):
        other = write(tmp_path / f"w{i}", variables)
        with pytest.raises(JoinError, match=says) as raised:
            opened([tmp_path / "one", other], concat="time")
        assert f"w{i}" in str(raised.value)
    with pytest.raises(JoinError, match="the list is empty"):
        opened([], concat="time")
    with pytest.raises(JoinError, match="single array"):
        opened([tmp_path / "one" / "a"], concat="time")
    with pytest.raises(TypeError, match="name it"):
        opened([tmp_path / "one"])
    with pytest.raises(TypeError, match="give a list"):
        opened(tmp_path / "one", concat="time")


def test_pickle_and_words(store: Path, values: dict[str, Any]) -> None:
    view = opened(store)[["t2m", "time"]].isel(time=slice(1, 4), lat=0)
    again = pickle.loads(pickle.dumps(view))
    assert same(again.load()["t2m"], values["t2m"][1:4, 0])
    assert "Dataset of 2 variables" in repr(view)
    assert "(time: 3, lon: 7)" in repr(view)
    assert "time: 3" in view._repr_html_()
    assert "'t2m' (time: 3, lon: 7) float32" in repr(view["t2m"])
    assert len(view.variables["t2m"]) == 3
    with pytest.raises(UnsupportedArrayError, match="made of parts"):
        _ = view.source
    with pytest.raises(ReadOnlyError, match="for reading only"):
        view.update_attributes({"title": "x"})
    with pytest.raises(UnsupportedArrayError, match="part of an array"):
        gpuload.dask.from_zarr(view, component="t2m")
    with pytest.raises(TypeError, match="unsized"):
        len(view.isel(time=0).variables["time"])
    with pytest.raises(ValueError, match="without a copy"):
        np.array(view["t2m"], copy=False)


def test_names_out_of_files_are_escaped(make_store: Callable[..., Path]) -> None:
    path = make_store("bad", {"<b>": (np.zeros(3), ["<i>"], (3,)), "\x1b[31m": (np.zeros(3), ["x"], (3,))})
    view = opened(path)[["<b>", "\x1b[31m"]]
    assert "<b>" not in view._repr_html_().replace("<b>gpuload", "")
    assert "<i>" not in view._repr_html_()
    assert "\x1b" not in repr(view) + repr(view["\x1b[31m"])
    with pytest.raises(SelectionError) as raised:
        view.isel(nothing=0)
    assert "\x1b" not in str(raised.value)


def test_a_lost_chunk_names_its_key(store: Path) -> None:
    key = next(
        p for p in sorted(store.glob("sp/**/*")) if p.is_file() and p.name not in ("zarr.json", ".zarray", ".zattrs")
    )
    key.write_bytes(key.read_bytes()[:5])
    with pytest.raises(ChunkError, match=key.name):
        opened(store)[["sp"]].load()
