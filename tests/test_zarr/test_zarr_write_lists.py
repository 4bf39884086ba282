"""Assignments to lists, points, masks and blocks against a NumPy model, and against zarr-python's own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, GzipCodec, TransposeCodec, ZstdCodec

import gpuload
from gpuload.errors import AssignmentError, ReadOnlyError, SelectionError
from gpuload.zarr import Array

Same = Callable[[Any, Any], bool]
SHAPE, CHUNKS, SHARDS = (9, 7, 5), (4, 3, 2), (8, 6, 4)
POSITIONS = np.arange(9 * 7 * 5).reshape(SHAPE)
KINDS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {},
    "shards": {"compressors": None, "shards": SHARDS},
    "big-endian": {"compressors": None, "dtype": "f8", "serializer": BytesCodec(endian="big")},
    "transposed": {"compressors": None, "filters": [TransposeCodec(order=(2, 0, 1))]},
    "foreign": {"compressors": [ZstdCodec(), GzipCodec()]},
    "strings": {"dtype": "U3", "fill_value": ""},
    "variable strings": {"dtype": str, "fill_value": ""},
    "v2": {"zarr_format": 2, "order": "F"},
}


def made(path: Path | str, kind: str) -> Array:
    zarr.create_array(str(path), **{"shape": SHAPE, "chunks": CHUNKS, "dtype": "i4", "fill_value": -9, **KINDS[kind]})
    array = gpuload.open(str(path), mode="r+", device="cpu")
    assert isinstance(array, Array)
    return array


def index(size: int) -> st.SearchStrategy[Any]:
    end = st.none() | st.integers(-size - 1, size + 1)
    ranged = st.builds(slice, end, end, st.none() | st.integers(-3, 3).filter(bool))
    listed = st.lists(st.integers(-size, size - 1), max_size=2 * size)  # repeats: the last value counts
    mask = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda flags: np.array(flags, bool))
    return st.integers(-size, size - 1) | ranged | listed | mask


def outer(keys: tuple[Any, ...]) -> Any:
    """The positions that `keys` select, each along its own axis."""
    picked = [np.arange(n)[np.array(k, int) if isinstance(k, list) else k] for k, n in zip(keys, SHAPE, strict=True)]
    whole = POSITIONS[np.ix_(*map(np.atleast_1d, picked))]
    return whole[(*(0 if isinstance(key, int) else slice(None) for key in keys), ...)]


def points(draw: Any) -> Any:
    """A mask, or arrays that are read together, perhaps among slices and integers."""
    if draw(st.booleans()):
        dims = draw(st.sampled_from([3, 2]))
        return np.random.default_rng(draw(st.integers(0, 999))).random(SHAPE[:dims]) < draw(st.sampled_from([0.1, 0.6]))
    form = draw(st.sampled_from([(1,), (6,), (40,), (2, 3)]))
    keys: list[Any] = []
    for axis, size in enumerate(SHAPE):
        if axis and draw(st.integers(0, 2)) == 0:
            keys.append(draw(st.integers(-size, size - 1) | st.just(slice(None, None, -2)) | st.just(slice(1, 4))))
        else:
            values = draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=40))
            keys.append(np.resize(np.array(values), form if draw(st.booleans()) else form[-1:]))
    return tuple(keys)


def values(model: Any, shape: tuple[int, ...], draw: Any) -> Any:
    """What is assigned: an array of the shape, one that is broadcast to it, or a scalar."""
    found = np.random.default_rng(draw(st.integers(0, 999))).integers(0, 999, shape)
    found = found[:1] if found.ndim and draw(st.integers(0, 3)) == 0 and len(found) else found
    found = found.astype(model.dtype) if model.dtype.kind in "UT" else found
    return found.flat[0] if found.size and draw(st.integers(0, 4)) == 0 else found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=max(6, settings().max_examples // 16))
@given(data=st.data())
def test_any_list(kind: str, same: Same, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        array = made(f"{folder}/a", kind)
        model = np.array(array[...])
        for _ in range(3):
            way = data.draw(st.sampled_from(["oindex", "points", "blocks"]))
            if way == "oindex":
                keys: Any = data.draw(st.tuples(*map(index, SHAPE)))
                where, place = outer(keys), array.oindex
            elif way == "points":
                keys = points(data.draw)
                where, place = POSITIONS[keys], array
            else:
                edges = CHUNKS if array.shards is None else SHARDS
                counts = [-(-n // edge) for n, edge in zip(SHAPE, edges, strict=True)]
                keys = tuple(data.draw(st.integers(0, count - 1) | st.just(slice(0, 1))) for count in counts)
                firsts = [key if isinstance(key, int) else 0 for key in keys]
                box = tuple(slice(f * edge, (f + 1) * edge) for f, edge in zip(firsts, edges, strict=True))
                where, place = POSITIONS[box], array.blocks
            value = values(model, where.shape, data.draw)
            model.reshape(-1)[where] = value
            place[keys] = value
            assert same(array[...], model)
        assert same(np.asarray(zarr.open_array(f"{folder}/a", mode="r")[...], model.dtype), model)


def test_as_zarr_python_has_them(tmp_path: Path) -> None:
    array, other = made(tmp_path / "a", "raw"), zarr.open_array(made(tmp_path / "b", "raw").source.root.path)
    mask = POSITIONS % 7 == 3
    for way, keys, shape in [
        ("vindex", ([5, 1, 8], [0, 6, 3], [4, 4, 0]), (3,)),
        ("vindex", ([[5, 1], [8, 0]], [[0, 6], [3, 1]], [[4, 4], [0, 1]]), (2, 2)),
        ("vindex", mask, (int(mask.sum()),)),
        ("oindex", ([1, 5, 8], slice(1, 6, 2), [0, 4]), (3, 3, 2)),
        ("oindex", (POSITIONS[:, 0, 0] % 2 == 0, 3, slice(None)), (5, 5)),
        ("blocks", (1, slice(0, 2), -1), (4, 6, 1)),
    ]:
        value = np.random.default_rng(4).integers(0, 999, shape)
        getattr(array, way)[keys] = value
        getattr(other, way)[keys] = value
        assert np.array_equal(array[...], other[...]), (way, keys)
        getattr(array, way)[keys] = 7
        assert (getattr(array, way)[keys] == 7).all()
        getattr(array, way)[keys] = value


@pytest.mark.parametrize("kind", ["raw", "shards", "foreign"])
def test_points_among_slices(tmp_path: Path, kind: str) -> None:
    array, model = made(tmp_path / "a", kind), np.full(SHAPE, -9, "i4")
    for keys in [
        ([0, 5, 8], slice(None, None, -2), [1, 4, 1]),
        (slice(1, 8, 3), [1, 6, 3], [0, 4, 4]),
        ([[7, 2]], [[3], [0]], slice(4, 0, -1)),
        (slice(None, None, -1), [6, 2], slice(None)),
    ]:
        value = np.random.default_rng(6).integers(0, 999, model[keys].shape)
        model[keys] = value
        array[keys] = value
        assert np.array_equal(array[...], model), keys


def test_only_touched_chunks_are_written(tmp_path: Path) -> None:
    array = made(tmp_path / "a", "raw")
    array.vindex[[0, 8, 0], [0, 6, 2], [1, 4, 0]] = [1, 2, 3]
    assert sorted(str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a" / "c").rglob("*/*/*")) == [
        "c/0/0/0",
        "c/2/2/2",
    ]


@pytest.mark.parametrize("kind", ["raw", "shards", "zstd"])
def test_values_on_a_device(tmp_path: Path, fake_cupy: ModuleType, kind: str) -> None:
    array, model = made(tmp_path / "a", kind), np.full(SHAPE, -9, "i4")
    for keys, where in [
        (([5, 1, 8], [0, 6, 3], [4, 4, 0]), None),
        (POSITIONS % 7 == 3, None),
        (([5, 1, 5], slice(None, None, -2), [4, 0]), "oindex"),
    ]:
        positions = outer(keys) if where else POSITIONS[keys]  # type: ignore[arg-type]
        value = np.arange(positions.size, dtype="i4").reshape(positions.shape)
        model.reshape(-1)[positions] = value
        (array.oindex if where else array.vindex)[keys] = fake_cupy.asarray(value)
        assert np.array_equal(array[...], model)


def test_what_does_not_fit(tmp_path: Path) -> None:
    array = made(tmp_path / "a", "raw")
    array[...] = 1
    for place, keys, value, error in [
        (array.vindex, ([0, 1], [0, 1], [0, 1]), [1, 2, 3], AssignmentError),
        (array.vindex, ([0, 9], [0, 1], [0, 1]), 0, SelectionError),
        (array.vindex, np.ones((2, 2, 2), bool), 0, SelectionError),
        (array.oindex, ([0, 1], [0, 1], [0, 1]), np.zeros((3, 2, 2)), AssignmentError),
        (array.blocks, (3, 0, 0), 0, SelectionError),
        (array, ([0, 1], [0, 1], [0, 1]), ["a", "b"], AssignmentError),
    ]:
        with pytest.raises(error):
            place[keys] = value  # type: ignore[index]
    assert (array[...] == 1).all()
    reading = gpuload.open(tmp_path / "a", device="cpu")
    assert isinstance(reading, Array)
    for place in (reading.oindex, reading.vindex, reading.blocks):
        with pytest.raises(ReadOnlyError):
            place[0, 0, 0] = 1


def test_fields_are_only_read(tmp_path: Path) -> None:
    dtype = np.dtype([("a", "<i4"), ("b", "<f8")])
    zarr.create_array(str(tmp_path / "a"), shape=(5,), chunks=(2,), dtype=dtype)
    array = gpuload.open(tmp_path / "a", mode="r+", device="cpu")
    assert isinstance(array, Array)
    for place in (array, array.oindex, array.vindex):
        with pytest.raises(SelectionError, match="single fields can only be read"):
            place["a", [0]] = 1
    array.vindex[[3, 0]] = np.array([(1, 2.5), (3, 4.5)], dtype)
    assert array[...].tolist() == [(3, 4.5), (0, 0), (0, 0), (1, 2.5), (0, 0)]
