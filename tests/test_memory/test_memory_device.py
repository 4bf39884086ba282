"""Devices by name, what they hold, and what is said where there is none."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gpuload.errors import DeviceError
from gpuload.memory import device


def test_the_host() -> None:
    host = device.resolve("cpu")
    assert host is device.HOST is device.resolve(host)
    assert (host.name, host.is_host, host.xp) == ("cpu", True, np)
    assert host.owns(np.zeros(3))
    assert not host.owns([1])
    made = host.empty((2, 3), ">f4", "F")
    assert (made.shape, made.dtype, made.flags.f_contiguous) == ((2, 3), np.dtype(">f4"), True)
    for kind in ["S3", "M8[s]", "O", "f2", [("a", "i4")]]:
        assert host.holds(np.dtype(kind))


@pytest.mark.parametrize(
    "spec", ["gpu", "", "cuda:", "cuda:x", "cuda:-1", "auto:1", "cpu:0", "CUDA", "cuda:0:1", "tpu:0"]
)
def test_names_that_are_none(spec: str) -> None:
    with pytest.raises(DeviceError, match=r"no device named|CuPy|sees") as raised:
        device.resolve(spec)
    assert repr(spec) in str(raised.value)


def test_what_is_said_without_a_gpu() -> None:
    if device.gpu_count():
        pytest.skip("there is a GPU here")
    assert device.resolve("auto") is device.HOST
    for spec in ["cuda", "cuda:0", "cuda:3"]:
        with pytest.raises(DeviceError, match=rf"{spec}.*(CuPy cannot be imported|CuPy sees no GPU).*device='cpu'"):
            device.resolve(spec)


def test_whose_array_it_is() -> None:
    assert device.of(np.zeros(1)) is device.HOST
    for other in [[1], memoryview(b""), 5]:
        with pytest.raises(DeviceError, match="neither a NumPy nor a CuPy array"):
            device.of(other)


def test_the_host_travels_by_name() -> None:
    assert pickle.loads(pickle.dumps(device.HOST)) is device.HOST


@pytest.mark.gpu
def test_a_gpu_by_name() -> None:
    if not device.gpu_count():
        pytest.skip("CuPy sees no GPU here")
    gpu = device.resolve("cuda:0")
    assert (gpu.name, gpu.is_host) == ("cuda:0", False)
    assert device.resolve("auto").name.startswith("cuda:")
    assert pickle.loads(pickle.dumps(gpu)) is gpu
    made = gpu.empty((3, 4), "f4")
    assert gpu.owns(made)
    assert device.of(made) is gpu
    assert not device.HOST.owns(made)
    for kind in "?bBhHiIlLefdFD":
        assert gpu.holds(np.dtype(kind))
    for kind in ["S3", "U2", "M8[s]", "m8[s]", "O", "g", "G", "V4", [("a", "i4")]]:
        assert not gpu.holds(np.dtype(kind))
    with pytest.raises(DeviceError, match=rf"this process sees {device.gpu_count()} GPU"):
        device.resolve("cuda:99")
    with pytest.raises(DeviceError, match="out of memory"):
        gpu.empty((1 << 50,), "u1")


@pytest.mark.parametrize("dtype", ["u1", "<f8", "V7", "S3", "<U5", "O"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_host_arrays_start_at_a_cache_line(dtype: str, order: str) -> None:
    # The kernel's copy into other places takes several times as long.
    for shape in ((0, 3), (), (7, 1000), (3, 5, 50_001)):
        array = device.HOST.empty(shape, dtype, order)
        assert array.shape == shape
        assert array.dtype == np.dtype(dtype)
        assert array.flags[f"{order}_CONTIGUOUS"]
        if array.nbytes >= 4096 and dtype != "O":
            assert array.ctypes.data % 64 == 0
        if array.size:
            array[...] = array.dtype.type() if dtype != "V7" else b"1234567"
