"""The road to a GPU, on a fake of CuPy whose streams run as late as they may: order, placement, faults.

What it proves is logic: who waits for whom, what lies where. That kernels compile and are fast, real GPUs must show.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload
from gpuload import config
from gpuload.engine import reader, transfer
from gpuload.errors import AfterForkError, ChunkDecodeError, ChunkSizeError, DeviceError
from gpuload.memory import device

Make = Callable[..., Any]
SELECTIONS: list[Any] = [
    ...,
    (slice(3, 50, 7), slice(None, None, -1)),
    (slice(None, None, -3), 5),
    (None, slice(10, 40), slice(0, 0)),
    (slice(None), None, slice(30, 2, -2)),
    (7, 9),
]


@pytest.fixture(params=[False, True], ids=["late", "eager"])
def gpu(request: pytest.FixtureRequest, fake_cupy: ModuleType) -> ModuleType:
    fake_cupy.eager = request.param
    return fake_cupy


@pytest.fixture
def tight() -> Iterator[None]:
    """Many batches through few bytes, so that blocks are used again as soon as they can be."""
    with config.set({"batch_bytes": 64 << 10, "slab.size": 4 << 20, "slab.limit": 4 << 20}):
        yield


def read(gpu: ModuleType, array: Any, selection: Any = ..., out: Any = None, **how: Any) -> Any:
    shape = np.empty(array.shape)[selection].shape
    target = gpu.empty(shape, array.dtype) if out is None else out
    request, _ = array.request(selection, target, **how)
    reader.read(request)
    return target


def expected(array: Any, selection: Any = ...) -> np.ndarray[Any, Any]:
    return np.asarray(array.full[selection], array.dtype)


def random(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind).reshape(shape)


@pytest.mark.parametrize("kind", ["raw", "zlib", "shard", "zshard"])
@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_equal(gpu: ModuleType, stored: Make, kind: str, selection: Any) -> None:
    array = stored(random((60, 44), "<i4"), (16, 12), kind=kind, missing=(2, 7))
    assert read(gpu, array, selection).get().tobytes() == expected(array, selection).tobytes()


@pytest.mark.parametrize("dtype", ["i1", "<i2", "<f4", "<f8", "<c16"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("layout", ["C", "F", "strided", "shifted"])
def test_units_of_every_width_into_any_strides(
    gpu: ModuleType, stored: Make, dtype: str, order: str, layout: str
) -> None:
    array = stored(random((40, 36), dtype), (8, 16), order=order, missing=(1,))
    out = {
        "C": lambda: gpu.empty((40, 36), array.dtype),
        "F": lambda: gpu.empty((40, 36), array.dtype, "F"),
        "strided": lambda: gpu.empty((80, 72), array.dtype)[::2, ::-2],
        "shifted": lambda: gpu.empty((40, 37), array.dtype)[:, 1:],
    }[layout]()
    read(gpu, array, ..., out)
    assert out.get().tobytes() == expected(array).tobytes()


@pytest.mark.parametrize(("dtype", "swap"), [(">u2", 2), (">f4", 4), (">f8", 8), (">c8", 4), (">c16", 8)])
@pytest.mark.parametrize("kind", ["raw", "zshard"])
def test_bytes_are_swapped_on_the_way(gpu: ModuleType, stored: Make, dtype: str, swap: int, kind: str) -> None:
    array = stored(random((30, 20), dtype), (8, 6), kind=kind, missing=(0, 3))
    out = gpu.empty((30, 20), np.dtype(dtype).newbyteorder("="))
    read(gpu, array, ..., out, swap=swap)
    native = expected(array).astype(out.dtype)
    assert out.get().tobytes() == native.tobytes()


@settings(max_examples=25)
@given(data=st.data())
def test_random_selections(fake_cupy: ModuleType, stored: Make, data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 9)] * 3))
    chunks = data.draw(st.tuples(*[st.integers(1, 5)] * 3))
    part = st.slices(9) | st.none() | st.integers(-1, 0)
    selection = tuple(data.draw(st.lists(part.filter(lambda s: s is not None), max_size=3)))
    array = stored(random(shape, "<i2"), chunks, order=data.draw(st.sampled_from("CF")), missing=(1,))
    assert read(fake_cupy, array, selection).get().tobytes() == expected(array, selection).tobytes()


@pytest.mark.parametrize(("dtype", "swap"), [("<i2", 0), ("<f8", 0), (">f4", 4), (">c16", 8)])
@pytest.mark.parametrize("kind", ["raw", "zlib", "shard", "zshard"])
def test_listed_elements(gpu: ModuleType, stored: Make, dtype: str, swap: int, kind: str) -> None:
    array = stored(random((30, 20, 8), dtype), (8, 6, 8), kind=kind, missing=(0, 5, 9))
    for selection in ([29, 0, 7, 0, 13], (slice(None, None, -3), [5, 6, 19, 1, 0]), (2, slice(3, 9), [7, 0, 1, 1])):
        right = expected(array, selection)
        out = gpu.empty(right.shape, np.dtype(dtype).newbyteorder("="))
        read(gpu, array, selection, out, swap=swap)
        assert out.get().tobytes() == right.astype(out.dtype).tobytes()


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("kind", ["raw", "zlib"])
def test_blocks_are_used_again_only_when_their_copy_is_done(
    gpu: ModuleType, stored: Make, kind: str, backend: str
) -> None:
    array = stored(random((256, 8192), "<i4"), (8, 1024), kind=kind)  # 8 MiB through 4
    assert read(gpu, array).get().tobytes() == array.full.tobytes()


def test_what_the_caller_queued_before_happens_before(gpu: ModuleType, stored: Make) -> None:
    array = stored(random((32, 32), "<i4"), (8, 8), missing=(5,))
    out = gpu.empty((32, 32), array.dtype)
    out[...] = 7
    read(gpu, array, ..., out)
    gpu_device = device.of(out)
    assert isinstance(gpu_device, device.GpuDevice)
    gpu_device.stream.synchronize()  # streams that do not wait for each other may run in this order, too
    assert out.get().tobytes() == array.full.tobytes()


def test_ready_on_the_stream_that_is_current(gpu: ModuleType, stored: Make) -> None:
    array = stored(random((32, 32), "<i4"), (8, 8))
    stream = gpu.cuda.Stream(non_blocking=True)
    with stream:
        out = read(gpu, array)
        assert out.get().tobytes() == array.full.tobytes()
    on_it = [what for pointer, what in gpu.log if pointer == stream.ptr]
    assert "kernel" not in on_it
    assert "copy" not in on_it


def test_nothing_waits_on_the_host(fake_cupy: ModuleType, stored: Make) -> None:
    array = stored(random((32, 32), "<i4"), (8, 8), missing=(3,))
    out = read(fake_cupy, array)
    assert [what for _, what in fake_cupy.log if what in ("copy", "kernel")] == []
    assert out.get().tobytes() == array.full.tobytes()
    assert [what for _, what in fake_cupy.log if what in ("copy", "kernel")] == ["copy", "kernel", "kernel"]


def test_a_result_lives_no_longer_than_its_owner_wants(fake_cupy: ModuleType, stored: Make) -> None:
    """The last copies are still under way when the read returns; the I/O thread waits for them without it."""
    array = stored(random((60, 44), "<i4"), (16, 12))
    request, _ = array.request(..., fake_cupy.empty(array.shape, array.dtype))
    reader.read(request)
    seen = weakref.ref(request.out)
    transfer.io_thread().call(lambda: None)  # it has put down what it had in hand
    del request
    gc.collect()
    assert seen() is None


def test_another_device_than_the_current_one(gpu: ModuleType, stored: Make) -> None:
    array = stored(random((32, 32), "<i4"), (8, 8))
    with gpu.cuda.Device(1):
        out = gpu.empty((32, 32), array.dtype)
    read(gpu, array, ..., out)
    assert out.device.id == 1
    assert out.get().tobytes() == array.full.tobytes()  # on the stream of device 0, which is current
    with gpu.cuda.Device(1):
        assert out.get().tobytes() == array.full.tobytes()


def test_files_as_bytes_on_a_device(gpu: ModuleType, stored: Make) -> None:
    array = stored(random((32, 32), "<i4"), (8, 32))
    there, absent, part = reader.fetch(
        array.root, ["c/1/0", "c/9/9", "c/2/0"], [0, 0, -100], [-1, -1, 60], device=device.resolve("cuda")
    )
    assert absent is None
    assert there.get().tobytes() == array.path(1, 0).read_bytes()
    assert part.get().tobytes() == array.path(2, 0).read_bytes()[-100:-40]


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("kind", ["raw", "zlib"])
@pytest.mark.parametrize("what", ["memcpy", "launch", "malloc", "register"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_fault_ends_in_one_error_and_the_next_read_works(
    gpu: ModuleType, stored: Make, kind: str, what: str, after: int
) -> None:
    array = stored(random((64, 4096), "<i4"), (8, 1024), kind=kind, missing=(3,))
    out = gpu.empty((64, 4096), array.dtype)
    if what == "register" and after:
        read(gpu, array)  # its slab is pinned: there is nothing left to refuse
    gpu.refuse[what] = after if what != "register" else 0
    if what == "register" and after:
        read(gpu, array, ..., out)
    else:
        with pytest.raises((gpu.cuda.runtime.CUDARuntimeError, gpu.OutOfMemoryError, DeviceError)):
            read(gpu, array, ..., out)
    gpu.refuse.clear()
    del out  # its memory is somebody else's now: `fake_cupy` looks at the end whether it was written to
    assert read(gpu, array).get().tobytes() == array.full.tobytes()


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize(("kind", "error"), [("raw", ChunkSizeError), ("zlib", ChunkDecodeError)])
def test_after_a_bad_chunk_nothing_is_written_any_more(
    gpu: ModuleType, stored: Make, kind: str, error: type[Exception]
) -> None:
    array = stored(random((64, 4096), "<i4"), (8, 1024), kind=kind)
    path = array.path(7, 3)
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    for _ in range(3):
        with pytest.raises(error):
            read(gpu, array)
    path.write_bytes(content)
    assert read(gpu, array).get().tobytes() == array.full.tobytes()


@pytest.mark.usefixtures("tight")
def test_a_destination_that_is_freed_after_an_error_is_not_written_to(fake_cupy: ModuleType, stored: Make) -> None:
    array = stored(random((64, 4096), "<i4"), (8, 1024))
    out = fake_cupy.empty((64, 4096), array.dtype)
    allocation = out.memory.allocation
    fake_cupy.refuse["memcpy"] = 3
    with pytest.raises(fake_cupy.cuda.runtime.CUDARuntimeError):
        read(fake_cupy, array, ..., out)
    del out
    for _ in range(2):
        transfer.io_thread().call(lambda: None)  # it looks what copies are done, and lets go of their job
    gc.collect()  # what the traceback held
    fake_cupy.cuda.get_current_stream().synchronize()
    assert not allocation.live
    for stream in fake_cupy.Stream.all:
        stream.synchronize()
    assert (allocation.bytes == fake_cupy.FREED).all()


@pytest.mark.parametrize(
    ("kind", "chunks", "selection", "room"),
    [
        ("raw", (4, 16), (slice(None), slice(0, 16)), (slice(None), slice(1, 17))),  # the destination itself
        ("raw", (1, 16), (slice(None), slice(0, 16)), (slice(None), slice(0, 16))),  # where pieces go
        ("raw", (4, 16), (slice(None), slice(0, 16)), (slice(None), slice(0, 16))),  # its strides
        ("zlib", (1, 48), (slice(None), slice(8, 24)), (slice(None), slice(16, 32))),  # where they come from
        ("raw", (4, 24), (slice(None), slice(0, 16)), (slice(None), slice(16, 32))),  # the strides there
        ("raw", (4, 12), (slice(None), slice(0, 12)), (slice(None), slice(16, 28))),  # the length of a row
    ],
)
@pytest.mark.parametrize("width", [40, 48])
def test_units_are_no_wider_than_all_addresses_allow(
    gpu: ModuleType, stored: Make, kind: str, chunks: tuple[int, int], selection: Any, room: Any, width: int
) -> None:
    array = stored(random((8, 48), "i1"), chunks, kind=kind)
    out = gpu.empty((8, width), "i1")[room]
    read(gpu, array, selection, out)
    assert out.get().tobytes() == expected(array, selection).tobytes()


def test_slabs_are_pinned_once_and_unpinned_at_the_end(gpu: ModuleType, stored: Make) -> None:
    array = stored(random((32, 32), "<i4"), (8, 8))
    assert gpu.pinned == {}
    read(gpu, array).get()
    io = transfer.io_thread()
    assert gpu.pinned == {slab.address: slab.nbytes for slab in io.pool.slabs}
    with gpu.cuda.Device(1):
        read(gpu, array).get()
    assert gpu.pinned == {slab.address: slab.nbytes for slab in io.pool.slabs}
    transfer.stop()
    assert gpu.pinned == {}


def test_a_forked_child_is_refused(fake_cupy: ModuleType, stored: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    array = stored(random((32, 32), "<i4"), (8, 8))
    out = fake_cupy.empty((32, 32), array.dtype)
    monkeypatch.setattr(device, "_forked_with_gpu", True)
    with pytest.raises(AfterForkError, match="spawn"):
        read(fake_cupy, array, ..., out)


# ---------------------------------------------------------------------- as a user has it


@pytest.mark.parametrize("dtype", ["b1", "i1", ">i2", ">f4", "<f8", ">c16"])
@pytest.mark.parametrize("form", ["raw", "zstd", "shards"])
def test_gpuload_open_on_a_device(gpu: ModuleType, tmp_path: Path, dtype: str, form: str) -> None:
    how: dict[str, Any] = {"raw": {"compressors": None}, "zstd": {}, "shards": {"shards": (6, 8)}}[form]
    kind = np.dtype(dtype)
    endian = {"serializer": zarr.codecs.BytesCodec(endian="big" if dtype[0] == ">" else "little")}
    values = (np.arange(63).reshape(7, 9) % 50).astype(kind.newbyteorder("="))
    written = zarr.create_array(tmp_path / "a", shape=(7, 9), chunks=(3, 4), dtype=values.dtype, **endian, **how)
    written[:6] = values[:6]
    full = written[...]
    array = gpuload.open(tmp_path / "a", device="cuda")
    assert isinstance(array, gpuload.Array)
    assert array.device == "cuda:0"
    for selection in (..., (slice(None, None, -2), 3), ([5, 0, 2], slice(1, 8, 3)), (1, 2)):
        got = array[selection]
        assert isinstance(got, gpu.ndarray)
        assert got.get().tobytes() == full[selection].tobytes()


def test_what_a_device_cannot_hold_comes_to_the_host(gpu: ModuleType, tmp_path: Path) -> None:
    values = np.array(["one", "two"], "S3")
    zarr.create_array(tmp_path / "a", data=values)
    got = gpuload.open(tmp_path / "a", device="cuda")[...]
    assert isinstance(got, np.ndarray)
    assert np.array_equal(got, values)
