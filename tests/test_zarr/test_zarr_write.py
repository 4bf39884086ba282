"""Assignments against a NumPy model: each store then reads the same through gpuload and through zarr-python."""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec, ZstdCodec

import gpuload
from gpuload.errors import (
    AssignmentError,
    ChunkDecodeError,
    ChunkWriteError,
    EscapesStoreError,
    ReadOnlyError,
    SelectionError,
)
from gpuload.files.writer import Writer
from gpuload.zarr import Array

# Random bits are compared by zarr-python when it reads them; signalling NaN are among them.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")

Same = Callable[[Any, Any], bool]
RNG = np.random.default_rng(11)

DTYPES = ["b1", "i1", ">u2", "i4", ">i8", "f2", "f4", ">f8", "c8", "c16", "M8[s]", "m8[ns]", "S5", "U3"]
CODECS: dict[str, dict[str, Any]] = {
    "none": {"compressors": None},
    "zstd": {"compressors": [ZstdCodec(level=1)]},
    "checked": {"compressors": [Crc32cCodec()]},
    "big": {"serializer": BytesCodec(endian="big"), "compressors": None},
    "transposed": {"filters": [TransposeCodec(order=(1, 0))], "compressors": None},
    "transposed zstd": {"filters": [TransposeCodec(order=(1, 0))], "compressors": [ZstdCodec()]},
}


def values(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Random bits, with the fill value among them now and then."""
    kind = np.dtype(dtype)
    if kind.kind in "bUS":
        found = RNG.integers(0, 2, shape).astype(kind)
    else:
        size = int(np.prod(shape, dtype=int))
        found = np.frombuffer(RNG.bytes(size * kind.itemsize), kind).reshape(shape).copy()
    if RNG.integers(0, 3) == 0:
        found[...] = np.zeros((), kind)
    return found


def opened(path: Path | str) -> Array:
    array = gpuload.open(str(path), mode="r+", device="cpu")
    assert isinstance(array, Array)
    return array


def made(path: Path | str, **options: Any) -> zarr.Array[Any]:
    return zarr.create_array(str(path), **{"shape": (7, 9), "chunks": (3, 4), "dtype": "i4", **options})


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    ndim = 2
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    v2 = draw(st.integers(0, 4)) == 0
    options: dict[str, Any] = {
        "shape": tuple(draw(st.integers(0, 11)) for _ in range(ndim)),
        "chunks": chunks,
        "dtype": draw(st.sampled_from(DTYPES)),
        "zarr_format": 2 if v2 else 3,
    }
    if v2:
        return {**options, "order": draw(st.sampled_from("CF")), "compressors": draw(st.sampled_from([None, "auto"]))}
    codec = CODECS[draw(st.sampled_from(list(CODECS)))]
    if draw(st.booleans()):
        shards = tuple(n * draw(st.integers(1, 3)) for n in chunks)
        where = draw(st.sampled_from(["start", "end"]))
        inner = [
            *codec.get("filters", ()),
            codec.get("serializer", BytesCodec()),
            *(codec["compressors"] or ()),
        ]
        options["chunks"] = shards
        codec = {
            "serializer": ShardingCodec(chunk_shape=chunks, codecs=inner, index_location=where),
            "compressors": None,
        }
    return {**options, **codec}


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_any_assignments(selections: Any, same: Same, data: st.DataObject) -> None:
    options = data.draw(arrays())
    with (
        tempfile.TemporaryDirectory() as folder,
        zarr.config.set({"array.write_empty_chunks": data.draw(st.booleans())}),
    ):
        path = os.path.join(folder, "store")
        made(path, **options)
        array = opened(path)
        model = np.array(zarr.open_array(path, mode="r")[...], array.dtype)
        for _ in range(data.draw(st.integers(1, 3))):
            selection = data.draw(selections(array.shape) | lists(array.shape))
            value = values(array.dtype, model[selection].shape)
            model[selection] = value
            array[selection] = value
            assert same(array[...], model)
        assert same(np.asarray(zarr.open_array(path, mode="r")[...], model.dtype), model)


def lists(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Lists along one axis, without repeats: which of these counts is up to NumPy."""
    if 0 in shape:
        return st.just(...)
    return st.tuples(st.just(slice(None)), st.lists(st.integers(0, shape[1] - 1), min_size=1, unique=True)) | st.lists(
        st.integers(0, shape[0] - 1), min_size=1, unique=True
    )


def test_scalars_broadcasting_and_casts(tmp_path: Path) -> None:
    made(tmp_path / "a", fill_value=3)
    array, model = opened(tmp_path / "a"), np.full((7, 9), 3, "i4")
    for selection, value in [
        (np.s_[...], 5),
        (np.s_[2], 7.9),
        (np.s_[:, 3], np.arange(7, dtype="f8") + 0.5),
        (np.s_[1:3], np.arange(9, dtype="i2")),
        (np.s_[1:3], np.arange(9).reshape(1, 1, 9)),
        (np.s_[0, 0], np.int64(4)),
        (np.s_[None, 4:6, 0], [[8, 9]]),
        (np.s_[::-1, ::-2], np.arange(35).reshape(7, 5)),
        (np.s_[[4, 0], 1], [True, False]),
    ]:
        model[selection] = value
        array[selection] = value
        assert np.array_equal(array[...], model), selection
    array.oindex
    assert np.array_equal(zarr.open_array(str(tmp_path / "a"), mode="r")[...], model)


@pytest.mark.parametrize(
    ("selection", "value", "error", "words"),
    [
        (np.s_[...], np.zeros((9, 7)), AssignmentError, r"shape \(9, 7\) does not fit .* \(7, 9\)"),
        (np.s_[0], np.zeros(8), AssignmentError, "shape"),
        (np.s_[0, 0], np.zeros(2), AssignmentError, "shape"),
        (np.s_[0], ["a"] * 9, AssignmentError, "int32"),
        (np.s_[0], np.array(["a"] * 9), AssignmentError, "int32"),
        (np.s_[0], 1 << 40, AssignmentError, "int32"),
        (np.s_[0], object(), AssignmentError, "int32"),
        (np.s_[7], 0, SelectionError, "out of bounds"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, selection: Any, value: Any, error: type[Exception], words: str) -> None:
    made(tmp_path / "a")
    array = opened(tmp_path / "a")
    array[...] = 1
    with pytest.raises(error, match=words):
        array[selection] = value
    assert (array[...] == 1).all()


def test_arrays_opened_for_reading(tmp_path: Path) -> None:
    made(tmp_path / "a")
    array = gpuload.open(tmp_path / "a", device="cpu")
    with pytest.raises(ReadOnlyError, match="r\\+"):
        array[0] = 1  # type: ignore[index]
    with pytest.raises(ReadOnlyError, match="reading only"):
        gpuload.open(zarr.open_array(str(tmp_path / "a"), mode="r"), mode="r+")
    writable = gpuload.open(zarr.open_array(str(tmp_path / "a"), mode="r+"), mode="r+", device="cpu")
    pickle.loads(pickle.dumps(writable))[0] = 4
    assert isinstance(array, Array)
    assert array[0, 0] == 4


@pytest.mark.parametrize("dtype", [[("flux", ">f4"), ("mask", ">i4")], [("a", "u1"), ("b", "<f8")], "O", "T"])
@pytest.mark.filterwarnings("ignore")
def test_what_zarr_alone_encodes(tmp_path: Path, dtype: Any) -> None:
    if dtype == "O":
        zarr.create_array(str(tmp_path / "a"), shape=(7,), chunks=(3,), dtype=str)
        made_of = opened(tmp_path / "a").dtype
    elif dtype == "T":
        zarr.create_array(str(tmp_path / "a"), shape=(7,), chunks=(2,), shards=(4,), dtype=str)
        made_of = opened(tmp_path / "a").dtype
    else:
        zarr.create_array(str(tmp_path / "a"), shape=(7,), chunks=(3,), dtype=np.dtype(dtype), compressors=None)
        made_of = np.dtype(dtype)
    array = opened(tmp_path / "a")
    if made_of.names:
        value = np.frombuffer(bytes(range(5 * made_of.itemsize)), made_of)
    else:
        value = np.array(["", "a", "ä" * 300, "b", "x"], made_of)
    array[1:6] = value
    stored = array[...]
    assert stored[1:6].tolist() == value.tolist() if not made_of.names else (stored[1:6] == value).all()
    array[3] = value[0]
    assert array[...][3] == value[0]
    assert array[...][2] == value[1]


@pytest.mark.parametrize("shards", [None, (6, 8)])
def test_chunks_of_nothing_but_the_fill_value(tmp_path: Path, shards: Any) -> None:
    made(tmp_path / "a", dtype="f4", fill_value=np.nan, compressors=None, shards=shards)
    array = opened(tmp_path / "a")

    def files() -> int:
        return sum(len(names) for _, _, names in os.walk(tmp_path / "a")) - 1

    array[...] = np.nan
    assert files() == 0
    array[...] = 1
    assert files() == (4 if shards else 9)
    array[:6, :8] = np.nan
    assert files() == (3 if shards else 5)
    other = np.array(0x7FC00001, "u4").view("f4")  # a NaN, but not that of the fill value
    array[0, 0] = other
    assert files() == (4 if shards else 6)
    assert array[0, 0].view("u4") == 0x7FC00001
    with zarr.config.set({"array.write_empty_chunks": True}):
        array[...] = np.nan
        assert files() == (4 if shards else 9)


def test_inner_chunks_of_nothing_but_the_fill_value(tmp_path: Path) -> None:
    made(tmp_path / "a", shape=(8, 8), shards=(8, 8), chunks=(2, 2), fill_value=-1, compressors=None)
    array, model = opened(tmp_path / "a"), np.full((8, 8), -1, "i4")
    array[4:6, 4:6] = model[4:6, 4:6] = 5
    array[7, 7] = model[7, 7] = 6
    (shard,) = (tmp_path / "a" / "c" / "0").iterdir()
    assert shard.stat().st_size == 2 * 16 + 16 * 16 + 4
    assert np.array_equal(array[5:, 5:], model[5:, 5:])
    assert np.array_equal(zarr.open_array(str(tmp_path / "a"), mode="r")[...], model)


@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_inner_chunks_without_codecs_are_aligned(tmp_path: Path, where: str, rows: int) -> None:
    # 41,000 bytes an inner chunk: padding to whole blocks costs little.
    serializer = ShardingCodec(chunk_shape=(1, 10250), codecs=[BytesCodec()], index_location=where)
    made(tmp_path / "a", shape=(3, 10250), chunks=(3, 10250), dtype="f4", serializer=serializer, compressors=None)
    array = opened(tmp_path / "a")
    value = RNG.random((rows, 10250), np.float32)
    array[3 - rows :] = value
    raw = (tmp_path / "a" / "c" / "0" / "0").read_bytes()
    assert len(raw) == -(-(41_000 + (rows - 1) * 45_056 + (52 if where == "end" else 4096)) // 4096) * 4096
    index = np.frombuffer(raw[-52:-4] if where == "end" else raw[:48], "<u8").reshape(3, 2)
    first = 4096 if where == "start" else 0
    assert index[3 - rows :].tolist() == [[first + n * 45_056, 41_000] for n in range(rows)]
    assert (index[: 3 - rows] == 2**64 - 1).all()
    for read in (array[...], zarr.open_array(str(tmp_path / "a"), mode="r")[...]):
        assert np.array_equal(read[3 - rows :], value)
        assert not read[: 3 - rows].any()


def test_small_inner_chunks_are_not_padded(tmp_path: Path) -> None:
    made(tmp_path / "a", shape=(64,), chunks=(8,), shards=(64,), dtype="u1", compressors=None)
    array = opened(tmp_path / "a")
    array[...] = np.arange(1, 65)
    assert (tmp_path / "a" / "c" / "0").stat().st_size == 64 + 8 * 16 + 4


def test_values_on_a_device(tmp_path: Path, fake_cupy: ModuleType) -> None:
    made(tmp_path / "a")
    array = gpuload.open(tmp_path / "a", mode="r+")
    assert isinstance(array, Array)
    assert array.device == "cuda:0"
    model = np.zeros((7, 9), "i4")
    for selection, value in [
        (np.s_[...], np.arange(63).reshape(7, 9)),
        (np.s_[1:6:2, ::-1], np.arange(27).reshape(3, 9)),
        (np.s_[:, [8, 2]], np.arange(2)),
        (np.s_[3], np.array(5)),
    ]:
        model[selection] = value
        array[selection] = fake_cupy.asarray(value)
        assert np.array_equal(array[...].get(), model)


def test_a_read_after_a_write_sees_it(tmp_path: Path) -> None:
    # Of one size and within one tick of the kernel's clock: open files and indexes of shards must not be taken for old.
    made(tmp_path / "a", shape=(4, 4), chunks=(2, 2), shards=(4, 4), dtype="u1", compressors=None)
    array = opened(tmp_path / "a")
    generator = np.random.default_rng(3)
    for n in range(1, 100):
        value = (generator.permutation([n, 0, 0, n]).reshape(2, 2)).repeat(2, 0).repeat(2, 1)
        array[...] = value
        assert np.array_equal(array[...], value)


def test_readers_beside_a_writer_see_each_chunk_old_or_new(tmp_path: Path) -> None:
    made(tmp_path / "a", shape=(6, 8), chunks=(2, 2), shards=(6, 4), dtype="i8", compressors=None)
    array = opened(tmp_path / "a")
    array[...] = 0
    done = threading.Event()

    def write() -> None:
        try:
            for n in range(1, 60):
                array[...] = n
        finally:
            done.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not done.is_set():
            for shard in (array[:, :4], array[:, 4:]):
                assert len(np.unique(shard)) == 1
        writing.result()
    assert (array[...] == 59).all()


def test_what_stays_of_a_chunk_must_be_readable(tmp_path: Path) -> None:
    made(tmp_path / "a", compressors=[ZstdCodec()])
    array = opened(tmp_path / "a")
    array[...] = 7
    chunk = tmp_path / "a" / "c" / "0" / "0"
    chunk.write_bytes(b"no zstd frame")
    with pytest.raises(ChunkDecodeError, match="c/0/0"):
        array[0, 0] = 1
    assert chunk.read_bytes() == b"no zstd frame"
    array[:3, :4] = 1  # all of it: nothing stays
    assert (array[:3, :4] == 1).all()


def test_what_the_disk_refuses_names_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "a")
    array = opened(tmp_path / "a")
    array[...] = 7
    write = Writer.write

    def refuse(self: Writer, key: str, *parts: Any) -> None:
        if key == "c/1/1":
            raise ChunkWriteError(key, 28, "full")
        write(self, key, *parts)

    monkeypatch.setattr(Writer, "write", refuse)
    with pytest.raises(ChunkWriteError, match="c/1/1"):
        array[...] = 8
    assert (array[3:6, 4:8] == 7).all()


def test_chunks_stay_below_the_root(tmp_path: Path) -> None:
    made(tmp_path / "a")
    (tmp_path / "outside").mkdir()
    os.symlink(tmp_path / "outside", tmp_path / "a" / "c")
    with pytest.raises(EscapesStoreError):
        opened(tmp_path / "a")[...] = 1
    assert list((tmp_path / "outside").iterdir()) == []


def test_strict_is_about_reading(tmp_path: Path) -> None:
    made(tmp_path / "a")
    array = gpuload.open(tmp_path / "a", mode="r+", device="cpu", strict=True)
    assert isinstance(array, Array)
    array[...] = 1
    array[0, 0] = 2
    assert opened(tmp_path / "a")[0, :2].tolist() == [2, 1]


def test_durable_as_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "a")
    array, synced, fsync = opened(tmp_path / "a"), [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), fsync(fd)))
    array[0, 0] = 1
    assert synced == []
    with gpuload.config.set(durable=True):
        array[0, 0] = 2
    assert len(synced) == 4  # the chunk, c/0, c and the root
