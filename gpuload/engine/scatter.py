"""Puts the pieces of a block at their final strides: with NumPy on the host, with one copy and one kernel on a GPU.

A sink belongs to one read. Its `place` is called by one thread at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpuload.engine.gather import Gather
from gpuload.engine.plan import Part, Plan, ReadRequest
from gpuload.errors import DeviceError
from gpuload.memory.device import GpuDevice
from gpuload.memory.slabs import Block
from gpuload.planning.grid import Pieces


class Planned(Protocol):
    """What a device sink must know of the pieces it places."""

    request: ReadRequest
    pieces: Pieces
    live: int
    unit: int
    loose: bool  # sources need not be multiples of the unit
    source: npt.NDArray[np.int64]

    @property
    def largest_data(self) -> int:
        """The most bytes that are copied from the host at a time."""
        ...


class Sink(Protocol):
    """Where a read's pieces go."""

    def place(self, part: Part, block: Block, missing: npt.NDArray[np.bool_] | None) -> Any:
        """Place the pieces of `part`; those marked missing get the fill value.

        Returns None when the block is free again, or the GPU's event that frees it.
        """
        ...

    def fill(self, first: int, last: int) -> None:
        """Give the pieces ``first:last`` the fill value."""
        ...

    def finish(self) -> None:
        """After the last `place`, on its thread."""
        ...

    def ready(self) -> None:
        """On the caller's thread: from now on its current stream sees the result."""
        ...

    def abandon(self) -> None:
        """Instead of `ready`, after an error: nothing is written to the destination any more."""
        ...


class HostSink:
    """Into a NumPy array of any strides."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        out = plan.request.out
        self._type = _copy_type(plan.unit, bool(plan.request.swap))
        low, high = np.lib.array_utils.byte_bounds(out) if out.size else (0, 0)
        self._base = out.__array_interface__["data"][0] - low
        self._out = _raw_bytes(out, low, high - low)
        self._fill = np.frombuffer(plan.request.fill, self._type)[0] if plan.request.fill else None
        listed = plan.pieces.lists is not None
        self._gather = Gather(plan.pieces, self._type, self._out, self._base) if listed else None

    def place(self, part: Part, block: Block, missing: npt.NDArray[np.bool_] | None) -> None:
        plan = self.plan
        first, last = part.first, part.last
        if missing is not None:
            for piece in np.flatnonzero(missing).tolist():
                self.fill(first + piece, first + piece + 1)
        if plan.vectors is not None or plan.request.decoder is not None:
            return  # the kernel has put the others in place, or who decoded them
        if self._gather is not None:
            for piece in range(first, last):
                if missing is None or not missing[piece - first]:
                    self._gather.place(piece, block.array, int(plan.source[piece]))
            return
        source = (plan.source[first:last]).tolist()
        place = (plan.pieces.place[first:last] + self._base).tolist()
        counts = plan.pieces.count[first:last]
        from_strides, to_strides = plan.pieces.source_strides, plan.pieces.place_strides
        kind, memory, out = self._type, block.array, self._out
        ndarray = np.ndarray
        if missing is None and bool((counts == counts[0]).all()):
            shape = tuple(counts[0].tolist())
            for at, to in zip(source, place, strict=True):
                ndarray(shape, kind, out, to, to_strides)[...] = ndarray(shape, kind, memory, at, from_strides)
            return
        skip = [False] * len(source) if missing is None else missing.tolist()
        for at, to, shape, absent in zip(source, place, counts.tolist(), skip, strict=True):
            if not absent:
                ndarray(shape, kind, out, to, to_strides)[...] = ndarray(shape, kind, memory, at, from_strides)

    def room(self, piece: int) -> npt.NDArray[np.uint8] | None:
        """The piece's place, as bytes, where it is one run of all bytes of a decoded chunk. Threads: safe."""
        plan, pieces = self.plan, self.plan.pieces
        if self._gather is not None or not pieces.source_strides == pieces.place_strides == (plan.unit,):
            return None
        nbytes, to = int(pieces.count[piece, 0]) * plan.unit, int(pieces.place[piece]) + self._base
        whole = plan.request.decoder is not None and nbytes == plan.request.decoder.decoded_size
        return self._out[to : to + nbytes] if whole else None

    def put(self, piece: int, memory: npt.NDArray[np.uint8]) -> None:
        """Place one piece from the memory of its block. Threads: safe, for different pieces."""
        plan, pieces = self.plan, self.plan.pieces
        at, to = int(plan.source[piece]), int(pieces.place[piece]) + self._base
        if self._gather is not None:
            self._gather.place(piece, memory, at)
            return
        shape = tuple(pieces.count[piece].tolist())
        source = np.ndarray(shape, self._type, memory, at, pieces.source_strides)
        np.ndarray(shape, self._type, self._out, to, pieces.place_strides)[...] = source

    def fill(self, first: int, last: int) -> None:
        plan = self.plan
        if self._gather is not None:
            for piece in range(first, last):
                self._gather.fill(piece, self._fill)
            return
        place = (plan.pieces.place[first:last] + self._base).tolist()
        for to, shape in zip(place, plan.pieces.count[first:last].tolist(), strict=True):
            np.ndarray(shape, self._type, self._out, to, plan.pieces.place_strides)[...] = self._fill

    def finish(self) -> None:
        pass

    def ready(self) -> None:
        pass

    def abandon(self) -> None:
        pass


def _raw_bytes(out: npt.NDArray[Any], low: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """The memory `out` spans, as bytes; for a base to make strided views of."""
    return np.asarray(_Memory(low, nbytes, out)) if nbytes else np.empty(0, np.uint8)


class _Memory:
    """Bytes at an address, for NumPy, which keep their owner. No class made for the occasion: a class lives, and keeps
    what it holds, until the next collection of garbage.
    """

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}
        self.owner = owner


def _copy_type(itemsize: int, swap: bool) -> np.dtype[Any]:
    """A type of `itemsize` that NumPy copies bit for bit, and fast."""
    if swap:
        raise DeviceError("bytes are swapped on devices only")
    return np.dtype({1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(itemsize, f"V{itemsize}"))


_SOURCE = r"""
struct __align__(16) u16 { unsigned long long a, b; };
typedef unsigned char u1;
typedef unsigned short u2;
typedef unsigned int u4;
typedef unsigned long long u8;
__device__ inline u1 swapped(u1 v) { return v; }
__device__ inline u2 swapped(u2 v) { return (u2)((v >> 8) | (v << 8)); }
__device__ inline u4 swapped(u4 v) { return (v >> 24) | ((v >> 8) & 0xff00u) | ((v << 8) & 0xff0000u) | (v << 24); }
__device__ inline u8 swapped(u8 v) {
  return ((u8)swapped((u4)v) << 32) | (u8)swapped((u4)(v >> 32));
}
__device__ inline u16 swapped(u16 v) { return v; }

// Units of one width from `from` to `to`. A row of `table` is a piece: source, place, count along each of k axes; in
// plans with lists also its first entry of them along each axis, or -1. In loose plans a unit may start at any byte.
extern "C" __global__ void place(const u1* from, u1* to, const long long* strides, const long long* table, int k,
                                 int pieces, int swap, const long long* take, const long long* put) {
  for (int piece = blockIdx.y; piece < pieces; piece += gridDim.y) {
    const long long* row = table + (long long)piece * (2 + (LISTED ? 2 : 1) * k);
    long long total = 1;
    for (int a = 0; a < k; a++) total *= row[2 + a];
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < total;
         i += (long long)gridDim.x * blockDim.x) {
      long long rest = i, at = row[0], there = row[1];
      for (int a = k - 1; a >= 0; a--) {
        long long n = row[2 + a], j = rest % n;
        rest /= n;
        long long s = j, d = j;
        if (LISTED && row[2 + k + a] >= 0) {
          s = take[row[2 + k + a] + j];
          d = put[row[2 + k + a] + j];
        }
        at += s * strides[a];
        there += d * strides[k + a];
      }
      UNIT v;
      if (LOOSE)
        for (int b = 0; b < (int)sizeof(UNIT); b++) ((u1*)&v)[b] = from[at + b];
      else
        v = *(const UNIT*)(from + at);
      *(UNIT*)(to + there) = swap ? swapped(v) : v;
    }
  }
}
"""
_THREADS = 256
_MAX_HIGH = 65535  # blocks along the second axis of a grid


def _blocks(units: int) -> int:
    """Blocks of threads that one piece of `units` is given."""
    return max(1, min(1024, -(-units // _THREADS)))


@cache
def _kernel(index: int, width: int, listed: bool, loose: bool) -> Any:
    import cupy

    source = _SOURCE.replace("UNIT", f"u{width}").replace("LISTED", str(int(listed))).replace("LOOSE", str(int(loose)))
    with cupy.cuda.Device(index):
        return cupy.RawKernel(source, "place")


class DeviceSink:
    """Into a CuPy array of any strides: a block is copied to scratch in one go, and one kernel places its pieces.

    Everything runs on the device's own transfer stream, which first waits for the caller's stream (the destination's
    memory may still be in use there); at the end the caller's stream waits for it. Nothing waits on the host.
    """

    def __init__(self, plan: Planned, device: GpuDevice) -> None:
        self.plan, self.device = plan, device
        self.xp = device.xp
        self.stream = device.stream
        pieces, request = plan.pieces, plan.request
        self._to = request.out.data.ptr
        width, count, from_strides, to_strides = _widen(plan, self._to)
        self._k = count.shape[1]
        self._swap = int(bool(request.swap))
        source = np.concatenate((plan.source, np.zeros(len(pieces) - plan.live, np.int64)))
        lists = pieces.lists
        entries = () if lists is None else (lists.entry,)
        table = np.concatenate((source[:, None], pieces.place[:, None], count, *entries), axis=1)
        # The fill value is read again and again: its strides are 0, but for the units of one element.
        fill_strides = [0] * self._k
        if request.swap and request.swap != request.itemsize and self._k:
            fill_strides[-1] = request.swap
        self._total = count.prod(axis=1)
        strides = np.array([*from_strides, *to_strides, *fill_strides, *to_strides], np.int64)
        cuda = self.xp.cuda
        with device.handle:
            before = cuda.Event(disable_timing=True)
            before.record(cuda.get_current_stream())
            self.stream.wait_event(before)
            with self.stream:
                self._table = self.xp.asarray(table)
                self._strides = self.xp.asarray(strides)
                self._lists = () if lists is None else (self.xp.asarray(lists.take), self.xp.asarray(lists.put))
                self._fill = self.xp.asarray(np.frombuffer(request.fill * max(1, 16 // len(request.fill)), np.uint8))
                self._stage = self.xp.empty(plan.largest_data, self.xp.uint8) if plan.largest_data else None
            self._done = cuda.Event(disable_timing=True)
            self._kernel = _kernel(device.index, width, lists is not None, plan.loose).kernel
        self._wide = _blocks(int(self._total.max(initial=0)))
        self._constant = (np.uint64(self._to), np.uint64(self._strides.data.ptr))
        self._shape = (np.int32(self._k), np.int32(self._swap))
        self._entries = tuple(np.uint64(array.data.ptr) for array in self._lists) or (np.uint64(0), np.uint64(0))

    def place(self, part: Part, block: Block, missing: npt.NDArray[np.bool_] | None) -> Any:
        start, stop = part.data
        assert self._stage is not None
        stage, stream = self._stage.data.ptr, self.stream
        with self.device.handle:
            # 1: host to device
            self.xp.cuda.runtime.memcpyAsync(stage, block.address + start, stop - start, 1, stream.ptr)
            # Offsets in the plan count from the start of the block, the scratch holds it from `start`.
            if missing is None:
                table = self._table.data.ptr + part.first * self._table.strides[0]
                self._launch(stage - start, self._constant[1], table, part.last - part.first, self._wide)
            else:
                which = np.arange(part.first, part.last)
                with stream:
                    self._launch_rows(stage - start, self._constant[1], self._rows(which[~missing]))
                    self._fill_rows(which[missing])
            event = self.xp.cuda.Event(disable_timing=True)
            event.record(stream)
        return event

    def place_from(self, source: int, first: int, last: int) -> Any:
        """Place the pieces ``first:last`` from device memory at `source`; returns the event that frees it."""
        with self.device.handle:
            if last > first:
                table = self._table.data.ptr + first * self._table.strides[0]
                self._launch(source, self._constant[1], table, last - first, self._wide)
            event = self.xp.cuda.Event(disable_timing=True)
            event.record(self.stream)
        return event

    def _launch(self, source: int, strides: np.uint64, table: int, n: int, wide: int) -> None:
        to, (k, swap) = self._constant[0], self._shape
        arguments = (np.uint64(source), to, strides, np.uint64(table), k, np.int32(n), swap, *self._entries)
        self._kernel((wide, min(n, _MAX_HIGH)), (_THREADS,), arguments, 0, self.stream)

    def _rows(self, which: npt.NDArray[np.int64]) -> Any:
        return self._table[self.xp.asarray(which)]

    def _launch_rows(self, source: int, strides: np.uint64, rows: Any) -> None:
        if len(rows):
            self._launch(source, strides, rows.data.ptr, len(rows), self._wide)

    def _fill_rows(self, which: npt.NDArray[np.int64]) -> None:
        rows = self._rows(which)
        rows[:, 0] = 0
        strides = self._strides.data.ptr + 2 * self._k * self._strides.itemsize
        self._launch_rows(self._fill.data.ptr, np.uint64(strides), rows)

    def fill(self, first: int, last: int) -> None:
        with self.device.handle, self.stream:
            self._fill_rows(np.arange(first, last))

    def finish(self) -> None:
        with self.device.handle:
            self._done.record(self.stream)

    def ready(self) -> None:
        for stream in self.device.caller_streams():
            stream.wait_event(self._done)

    def abandon(self) -> None:
        # The caller may free the destination, and its allocator lend that memory to others, at once.
        self.stream.synchronize()


def _widen(plan: Planned, to: int) -> tuple[int, npt.NDArray[np.int64], list[int], list[int]]:
    """The widest unit, up to 16 bytes, that every row of the plan can be copied in, and counts and strides in it."""
    pieces, unit = plan.pieces, plan.unit
    count = pieces.count
    from_strides, to_strides = list(pieces.source_strides), list(pieces.place_strides)
    if not (len(count) and from_strides and from_strides[-1] == to_strides[-1] == unit) or plan.request.swap:
        return unit, count, from_strides, to_strides
    if pieces.lists is not None and len(from_strides) - 1 in pieces.lists.axes:
        return unit, count, from_strides, to_strides
    row = count[:, -1] * unit
    bits = to | int(np.bitwise_or.reduce(row)) | int(np.bitwise_or.reduce(pieces.place))
    if plan.live and not plan.loose:
        bits |= int(np.bitwise_or.reduce(plan.source))
    for stride in (*(() if plan.loose else from_strides[:-1]), *to_strides[:-1]):
        bits |= abs(stride)
    start = 16
    while start > unit and bits % start:
        start //= 2
    if start <= unit:
        return unit, count, from_strides, to_strides
    count = count.copy()
    count[:, -1] = row // start
    from_strides[-1] = to_strides[-1] = start
    return start, count, from_strides, to_strides
