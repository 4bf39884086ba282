"""None, one and two GPUs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.rocm

TWO = """
import cupy
with cupy.cuda.Device(1):
    there = cupy.full(1000, 7, "u1")
    assert (there + 1).sum().get() == 8000
assert there.device.id == 1
here = cupy.asarray(there)
assert here.device.id == 0
assert (here.get() == 7).all()
"""


def test_what_one_gpu_says(cupy: ModuleType) -> None:
    runtime = cupy.cuda.runtime
    assert runtime.is_hip
    assert runtime.getDeviceCount() == 1
    properties = runtime.getDeviceProperties(0)
    assert properties["name"] == b"Simulated AMD GPU"
    assert properties["gcnArchName"].startswith(b"gfx942")
    assert (properties["warpSize"], properties["pciBusID"]) == (64, 1)
    assert properties["totalGlobalMem"] == 4 << 30


def test_two_gpus(rocm_python: Any) -> None:
    """In a process of its own, since CuPy's pool and its threads count the GPUs once."""
    rocm_python(TWO, ROCM_SIM_DEVICES="2")


def test_a_gpu_that_is_not_there(cupy: ModuleType, rocm_sim: Any) -> None:
    rocm_sim.devices(2)
    assert cupy.cuda.runtime.getDeviceCount() == 2
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="InvalidDevice"):
        cupy.cuda.Device(2).use()


def test_memory_is_counted_for_each_gpu(cupy: ModuleType, rocm_sim: Any) -> None:
    rocm_sim.devices(2)
    with cupy.cuda.Device(1):
        before = cupy.cuda.runtime.memGetInfo()
        memory = cupy.cuda.Memory(1 << 20)
        assert cupy.cuda.runtime.memGetInfo()[0] == before[0] - (1 << 20)
    assert memory.device_id == 1
    del memory


def test_no_gpu(cupy: ModuleType, rocm_sim: Any) -> None:
    rocm_sim.devices(0)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="NoDevice"):
        cupy.cuda.runtime.getDeviceCount()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="NoDevice"):
        cupy.cuda.PinnedMemory(10)


def test_as_many_as_the_environment_says(rocm_python: Any) -> None:
    script = "import cupy; print(cupy.cuda.runtime.getDeviceCount())"
    assert rocm_python(script) == "1"
    assert rocm_python(script, ROCM_SIM_DEVICES="2") == "2"
