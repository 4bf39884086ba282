"""Streams are late: what a missing synchronize would read, is read."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.rocm


def pinned(cupy: ModuleType, size: int) -> np.ndarray:
    memory = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.uint8, size)
    memory[:] = 0
    return memory


def to_host_later(cupy: ModuleType, array: Any, memory: np.ndarray, stream: Any) -> None:
    array.data.copy_to_host_async(ctypes.c_void_p(memory.ctypes.data), memory.nbytes, stream)


@pytest.mark.parametrize("kind", ["null", "blocking", "non-blocking"])
def test_a_copy_without_a_synchronize(cupy: ModuleType, rocm_sim: Any, kind: str) -> None:
    stream = {
        "null": lambda: cupy.cuda.Stream.null,
        "blocking": cupy.cuda.Stream,
        "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
    }[kind]()
    memory, array = pinned(cupy, 1000), cupy.full(1000, 7, np.uint8)
    cupy.cuda.Device().synchronize()
    with rocm_sim.held():
        to_host_later(cupy, array, memory, stream)
        assert not stream.done
        assert not memory.any()
    stream.synchronize()
    assert (memory == 7).all()


def test_an_event_orders_two_streams(cupy: ModuleType, rocm_sim: Any) -> None:
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    memory, array = pinned(cupy, 1000), cupy.full(1000, 7, np.uint8)
    cupy.cuda.Device().synchronize()
    with rocm_sim.held():
        cupy.cuda.runtime.memsetAsync(array.data.ptr, 9, array.nbytes, first.ptr)
        event = first.record()
        second.wait_event(event)
        to_host_later(cupy, array, memory, second)
        assert not event.done
    second.synchronize()
    assert event.done
    assert (memory == 9).all()


def test_without_an_event_two_streams_do_not_wait(cupy: ModuleType, rocm_sim: Any) -> None:
    """The first stream is late, at its first operation alone: the second does not see what it does."""
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    gate = Gate(cupy, rocm_sim)
    array, copy = cupy.full(1000, 7, np.uint8), cupy.empty(1000, np.uint8)
    cupy.cuda.Device().synchronize()
    gate.close(first)
    cupy.cuda.runtime.memsetAsync(array.data.ptr, 9, array.nbytes, first.ptr)
    cupy.cuda.runtime.memcpyAsync(copy.data.ptr, array.data.ptr, array.nbytes, 3, second.ptr)
    second.synchronize()
    gate.open()
    first.synchronize()
    assert (copy.get() == 7).all()
    assert (array.get() == 9).all()


class Gate:
    """Keeps a stream waiting for as long as a test wants."""

    def __init__(self, cupy: ModuleType, rocm_sim: Any) -> None:
        import threading

        self._opened = threading.Event()

    def close(self, stream: Any) -> None:
        stream.launch_host_func(lambda _: self._opened.wait(60), None)

    def open(self) -> None:
        self._opened.set()


def test_the_null_stream_waits_for_blocking_streams_and_they_for_it(cupy: ModuleType, rocm_sim: Any) -> None:
    blocking, other = cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    gate = Gate(cupy, rocm_sim)
    array, copy = cupy.full(1000, 7, np.uint8), cupy.empty(1000, np.uint8)
    cupy.cuda.Device().synchronize()
    gate.close(blocking)
    cupy.cuda.runtime.memsetAsync(array.data.ptr, 9, array.nbytes, blocking.ptr)
    cupy.cuda.runtime.memcpyAsync(copy.data.ptr, array.data.ptr, array.nbytes, 3, 0)
    event = cupy.cuda.Stream.null.record()
    other.synchronize()
    assert not event.done
    gate.open()
    event.synchronize()
    assert (copy.get() == 9).all()


def test_pageable_memory_is_copied_before_the_call_returns(cupy: ModuleType) -> None:
    memory, array = np.zeros(1000, np.uint8), cupy.full(1000, 7, np.uint8)
    stream = cupy.cuda.Stream()
    to_host_later(cupy, array, memory, stream)
    assert (memory == 7).all()


def test_a_destroyed_stream_still_does_its_work(cupy: ModuleType, rocm_sim: Any) -> None:
    array = cupy.full(1000, 7, np.uint8)
    cupy.cuda.Device().synchronize()
    streams = rocm_sim.live()["streams"]
    with rocm_sim.held():
        stream = cupy.cuda.Stream(non_blocking=True)
        assert rocm_sim.live()["streams"] == streams + 1
        cupy.cuda.runtime.memsetAsync(array.data.ptr, 9, array.nbytes, stream.ptr)
        del stream
        assert rocm_sim.live()["streams"] == streams
    cupy.cuda.Device().synchronize()
    assert (array.get() == 9).all()


def test_the_time_between_two_events(cupy: ModuleType) -> None:
    first = cupy.cuda.Stream.null.record(cupy.cuda.Event())
    last = cupy.cuda.Stream.null.record(cupy.cuda.Event())
    last.synchronize()
    assert cupy.cuda.get_elapsed_time(first, last) >= 0
    assert cupy.cuda.get_elapsed_time(last, first) <= 0


def test_copies_of_rows(hip: ModuleType, cupy: ModuleType, rocm_sim: Any) -> None:
    source, to = np.arange(64, dtype=np.uint8), cupy.empty((4, 8), np.uint8)
    before = rocm_sim.copied()["host_to_device"]
    way = hip.hipMemcpyKind.hipMemcpyHostToDevice
    (error,) = hip.hipMemcpy2DAsync(to.data.ptr, 8, source.ctypes.data, 16, 8, 4, way, None)
    assert error == 0
    assert rocm_sim.copied()["host_to_device"] == before + 32
    assert (to.get() == source.reshape(4, 16)[:, :8]).all()


def test_a_copy_that_names_the_wrong_way_or_too_much(cupy: ModuleType) -> None:
    runtime = cupy.cuda.runtime
    array, host = cupy.zeros(1000, np.uint8), np.zeros(1 << 20, np.uint8)
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidValue"):
        runtime.memcpy(array.data.ptr, host.ctypes.data, 1000, 2)
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidValue"):
        runtime.memcpy(host.ctypes.data, array.data.ptr, 1000, 1)
    base = array.data.mem
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidValue"):
        runtime.memcpy(base.ptr, host.ctypes.data, base.size + 1, 1)
