"""Integer arrays and masks between the brackets: equal to NumPy and zarr-python, and no more read than they need."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, GzipCodec, TransposeCodec, ZstdCodec

import gpuload
from gpuload import config, events
from gpuload.engine import gather
from gpuload.errors import DestinationError, SelectionError
from gpuload.request import Filled, Served
from gpuload.zarr import Array

Same = Callable[[Any, Any], bool]
SHAPE, CHUNKS, SHARDS = (13, 11, 7), (4, 5, 3), (8, 10, 6)
KINDS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {},
    "shards": {"compressors": None, "shards": SHARDS},
    "encoded shards": {"shards": SHARDS},
    "big-endian complex": {"compressors": None, "dtype": "c8", "serializer": BytesCodec(endian="big")},
    "transposed": {"compressors": None, "filters": [TransposeCodec(order=(2, 0, 1))]},
    "foreign": {"compressors": [ZstdCodec(), GzipCodec()]},
    "strings": {"dtype": "U3"},
    "variable strings": {"dtype": str},
    "v2": {"zarr_format": 2, "order": "F"},
}


@pytest.fixture(scope="module", params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An array of one kind, some of its chunks missing, and what is in it."""
    path = tmp_path_factory.mktemp("lists") / "a"
    options = {"dtype": "i4", **KINDS[request.param]}
    text = options["dtype"] in (str, "U3")
    array = zarr.create_array(str(path), shape=SHAPE, chunks=CHUNKS, fill_value="" if text else -9, **options)
    values = np.arange(13 * 11 * 7).reshape(SHAPE)
    array[:8, :10] = values[:8, :10].astype(array.dtype)
    array[8:, 5:, :3] = values[8:, 5:, :3].astype(array.dtype)
    return path, np.asarray(array[...])


def basic(size: int) -> st.SearchStrategy[Any]:
    end = st.none() | st.integers(-size - 1, size + 1)
    step = st.none() | st.integers(-4, 4).filter(bool)
    return st.integers(-size, size - 1) | st.builds(slice, end, end, step)


def arrays(size: int) -> st.SearchStrategy[Any]:
    index = st.integers(-size, size - 1)
    mask = st.lists(st.booleans(), min_size=size, max_size=size)
    return st.one_of(
        st.lists(index, max_size=6),
        st.lists(index, max_size=40).map(lambda values: np.array(values, np.int16)),
        st.sets(st.integers(0, size - 1)).map(lambda values: np.array(sorted(values), np.uint32)),
        mask.map(lambda values: np.array(values, bool)),
        st.just(np.zeros(size, bool)),
    )


def outer(array: Any, keys: tuple[Any, ...]) -> Any:
    """What `keys` select of a NumPy array, each along its own axis."""
    picked = [np.arange(n)[np.array(k, int) if isinstance(k, list) else k] for k, n in zip(keys, array.shape)]
    whole = array[np.ix_(*map(np.atleast_1d, picked))]
    return whole[(*(0 if isinstance(key, int) else slice(None) for key in keys), ...)]


@settings(max_examples=max(5, settings().max_examples // 20))
@given(
    keys=st.tuples(*(basic(size) | arrays(size) for size in SHAPE)),
    piece_bytes=st.sampled_from([1, 12, 40, 100, 1 << 20]),
)
def test_orthogonal(stored: tuple[Path, Any], same: Same, backend: str, keys: Any, piece_bytes: int) -> None:
    path, right = stored
    array = opened(path)
    expected = outer(right, keys)
    with config.set(piece_bytes=piece_bytes):
        assert same(array.oindex[keys], expected)
        for out in destinations(expected):
            assert array.oindex.read(keys, out) is out
            assert same(out, expected)


@settings(max_examples=max(5, settings().max_examples // 20))
@given(data=st.data())
def test_one_array(stored: tuple[Path, Any], same: Same, backend: str, data: st.DataObject) -> None:
    """Among integers and slices it means what NumPy means, moved axes too."""
    path, right = stored
    at = data.draw(st.integers(0, 2))
    keys: list[Any] = [data.draw((arrays if axis == at else basic)(size)) for axis, size in enumerate(SHAPE)]
    for position in data.draw(st.lists(st.integers(0, 3), max_size=2)):
        keys.insert(position, None)
    if data.draw(st.booleans()):
        keys.insert(data.draw(st.integers(0, len(keys))), ...)
    expected = right[tuple(keys)]
    array = opened(path)
    assert same(array[tuple(keys)], expected)
    out = np.empty(expected.shape, expected.dtype)
    assert same(array.read(tuple(keys), out=out), expected)


def test_as_zarr_python_has_it(stored: tuple[Path, Any], same: Same) -> None:
    path, _ = stored
    array, other = opened(path), zarr.open_array(str(path), mode="r")
    mask = np.arange(11) % 3 > 0
    for keys in [
        ([5, 1, 12, 1],),
        ([12, 3], mask),
        (2, mask, [6, 0, 6]),
        (slice(2, 9), [0], mask[:7]),
        (np.array([], int), mask),
    ]:
        assert same(array.oindex[keys], np.asarray(other.oindex[keys]))


def opened(path: Path) -> Array:
    array = gpuload.open(path, device="cpu")
    assert isinstance(array, Array)
    return array


def destinations(expected: Any) -> Iterator[Any]:
    """Arrays of odd strides for a result."""
    yield np.empty(expected.shape, expected.dtype, order="F")
    room = np.empty((*(2 * n for n in expected.shape), 1), expected.dtype)
    yield room[(*(slice(None, None, -2) for _ in expected.shape), 0, ...)]


@pytest.mark.parametrize("nbytes", [1, 64])
def test_gathered_in_portions(
    stored: tuple[Path, Any], same: Same, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    monkeypatch.setattr(gather, "_COPIED", nbytes)
    path, right = stored
    keys = ([3, 3, 0, 7, 3, 5], slice(1, None, 2), [6, 0, 1, 6])
    assert same(opened(path).oindex[keys], outer(right, keys))


@contextmanager
def served() -> Iterator[list[Any]]:
    seen: list[Any] = []
    unsubscribe = events.subscribe(seen.append)
    try:
        yield seen
    finally:
        unsubscribe()


@pytest.mark.parametrize("kind", ["raw", "zstd", "shards", "encoded shards"])
def test_each_chunk_is_read_once(tmp_path: Path, backend: str, kind: str) -> None:
    """However often, and in whatever order, its elements are listed; other chunks are not touched."""
    options = {key: (64,) if key == "shards" else value for key, value in KINDS[kind].items()}
    zarr.create_array(str(tmp_path / "a"), shape=(1024,), chunks=(16,), dtype="i4", **options)[...] = np.arange(1, 1025)
    index = np.array([1000, 3, 700, 3, 1, 2, 1001, 0, 1000])
    array = opened(tmp_path / "a")
    array[0]  # the indexes of the shards are cached from here on
    array[700], array[1000]
    with served() as seen:
        assert array[index].tolist() == (index + 1).tolist()
    reads = [event for event in seen if isinstance(event, Served)]
    assert sum(len(event.size) for event in reads) == 3
    assert not any(isinstance(event, Filled) for event in seen)


def test_missing_chunks_are_counted_as_filled(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(1024,), chunks=(16,), dtype="i4", compressors=None, fill_value=7)
    with served() as seen:
        assert opened(tmp_path / "a")[[1000, 3, 700, 3]].tolist() == [7] * 4
    assert [(event.chunks, event.bytes) for event in seen if isinstance(event, Filled)] == [(3, 16)]


def test_far_apart(tmp_path: Path) -> None:
    """Planning costs what is touched, not the array."""
    zarr.create_array(str(tmp_path / "a"), shape=(2**40, 3), chunks=(2, 3), dtype="u1", fill_value=4)
    array = opened(tmp_path / "a")
    assert array[[2**40 - 1, 7, -(2**40)]].tolist() == [[4] * 3] * 3
    assert array.oindex[[2**39, 1, 2**39], [True, False, True]].tolist() == [[4] * 2] * 3


def test_a_list_that_several_axes_share_a_chunk_with(tmp_path: Path, same: Same, backend: str) -> None:
    """The places of a chunk's elements are not spelt out: many, in every direction, at the cost of their number."""
    values = np.random.default_rng(5).integers(0, 2**31, (120, 130, 140)).astype("i4")
    zarr.create_array(str(tmp_path / "a"), shape=values.shape, chunks=(64, 64, 64), dtype="i4")[...] = values
    keys = tuple(np.random.default_rng(n).permutation(n)[: n - 20] for n in values.shape)
    assert same(opened(tmp_path / "a").oindex[keys], values[np.ix_(*keys)])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (np.ones(12, bool), "mask of 12 elements does not fit axis 0 with size 13"),
        ((slice(None), np.ones(13, bool)), "mask of 13 elements does not fit axis 1 with size 11"),
        ([0, 13], "index 13 is out of bounds for axis 0 with size 13"),
        ((..., [0, -8]), "index -8 is out of bounds for axis 2 with size 7"),
        ([1.5], "float64"),
        (True, "True"),
    ],
)
def test_refused_by_name(tmp_path: Path, keys: Any, message: str) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=SHAPE, chunks=CHUNKS, dtype="i4")
    array = opened(tmp_path / "a")
    for read in (array.__getitem__, array.read, array.oindex.__getitem__, array.oindex.read):
        with pytest.raises(SelectionError, match=message):
            read(keys)


def points(draw: Any) -> Any:
    """Arrays that are read together, of shapes that fit each other, perhaps among slices and integers."""
    if draw(st.integers(0, 4)) == 0:
        seed, share = draw(st.integers(0, 999)), draw(st.sampled_from([0, 0.02, 0.5]))
        dims = draw(st.sampled_from([3, 3, 2]))
        return np.random.default_rng(seed).random(SHAPE[:dims]) < share
    form = draw(st.sampled_from([(1,), (6,), (40,), (2, 3), (3, 1, 2)]))
    keys: list[Any] = []
    for size in SHAPE:
        if draw(st.integers(0, 3)) == 0:
            keys.append(draw(basic(size)))
            continue
        values = draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=40))
        keys.append(np.resize(np.array(values), form if draw(st.booleans()) else form[-1:]))
        keys[-1] = keys[-1].tolist() if draw(st.booleans()) else keys[-1]
    return tuple(keys)


@settings(max_examples=max(5, settings().max_examples // 20))
@given(data=st.data(), piece_bytes=st.sampled_from([1, 12, 40, 100, 1 << 20]))
def test_points(stored: tuple[Path, Any], same: Same, backend: str, data: st.DataObject, piece_bytes: int) -> None:
    """Between the brackets as NumPy has it; of `vindex` what arrays have in common comes first."""
    path, right = stored
    keys = points(data.draw)
    array = opened(path)
    expected = np.asarray(right[keys], right.dtype)
    with config.set(piece_bytes=piece_bytes):
        assert same(array[keys], expected)
        for out in destinations(expected):
            assert array.read(keys, out) is out
            assert same(out, expected)
        if isinstance(keys, tuple) and not any(isinstance(key, slice) for key in keys):
            # Integers alone are a list of one point to zarr-python.
            several = keys if any(np.ndim(key) for key in keys) else tuple([key] for key in keys)
            assert same(array.vindex[keys], right[several])


def test_points_and_blocks_as_zarr_python_has_them(stored: tuple[Path, Any], same: Same) -> None:
    path, right = stored
    array, other = opened(path), zarr.open_array(str(path), mode="r")
    mask = np.arange(right.size).reshape(SHAPE) % 7 == 3
    for keys in [
        ([5, 1, 12, 1], [0, 10, 3, 0], [6, 6, 0, 6]),
        ([[5, 1], [-1, 1]], 3, [6, -7]),
        (12, 10, 6),
        (np.array([3]), 2, 1),
        mask,
        np.zeros(SHAPE, bool),
    ]:
        assert same(array.vindex[keys], np.asarray(other.vindex[keys]))
    assert same(array[mask], np.asarray(other[mask]))
    for keys in [0, -1, (0, 1), (slice(1, 3), -1, slice(None)), ..., (..., 0), slice(0, 99), (slice(1, 1),)]:
        expected = np.asarray(other.blocks[keys])
        assert same(array.blocks[keys], expected)
        out = np.empty(expected.shape, expected.dtype, order="F")
        assert array.blocks.read(keys, out) is out
        assert same(out, expected)


def test_points_among_slices_of_vindex(stored: tuple[Path, Any], same: Same) -> None:
    """What zarr-python refuses: the axes of slices come after the points."""
    path, right = stored
    array = opened(path)
    rows, columns = [12, 0, 3, 0], [6, 1, 1, 1]
    assert same(array.vindex[rows, :, columns], right[rows, :, columns])
    assert same(array.vindex[:, rows[2:], columns[2:]], np.moveaxis(right[:, rows[2:], columns[2:]], 1, 0))
    assert same(array.vindex[..., columns, None], np.moveaxis(right[..., columns, None], 2, 0))
    with pytest.raises(SelectionError, match="no points"):
        array.vindex[...]


def test_two_arrays_are_points(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=SHAPE, chunks=CHUNKS, dtype="i4")
    array = opened(tmp_path / "a")
    assert array[[0, 1], [0, 1]].shape == array.vindex[[0, 1], [0, 1]].shape == (2, 7)
    assert array.oindex[[0, 1], [0, 1]].shape == (2, 2, 7)
    with pytest.raises(DestinationError, match="shape"):
        array.oindex.read(([0, 1], [0, 1]), np.empty((2, 7), "i4"))
    with pytest.raises(SelectionError, match="broadcast"):
        array[[0, 1], [0, 1, 2]]
    for keys, message in [(np.ones(SHAPE, bool), "3 dimensions"), (np.zeros((2, 2), int), "2 dimensions")]:
        with pytest.raises(SelectionError, match=message):
            array.oindex[keys]


@pytest.mark.parametrize("kind", ["raw", "zstd", "shards", "encoded shards", "foreign"])
def test_each_chunk_of_points_is_read_once(tmp_path: Path, backend: str, kind: str) -> None:
    options = {key: (64, 64) if key == "shards" else value for key, value in KINDS[kind].items()}
    values = np.arange(1, 128 * 128 + 1).reshape(128, 128)
    zarr.create_array(str(tmp_path / "a"), shape=(128, 128), chunks=(16, 16), dtype="i4", **options)[...] = values
    keys = [100, 3, 7, 3, 101, 0, 100], [9, 9, 9, 120, 9, 15, 9]
    array = opened(tmp_path / "a")
    array.vindex[keys]  # the indexes of the shards are cached from here on
    with served() as seen:
        assert np.array_equal(array.vindex[keys], values[keys])
    assert sum(len(event.size) for event in seen if isinstance(event, Served)) == 3
    assert not any(isinstance(event, Filled) for event in seen)


def test_points_of_a_missing_chunk_are_filled(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(64, 64), chunks=(8, 8), dtype="i4", compressors=None, fill_value=7)
    with served() as seen:
        assert opened(tmp_path / "a").vindex[[60, 0, 1, 60], [3, 0, 1, 3]].tolist() == [7] * 4
    assert [(event.chunks, event.bytes) for event in seen if isinstance(event, Filled)] == [(2, 16)]


def test_after_pickling(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(9,), chunks=(2,), dtype="i4")[...] = np.arange(9)
    assert pickle.loads(pickle.dumps(opened(tmp_path / "a"))).oindex[[8, 0]].tolist() == [8, 0]
