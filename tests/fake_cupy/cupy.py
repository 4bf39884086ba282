"""As much of CuPy as gpuload uses, on NumPy: a GPU whose streams run as late as they may.

Work on a stream only starts when somebody waits for it, so that what nobody waited for has not happened: a copy out of
a block that was given back too early brings other bytes, a kernel on the wrong stream places garbage. With `eager` it
runs at once instead. Memory is poisoned when it is made and, in the order of its stream, when it is freed. The kernel
is a second implementation of `place` in NumPy, which refuses what a GPU would: addresses outside live memory, units
that are not aligned, grids that are too large.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import deque
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

__version__ = "0 (fake)"
uint8 = np.uint8
MADE, FREED = 0xA5, 0xDD

lock = threading.RLock()
here = threading.local()
eager = False
devices = 2
heap = []  # every allocation there was: addresses stay valid, what is written to them is seen
pinned = {}
log = []  # (stream, what) of everything that ran
refuse = {}  # name of an operation -> how many of it still succeed, then each raises


def reset():
    with lock:
        for stream in list(Stream.all):
            stream.work.clear()
            stream.ran = stream.put
        heap.clear()
        pinned.clear()
        log.clear()
        refuse.clear()
        Stream.all[:] = list(Stream.nulls.values())


def _may_fail(what, error):
    if what in refuse:
        refuse[what] -= 1
        if refuse[what] < 0:
            raise error


def check_freed():
    """Nothing was written to memory after it was freed, once all work is done."""
    for stream in list(Stream.all):
        stream.synchronize()
    for allocation in heap:
        assert allocation.live or (allocation.bytes == FREED).all(), "freed memory was written to"


# ---------------------------------------------------------------------- streams


class Stream:
    all: ClassVar = []
    nulls: ClassVar = {}

    def __init__(self, non_blocking=False):
        self.device_id = _device()
        self.work = deque()
        self.put = self.ran = 0
        self.running = False
        self.ptr = len(Stream.all) + 1
        Stream.all.append(self)

    def enqueue(self, what, function):
        with lock:
            self.work.append((what, function))
            self.put += 1
            if eager:
                self.run(self.put)

    def run(self, until):
        with lock:
            if self.running:  # a finalizer put work here while work runs: the loop below it takes that, too, in order
                return
            self.running = True
            try:
                while self.ran < (self.put if eager else until):
                    what, function = self.work.popleft()
                    self.ran += 1
                    function()
                    log.append((self.ptr, what))
            finally:
                self.running = False

    def synchronize(self):
        self.run(self.put)

    def wait_event(self, event):
        stream, position = event.stream, event.position
        if stream is not None:
            self.enqueue("wait", lambda: stream.run(position))

    def __enter__(self):
        _currents().setdefault(self.device_id, []).append(self)
        return self

    def __exit__(self, *error):
        _currents()[self.device_id].pop()


class Event:
    def __init__(self, disable_timing=False):
        self.stream, self.position = None, 0

    def record(self, stream=None):
        stream = stream or get_current_stream()
        stream.enqueue("event", lambda: None)
        self.stream, self.position = stream, stream.put

    @property
    def done(self):
        return self.stream is None or self.stream.ran >= self.position

    def synchronize(self):
        if self.stream is not None:
            self.stream.run(self.position)


def _currents():
    if not hasattr(here, "currents"):
        here.currents, here.devices = {}, [0]
    return here.currents


def _device():
    _currents()
    return here.devices[-1]


def get_current_stream():
    index = _device()
    stack = _currents().get(index)
    if stack:
        return stack[-1]
    with lock:
        if index not in Stream.nulls:
            Stream.nulls[index] = Stream()
        return Stream.nulls[index]


class Device:
    def __init__(self, index=None):
        self.id = _device() if index is None else index

    def __enter__(self):
        _currents()
        here.devices.append(self.id)
        return self

    def __exit__(self, *error):
        here.devices.pop()

    def synchronize(self):
        for stream in list(Stream.all):
            if stream.device_id == self.id:
                stream.synchronize()


# ---------------------------------------------------------------------- memory


class OutOfMemoryError(MemoryError):
    pass


class Allocation:
    def __init__(self, nbytes, device):
        room = np.full(nbytes + 512, MADE, np.uint8)
        start = -room.ctypes.data % 512
        self.bytes = room[start : start + nbytes]
        self.address, self.nbytes, self.device, self.live = self.bytes.ctypes.data, nbytes, device, True

    def free(self):
        self.live = False
        self.bytes[:] = FREED


class Memory:
    """A handle: when the last array on it is gone, its stream may lend the memory to others."""

    def __init__(self, nbytes):
        _may_fail("malloc", OutOfMemoryError("the fake is out of memory"))
        self.allocation = Allocation(max(nbytes, 1), _device())
        heap.append(self.allocation)
        self.ptr = self.allocation.address
        weakref.finalize(self, get_current_stream().enqueue, "free", self.allocation.free).atexit = False


def _bytes_at(low, high):
    for allocation in heap:
        if allocation.address <= low and high <= allocation.address + allocation.nbytes:
            return allocation.bytes, allocation.address
    raise CUDARuntimeError(f"illegal address {low:#x}:{high:#x}")


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset

    def __add__(self, offset):
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


class ndarray:
    def __init__(self, host, memory=None, memptr=None):
        if memptr is not None:  # as CuPy's own: a shape and a dtype
            shape, dtype, memory = host, memory, memptr.mem
            host = np.ndarray(shape, dtype, memory.allocation.bytes, memptr.ptr - memory.ptr)
        self.host, self.memory = host, memory
        self.shape, self.dtype, self.strides, self.size = host.shape, host.dtype, host.strides, host.size
        self.ndim, self.itemsize, self.nbytes, self.flags = host.ndim, host.itemsize, host.nbytes, host.flags

    @property
    def data(self):
        return MemoryPointer(self.memory, self.host.__array_interface__["data"][0] - self.memory.ptr)

    @property
    def device(self):
        return Device(self.memory.allocation.device)

    def __len__(self):
        return len(self.host)

    def __getitem__(self, key):
        if isinstance(key, ndarray):
            result = empty((len(key), *self.shape[1:]), self.dtype)
            source, chosen, target = self.host, key.host, result.host
            get_current_stream().enqueue("gather", lambda: target.__setitem__(..., source[chosen]))
            return result
        return ndarray(self.host[key] if key != () else self.host[...], self.memory)

    def _made(self, what, dtype, function):
        result = empty(self.shape, dtype)
        source, target = self.host, result.host
        get_current_stream().enqueue(what, lambda: target.__setitem__(..., function(source)))
        return result

    def _changed(self, what, function):
        target = self.host
        get_current_stream().enqueue(what, lambda: function(target))
        return self

    def __eq__(self, other):
        return self._made("equal", bool, lambda source: source == other)

    __hash__ = None

    def __or__(self, other):
        return self._made("or", bool, lambda source: source | getattr(other, "host", other))

    __ror__ = __or__

    def __imul__(self, factor):
        return self._changed("multiply", lambda target: np.multiply(target, factor, out=target))

    def __iadd__(self, offset):
        return self._changed("add", lambda target: np.add(target, offset, out=target))

    def __setitem__(self, key, value):
        if isinstance(key, ndarray):
            self._changed("mask", lambda target: target.__setitem__(key.host, value))
            return
        target = self.host[key if isinstance(key, tuple) else (key,)] if key is not ... else self.host
        source = value.host if isinstance(value, ndarray) else value
        get_current_stream().enqueue("set", lambda: target.__setitem__(..., source))

    @property
    def __cuda_array_interface__(self):
        return {**self.host.__array_interface__, "version": 3}

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_function__(self, function, types, arguments, options):
        return NotImplemented

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return NotImplemented

    def astype(self, dtype, order="K", copy=True):
        result = empty(self.shape, dtype)
        source, target = self.host, result.host
        get_current_stream().enqueue("astype", lambda: target.__setitem__(..., source))
        return result

    def fill(self, value):
        self[...] = value

    def ravel(self):
        return ndarray(self.host.reshape(-1), self.memory)

    def view(self, dtype):
        return ndarray(self.host.view(dtype), self.memory)

    def transpose(self, axes):
        return ndarray(self.host.transpose(axes), self.memory)

    def reshape(self, shape):
        return ndarray(np.reshape(self.host, shape, copy=False), self.memory)

    def get(self):
        """On the host, in the order of the current stream."""
        stream = get_current_stream()
        copies = []
        stream.enqueue("get", lambda: copies.append(self.host.copy()))
        stream.synchronize()
        return copies[0]


def empty(shape, dtype=float, order="C"):
    dtype = np.dtype(dtype)
    memory = Memory(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    return ndarray(np.ndarray(shape, dtype, memory.allocation.bytes, order=order), memory)


def asarray(host):
    if isinstance(host, ndarray):
        return host
    values = np.array(host)  # pageable memory is staged before the call returns
    result = empty(values.shape, values.dtype)
    target = result.host
    get_current_stream().enqueue("upload", lambda: target.__setitem__(..., values))
    return result


def asanyarray(host):
    return asarray(host)


def frombuffer(data, dtype):
    return asarray(np.frombuffer(data, dtype))


def asnumpy(array):
    return array.get() if isinstance(array, ndarray) else np.asarray(array)


def broadcast_to(array, shape):
    return ndarray(np.broadcast_to(array.host, shape), array.memory)


def take(array, indices, axis):
    result = empty((*array.shape[:axis], len(indices), *array.shape[axis + 1 :]), array.dtype)
    source, chosen, target = array.host, indices.host, result.host
    get_current_stream().enqueue("take", lambda: target.__setitem__(..., source.take(chosen, axis)))
    return result


# ---------------------------------------------------------------------- the runtime


class CUDARuntimeError(RuntimeError):
    pass


def _register(address, nbytes, flags):
    _may_fail("register", CUDARuntimeError("cudaErrorMemoryAllocation"))
    assert flags == 1
    assert address not in pinned
    pinned[address] = nbytes


def _unregister(address):
    del pinned[address]


def _memcpy(target, source, nbytes, kind, pointer):
    _may_fail("memcpy", CUDARuntimeError("cudaErrorIllegalAddress"))
    assert kind == 1
    (stream,) = [stream for stream in Stream.all if stream.ptr == pointer]
    assert stream.device_id == _device()
    host = np.ndarray(nbytes, np.uint8, _Host(source, nbytes))
    if not any(start <= source and source + nbytes <= start + size for start, size in pinned.items()):
        host = host.copy()
    room, base = _bytes_at(target, target + nbytes)
    stream.enqueue("copy", lambda: room.__setitem__(slice(target - base, target - base + nbytes), host))


def _memset(target, value, nbytes, pointer):
    (stream,) = [stream for stream in Stream.all if stream.ptr == pointer]
    room, base = _bytes_at(target, target + nbytes)
    stream.enqueue("memset", lambda: room.__setitem__(slice(target - base, target - base + nbytes), value))


def _Host(address, nbytes):
    holder = SimpleNamespace(__array_interface__={"data": (address, False), "shape": (nbytes,), "typestr": "|u1"})
    return np.asarray(holder)


def _count():
    if devices < 0:
        raise CUDARuntimeError("cudaErrorNoDevice")
    return devices


class RawKernel:
    def __init__(self, source, name):
        assert name == "place"
        assert "UNIT" not in source
        assert "LISTED" not in source
        assert "LOOSE" not in source
        self.width = int(re.search(r"u(\d+) v;", source)[1])
        self.loose = re.search(r"if \((\d)\)\n", source)[1] == "1"
        self.listed = re.search(r"\((\d) \? 2 : 1\)", source)[1] == "1"
        self.device = _device()
        self.kernel = self._launch

    def _launch(self, grid, block, arguments, shared, stream):
        _may_fail("launch", CUDARuntimeError("cudaErrorLaunchFailure"))
        kinds = [np.uint64, np.uint64, np.uint64, np.uint64, np.int32, np.int32, np.int32, np.uint64, np.uint64]
        assert [type(argument) for argument in arguments] == kinds
        assert grid[0] >= 1
        assert 1 <= grid[1] <= 65535
        assert 1 <= block[0] <= 1024
        assert self.device == _device() == stream.device_id
        values = [int(argument) for argument in arguments]
        stream.enqueue("kernel", lambda: self._place(*values))

    def _place(self, source, to, strides, table, k, n, swap, take, put):
        strides = _words(strides, 2 * k)
        columns = 2 + (2 if self.listed else 1) * k
        for row in _words(table, n * columns).reshape(n, columns).tolist():
            counts, entries = row[2 : 2 + k], row[2 + k :]
            at, there = np.array(row[0]), np.array(row[1])
            for axis, count in enumerate(counts):
                s = d = np.arange(count)
                if self.listed and entries[axis] >= 0:
                    s, d = _words(take + 8 * entries[axis], count), _words(put + 8 * entries[axis], count)
                at = at[..., None] + s * strides[axis]
                there = there[..., None] + d * strides[k + axis]
            if at.size:
                units = self._units(source, at.ravel(), self.loose)
                values = units[0][units[1]]
                target = self._units(to, there.ravel())
                target[0][target[1]] = values[:, ::-1] if swap else values

    def _units(self, base, offsets, loose=False):
        """The bytes of the memory that all units lie in, and each unit's bytes in it."""
        low, high = base + int(offsets.min()), base + int(offsets.max()) + self.width
        assert loose or not ((base + offsets) % self.width).any(), "misaligned address"
        room, start = _bytes_at(low, high)
        return room, (base - start + offsets)[:, None] + np.arange(self.width)


def _words(address, n):
    if not n:
        return np.zeros(0, np.int64)
    room, start = _bytes_at(address, address + 8 * n)
    return room[address - start : address - start + 8 * n].view(np.int64).copy()


def _allocate(nbytes):
    return bytearray(nbytes)


cuda = SimpleNamespace(
    Device=Device,
    Stream=Stream,
    Event=Event,
    get_current_stream=get_current_stream,
    alloc_pinned_memory=_allocate,
    Memory=Memory,
    MemoryPointer=MemoryPointer,
    memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    runtime=SimpleNamespace(
        is_hip=False,
        hostRegister=_register,
        hostUnregister=_unregister,
        memcpyAsync=_memcpy,
        memsetAsync=_memset,
        getDeviceCount=_count,
        getDevice=_device,
        CUDARuntimeError=CUDARuntimeError,
    ),
)
