"""Faults come when they are asked for, and not otherwise."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.rocm


def codes(hip: ModuleType, calls: int) -> list[int]:
    return [int(hip.hipInit(0)[0]) for _ in range(calls)]


def test_every_call_one_call_and_all_from_one_on(hip: ModuleType, rocm_sim: Any) -> None:
    for specification, expected in [
        ("hipInit:err=2", [2, 2, 2, 2]),
        ("hipInit:err=2@3", [0, 0, 2, 0]),
        ("hipInit:err=2@3+", [0, 0, 2, 2]),
        ("hipInit:err=2@1,hipInit:err=3@2", [2, 3, 0, 0]),
    ]:
        rocm_sim.reset()
        rocm_sim.fault(specification)
        assert codes(hip, 4) == expected, specification
        assert rocm_sim.count("hipInit") == 4
    rocm_sim.fault()
    assert codes(hip, 2) == [0, 0]


@pytest.mark.parametrize(
    "specification",
    ["hipNothing:err=2", "hipInit", "hipInit:err", "hipInit:err=x", "hipInit:err=1@0", "hipInit:err=1@2-"],
)
def test_what_is_no_fault(rocm_sim: Any, hip: ModuleType, specification: str) -> None:
    rocm_sim.fault("hipInit:err=2")
    with pytest.raises(ValueError, match=specification.split(":", maxsplit=1)[0]):
        rocm_sim.fault(specification)
    assert codes(hip, 1) == [2]  # the fault before it is still there


def test_faults_of_the_environment(rocm_python: Any) -> None:
    script = "from rocm.bindings import hip; print(int(hip.hipInit(0)[0]))"
    assert rocm_python(script, ROCM_SIM_FAULT="hipInit:err=2") == "2"
    assert rocm_python(script) == "0"
    rocm_python(script, ROCM_SIM_FAULT="hipInit=2", returncode=-6)


def test_errors_of_hip(cupy: ModuleType, hip: ModuleType, rocm_sim: Any) -> None:
    memory = np.zeros(4096, np.uint8)
    rocm_sim.fault("hipHostMalloc:err=2,hipMalloc:err=2,hipHostRegister:err=1,hipMemcpyAsync:err=719@1")
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="OutOfMemory"):
        cupy.cuda.PinnedMemory(10)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty(10)
    assert hip.hipHostRegister(memory.ctypes.data, memory.nbytes, 0)[0] == hip.hipError_t.hipErrorInvalidValue
    assert rocm_sim.live()["registered_memory"] == 0
    rocm_sim.fault("hipMemcpyAsync:err=719@1")
    array = cupy.zeros(10, np.uint8)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        array.get()
    assert not array.get().any()


def test_a_stub_says_that_it_is_not_simulated(hip: ModuleType, rocm_sim: Any) -> None:
    before = rocm_sim.count("hipDeviceReset")
    assert hip.hipDeviceReset()[0] == hip.hipError_t.hipErrorNotSupported
    assert rocm_sim.count("hipDeviceReset") == before + 1
    assert rocm_sim.counts()["hipDeviceReset"] == before + 1
