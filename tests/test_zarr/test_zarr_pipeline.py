"""zarr-python on gpuload's codec pipeline: equal bit for bit, and it is known which pipeline read each chunk."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, ShardingCodec, TransposeCodec
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.storage import LocalStore, MemoryStore

import gpuload
from gpuload import config
from gpuload.errors import ChunkSizeError, DeviceError, EscapesStoreError, StrictError
from gpuload.request import Reason
from gpuload.zarr import DevicePipeline, DeviceStore, pipeline, pipeline_counts, reader

Same = Callable[[Any, Any], bool]
SERVED = ("read", "gpuload")

KINDS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {},
    "big-endian": {"compressors": None, "serializer": BytesCodec(endian="big")},
    "transposed": {"compressors": None, "filters": [TransposeCodec(order=(2, 0, 1))]},
    "shards": {"compressors": None, "shards": (6, 8, 4)},
    "encoded shards": {"shards": (6, 8, 4)},
    "v2": {"zarr_format": 2, "order": "F", "compressors": None},
    "v2 encoded": {"zarr_format": 2},
    "v2 nested": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "dotted": {"chunk_key_encoding": {"name": "default", "separator": "."}},
}
SHAPE, CHUNKS = (7, 9, 5), (3, 4, 2)


@pytest.fixture(autouse=True)
def poisoned_buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What zarr-python makes for a result is full of 0xA5, and so are gpuload's slabs."""
    from zarr.core.buffer import cpu

    def empty(cls: Any, shape: Any, dtype: Any, order: Any = "C") -> Any:
        array = np.empty(shape, dtype, order)
        if not array.dtype.hasobject and array.dtype.kind != "T" and array.dtype.itemsize:
            array.reshape(-1, order="A").view(f"V{array.dtype.itemsize}")[...] = np.void(b"\xa5" * array.dtype.itemsize)
        return cls(array)

    monkeypatch.setattr(cpu.NDBuffer, "empty", classmethod(empty))
    with config.set(poison=True):
        yield


@contextmanager
def only(*expected: tuple[str, str]) -> Iterator[None]:
    """In this block chunks go through the pipeline just so."""
    before = pipeline_counts()
    yield
    after = pipeline_counts()
    assert {key for key, chunks in after.items() if chunks != before.get(key, 0)} == set(expected)


def written(path: Path, kind: str, dtype: str = "f4") -> Any:
    """An array with missing chunks and odd bits, opened by zarr-python as it is by default."""
    options = {"shape": SHAPE, "chunks": CHUNKS, "dtype": dtype, "fill_value": 1, **KINDS[kind]}
    stored = np.dtype(dtype)
    array = zarr.create_array(str(path), name="deep/a.b", **options)
    bits = np.random.default_rng(5).bytes(6 * 9 * 5 * stored.itemsize)
    values = np.frombuffer(bits, stored) if stored.kind != "b" else np.arange(6 * 9 * 5) % 3 == 0
    array[:6] = values.reshape(6, 9, 5)
    return zarr.open_array(str(path), path="deep/a.b", mode="r")


def on_gpuload(array: Any) -> Any:
    """The same array on gpuload's pipeline."""
    with gpuload.zarr.enable(device="cpu"):
        opened = zarr.open_array(array.store, path=array.path, mode="r")
    assert type(opened.async_array.codec_pipeline) is DevicePipeline
    return opened


@st.composite
def basic(draw: st.DrawFn) -> tuple[Any, ...]:
    def along(size: int) -> Any:
        bound = st.none() | st.integers(-size - 1, size + 1)
        return st.integers(-size, size - 1) | st.builds(slice, bound, bound, st.none() | st.integers(1, size + 2))

    return tuple(draw(along(size)) for size in SHAPE[: draw(st.integers(0, 3))])


@st.composite
def orthogonal(draw: st.DrawFn) -> tuple[Any, ...]:
    def along(size: int) -> Any:
        listed = st.lists(st.integers(-size, size - 1), min_size=1, max_size=2 * size).map(np.array)
        mask = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda flags: np.array(flags, bool))
        ranged = st.builds(slice, st.none() | st.integers(0, size), st.none(), st.none() | st.integers(1, 3))
        return st.integers(-size, size - 1) | listed | mask | ranged

    return tuple(draw(along(size)) for size in SHAPE)


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The same array as zarr-python reads it, and on gpuload."""
    array = written(tmp_path_factory.mktemp("pair"), request.param)
    return array, on_gpuload(array)


@settings(max_examples=settings().max_examples // 4)
@given(selection=basic())
def test_basic_selections(pair: tuple[Any, Any], selection: Any, same: Same) -> None:
    theirs, ours = pair
    expected = theirs[selection]
    with only(*[SERVED] * bool(np.size(expected))):
        assert same(ours[selection], expected)


@settings(max_examples=settings().max_examples // 4)
@given(selection=orthogonal())
def test_orthogonal_selections(pair: tuple[Any, Any], selection: Any, same: Same) -> None:
    theirs, ours = pair
    expected = theirs.oindex[selection]
    with only(*[SERVED] * bool(np.size(expected))):
        assert same(ours.oindex[selection], expected)


@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_points_and_masks(pair: tuple[Any, Any], data: st.DataObject, same: Same) -> None:
    theirs, ours = pair
    n = data.draw(st.integers(1, 12))
    points = tuple(data.draw(st.lists(st.integers(0, size - 1), min_size=n, max_size=n)) for size in SHAPE)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=315, max_size=315)), bool).reshape(SHAPE)
    expected = theirs.vindex[points]
    with only(SERVED):
        assert same(ours.vindex[points], expected)
    with only(*[SERVED] * bool(mask.any())):
        assert same(ours.vindex[mask], theirs.vindex[mask])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["b1", "i1", "f2", "i4", "c16", "M8[s]", "S3"])
def test_every_kind_of_element(tmp_path: Path, kind: str, dtype: str, same: Same) -> None:
    array = zarr.create_array(str(tmp_path), shape=SHAPE, chunks=CHUNKS, dtype=dtype, **KINDS[kind])
    bits = np.random.default_rng(7).integers(0, 100, (6, 9, 5 * array.dtype.itemsize), np.uint8)
    array[:6] = bits.view(array.dtype) if dtype != "b1" else bits % 2 == 0
    with only(SERVED):
        assert same(on_gpuload(array)[...], array[...])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_no_dimensions(tmp_path: Path, zarr_format: Any) -> None:
    array = zarr.create_array(str(tmp_path), shape=(), dtype="i4", zarr_format=zarr_format, fill_value=4)
    opened = on_gpuload(array)
    with only(SERVED):
        assert opened[()] == 4
    array[()] = 7
    with only(SERVED):
        assert opened[...] == 7


def test_one_read_of_the_engine_is_one_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []
    monkeypatch.setattr(reader, "read", lambda request: requests.append(len(request.pieces.chunks)))
    on_gpuload(written(tmp_path / "a", "raw"))[...]
    assert requests == [3 * 3 * 3]


def test_an_array_that_grew_is_read_beyond_what_it_was(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path), data=np.arange(6), chunks=(4,))
    with gpuload.zarr.enable(device="cpu"):
        array = zarr.open_array(str(tmp_path))
    array.append(np.arange(6, 20))
    with only(SERVED):
        assert np.array_equal(array[...], np.arange(20))
    array.resize((9,))
    assert np.array_equal(array[...], np.arange(9))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with gpuload.zarr.enable(device="cpu"):
        options = {"shape": (20, 30), "chunks": (3, 7), "shards": (9, 14), "dtype": "i4", "fill_value": -1}
        array = zarr.create_array(str(tmp_path), **options)
        right = np.full((20, 30), -1, "i4")
        for _ in range(20):
            a, b = sorted(rng.integers(0, 21, 2)), sorted(rng.integers(0, 31, 2))
            part = (slice(*a), slice(*b))
            right[part] = array[part] = rng.integers(-1, 1, right[part].shape)
            with only(SERVED):
                assert np.array_equal(array[...], right)
        with only(("write", Reason.ZARR_PIPELINE)):
            array[5:7] = 3


@pytest.mark.parametrize("kind", [LocalStore, DeviceStore])
def test_a_store_that_is_moved(tmp_path: Path, kind: Any) -> None:
    store = kind(tmp_path / "before")
    with gpuload.zarr.enable(device="cpu"):
        array = zarr.create_array(store, data=np.arange(9), chunks=(4,))
        assert np.array_equal(array[...], np.arange(9))
        asyncio.run(store.move(tmp_path / "after"))
        zarr.create_array(kind(tmp_path / "before"), data=np.zeros(9, int), chunks=(4,))
        with only(SERVED):
            assert np.array_equal(array[...], np.arange(9))
    assert kind(tmp_path / "after") == store


def test_a_path_by_way_of_fsspec_is_local(tmp_path: Path, same: Same) -> None:
    pytest.importorskip("fsspec")
    array = written(tmp_path / "a", "raw")
    store = zarr.storage.FsspecStore.from_url(f"local://{tmp_path}/a", read_only=True)
    with gpuload.zarr.enable(device="cpu"), only(SERVED):
        assert same(zarr.open_array(store, path=array.path, mode="r")[...], array[...])


# What gpuload leaves to zarr-python, and why


@pytest.fixture
def noted() -> Iterator[list[tuple[str, str | None, int]]]:
    """Backend, reason and bytes of what is served."""
    rows: list[tuple[str, str | None, int]] = []

    def note(event: Any) -> None:
        if isinstance(event, gpuload.request.Served):
            rows.extend((event.backend, event.reason, size) for size in event.size.tolist())

    unsubscribe = gpuload.events.subscribe(note)
    yield rows
    unsubscribe()


@pytest.mark.parametrize("shards", [None, (4,)])
def test_a_store_that_is_not_local(shards: Any, noted: list[Any]) -> None:
    store = MemoryStore()
    with gpuload.zarr.enable(device="cpu"):
        array = zarr.create_array(store, data=np.arange(10, dtype="i4"), chunks=(2,), shards=shards, compressors=None)
        with only(("read", Reason.NOT_LOCAL)):
            assert np.array_equal(array[1:7], np.arange(1, 7))
    assert {row[:2] for row in noted} == {("zarr", Reason.NOT_LOCAL)}
    assert sum(size for *_, size in noted) >= 6 * 4
    assert [f"{row.backend} {row.reason}" for row in gpuload.report().rows if row.backend == "zarr"]


@pytest.mark.parametrize("kind", [LocalStore, DeviceStore])
def test_a_store_of_somebody_elses_class_is_asked_itself(tmp_path: Path, kind: Any) -> None:
    class Odd(kind):
        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            return await super().get(key.replace("c/0", "c/1"), prototype, byte_range)

    zarr.create_array(str(tmp_path), data=np.arange(4), chunks=(2,))
    with gpuload.zarr.enable(device="cpu"), only(("read", Reason.NOT_LOCAL)):
        assert zarr.open_array(Odd(tmp_path))[...].tolist() == [2, 3, 2, 3]


@pytest.mark.parametrize("store", [LocalStore, DeviceStore])
def test_what_only_zarr_decodes_comes_through_registered_handles(tmp_path: Path, store: Any, noted: list[Any]) -> None:
    options = {"shape": (20,), "chunks": (4,), "shards": (8,), "dtype": "i4", "compressors": None}
    array = zarr.create_array(str(tmp_path / "nested"), serializer=ShardingCodec(chunk_shape=(2,)), **options)
    array[:11] = np.arange(11)
    text = zarr.create_array(str(tmp_path / "text"), shape=(4,), chunks=(3,), dtype="str")
    text[...] = np.array(["a", "", "three", "4"], object)
    with gpuload.zarr.enable(device="cpu"):
        nested = zarr.open_array(store(tmp_path / "nested"))
        strings = zarr.open_array(store(tmp_path / "text"))
    noted.clear()
    with only(("read", Reason.HOST_CODEC)):
        assert np.array_equal(nested[3:], array[3:])
    assert {reason for _, reason, _ in noted} == {Reason.HOST_CODEC}
    with only(("read", Reason.HOST_DTYPE)):
        assert np.array_equal(strings[...], text[...])
    with config.set(strict=True), pytest.raises(StrictError, match="host-codec"):
        nested[3:]
    assert nested[19] == 0  # a missing chunk is no detour


def test_a_destination_of_another_kind_is_filled_by_zarr(tmp_path: Path, same: Same) -> None:
    from zarr.core.buffer import cpu

    array = written(tmp_path / "a", "raw")
    ours = on_gpuload(array)
    expected = array[...]
    out = cpu.NDBuffer.from_numpy_array(np.zeros(SHAPE, "f8"))
    with np.errstate(invalid="ignore"), only(("read", Reason.ZARR_PIPELINE)):
        ours.get_basic_selection(..., out=out)
    room = np.zeros((14, 9, 10), "f4")
    strided = cpu.NDBuffer.from_numpy_array(room[::2, :, ::-2])
    with only(SERVED):
        ours.get_basic_selection(..., out=strided)
    assert same(np.ascontiguousarray(room[::2, :, ::-2]), expected)
    assert not room[1::2].any()


def test_strict(tmp_path: Path) -> None:
    array = written(tmp_path / "a", "zstd")
    with config.set(strict=True):
        with pytest.raises(StrictError, match="host-codec"):
            on_gpuload(array)[0]
        with gpuload.zarr.enable(device="cpu"), pytest.raises(StrictError, match="not-local"):
            zarr.create_array(MemoryStore(), data=np.arange(3))[...]


def test_links_out_of_the_store_are_refused(tmp_path: Path) -> None:
    array = written(tmp_path / "a", "raw")
    chunk = tmp_path / "a" / "deep" / "a.b" / "c" / "0" / "0" / "0"
    chunk.rename(tmp_path / "elsewhere")
    chunk.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EscapesStoreError):
        on_gpuload(array)[...]
    with config.set(follow_links=True):
        assert np.array_equal(on_gpuload(array)[...], array[...], equal_nan=True)


def test_an_error_names_the_chunk(tmp_path: Path) -> None:
    array = written(tmp_path / "a", "raw")
    chunk = tmp_path / "a" / "deep" / "a.b" / "c" / "0" / "1" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(ChunkSizeError, match=re.escape("deep/a.b/c/0/1/0")):
        on_gpuload(array)[...]


@pytest.mark.skipif("read_missing_chunks" not in zarr.config.get("array"), reason="newer zarr-python only")
@pytest.mark.parametrize("shards", [None, (4,)])
def test_missing_chunks_can_be_an_error(tmp_path: Path, shards: Any) -> None:
    array = zarr.create_array(str(tmp_path), shape=(8,), chunks=(2,), shards=shards, dtype="i4", compressors=None)
    array[:4] = 1
    with gpuload.zarr.enable(device="cpu"), zarr.config.set({"array.read_missing_chunks": False}):
        opened = zarr.open_array(str(tmp_path))
        assert opened[:4].tolist() == [1] * 4
        with pytest.raises(zarr.errors.ChunkNotFoundError, match="c/1" if shards else "c/2"):
            opened[...]


# The pipeline as an object


def test_pickle(tmp_path: Path, same: Same) -> None:
    array = written(tmp_path / "a", "encoded shards")
    ours = on_gpuload(array)
    expected = ours[...]
    copy = pickle.loads(pickle.dumps(ours))
    with only(SERVED):
        assert same(copy[...], expected)
    assert copy == ours


def test_arrays_are_equal_whatever_became_of_them_since(tmp_path: Path) -> None:
    with gpuload.zarr.enable(device="cpu"):
        array = zarr.create_array(str(tmp_path), data=np.arange(3))
        array.resize((5,))
        assert array == zarr.open_array(str(tmp_path))


def test_enable_is_undone_at_the_end_of_its_block(tmp_path: Path) -> None:
    names = ["codec_pipeline.path", "buffer", "ndbuffer"]
    before = [zarr.config.get(name) for name in names]
    with gpuload.zarr.enable(device="cpu"):
        assert zarr.registry.get_pipeline_class() is DevicePipeline
    assert [zarr.config.get(name) for name in names] == before
    setting = gpuload.zarr.enable(device="cpu")
    assert zarr.registry.get_pipeline_class() is DevicePipeline
    setting.__exit__(None, None, None)
    assert zarr.registry.get_pipeline_class() is BatchedCodecPipeline
    with pytest.raises(DeviceError):
        gpuload.zarr.enable(device="nothing")


def test_a_variable_of_the_environment_enables_it(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path), data=np.arange(10), chunks=(3,))
    program = (
        "import sys, zarr\n"
        f"assert zarr.open_array({str(tmp_path)!r})[...].tolist() == list(range(10))\n"
        "from gpuload.zarr import pipeline_counts\n"
        "print(pipeline_counts())"
    )
    environment = {**os.environ, "ZARR_CODEC_PIPELINE__PATH": "gpuload.zarr.DevicePipeline"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{('read', 'gpuload'): 4}"


# Threads and the event loop


def test_many_threads(tmp_path: Path, same: Same) -> None:
    ours = on_gpuload(written(tmp_path / "a", "encoded shards"))
    expected = ours[...]
    with ThreadPoolExecutor(8) as threads:
        for got in threads.map(lambda _: ours[...], range(40)):
            assert same(got, expected)


def test_the_event_loop_goes_on_while_chunks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that only ends when another one did: had it the loop for itself, neither would."""
    with gpuload.zarr.enable(device="cpu"):
        other = zarr.create_array(MemoryStore(), data=np.arange(5))
    array = on_gpuload(written(tmp_path / "a", "raw"))
    fill = reader.Reader.fill
    began, done = threading.Event(), threading.Event()

    def waiting(self: Any, selection: Any, out: Any) -> None:
        began.set()
        assert done.wait(60)
        fill(self, selection, out)

    monkeypatch.setattr(reader.Reader, "fill", waiting)
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(lambda: array[...])
        assert began.wait(60)
        assert other[...].tolist() == list(range(5))
        done.set()
        assert result.result(60).shape == SHAPE


def test_a_cancelled_read_is_over_before_anybody_is_told() -> None:
    began, may_end, log = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        assert may_end.wait(60)
        log.append("written")

    async def cancelled() -> None:
        task = asyncio.ensure_future(pipeline._in_thread(work))
        await asyncio.to_thread(began.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # and once more while it waits
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["written"]

    asyncio.run(cancelled())
