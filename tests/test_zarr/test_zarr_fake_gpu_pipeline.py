"""zarr-python, dask and xarray with buffers on a device that only pretends to be one, by `gpuload.zarr.enable`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.core.buffer import cpu, gpu

import gpuload
from gpuload.errors import StrictError
from gpuload.request import Reason, Served
from gpuload.zarr import DevicePipeline, DeviceStore, pipeline_counts

Same = Callable[[Any, Any], bool]
SHAPE, CHUNKS, SHARDS = (7, 9, 5), (3, 4, 2), (6, 8, 4)
RAW: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "shards": {"compressors": None, "shards": SHARDS},
    "transposed": {"compressors": None, "filters": [TransposeCodec(order=(2, 0, 1))]},
    "big-endian": {"compressors": None, "serializer": BytesCodec(endian="big")},
}
ENCODED: dict[str, dict[str, Any]] = {
    "zstd": {},
    "checked": {"compressors": [Crc32cCodec()]},
    "encoded shards": {"shards": SHARDS},
    "v2 encoded": {"zarr_format": 2},
}
FOREIGN: dict[str, dict[str, Any]] = {"foreign": {"compressors": [ZstdCodec(), GzipCodec()]}}
KINDS = {**RAW, **ENCODED, **FOREIGN}
SELECTIONS: list[Any] = [..., (slice(1, None, 2), 3), (slice(2, 6), slice(0, 8, 3)), (6, 8, 4)]


@pytest.fixture
def served() -> Iterator[list[Served]]:
    rows: list[Served] = []

    def note(event: Any) -> None:
        if isinstance(event, Served):
            rows.append(event)

    unsubscribe = gpuload.events.subscribe(note)
    yield rows
    unsubscribe()


def written(path: Path, kind: str) -> Any:
    """What is stored, as zarr-python reads it in host memory; some chunks are missing."""
    options = {"shape": SHAPE, "chunks": CHUNKS, "dtype": "i4", "fill_value": -9, **KINDS[kind]}
    array = zarr.create_array(str(path), name="deep/a", **options)
    array[:6] = np.arange(6 * 9 * 5).reshape(6, 9, 5)
    return array[...]


def counted(before: dict[tuple[str, str], int]) -> set[tuple[str, str]]:
    return {key for key, chunks in pipeline_counts().items() if chunks != before.get(key, 0)}


@pytest.mark.parametrize("kind", KINDS)
def test_plain_zarr_reads_to_the_device(tmp_path: Path, zarr_on_gpu: ModuleType, same: Same, kind: str) -> None:
    right = written(tmp_path, kind)
    with gpuload.zarr.enable("cuda"):
        array = zarr.open_array(str(tmp_path), path="deep/a", mode="r")
        assert type(array.async_array.codec_pipeline) is DevicePipeline
        before = pipeline_counts()
        for selection in SELECTIONS:
            zarr_on_gpu.log.clear()
            got = array[selection]
            moved = [what for _, what in zarr_on_gpu.log]
            assert isinstance(got, zarr_on_gpu.ndarray)
            assert same(got.get(), np.asarray(right[selection]))
            assert "get" not in moved  # nothing went from the device to the host
        lists = ([6, 0, 2], [8, 0, 3], [4, 0, 1])
        assert same(array.oindex[lists].get(), right[np.ix_(*lists)])
        assert same(array.blocks[1:, 0].get(), right[3:, :4] if array.shards is None else right[6:, :8])
    assert counted(before) == {("read", Reason.HOST_CODEC if kind in FOREIGN else "gpuload")}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_ready_is_ready(tmp_path: Path, zarr_on_gpu: ModuleType, same: Same, kind: str) -> None:
    """Streams that nobody waits for do nothing here: the result must be there without anybody waiting for one."""
    right = written(tmp_path, kind)
    with gpuload.zarr.enable("cuda"):
        got = zarr.open_array(str(tmp_path), path="deep/a", mode="r")[...]
    assert same(got.host.copy(), right)


@pytest.mark.parametrize("kind", KINDS)
def test_zarrs_own_pipeline_gets_bytes_where_they_are_decoded(
    tmp_path: Path, zarr_on_gpu: ModuleType, same: Same, served: list[Served], kind: str
) -> None:
    written(tmp_path, kind)
    store = DeviceStore(tmp_path)
    keys = [str(path.relative_to(tmp_path)) for path in sorted((tmp_path / "deep" / "a").rglob("*"))]
    document = next(key for key in keys if key.endswith((".zarray", "zarr.json")))
    chunk = next(key for key in keys if key.endswith(("c/0/0/0", "0.0.0")))
    served.clear()
    both = [store.get_sync(key, prototype=gpu.buffer_prototype) for key in (document, chunk)]
    assert [type(buffer) for buffer in both] == [cpu.Buffer, gpu.Buffer if kind in RAW else cpu.Buffer]
    assert [buffer.to_bytes() for buffer in both if buffer] == [
        (tmp_path / key).read_bytes() for key in (document, chunk)
    ]
    reasons = [{row.reason for row in served if key in row.keys} for key in (document, chunk)]
    assert reasons[0] == {Reason.HOST_CODEC}
    assert (reasons[1] == {Reason.HOST_CODEC}) == (kind not in RAW)


@pytest.mark.parametrize("kind", ["raw", "zstd", "foreign"])
def test_zarrs_own_pipeline_reads_a_device_store(
    tmp_path: Path, zarr_on_gpu: ModuleType, same: Same, kind: str
) -> None:
    right = written(tmp_path, kind)
    with zarr.config.enable_gpu():
        array = zarr.open_array(DeviceStore(tmp_path), path="deep/a", mode="r")
        zarr_on_gpu.log.clear()
        got = array[...]
        if kind not in FOREIGN:  # of several codecs zarr-python itself has each give its bytes back to the device
            assert "get" not in [what for _, what in zarr_on_gpu.log]
        assert same(got.get(), right)


def test_an_array_that_is_made_anew_is_looked_at_anew(tmp_path: Path, zarr_on_gpu: ModuleType) -> None:
    store = DeviceStore(tmp_path)
    kinds = []
    for codec in (None, ZstdCodec()):
        zarr.create_array(str(tmp_path), data=np.arange(5), compressors=codec, overwrite=True)
        kinds.append(type(store.get_sync("c/0", prototype=gpu.buffer_prototype)))
    assert kinds == [gpu.Buffer, cpu.Buffer]


@pytest.mark.parametrize("document", [b"", b"[]", b"{", b'{"zarr_format": 3}', b'{"zarr_format": 2}', None])
def test_a_document_that_is_none(tmp_path: Path, zarr_on_gpu: ModuleType, document: bytes | None) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0").write_bytes(b"abc")
    (tmp_path / "zarr.json").mkdir() if document is None else (tmp_path / "zarr.json").write_bytes(document)
    buffer = DeviceStore(tmp_path).get_sync("c/0", prototype=gpu.buffer_prototype)
    assert type(buffer) is gpu.Buffer
    assert buffer.to_bytes() == b"abc"


def test_keys_of_several_arrays_at_a_time(tmp_path: Path, zarr_on_gpu: ModuleType) -> None:
    for name, codec in (("a", None), ("b", ZstdCodec())):
        zarr.create_array(str(tmp_path), name=name, data=np.arange(5, dtype="i2"), compressors=codec)
    keys = ["b/c/0", "a/c/0", "b/zarr.json", "a/c/0", "a/c/1", "nothing"]
    store = DeviceStore(tmp_path)

    async def together() -> Any:
        return await store.get_partial_values(gpu.buffer_prototype, [(key, None) for key in keys])

    got = asyncio.run(together())
    kinds = [cpu.Buffer, gpu.Buffer, cpu.Buffer, gpu.Buffer, type(None), type(None)]
    assert [type(buffer) for buffer in got] == kinds
    assert [b.to_bytes() for b in got[:4]] == [(tmp_path / key).read_bytes() for key in keys[:4]]


def test_writing_is_one_copy_to_the_host(tmp_path: Path, zarr_on_gpu: ModuleType, same: Same) -> None:
    right = np.arange(6 * 9 * 5, dtype="i4").reshape(6, 9, 5)
    with gpuload.zarr.enable("cuda"):
        array = zarr.create_array(str(tmp_path), shape=SHAPE, chunks=CHUNKS, dtype="i4", fill_value=-9)
        value = zarr_on_gpu.asarray(right)
        zarr_on_gpu.log.clear()
        array[:6] = value
        assert [what for _, what in zarr_on_gpu.log].count("get") == 1
        assert same(array[:6].get(), right)
    assert same(zarr.open_array(str(tmp_path))[:6], right)


def test_strict_on_the_device(tmp_path: Path, zarr_on_gpu: ModuleType) -> None:
    written(tmp_path, "foreign")
    with gpuload.zarr.enable("cuda"), gpuload.config.set(strict=True), pytest.raises(StrictError, match="host-codec"):
        zarr.open_array(str(tmp_path), path="deep/a", mode="r")[...]


@pytest.mark.parametrize("kind", ["raw", "encoded shards"])
def test_dask(tmp_path: Path, zarr_on_gpu: ModuleType, same: Same, kind: str) -> None:
    right = written(tmp_path, kind)
    with gpuload.zarr.enable("cuda"):
        array = dask.array.from_zarr(str(tmp_path), component="deep/a")
        before = pipeline_counts()
        blocks = [array.blocks[index] for index in np.ndindex(array.numblocks)]
        starts = [np.cumsum([0, *extents]) for extents in array.chunks]
        for index, block in zip(np.ndindex(array.numblocks), blocks, strict=True):
            got = block.compute(scheduler="threads")
            assert isinstance(got, zarr_on_gpu.ndarray)
            part = tuple(slice(start[i], start[i + 1]) for start, i in zip(starts, index, strict=True))
            assert same(got.get(), right[part])
    assert counted(before) == {("read", "gpuload")}


def test_xarray(tmp_path: Path, zarr_on_gpu: ModuleType, same: Same) -> None:
    values = np.arange(12 * 9 * 10, dtype="f4").reshape(12, 9, 10)
    written = xarray.Dataset({"temperature": (("time", "lat", "lon"), values)})
    written.to_zarr(tmp_path, consolidated=False, encoding={"temperature": {"chunks": (4, 3, 5)}})
    with gpuload.zarr.enable("cuda"):
        opened = xarray.open_zarr(tmp_path, chunks=None, consolidated=False, mask_and_scale=False)
        before = pipeline_counts()
        for part in ({}, {"time": slice(2, 9), "lon": 3}):
            got = opened["temperature"].isel(part).load()
            assert isinstance(got.data, zarr_on_gpu.ndarray)
            assert same(got.data.get(), written["temperature"].isel(part).values)
    assert counted(before) == {("read", "gpuload")}
