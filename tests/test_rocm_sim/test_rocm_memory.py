"""Memory: out of the host's reach, never zeroed, counted, and registered no more than once."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.rocm

TOUCH = """
import ctypes, cupy
array = cupy.zeros(10, "u1")
cupy.cuda.Device().synchronize()
ctypes.string_at(array.data.ptr, 1)
"""
SIGSEGV = 11


def test_the_host_cannot_touch_device_memory(rocm_python: Any) -> None:
    rocm_python(TOUCH, returncode=-SIGSEGV)
    rocm_python(TOUCH, ROCM_SIM_GUARD="0")


def test_new_memory_is_not_zeroed(cupy: ModuleType) -> None:
    assert (cupy.empty(5000, np.uint8).get() == 0xA5).all()
    pinned = cupy.cuda.PinnedMemory(100)
    assert (np.frombuffer(cupy.cuda.PinnedMemoryPointer(pinned, 0), np.uint8, 100) == 0xA5).all()


def test_memory_runs_out(cupy: ModuleType, rocm_sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_SIM_MEMORY", str(1 << 20))
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty((1 << 20) + 1, np.uint8)
    _, total = cupy.cuda.runtime.memGetInfo()
    assert total == 1 << 20


def test_what_lives(cupy: ModuleType, rocm_sim: Any) -> None:
    before = rocm_sim.live()
    memory, pinned = cupy.cuda.Memory(4096), cupy.cuda.PinnedMemory(4096)
    after = rocm_sim.live()
    assert after["device_memory"] == before["device_memory"] + 1
    assert after["pinned_memory"] == before["pinned_memory"] + 1
    del memory, pinned
    assert rocm_sim.live() == before


def test_registered_memory(hip: ModuleType, rocm_sim: Any) -> None:
    memory = np.zeros(3 * 4096, np.uint8)
    address, size = memory.ctypes.data, memory.nbytes
    assert hip.hipHostRegister(address, size, 0)[0] == 0
    assert rocm_sim.live()["registered_memory"] == 1
    for again in (address, address + 4096, address - 4096):  # all of it, its middle, and what reaches into it
        assert hip.hipHostRegister(again, size, 0)[0] == hip.hipError_t.hipErrorHostMemoryAlreadyRegistered
    error, attributes = hip.hipPointerGetAttributes(address + 5000)
    assert (error, attributes.type) == (0, hip.hipMemoryType.hipMemoryTypeHost)
    assert hip.hipHostUnregister(address)[0] == 0
    assert hip.hipHostUnregister(address)[0] == hip.hipError_t.hipErrorHostMemoryNotRegistered
    assert rocm_sim.live()["registered_memory"] == 0


def test_pointer_attributes(hip: ModuleType, cupy: ModuleType) -> None:
    array, host = cupy.empty(1000, np.uint8), np.empty(1000, np.uint8)
    error, attributes = hip.hipPointerGetAttributes(array.data.ptr + 10)
    assert (error, attributes.type, attributes.device) == (0, hip.hipMemoryType.hipMemoryTypeDevice, 0)
    error, attributes = hip.hipPointerGetAttributes(host.ctypes.data)
    assert (error, attributes.type) == (0, hip.hipMemoryType.hipMemoryTypeUnregistered)
    error, base, size = hip.hipMemGetAddressRange(array.data.ptr + 10)
    assert (error, int(base), size) == (0, array.data.mem.ptr, array.data.mem.size)


def test_managed_memory_is_not_device_memory(hip: ModuleType, cupy: ModuleType, hipfile: ModuleType) -> None:
    memory = cupy.cuda.ManagedMemory(4096)
    error, attributes = hip.hipPointerGetAttributes(memory.ptr)
    assert (error, attributes.type) == (0, hip.hipMemoryType.hipMemoryTypeManaged)
    (error,) = hipfile.hipFileBufRegister(memory.ptr, 4096, 0)
    assert error.err == hipfile.hipFileOpError.hipFileHipMemoryTypeInvalid
