"""The fastpath's part of a read: whole blocks by a vendor's library, straight into device memory, and what it leaves.

Batches of ranges are read into slots of scratch by a few threads, while the caller has those that are there put in
place by a kernel. Tails, and ranges that failed where another backend may try, are read by the fallback into just the
bytes they lack. Each says in the record who served it and why.

Threads: safe, each caller runs its own read. Fork: no device works in the child.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Sequence
from errno import EIO
from time import monotonic
from typing import Any, Protocol

import numpy as np

from gpuload import events
from gpuload.backends.base import DirectBackend, Moved
from gpuload.config import flag, integer
from gpuload.engine.calls import Calls, Round, calls
from gpuload.engine.calls import stop as stop_calls
from gpuload.engine.direct import DirectPlan, Ranges, Staged
from gpuload.engine.plan import ReadRequest
from gpuload.engine.scatter import DeviceSink
from gpuload.errors import ChunkReadError, ChunkSizeError, StrictError, VendorError
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root
from gpuload.memory.device import GpuDevice
from gpuload.memory.scratch import MOST_BYTES, SLOTS, ScratchPool, Slot
from gpuload.request import Decode, Int64, ReadPath, Reason, Served

_GROUP = 64  # ranges that go straight into the result and are told to the record together


class ReadRanges(Protocol):
    """Reads byte ranges of open files into a uint8 array by the fallback; see `engine.reader.read_ranges`."""

    def __call__(
        self,
        root: Root,
        keys: Sequence[str],
        handles: Sequence[FileHandle | None],
        offset: Int64,
        size: Int64,
        place: Int64,
        out: Any,
        *,
        reason: Reason,
        declined: str,
    ) -> None: ...


class Unsuited(Exception):  # noqa: N818 - no error: the fallback reads it, for this reason
    """A request that the fastpath does not take after all."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class _Reads:
    """Some ranges on their way into one piece of device memory.

    Parameters
    ----------
    memory
        uint8 (bytes,): that memory; places count from its first byte.
    slot
        The scratch it is, or None.
    pieces
        The pieces that are placed from it when it is read: first, and behind the last.
    """

    def __init__(
        self,
        read: DirectRead,
        ranges: Ranges,
        memory: Any,
        slot: Slot | None = None,
        pieces: tuple[int, int] = (0, 0),
    ) -> None:
        self.ranges, self.memory, self.slot, self.pieces = ranges, memory, slot, pieces
        self._read = read
        self._pointer = int(memory.data.ptr)
        self._rows = np.flatnonzero(ranges.size).tolist()
        n = len(ranges)
        self._done, self._moved = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._submitted, self._completed = np.zeros(n), np.zeros(n)
        self._errors: dict[int, Exception | None] = {}
        self.round = Round(self._one, len(self._rows))

    def _one(self, i: int) -> None:
        """One range, on one of the threads."""
        row, ranges, read = self._rows[i], self.ranges, self._read
        size = int(ranges.size[row])
        handle = read.handle(int(ranges.file[row]))
        self._submitted[row] = monotonic()
        with read.device.handle:
            result: Moved = read.backend.read(
                handle, self._pointer, size, int(ranges.offset[row]), int(ranges.place[row]), gpu=read.device.index
            )
        self._completed[row] = monotonic()
        self._done[row], self._moved[row] = result.done, result.moved
        if result.done < size:
            self._errors[row] = result.error

    def complete(self) -> None:
        """Wait until all is read, and have the fallback read what is lacking."""
        self.round.wait()
        if self.round.error is not None:
            raise self.round.error
        ranges = self.ranges
        lacking: dict[Reason, list[tuple[int, int, int, int]]] = {}  # file, offset, size, place
        for row, error in sorted(self._errors.items()):
            reason, done = self._read.why(ranges, row, error), int(self._done[row])
            lacking.setdefault(reason, []).append(
                (
                    int(ranges.file[row]),
                    int(ranges.offset[row]) + done,
                    int(ranges.size[row]) - done,
                    int(ranges.place[row]) + done,
                )
            )
        for row in np.flatnonzero(ranges.tail).tolist():
            size = int(ranges.size[row])
            lacking.setdefault(Reason.TAIL, []).append(
                (
                    int(ranges.file[row]),
                    int(ranges.offset[row]) + size,
                    int(ranges.tail[row]),
                    int(ranges.place[row]) + size,
                )
            )
        for reason, rows in lacking.items():
            self._read.by_fallback(reason, np.array(rows, np.int64), self.memory)

    def tell(self) -> None:
        """Publish what was served, once."""
        which = np.flatnonzero(self._moved)
        if not len(which):
            return
        ranges, doubt = self.ranges, self._read.doubt
        files, key_index = np.unique(ranges.file[which], return_inverse=True)
        started, ended = self._submitted[which], self._completed[which]
        events.publish(
            Served(
                backend=self._read.backend.name,
                read_path=ReadPath.FASTPATH if doubt is None else ReadPath.FALLBACK,
                reason=doubt,
                decode=Decode.NONE,
                keys=[self._read.request.keys[i] for i in files.tolist()],
                key_index=key_index,
                file_offset=ranges.offset[which],
                size=np.minimum(ranges.wanted[which], self._done[which]),
                moved=self._moved[which],
                latency=ended - started,
                started=float(started.min()),
                ended=float(ended.max()),
            )
        )
        self._moved[:] = 0


class DirectRead:
    """One read of files that are all there and eligible, into a device.

    Parameters
    ----------
    request
        With the handles of its files, which the caller has leased.
    device, backend
        Where to, and by which library; its driver is open.
    doubt
        Why what it serves cannot be called direct.
    strict
        Only tails may go by the fallback.
    read_ranges
        The fallback.
    """

    def __init__(
        self,
        request: ReadRequest,
        device: GpuDevice,
        backend: DirectBackend,
        *,
        doubt: Reason | None,
        strict: bool,
        read_ranges: ReadRanges,
    ) -> None:
        self.request, self.device, self.backend, self.doubt = request, device, backend, doubt
        self._strict, self._read_ranges = strict, read_ranges
        self._pool = scratch(device, backend)
        self._calls: Calls = calls(integer("fastpath.threads"))
        self._reads: deque[_Reads] = deque()
        self._sink: DeviceSink | None = None
        self._staged: Staged | None = None

    def run(self) -> None:
        """Read it all; the result is ready for whatever the caller's current stream does next.

        Raises
        ------
        Unsuited
            Nothing was read: the fallback must do it.
        ChunkError
            A range could not be read; names its file.
        StrictError
            A range did not come by the fastpath, and `strict` is on.
        """
        used = np.unique(self.request.file[self.request.pieces.chunk]).tolist()
        geometries = {self.handle(file).identity.device: self.handle(file).geometry for file in used}
        align = max(max(g.direct_offset_align, g.direct_mem_align) for g in geometries.values())
        plan = DirectPlan(self.request, align=align, slot_bytes=self._pool.slot_bytes)
        if plan.largest > self._pool.slot_bytes:
            raise Unsuited(Reason.UNALIGNED_MEMORY)  # no scratch is large enough to put it in place from
        if self._strict and plan.only_tail:
            raise StrictError(Reason.TAIL, "less than one block of a file is wanted of it, or there")
        self._staged = plan.staged
        try:
            if plan.staged is not None:
                self._sink = DeviceSink(plan.staged, self.device)
            self._start_straight(plan.straight)
            self._run_staged(plan)
            while self._reads:
                self._complete_first()
            if self._sink is not None:
                self._sink.finish()
        except BaseException:
            self._abandon()
            raise
        if self._sink is not None:
            self._sink.ready()

    def handle(self, file: int) -> FileHandle:
        """The open file of a key."""
        assert self.request.handles is not None
        handle = self.request.handles[file]
        assert handle is not None
        return handle

    def _start_straight(self, ranges: Ranges) -> None:
        if not len(ranges):
            return
        out, xp = self.request.out, self.device.xp
        low = int(ranges.place.min())
        nbytes = int((ranges.place + ranges.size + ranges.tail).max()) - low
        with self.device.handle:
            memory = xp.ndarray((nbytes,), "u1", memptr=out.data + low)
            # Work that was given to the GPU before may still use this memory; the library does not know of streams.
            xp.cuda.get_current_stream().synchronize()
        ranges = ranges.moved_by(-low)
        for first in range(0, len(ranges), _GROUP):
            self._begin(_Reads(self, ranges.part(first, first + _GROUP), memory))

    def _run_staged(self, plan: DirectPlan) -> None:
        if plan.staged is None:
            return
        bounds, pieces = plan.bounds.tolist(), plan.piece_bounds.tolist()
        poison, held = flag("poison"), 0
        for i in range(len(bounds) - 1):
            try:
                slot = self._pool.take(wait=not held, poison=poison)
            except MemoryError as error:
                raise Unsuited(Reason.DRIVER_ERROR) from error
            while slot is None:
                held -= self._complete_first()
                slot = self._pool.take(wait=not held, poison=poison)
            held += 1
            reads = _Reads(
                self, plan.staged.ranges.part(bounds[i], bounds[i + 1]), slot.array, slot, (pieces[i], pieces[i + 1])
            )
            self._begin(reads)

    def _begin(self, reads: _Reads) -> None:
        self._reads.append(reads)
        self._calls.start(reads.round)

    def _complete_first(self) -> int:
        """Complete the oldest, and place what it brought; returns how many slots are free for it."""
        reads = self._reads[0]
        reads.complete()
        reads.tell()
        if self.request.task is not None:
            self.request.task.add(self._worth(reads))
        if reads.slot is not None:
            assert self._sink is not None
            event = self._sink.place_from(reads.slot.pointer, *reads.pieces)
            slot, reads.slot = reads.slot, None
            self._pool.give(slot, event)
            self._reads.popleft()
            return 1
        self._reads.popleft()
        return 0

    def _worth(self, reads: _Reads) -> int:
        """Bytes of the result that these reads bring."""
        staged = self._staged
        if reads.slot is None or staged is None:
            return int((reads.ranges.wanted + reads.ranges.tail).sum())
        first, last = reads.pieces
        return int(staged.pieces.count[first:last].prod(axis=1).sum()) * staged.unit

    def why(self, ranges: Ranges, row: int, error: Exception | None) -> Reason:
        """Why the fallback may read what a range lacks.

        Raises
        ------
        ChunkReadError, ChunkSizeError
            It must not.
        """
        file = int(ranges.file[row])
        key, end = self.request.keys[file], int(ranges.offset[row] + ranges.size[row])
        seen = os.fstat(self.handle(file).buffered_fd).st_size
        if seen < end:
            raise ChunkSizeError(key, end, seen, "the file was cut while it was read") from error
        reason = Reason.DRIVER_ERROR if error is None else self.backend.retry(error)
        if reason is None:
            assert error is not None
            number = error.errno if isinstance(error, VendorError) and error.errno else EIO
            raise ChunkReadError(key, number, f"{self.backend.name} cannot read it: {error}") from error
        if self._strict:
            raise StrictError(reason, f"{key!r}: {error or 'the driver does not go on'}") from error
        return reason

    def by_fallback(self, reason: Reason, rows: Int64, memory: Any) -> None:
        """Read ranges (int64 (n, 4): file, offset, size, place) another way into `memory`."""
        file, offset, size, place = np.ascontiguousarray(rows.T)
        files = file.tolist()
        with self.device.handle:
            self._read_ranges(
                self.request.root,
                [self.request.keys[i] for i in files],
                [self.handle(i) for i in files],
                offset,
                size,
                place,
                memory,
                reason=reason,
                declined=self.backend.name,
            )

    def _abandon(self) -> None:
        """Nothing is written any more when this returns, however often it is interrupted; slots are given back."""
        while self._reads:
            try:
                reads = self._reads[0]
                reads.round.cancelled = True
                self._calls.start(reads.round)
                reads.round.wait()
                if self._sink is not None:
                    self._sink.abandon()
                slot, reads.slot = reads.slot, None
                if slot is not None:
                    self._pool.give(slot, None)
                reads.tell()
                self._reads.popleft()
            except KeyboardInterrupt:  # the first one is raised when this is over
                continue
        if self._sink is not None:
            self._sink.abandon()


# ---------------------------------------------------------------------- one a process and device

_lock = threading.Lock()
_pools: dict[int, tuple[ScratchPool, DirectBackend]] = {}


def scratch(device: GpuDevice, backend: DirectBackend) -> ScratchPool:
    """The scratch of a device."""
    nbytes = max(integer("fastpath.scratch"), SLOTS * (integer("piece_bytes") + (64 << 10)))
    with _lock:
        pool, _ = _pools.get(device.index, (None, backend))
        if pool is None:
            pool = ScratchPool(device, min(nbytes, MOST_BYTES), backend.register_buffer, backend.deregister_buffer)
            _pools[device.index] = pool, backend
        return pool


def stop() -> None:
    """End the threads, then let go of files, scratch and drivers, in this order; the next read starts afresh."""
    stop_calls()
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool, _ in pools:
        pool.close()
    for backend in {id(backend): backend for _, backend in pools}.values():
        backend.close()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _inherited.extend(_pools.values())
    _pools.clear()


_inherited: list[Any] = []  # after fork: kept, so that nothing in them is freed by a runtime that does not work
os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(stop)
