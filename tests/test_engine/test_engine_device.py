"""Reads into GPU memory: equal for all types and selections, and in order with whatever the caller's stream does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuload import config
from gpuload.engine import reader
from gpuload.engine.plain import RegisteredFile
from gpuload.errors import ChunkError, ChunkSizeError
from gpuload.memory import device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device.gpu_count() == 0, reason="CuPy sees no GPU here"),
]

KINDS = ["raw", "zlib", "shard", "zshard"]
DTYPES = ["?", "u1", "<i2", ">i2", "<f4", ">f4", "<i8", ">i8", "<f8", ">f8", "<f2", "<c8", ">c8", "<c16", ">c16"]
SELECTIONS = [
    np.s_[...],
    np.s_[::-1, 3::2, ::-3],
    np.s_[5, :, 2],
    np.s_[None, 2:3, ..., 1:1],
    np.s_[-1, -1, -1],
    np.s_[1:8:3, None, 4:, 10],
]
SPIN = r"""
extern "C" __global__ void spin(long long ticks) {
  long long start = clock64();
  while (clock64() - start < ticks) {}
}
"""


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def gpu() -> Any:
    return device.resolve("cuda")


@pytest.fixture(scope="module")
def delay(cupy: Any) -> Callable[[], None]:
    """Keeps the current stream busy for about a tenth of a second, far longer than a read of these tests takes."""
    kernel = cupy.RawKernel(SPIN, "spin")
    return lambda: kernel((1,), (1,), (np.int64(200_000_000),))


def swap_of(dtype: np.dtype[Any]) -> int:
    """Width of what must be swapped on the way to a device."""
    if dtype.newbyteorder("=") == dtype or dtype.itemsize == 1:
        return 0
    return dtype.itemsize // (2 if dtype.kind == "c" else 1)


def poisoned_on(gpu: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    out = gpu.empty(shape, dtype)
    if out.size:  # on the current stream, which the read waits for; runtime.memset is one of the null stream, and late
        cuda = gpu.xp.cuda
        cuda.runtime.memsetAsync(out.data.ptr, 0xA5, out.nbytes, cuda.get_current_stream().ptr)
    return out


def read_to(array: Any, gpu: Any, selection: Any, out: Any = None) -> Any:
    native = array.dtype.newbyteorder("=")
    if out is None:
        out = poisoned_on(gpu, np.shape(array.full[selection]), native)
    request, _ = array.request(selection, out, swap=swap_of(array.dtype))
    reader.read(request)
    return out


def same(got: Any, array: Any, selection: Any) -> bool:
    native = array.dtype.newbyteorder("=")
    return bool(got.get().tobytes() == np.asarray(array.full[selection]).astype(native).tobytes())


def data_of(dtype: str, shape: tuple[int, ...] = (9, 10, 11)) -> np.ndarray:
    kind = np.dtype(dtype)
    raw = np.random.default_rng(3).integers(0, 2 if kind.kind == "b" else 256, (*shape, kind.itemsize), np.uint8)
    return raw.view(kind).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_gpu_every_type_and_selection(dtype: str, kind: str, stored: Any, backend: str, gpu: Any) -> None:
    for order in "CF":
        array = stored(data_of(dtype), (4, 3, 5), kind=kind, order=order, missing=(0, 7))
        if np.dtype(dtype).kind == "b":
            array.fill = np.True_
            array.full = array.full.copy()
            region = (slice(0, 4), slice(0, 3), slice(0, 5))
            array.full[region] = True
            second = (slice(0, 4), slice(6, 9), slice(5, 10))  # the eighth chunk of a grid of 3 x 4 x 3
            array.full[second] = True
        for selection in SELECTIONS:
            assert same(read_to(array, gpu, selection), array, selection)


@pytest.mark.parametrize("dtype", ["<i4", ">f8", ">c8"])
def test_gpu_destinations_of_odd_strides(dtype: str, stored: Any, backend: str, gpu: Any) -> None:
    array = stored(data_of(dtype), (4, 3, 5), missing=(3,))
    native = array.dtype.newbyteorder("=")
    memory = poisoned_on(gpu, (20, 22, 24), native)
    view = memory[1:19:2, 20:0:-2, 2:13]
    assert same(read_to(array, gpu, ..., view), array, ...)
    rest = memory.get().view(f"V{native.itemsize}")
    poison = np.frombuffer(b"\xa5" * native.itemsize, rest.dtype)[0]
    rest[1:19:2, 20:0:-2, 2:13] = poison
    assert (rest == poison).all()
    transposed = poisoned_on(gpu, (11, 10, 9), native).transpose(2, 1, 0)
    assert same(read_to(array, gpu, ..., transposed), array, ...)


@pytest.mark.parametrize("kind", KINDS)
def test_gpu_many_batches_and_large_chunks(kind: str, stored: Any, backend: str, gpu: Any, fresh: Any) -> None:
    with config.set({"batch_bytes": 64 << 10, "piece_bytes": 16 << 10}):
        array = stored(np.arange(300_000, dtype=">i8").reshape(3, 100_000), (2, 45_000), kind=kind, missing=(1,))
        for selection in [np.s_[...], np.s_[::-1, 5::7], np.s_[2, 40_000:50_000]]:
            assert same(read_to(array, gpu, selection), array, selection)


def test_gpu_the_destination_is_still_in_use_on_the_callers_stream(
    stored: Any, backend: str, gpu: Any, cupy: Any, delay: Any
) -> None:
    """What the caller queued before the read comes before it: a late poisoning must not come after the data."""
    array = stored(data_of("<f4"), (4, 3, 5), missing=(2,))
    for stream in [cupy.cuda.Stream.null, cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)]:
        out = poisoned_on(gpu, array.shape, array.dtype)
        cupy.cuda.runtime.deviceSynchronize()
        with stream:
            delay()
            cupy.cuda.runtime.memsetAsync(out.data.ptr, 0x5A, out.nbytes, stream.ptr)
            read_to(array, gpu, ..., out)
            copy = out.copy()
        stream.synchronize()
        assert same(copy, array, ...)
        cupy.cuda.runtime.deviceSynchronize()
        assert same(out, array, ...)


def test_gpu_what_the_caller_does_next_waits_for_the_transfer(
    stored: Any, backend: str, gpu: Any, cupy: Any, delay: Any
) -> None:
    """The transfer stream is late: a copy on the caller's stream must still see the data, on any kind of stream."""
    array = stored(data_of("<f4"), (4, 3, 5), missing=(2,))
    for stream in [cupy.cuda.Stream.null, cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)]:
        out = poisoned_on(gpu, array.shape, array.dtype)
        cupy.cuda.runtime.deviceSynchronize()
        with gpu.stream:
            delay()
        with stream:
            read_to(array, gpu, ..., out)
            copy = out.copy()
        stream.synchronize()
        assert same(copy, array, ...)


def test_gpu_the_delay_is_long_enough_to_be_seen(gpu: Any, cupy: Any, delay: Any, pytestconfig: pytest.Config) -> None:
    if pytestconfig.pluginmanager.has_plugin("rocm_sim"):
        pytest.skip("a tenth of a second is too short for a busy CPU; tests/test_rocm_sim proves it without a clock")
    # The proof that the two tests above can fail: without an event between them two streams do not wait. What must not
    # happen while the delay goes on is an allocation, which waits for the device, and a first use of anything.
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    runtime = cupy.cuda.runtime
    memory, copy = (poisoned_on(gpu, (1000,), np.dtype("u1")) for _ in range(2))
    late = cupy.cuda.Event(disable_timing=True)
    for _ in range(20):  # on a busy machine this process may be stopped for longer than the delay takes
        runtime.memset(memory.data.ptr, 0xA5, memory.nbytes)
        runtime.deviceSynchronize()
        with first:
            delay()
            runtime.memsetAsync(memory.data.ptr, 1, memory.nbytes, first.ptr)
            late.record(first)
        runtime.memcpyAsync(copy.data.ptr, memory.data.ptr, memory.nbytes, runtime.memcpyDeviceToDevice, second.ptr)
        second.synchronize()
        seen = not late.done
        first.synchronize()
        if seen:
            break
    assert seen
    assert (copy.get() == 0xA5).all()


def test_gpu_memory_that_the_pool_lends_again(stored: Any, backend: str, gpu: Any, cupy: Any, delay: Any) -> None:
    """A result that is dropped at once, its memory in other hands: no late write of the read reaches it."""
    array = stored(data_of("<f4"), (4, 3, 5))
    stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(5):
        with gpu.stream:
            delay()
        with stream:
            read_to(array, gpu, ...)  # dropped
            other = cupy.full(array.shape, 7, "f4")
        cupy.cuda.runtime.deviceSynchronize()
        assert (other.get() == 7).all()


def test_gpu_after_an_error_nothing_is_written_any_more(
    stored: Any, backend: str, gpu: Any, cupy: Any, delay: Any, fresh: Any
) -> None:
    with config.set({"batch_bytes": 4096}):
        array = stored(np.arange(20_000, dtype="<i4"), (500,))
        array.path(39).write_bytes(b"short")
        read_to(array, gpu, np.s_[:100])
        stream = cupy.cuda.Stream(non_blocking=True)
        for _ in range(3):
            with gpu.stream:
                delay()
            with stream:
                with pytest.raises(ChunkSizeError, match="expected 2000 bytes, found 5"):
                    read_to(array, gpu, ...)
                other = cupy.full(array.shape, 7, "i4")
            cupy.cuda.runtime.deviceSynchronize()
            assert (other.get() == 7).all()
        assert same(read_to(array, gpu, np.s_[:19_000]), array, np.s_[:19_000])


def test_gpu_threads_with_streams_of_their_own(stored: Any, backend: str, gpu: Any, cupy: Any, fresh: Any) -> None:
    arrays = [
        stored(data_of(DTYPES[i]), (4, 3, 5), kind=KINDS[i % 4], missing=() if i == 0 else (i,)) for i in range(8)
    ]
    errors: list[BaseException] = []
    elsewhere = cupy.zeros(8 << 20, "u1")

    def work(array: Any) -> None:
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                for selection in SELECTIONS * 3:
                    # The null stream is late all the time: nothing here is its business.
                    cupy.cuda.runtime.memsetAsync(elsewhere.data.ptr, 1, elsewhere.nbytes, 0)
                    got = read_to(array, gpu, selection).copy()
                    stream.synchronize()
                    assert same(got, array, selection)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_gpu_the_staged_path_is_registered(stored: Any, gpu: Any, fresh: Any) -> None:
    from gpuload.backends import registry
    from gpuload.bindings import uring_abi as abi
    from gpuload.engine import transfer

    if not registry.available("io_uring").usable:
        pytest.skip("io_uring is not available here")
    with config.set(backend="io_uring"):
        array = stored(data_of("<f4"), (4, 3, 5))
        for _ in range(3):
            assert same(read_to(array, gpu, ...), array, ...)
        io = transfer.io_thread()
        counts = io.call(lambda: io._backends["io_uring"].ring.counts)
        reads = {key: n for key, n in counts.items() if key[0] in (abi.OP_READ, abi.OP_READ_FIXED)}
        assert reads
        assert all(op == abi.OP_READ_FIXED and flags & abi.IOSQE_FIXED_FILE for op, flags in reads)


def test_gpu_fetch_and_plain_files(stored: Any, backend: str, gpu: Any, cupy: Any) -> None:
    array = stored(np.arange(100_000, dtype="<i4"), (30_000,))
    whole = (array.folder / array.keys[0]).read_bytes()
    got = reader.fetch(array.root, [array.keys[0], "none", array.keys[0]], [0, 0, -7], [-1, -1, 100], device=gpu)
    assert got[1] is None
    assert (got[0].get().tobytes(), got[2].get().tobytes()) == (whole, whole[-7:])
    with RegisteredFile(array.folder / array.keys[0]) as f:
        buf = poisoned_on(gpu, (10, 5), np.dtype("<i4"))
        assert f.read_into(buf, 40, 100, 20) == 100
        assert buf.get().tobytes() == b"\xa5" * 20 + whole[40:140] + b"\xa5" * 80
        assert f.read_into(buf, len(whole) - 3) == 3
        with pytest.raises(ValueError, match="C-contiguous"):
            f.read_into(buf[:, ::2])


def test_gpu_an_unreadable_chunk_leaves_no_block(stored: Any, backend: str, gpu: Any, lent_bytes: Any) -> None:
    array = stored(data_of("<f4"), (4, 3, 5), kind="zlib")
    array.path(1, 1, 1).write_bytes(b"rubbish")
    for _ in range(3):
        with pytest.raises(ChunkError, match="c/1/1/1"):
            read_to(array, gpu, ...)
        assert lent_bytes() == 0
    assert same(read_to(array, gpu, np.s_[:4]), array, np.s_[:4])
