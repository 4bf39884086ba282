"""engine="gpuload": values, dtypes, attributes, encodings and coordinates as xarray reads them with zarr-python."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload
from gpuload.errors import ChangedError, EscapesStoreError, NotFoundError, StrictError, UnsupportedArrayError

# xarray says so where consolidated metadata are neither asked for nor there.
pytestmark = [
    pytest.mark.timeout(600),  # many datasets are opened: long on a loaded machine
    pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated metadata"),
]


def both(path: Any, **options: Any) -> tuple[xarray.Dataset, xarray.Dataset]:
    ours = xarray.open_dataset(path, engine="gpuload", backend_kwargs={"device": "cpu"}, **options)
    return ours, xarray.open_dataset(path, engine="zarr", **options)


def check(ours: xarray.Dataset, theirs: xarray.Dataset) -> None:
    assert set(ours.variables) == set(theirs.variables)  # zarr-python lists them in the order in which they come
    for name, variable in theirs.variables.items():
        mine = ours.variables[name]
        assert mine.dtype == variable.dtype, name
        assert mine.chunks == variable.chunks, name
        assert str(mine.encoding) == str(variable.encoding), name
    xarray.testing.assert_identical(ours.load(), theirs.load())
    assert ours.encoding.get("source") == theirs.encoding.get("source")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunks", [None, {}])
def test_no_word_of_metadata_that_are_not_consolidated(tmp_path: Path, zarr_format: Any, chunks: Any) -> None:
    """Who reads can do nothing about it. Asked for they are still an error where there are none."""
    made = xarray.Dataset({"v": ("x", [1.0, 2.0])})
    tree = xarray.DataTree.from_dict({"/": made, "/deep": made})
    tree.to_zarr(tmp_path / "a.zarr", consolidated=False, zarr_format=zarr_format)
    options: dict[str, Any] = {"engine": "gpuload", "device": "cpu", "chunks": chunks}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Failed to open Zarr store")  # here, for the mark above would go before one
        xarray.testing.assert_identical(xarray.open_dataset(tmp_path / "a.zarr", **options).load(), made)
        xarray.testing.assert_identical(xarray.open_dataset(tmp_path / "a.zarr", group="deep", **options).load(), made)
        xarray.testing.assert_identical(xarray.open_datatree(tmp_path / "a.zarr", **options).load(), tree)
    with pytest.raises(ValueError, match=r"[Cc]onsolidated|\.zmetadata"):
        xarray.open_dataset(tmp_path / "a.zarr", consolidated=True, **options)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"chunks": {}},
    {"chunks": {"time": 12}},
    {"chunks": "auto", "inline_array": True},
    {"mask_and_scale": False},
    {"decode_times": False},
    {"decode_timedelta": True},
    {"decode_cf": False},
    {"decode_coords": "all"},
    {"decode_coords": False},
    {"concat_characters": False},
    {"drop_variables": ["packed", "lat"]},
    {"cache": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.filterwarnings("ignore:In a future version, xarray will not decode")
def test_opened_with(path: str, options: dict[str, Any]) -> None:
    check(*both(path, **options))


@pytest.mark.parametrize("chunks", [None, {}, {"x": 6}], ids=str)
def test_selections(tmp_path: Path, chunks: Any) -> None:
    values = np.arange(7 * 5 * 6, dtype="i4").reshape(7, 5, 6)
    made = xarray.Dataset({"v": (("x", "y", "z"), values, {"_FillValue": 11})}, {"x": np.arange(7) * 2.5})
    made.to_zarr(tmp_path / "a.zarr", consolidated=False, encoding={"v": {"chunks": (3, 2, 4)}})
    opened = both(tmp_path / "a.zarr", chunks=chunks, consolidated=False, cache=False)

    def along(n: int) -> st.SearchStrategy[Any]:
        end, index = st.none() | st.integers(-n, n), st.integers(0, n - 1)
        points = st.lists(index, min_size=3, max_size=3).map(lambda i: xarray.DataArray(i, dims="p"))
        some = st.builds(slice, end, end, st.none() | st.sampled_from([-2, -1, 1, 2, 3]))
        return some | st.integers(-n, n - 1) | st.lists(index, max_size=4) | points

    @settings(max_examples=max(40, settings().max_examples // 3))
    @given(st.fixed_dictionaries({}, optional={"x": along(7), "y": along(5), "z": along(6)}), st.booleans())
    def check_selection(indexers: dict[str, Any], again: bool) -> None:
        ours, theirs = (dataset.isel(indexers) for dataset in opened)
        if again and ours.v.ndim and ours.v.shape[0]:
            first = {ours.v.dims[0]: slice(None, None, -2)}
            ours, theirs = ours.isel(first), theirs.isel(first)
        xarray.testing.assert_identical(ours.load(), theirs.load())

    check_selection()


def test_opening_reads_metadata_and_indexes_and_indexing_only_what_is_wanted(path: str) -> None:
    with gpuload.trace() as opening:
        ours = xarray.open_dataset(path, engine="gpuload", device="cpu")
    assert {row.key.split("/")[0] for row in opening.rows() if "/" in row.key} <= {*ours.variables}
    assert not any(row.key.startswith("temperature/c") for row in opening.rows())
    with gpuload.trace() as reading:
        part = ours.temperature.isel(time=[1, 2], lat=4).variable.load()
    keys = [row.key for row in reading.rows()]
    assert keys
    assert all(key.startswith("temperature/") for key in keys)
    whole = [row.bytes for row in reading.rows()]
    assert 0 < len(keys) <= 4 or sum(whole) < ours.temperature.nbytes
    right = both(path)[1].temperature.isel(time=[1, 2], lat=4).values
    np.testing.assert_array_equal(part.values, right, strict=True)


def test_many_files(tmp_path: Path) -> None:
    paths = []
    for i in range(3):
        part = xarray.Dataset({"v": (("time", "x"), np.full((2, 4), float(i)))}, {"time": [2 * i, 2 * i + 1]})
        part.to_zarr(tmp_path / f"{i}.zarr", consolidated=False)
        paths.append(str(tmp_path / f"{i}.zarr"))
    options: dict[str, Any] = {"combine": "by_coords"}
    ours = xarray.open_mfdataset(paths, engine="gpuload", backend_kwargs={"device": "cpu"}, **options)
    theirs = xarray.open_mfdataset(paths, engine="zarr", **options)
    assert ours.v.chunks == theirs.v.chunks == ((2, 2, 2), (4,))
    xarray.testing.assert_identical(ours.load(), theirs.load())


def test_groups_and_trees(tmp_path: Path) -> None:
    inner = xarray.Dataset({"v": ("x", np.arange(4.0))}, {"x": [1, 2, 3, 4]})
    tree = xarray.DataTree.from_dict({"/": xarray.Dataset(attrs={"a": 1}), "/one": inner, "/one/two": inner * 2})
    tree.to_zarr(tmp_path / "t.zarr", consolidated=False)
    for options in ({}, {"group": "one"}, {"chunks": {}}):
        ours = xarray.open_datatree(tmp_path / "t.zarr", engine="gpuload", device="cpu", **options)
        theirs = xarray.open_datatree(tmp_path / "t.zarr", engine="zarr", **options)
        xarray.testing.assert_identical(ours.load(), theirs.load())
    assert list(xarray.open_groups(tmp_path / "t.zarr", engine="gpuload")) == ["/", "/one", "/one/two"]
    check(*both(tmp_path / "t.zarr", group="one/two"))
    opened = gpuload.open(tmp_path / "t.zarr", device="cpu")
    assert isinstance(opened, gpuload.Dataset)
    one = opened["one"]
    assert isinstance(one, gpuload.Dataset)
    xarray.testing.assert_identical(one.to_xarray().load(), inner)

    two = (inner * 2).drop_vars("x")  # which it inherits
    xarray.testing.assert_identical(opened.to_xarray(group="one/two", chunks={}).load(), two)


def test_it_travels_by_path(path: str) -> None:
    ours, theirs = both(path)
    again = pickle.loads(pickle.dumps(ours))
    xarray.testing.assert_identical(again.load(), theirs.load())


def test_a_change_is_noticed_between_two_computes(path: str) -> None:
    ours = xarray.open_dataset(path, engine="gpuload", device="cpu")
    blocks = ours.chunk({})
    before = blocks.temperature.data.name
    blocks.temperature.compute()
    assert ours.chunk({}).temperature.data.name == before
    changed = xarray.open_zarr(path, chunks=None).load()
    changed["temperature"] = changed.temperature + 1
    changed[["temperature"]].drop_vars(["time", "lat", "height", "origin"]).to_zarr(path, mode="r+")
    with pytest.raises(ChangedError):
        blocks.temperature.compute()
    again = ours.chunk({})
    assert again.temperature.data.name != before
    np.testing.assert_array_equal(again.temperature.compute(), changed.temperature)
    with pytest.raises(ChangedError):  # still: a graph stays what it was made of
        blocks.temperature.compute()


def test_unsigned(tmp_path: Path) -> None:
    attrs = {"_Unsigned": "true", "_FillValue": -1, "scale_factor": 0.5}
    made = xarray.Dataset({"v": ("x", np.array([1, -1, -2], "i1"), attrs)})
    made.to_zarr(tmp_path / "u.zarr", consolidated=False)
    check(*both(tmp_path / "u.zarr", consolidated=False))


@pytest.mark.parametrize("given", ["nothing.zarr", "a.zarr/v", "out.zarr"])
def test_what_cannot_be_opened(tmp_path: Path, given: str) -> None:
    xarray.Dataset({"v": ("x", [1.0, 2.0])}).to_zarr(tmp_path / "a.zarr", consolidated=False)
    (tmp_path / "out.zarr").mkdir()
    (tmp_path / "out.zarr/zarr.json").symlink_to(tmp_path / "a.zarr/zarr.json")
    with pytest.raises((NotFoundError, UnsupportedArrayError, EscapesStoreError)):
        xarray.open_dataset(tmp_path / given, engine="gpuload")


def test_strict_and_options_reach_the_reads(tmp_path: Path) -> None:
    xarray.Dataset({"v": ("x", [1.0, 2.0])}, {"x": [1, 2]}).to_zarr(tmp_path / "a.zarr", consolidated=False)
    opened = xarray.open_dataset(tmp_path / "a.zarr", engine="gpuload", device="cpu", strict=True)
    with pytest.raises(StrictError):
        opened.load()


def test_where_it_is_not_asked_for_it_stays_away(path: str) -> None:
    from gpuload.xarray import GpuloadBackend

    assert not GpuloadBackend().guess_can_open(path)
    assert "gpuload" in xarray.backends.list_engines()


# ---------------------------------------------------------------------- on a device


@pytest.mark.parametrize("chunks", [None, {}])
def test_data_on_the_device_and_coordinates_on_the_host(path: str, fake_cupy: ModuleType, chunks: Any) -> None:
    ours = xarray.open_dataset(path, engine="gpuload", device="cuda:1", chunks=chunks)
    theirs = xarray.open_dataset(path, engine="zarr")
    on_host = {"time", "lat", "height", "origin", "seen", "took", "label"}
    for name, variable in ours.variables.items():
        assert variable.dtype == theirs[name].dtype, name
        if name in ours.indexes:
            continue
        data = variable._data
        if chunks is not None and variable.ndim:
            assert isinstance(data._meta, np.ndarray if name in on_host else fake_cupy.ndarray), name
            data = data.blocks[(0,) * data.ndim]
            right = theirs[name].values[tuple(slice(0, n) for n in data.shape)]
            ((got,),) = [data.to_delayed().ravel()]
            got = got.compute()
        else:
            got, right = data.get_duck_array(), theirs[name].values
        if name in on_host:
            assert not isinstance(got, fake_cupy.ndarray), name
        else:
            assert isinstance(got, fake_cupy.ndarray), name
            assert got.device.id == 1
            with fake_cupy.cuda.Device(1):
                got = got.get()
        np.testing.assert_array_equal(got, right, strict=isinstance(got, np.ndarray))


def test_decoding_that_is_not_known_goes_by_way_of_the_host(fake_cupy: ModuleType) -> None:
    from gpuload.xarray.decode import Decoder

    data = fake_cupy.asarray(np.arange(4))
    got = Decoder(lambda values: np.asarray(values) ** 2)(data)
    assert isinstance(got, fake_cupy.ndarray)
    assert got.get().tolist() == [0, 1, 4, 9]
