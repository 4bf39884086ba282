"""Devices by name, with a CuPy that sees two GPUs, none, or cannot be imported."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gpuload.errors import AfterForkError, DeviceError
from gpuload.memory import device
from gpuload.memory.device import HOST, GpuDevice, of, resolve


def test_names(fake_cupy: ModuleType) -> None:
    first, second = resolve("cuda:0"), resolve("cuda:1")
    assert isinstance(first, GpuDevice)
    assert isinstance(second, GpuDevice)
    assert (first.name, second.name) == ("cuda:0", "cuda:1")
    assert not first.is_host
    assert resolve("auto") is resolve("cuda") is first
    assert resolve(second) is second
    assert resolve("cpu") is HOST
    with fake_cupy.cuda.Device(1):
        assert resolve("auto") is resolve("cuda") is second
    assert repr(second) == "<gpuload device 'cuda:1'>"
    assert pickle.loads(pickle.dumps(second)) is second
    assert device.gpu_count() == 2


@pytest.mark.parametrize("name", ["cuda:2", "cuda:99"])
def test_a_gpu_that_is_not_there(fake_cupy: ModuleType, name: str) -> None:
    with pytest.raises(DeviceError, match=rf"{name}.*2 GPU\(s\), cuda:0 to cuda:1"):
        resolve(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "auto:0", "", "CPU"])
def test_what_is_no_name(fake_cupy: ModuleType, name: str) -> None:
    with pytest.raises(DeviceError, match="no device named"):
        resolve(name)


@pytest.mark.parametrize("seen", [0, -1])
def test_cupy_without_a_gpu(fake_cupy: ModuleType, seen: int) -> None:
    fake_cupy.devices = seen
    assert device.gpu_count() == 0
    assert resolve("auto") is HOST
    with pytest.raises(DeviceError, match="CuPy sees no GPU"):
        resolve("cuda")


def test_without_cupy(fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    device._cupy_missing.cache_clear()
    assert resolve("auto") is HOST
    with pytest.raises(DeviceError, match="CuPy cannot be imported"):
        resolve("cuda:0")


def test_after_a_fork_that_took_the_runtime_along(fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = resolve("cuda:0")
    monkeypatch.setattr(device, "_forked_with_gpu", False)
    device._after_fork_in_child()
    assert device._forked_with_gpu
    assert device.gpu_count() == 0
    for name in ("cuda:0", "cuda", "auto"):
        with pytest.raises(AfterForkError, match="spawn"):
            resolve(name)
    with pytest.raises(AfterForkError):
        gpu.empty((2,), "f4")
    assert resolve("cpu") is HOST


def test_a_fork_after_a_look_that_found_no_gpu_is_harmless(
    fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cupy.devices = 0
    assert resolve("auto") is HOST
    monkeypatch.setattr(device, "_forked_with_gpu", False)
    device._after_fork_in_child()
    assert not device._forked_with_gpu


def test_arrays_know_their_device(fake_cupy: ModuleType) -> None:
    first, second = resolve("cuda:0"), resolve("cuda:1")
    array = second.empty((3, 4), "f4", "F")
    assert (array.shape, array.dtype) == ((3, 4), np.dtype("f4"))
    assert array.strides == (4, 12)
    assert of(array) is second
    assert second.owns(array)
    assert not first.owns(array)
    assert not HOST.owns(array)
    assert not first.owns(np.zeros(3))
    assert of(np.zeros(3)) is HOST
    assert HOST.owns(HOST.empty((2,), "f8"))
    for other in ([1, 2], SimpleNamespace(shape=(1,))):
        with pytest.raises(DeviceError, match="neither a NumPy nor a CuPy array"):
            of(other)


def test_out_of_memory_is_a_device_error(fake_cupy: ModuleType) -> None:
    fake_cupy.refuse["malloc"] = 0
    with pytest.raises(DeviceError, match=r"cuda:0 is out of memory for a result of shape \(5, 6\)"):
        resolve("cuda").empty((5, 6), "f4")


@pytest.mark.parametrize("dtype", ["b1", "i8", "u2", "f2", "f8", "c8", "c16"])
def test_what_a_device_holds(fake_cupy: ModuleType, dtype: str) -> None:
    assert resolve("cuda").holds(np.dtype(dtype))
    assert HOST.holds(np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[s]", "U3", "S3", "V4", "O", "g", "G"])
def test_what_a_device_does_not_hold(fake_cupy: ModuleType, dtype: str) -> None:
    assert not resolve("cuda").holds(np.dtype(dtype))
    assert HOST.holds(np.dtype(dtype))


def test_streams(fake_cupy: ModuleType) -> None:
    first, second = resolve("cuda:0"), resolve("cuda:1")
    assert isinstance(first, GpuDevice)
    assert isinstance(second, GpuDevice)
    assert first.stream is first.stream
    assert (first.stream.device_id, second.stream.device_id) == (0, 1)
    mine = fake_cupy.cuda.Stream()
    with mine:
        assert first.caller_streams() == [mine]
        assert [stream.device_id for stream in second.caller_streams()] == [0, 1]
        assert second.caller_streams()[0] is mine


@pytest.mark.parametrize("purpose", ["stream", "loading_stream"])
def test_threads_that_ask_at_once_get_one_device_and_one_stream(
    fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, purpose: str
) -> None:
    """The stream orders what is copied and what a kernel places: with two of them, it placed what was not there yet."""
    made, start, found = fake_cupy.cuda.Stream, threading.Barrier(16), []

    def slow(**how: object) -> object:
        time.sleep(0.05)  # so that others come meanwhile, where they may
        return made(**how)

    monkeypatch.setattr(fake_cupy.cuda, "Stream", slow)

    def ask() -> None:
        start.wait()
        gpu = resolve("cuda:0")
        found.append((gpu, getattr(gpu, purpose)))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(id(gpu), id(stream)) for gpu, stream in found}) == 1


def test_pinning(fake_cupy: ModuleType) -> None:
    gpu = resolve("cuda:1")
    assert isinstance(gpu, GpuDevice)
    gpu.pin(4096, 100)
    assert fake_cupy.pinned == {4096: 100}
    gpu.unpin(4096)
    assert fake_cupy.pinned == {}
