"""Arrays and groups as objects: what they say of themselves, how they are opened, pickled and shared."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpuload
from gpuload import config
from gpuload.errors import DeviceError, EscapesStoreError, UnsupportedArrayError
from gpuload.zarr import Array, Dataset, DeviceStore
from gpuload.zarr.keys import encode_keys
from gpuload.zarr.reader import _divide
from gpuload.zarr.shards import IndexCache

DATA = np.arange(24, dtype="f4").reshape(4, 6)


@pytest.fixture(params=[2, 3])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A group of an array, an array with dimension names, and a group with an array."""
    path = tmp_path / "g.zarr"
    root = zarr.open_group(str(path), mode="w", zarr_format=request.param)
    root.attrs["title"] = "all"
    root.create_array("a", data=DATA, chunks=(2, 3))
    options: dict[str, Any] = {"dimension_names": ["time", None]} if request.param == 3 else {}
    array = root.create_array("b", shape=(4, 6), chunks=(2, 3), dtype="i2", fill_value=1, **options)
    array.attrs["units"] = "K"
    if request.param == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = ["time", "x"]
    root.create_group("sub", attributes={"level": 1}).create_array("c", data=DATA * 2)
    return path


def check_group(dataset: Any) -> None:
    assert isinstance(dataset, Dataset)
    assert list(dataset) == ["a", "b", "sub"]
    assert len(dataset) == 3
    assert dict(dataset).keys() == {"a", "b", "sub"}
    assert "a" in dataset
    assert "sub/c" in dataset
    assert "absent" not in dataset
    assert 1 not in dataset
    assert dataset.attrs["title"] == "all"
    assert np.array_equal(dataset["a"][...], DATA)  # type: ignore[index]
    sub = dataset["sub"]
    assert isinstance(sub, Dataset)
    assert sub.attrs == {"level": 1}
    assert sub.name == "sub"
    assert list(sub) == ["c"]
    assert np.array_equal(sub["c"][...], DATA * 2)  # type: ignore[index]
    nested = dataset["sub/c"]
    assert isinstance(nested, Array)
    assert nested.name == "sub/c"
    assert np.array_equal(np.asarray(nested), DATA * 2)


def test_group(group: Path) -> None:
    check_group(gpuload.open(group, device="cpu"))


def test_consolidated_group(group: Path) -> None:
    zarr.consolidate_metadata(str(group))
    check_group(gpuload.open(group, device="cpu"))


def test_ways_to_name_a_node(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(group.parent)
    check_group(gpuload.open(str(group), device="cpu"))
    check_group(gpuload.open("g.zarr", device="cpu"))
    check_group(gpuload.open(group.as_uri(), device="cpu"))
    check_group(gpuload.open(zarr.open_group(str(group), mode="r"), device="cpu"))
    check_group(gpuload.open(zarr.open_group(DeviceStore(group), mode="r"), device="cpu"))
    below = gpuload.open(group / "sub" / "c", device="cpu")
    assert isinstance(below, Array)
    assert below.name == ""
    array = gpuload.open(zarr.open_group(str(group), mode="r")["sub/c"], device="cpu")  # type: ignore[arg-type]
    assert isinstance(array, Array)
    assert array.name == "sub/c"
    assert np.array_equal(array[...], DATA * 2)


def test_a_url_with_escapes(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a b%c"), data=DATA)
    assert np.array_equal(gpuload.open((tmp_path / "a b%c").as_uri(), device="cpu")[...], DATA)  # type: ignore[index]


@pytest.mark.parametrize("name", ["absent", "a/absent", "../g.zarr", "", "/", "a//b", ".", "sub/../a"])
def test_no_such_name(group: Path, name: str) -> None:
    with pytest.raises(KeyError):
        gpuload.open(group)[name]  # type: ignore[index]
    with pytest.raises(KeyError):
        gpuload.open(group)[0]  # type: ignore[index]


def test_one_unknown_array_does_not_hide_the_others(tmp_path: Path) -> None:
    root = zarr.open_group(str(tmp_path / "g"), mode="w")
    root.create_array("good", data=DATA)
    root.create_array("bad", data=DATA)
    document = tmp_path / "g" / "bad" / "zarr.json"
    text = document.read_text().replace('"zstd"', '"unheard-of"')
    zarr.consolidate_metadata(str(tmp_path / "g"))
    document.write_text(text)
    consolidated = tmp_path / "g" / "zarr.json"
    consolidated.write_text(consolidated.read_text().replace('"zstd"', '"unheard-of"'))
    dataset = gpuload.open(tmp_path / "g", device="cpu")
    assert isinstance(dataset, Dataset)
    assert list(dataset) == ["bad", "good"]
    assert "bad" in dataset
    assert np.array_equal(dataset["good"][...], DATA)  # type: ignore[index]
    with pytest.raises(UnsupportedArrayError, match="unheard-of"):
        dataset["bad"]
    assert "unheard-of" in repr(dataset)


def test_a_link_to_another_store_is_no_member(group: Path, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "other"), data=DATA)
    (group / "link").symlink_to(tmp_path / "other")
    with pytest.raises(EscapesStoreError):
        gpuload.open(group)["link"]  # type: ignore[index]
    assert np.array_equal(gpuload.open(tmp_path / "other", device="cpu")[...], DATA)  # type: ignore[index]


def test_what_an_array_says_of_itself(tmp_path: Path) -> None:
    zarr.create_array(
        str(tmp_path / "a"), data=DATA, chunks=(2, 3), shards=(4, 6), dimension_names=["t", None], attributes={"k": [1]}
    )
    array = gpuload.open(tmp_path / "a", device="cpu")
    assert isinstance(array, Array)
    assert (array.shape, array.ndim, array.size, array.nbytes, len(array)) == ((4, 6), 2, 24, 96, 4)
    assert (array.chunks, array.shards, array.dims) == ((2, 3), (4, 6), ("t", None))
    assert (array.attrs, array.name, array.device, array.dtype) == ({"k": [1]}, "", "cpu", np.dtype("f4"))
    assert repr(array) == "<gpuload.Array (t: 4, 6) float32 chunks=(2, 3) shards=(4, 6) on cpu>"
    assert type(array).__module__ == "gpuload.zarr"
    assert array[1, 2].shape == ()
    with pytest.raises(ValueError, match="copy"):
        np.asarray(array, copy=False)
    assert np.asarray(array, dtype="f8").dtype == "f8"


def test_dimension_names(group: Path) -> None:
    dataset = gpuload.open(group)
    assert isinstance(dataset, Dataset)
    b, a = dataset["b"], dataset["a"]
    assert b.dims in (("time", None), ("time", "x"))  # type: ignore[union-attr]
    assert a.dims == (None, None)  # type: ignore[union-attr]
    assert b.attrs["units"] == "K"
    assert repr(dataset).splitlines()[1].split() == ["a", "float32", "(4,", "6)", "chunks=(2,", "3)"]


def test_a_scalar_has_no_length(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(), dtype="f4")
    with pytest.raises(TypeError):
        len(gpuload.open(tmp_path / "a"))  # type: ignore[arg-type]


def test_device_from_configuration(group: Path) -> None:
    with config.set(device="cuda:99"), pytest.raises(DeviceError):
        gpuload.open(group)
    with config.set(device="cpu"):
        assert gpuload.open(group).device == "cpu"
    with pytest.raises(DeviceError, match="nonsense"):
        gpuload.open(group, device="nonsense")


def test_pickles(group: Path) -> None:
    dataset = gpuload.open(group, device="cpu", strict=False, follow_links=True)
    assert isinstance(dataset, Dataset)
    dataset["a"][...]  # type: ignore[index] # with its files open
    copy = pickle.loads(pickle.dumps(dataset))
    check_group(copy)
    assert copy._source.root.follow_links
    assert copy._source.strict is False
    array = pickle.loads(pickle.dumps(dataset["sub/c"]))
    assert array.name == "sub/c"
    assert np.array_equal(array[...], DATA * 2)
    (group / "a" / ("zarr.json" if (group / "zarr.json").exists() else ".zarray")).unlink()
    shipped = pickle.dumps(dataset)
    assert "a" not in pickle.loads(shipped)


def test_a_spawned_process_reads(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), data=DATA, chunks=(2, 3))
    array = gpuload.open(tmp_path / "a", device="cpu")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(np.sum, (np.ones(3),)) == 3
        assert pool.apply(Array.__getitem__, (array, (1, 2))) == DATA[1, 2]


def test_threads(group: Path) -> None:
    dataset = gpuload.open(group, device="cpu")

    def work(i: int) -> bool:
        array = dataset["a" if i % 2 else "sub/c"]  # type: ignore[index]
        return bool(np.array_equal(array[i % 4], DATA[i % 4] * (1 if i % 2 else 2)))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(64)))


def test_both_formats_side_by_side(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), data=DATA, zarr_format=2)
    zarr.create_array(str(tmp_path / "b"), data=-DATA, zarr_format=3)
    for file in (tmp_path / "b").rglob("*"):
        if file.is_file():
            (tmp_path / "a" / file.relative_to(tmp_path / "b")).parent.mkdir(parents=True, exist_ok=True)
            file.rename(tmp_path / "a" / file.relative_to(tmp_path / "b"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.array_equal(gpuload.open(tmp_path / "a", device="cpu")[...], -DATA)  # type: ignore[index]
    for zarr_format, sign in ((2, 1), (3, -1)):
        node = zarr.open_array(str(tmp_path / "a"), zarr_format=zarr_format)  # type: ignore[arg-type]
        array = pickle.loads(pickle.dumps(gpuload.open(node, device="cpu")))
        assert np.array_equal(array[...], sign * DATA)


def test_a_huge_array_costs_what_is_touched(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(2**62, 3), chunks=(2**20, 3), dtype="u1", fill_value=7)
    array = gpuload.open(tmp_path / "a", device="cpu")
    assert isinstance(array, Array)
    assert array.size == 3 * 2**62
    assert (array[2**61 :: 2**60, 1] == 7).all()
    assert array[-1, -1] == 7


# Chunk keys


@pytest.mark.parametrize(
    "encoding", [{"name": name, "separator": separator} for name in ("default", "v2") for separator in "/."], ids=str
)
@pytest.mark.parametrize("shape", [(), (40,), (12, 3), (3, 2, 11)])
def test_chunk_key_encodings(tmp_path: Path, encoding: Any, shape: tuple[int, ...]) -> None:
    data = np.arange(np.prod(shape, dtype=int), dtype="i4").reshape(shape)
    array = zarr.create_array(
        str(tmp_path / "a"), shape=shape, chunks=(1,) * len(shape), dtype="i4", chunk_key_encoding=encoding
    )
    array[...] = data
    read = gpuload.open(tmp_path / "a", device="cpu")
    assert isinstance(read, Array)
    assert np.array_equal(read[...], data)
    coordinates = np.array(list(np.ndindex(*shape)), np.int64).reshape(data.size, len(shape))
    keys = read.layout.keys(coordinates)
    assert keys == [array.metadata.encode_chunk_key(tuple(row)) for row in coordinates.tolist()]


@given(hnp.arrays(np.int64, st.tuples(st.integers(0, 20), st.integers(1, 4)), elements=st.integers(0, 2**62)))
def test_encoded_keys(chunks: Any) -> None:
    assert encode_keys(chunks, "/", "c") == ["/".join(["c", *map(str, row)]) for row in chunks.tolist()]
    assert encode_keys(chunks, ".", "") == [".".join(map(str, row)) for row in chunks.tolist()]


def test_another_key_encoding_asks_zarr(tmp_path: Path) -> None:
    from dataclasses import replace

    from gpuload.zarr import _compat
    from gpuload.zarr.layout import layout_of

    array = zarr.create_array(str(tmp_path / "a"), data=DATA, chunks=(2, 3))
    description = replace(
        _compat.describe(array.metadata), separator=None, encode_key=lambda coordinates: "-".join(map(str, coordinates))
    )
    assert layout_of(description).keys(np.array([[0, 1], [1, 0]])) == ["0-1", "1-0"]


# Shards


@given(
    hnp.arrays(np.int64, st.tuples(st.integers(1, 30), st.just(2)), elements=st.integers(0, 2**40)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_division_into_shards(chunks: Any, grid: tuple[int, int]) -> None:
    shards, shard, inner = _divide(chunks, grid)
    assert len(np.unique(shards, axis=0)) == len(shards)
    for row, number, place in zip(chunks.tolist(), shard.tolist(), inner.tolist(), strict=True):
        assert shards[number].tolist() == [row[0] // grid[0], row[1] // grid[1]]
        assert place == row[0] % grid[0] * grid[1] + row[1] % grid[1]


def test_indexes_are_kept_within_their_memory() -> None:
    from gpuload.files.geometry import Identity

    identity = Identity(1, 2, 3, 4, 5)
    cache = IndexCache(1000)
    index = np.zeros((20, 2), np.uint64)
    for i in range(10):
        cache.put(i, identity, index)
        assert cache.nbytes <= 1000
    assert cache.get(0, identity) is None
    assert cache.get(9, identity) is index
    assert cache.get(9, Identity(1, 2, 3, 4, 6)) is None
    cache.put(9, identity, index)
    assert cache.nbytes == 3 * 320
    cache.put("large", identity, np.zeros((1000, 2), np.uint64))  # one is kept however large it is
    assert cache.get("large", identity) is not None


def test_a_shard_index_is_read_once(tmp_path: Path) -> None:
    from gpuload import events
    from gpuload.request import Served

    zarr.create_array(str(tmp_path / "a"), data=DATA, chunks=(2, 3), shards=(4, 6), compressors=None)
    array = gpuload.open(tmp_path / "a", device="cpu")
    seen: list[int] = []

    def note(event: events.Event) -> None:
        if isinstance(event, Served):
            seen.extend(event.size.tolist())

    unsubscribe = events.subscribe(note)
    try:
        array[0]  # type: ignore[index]
        first = list(seen)
        seen.clear()
        array[3]  # type: ignore[index]
    finally:
        unsubscribe()
    assert 4 * 16 + 4 in first
    assert 4 * 16 + 4 not in seen
    assert sum(seen) < 96
    assert json.loads((tmp_path / "a" / "zarr.json").read_text())["codecs"][0]["name"] == "sharding_indexed"
