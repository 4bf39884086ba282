"""Results on a device: native byte order, equal to zarr-python's bit for bit, ready on the current stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, GzipCodec, TransposeCodec, ZstdCodec

import gpuload
from gpuload.errors import DestinationError
from gpuload.memory import device
from gpuload.zarr import Array, DeviceStore, pipeline_counts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device.gpu_count() == 0, reason="no GPU that CuPy sees"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    # zarr-python says so of what its own codecs make on the host: shard indexes, v2 chunks.
    pytest.mark.filterwarnings("ignore:Creating a zarr.buffer.gpu"),
]

SHAPE, CHUNKS, SHARDS = (7, 9, 5), (3, 4, 2), (6, 8, 4)
SELECTIONS = [..., (slice(None, None, -2), 3), (slice(2, 6), None, slice(8, 0, -3)), (1, 2, 3), slice(3, 3)]
SELECTIONS += [([6, 0, 2], [8, 0, 8], [4, 0, 0]), (slice(1, None), [[8, 0]], [[4, 0]]), np.ones(SHAPE, bool)]
SELECTIONS += [[6, 0, 2, 0, -1], (0, slice(None), [4, 0, 1]), (..., np.array([True, False, False, True, True]))]
KINDS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {},
    "shards": {"compressors": None, "shards": SHARDS},
    "encoded shards": {"shards": SHARDS},
    "transposed": {"compressors": None, "filters": [TransposeCodec(order=(2, 0, 1))]},
    "foreign": {"compressors": [ZstdCodec(), GzipCodec()]},
    "v2": {"zarr_format": 2, "order": "F"},
}


def written(path: Path, kind: str, dtype: str, endian: str) -> tuple[Any, Any]:
    options = dict(KINDS[kind])
    stored = np.dtype(dtype)
    if kind == "v2":
        stored = stored.newbyteorder("<" if endian == "little" else ">")
    else:
        options["serializer"] = BytesCodec(endian=endian)
    array = zarr.create_array(str(path), shape=SHAPE, chunks=CHUNKS, dtype=stored, fill_value=1, **options)
    size = 6 * 9 * 5
    bits = np.random.default_rng(3).bytes(size * stored.itemsize)
    values = np.frombuffer(bits, stored) if stored.kind != "b" else np.arange(size) % 3 == 0
    array[:6] = values.reshape(6, 9, 5)
    return gpuload.open(path, device="cuda"), np.asarray(array[...]).astype(stored.newbyteorder("="))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["b1", "i1", "i2", "f4", "f8", "c8", "c16", "u8", "f2"])
@pytest.mark.parametrize("endian", ["little", "big"])
def test_on_a_device(
    tmp_path: Path, kind: str, dtype: str, endian: str, same: Callable[[Any, Any], bool], backend: str
) -> None:
    import cupy

    array, right = written(tmp_path / "a", kind, dtype, endian)
    assert array.device.startswith("cuda:")
    for selection in SELECTIONS:
        got = array[selection]
        assert isinstance(got, cupy.ndarray)
        assert got.dtype.isnative
        assert same(got.get(), right[selection])
    keys = ([5, 0, 6, 5], slice(7, 0, -2), [0, 3, 4, 1])
    lists = right[np.ix_(keys[0], range(7, 0, -2), keys[2])]
    assert same(array.oindex[keys].get(), lists)
    room = cupy.zeros((4, 8, 8), right.dtype)
    array.oindex.read(keys, room[:, ::-2, 1::2])
    assert same(room[:, ::-2, 1::2].get(), lists)
    assert not room[:, :, ::2].any()
    assert not room[:, ::2].any()
    out = cupy.zeros((14, 9, 10), right.dtype)
    array.read(out=out[::-2, :, 1::2])
    assert same(out[::-2, :, 1::2].get(), right)
    assert not out[::2].any()
    with cupy.cuda.Stream(non_blocking=True):
        assert same((array[...] == array[...]).all().get()[()], np.array_equal(right, right))


def test_dates_are_counts(tmp_path: Path, same: Callable[[Any, Any], bool]) -> None:
    import cupy

    stored = zarr.create_array(str(tmp_path / "a"), shape=(5,), chunks=(2,), dtype="M8[s]")
    stored[:] = np.arange(5).astype("M8[s]")
    array = gpuload.open(tmp_path / "a", device="cuda")
    assert isinstance(array, Array)
    got = array[::-1]
    assert isinstance(got, cupy.ndarray)
    assert same(got.get(), np.arange(5)[::-1])
    assert same(array.as_times(got), np.arange(5).astype("M8[s]")[::-1])


@pytest.mark.parametrize("dtype", ["S3", "U3", str])
def test_what_a_device_cannot_hold(tmp_path: Path, dtype: Any) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(5,), chunks=(2,), dtype=dtype)
    array = gpuload.open(tmp_path / "a", device="cuda")
    assert isinstance(array, Array)
    assert isinstance(array[...], np.ndarray)


def test_a_destination_elsewhere(tmp_path: Path) -> None:
    import cupy

    array, _ = written(tmp_path / "a", "raw", "f4", "little")
    with pytest.raises(DestinationError, match="cpu"):
        array.read(out=np.empty(SHAPE, "f4"))
    host = gpuload.open(tmp_path / "a", device="cpu")
    with pytest.raises(DestinationError, match="cuda"):
        host.read(out=cupy.empty(SHAPE, "f4"))  # type: ignore[union-attr]


def test_the_store_hands_out_device_buffers(tmp_path: Path) -> None:
    import cupy
    from zarr.core.buffer import gpu

    array, right = written(tmp_path / "a", "raw", "f4", "little")
    buffer = DeviceStore(tmp_path / "a").get_sync("c/0/0/0", prototype=gpu.buffer_prototype)
    assert buffer is not None
    assert isinstance(buffer.as_array_like(), cupy.ndarray)
    assert len(buffer) == 3 * 4 * 2 * 4
    assert array.shape == right.shape


@pytest.mark.parametrize("kind", KINDS)
def test_plain_zarr_by_enable(tmp_path: Path, kind: str, same: Callable[[Any, Any], bool]) -> None:
    import cupy

    _, right = written(tmp_path / "a", kind, "f4", "little")
    with gpuload.zarr.enable("cuda:0"):
        array = zarr.open_array(str(tmp_path / "a"), mode="r")
        before = pipeline_counts()
        for selection in (..., (slice(1, None, 2), 3), (slice(2, 6), slice(0, 8, 3))):
            got = array[selection]
            assert isinstance(got, cupy.ndarray)
            assert same(got.get(), right[selection])
        lists = ([6, 0, 2], [8, 0, 3], [4, 0, 1])
        assert same(array.oindex[lists].get(), right[np.ix_(*lists)])
        part = array[2:5]
        # With buffers on a device zarr-python writes no parts of shards, and 3.1.6 none of encoded v2 chunks.
        by_zarr = kind not in ("shards", "encoded shards", "v2")
        writable: Any = (zarr.open_array if by_zarr else gpuload.open)(str(tmp_path / "a"), mode="r+")
        writable[1:4] = part
        assert same(array[1:4].get(), right[2:5])
    readers = {who for (what, who), n in pipeline_counts().items() if what == "read" and n > before.get((what, who), 0)}
    assert readers == {"host-codec" if kind == "foreign" else "gpuload"}


def test_dask_and_xarray_by_enable(tmp_path: Path, same: Callable[[Any, Any], bool]) -> None:
    import cupy

    dask_array = pytest.importorskip("dask.array")
    xarray = pytest.importorskip("xarray")
    values = np.arange(12 * 9, dtype="f4").reshape(12, 9)
    dataset = xarray.Dataset({"a": (("time", "lat"), values)})
    dataset.to_zarr(tmp_path, consolidated=False, encoding={"a": {"chunks": (4, 3)}})
    with gpuload.zarr.enable("cuda:0"):
        lazy = dask_array.from_zarr(str(tmp_path), component="a")
        assert same((lazy + 1).compute(scheduler="threads").get(), values + 1)
        opened = xarray.open_zarr(tmp_path, chunks=None, consolidated=False, mask_and_scale=False)
        got = opened["a"].isel(time=slice(2, 9)).load()
        assert isinstance(got.data, cupy.ndarray)
        assert same(got.data.get(), values[2:9])


@pytest.mark.parametrize("kind", ["raw", "zstd", "encoded shards"])
def test_zarrs_own_pipeline_on_the_store(tmp_path: Path, kind: str, same: Callable[[Any, Any], bool]) -> None:
    from zarr.core.buffer import cpu, gpu

    _, right = written(tmp_path / "a", kind, "f4", "little")
    store = DeviceStore(tmp_path / "a")
    buffer = store.get_sync("c/0/0/0", prototype=gpu.buffer_prototype)
    assert type(buffer) is (gpu.Buffer if kind == "raw" else cpu.Buffer)
    with zarr.config.enable_gpu():
        assert same(zarr.open_array(store, mode="r")[...].get(), right)
