"""io_uring: reads into registered buffers from registered files, kept rolling by one thread.

Each batch has a lane, a run of slots in the ring's file table. Its files are opened straight into those slots (no
descriptor, no close a file) or, when already open, put there; a read is submitted only after its own open succeeded,
and the slots are emptied when the batch is done, so that no read can meet the file that had its slot before.

Cached reads are memory copies. With `IOSQE_ASYNC` the kernel's workers do them on all cores, as long as the window
keeps rolling: fewer in flight than queued, new ones as old ones complete. A whole batch at once would run on one core.
"""

from __future__ import annotations

import errno
import resource
from collections import deque
from time import monotonic

import numpy as np
import numpy.typing as npt

from gpuload.backends.base import Availability, Batch
from gpuload.bindings import uring_abi as abi
from gpuload.bindings.syscalls import OPEN_HOW
from gpuload.bindings.uring import Ring
from gpuload.bindings.uring_abi import Rows
from gpuload.errors import BackendError, BackendUnavailableError, RegistrationError
from gpuload.memory.slabs import UNREGISTERED, Slab
from gpuload.request import Int64, Reason

LANES = 16
_OPEN = 1 << 40  # in user_data: this completion is an open; bits 32-39 are the lane, bits 0-31 the row
_CANCEL = 1 << 41  # this one is the answer to a wish to cancel
_STUCK = 0.25  # seconds after which a read that brings nothing is looked at: it may be of a FIFO
_RETRY = (errno.EAGAIN, errno.EINTR, errno.ECANCELED)
_OPEN_RETRIES = 64
ASYNC_FROM = 32 << 10  # smaller reads are cheaper inline than the waking of a worker


def availability() -> Availability:
    """Whether this process may make a ring that can do what the backend needs; asks the kernel, by trying."""
    try:
        with Ring(8) as ring:
            if not ring.direct_open or not {abi.OP_READ, abi.OP_READ_FIXED} <= ring.ops:
                return Availability(Reason.KERNEL_TOO_OLD, "this kernel's io_uring opens no files into slots (5.15)")
            ring.register_files(8)
    except BackendUnavailableError as error:
        return Availability(error.reason, error.detail)
    except BackendError as error:
        return Availability(Reason.DRIVER_ERROR, str(error))
    return Availability()


class _Lane:
    """One batch on its way through the ring."""

    __slots__ = ("batch", "blob", "first", "how", "left", "number", "opening", "retries", "stirred")

    def __init__(self, number: int, first: int, batch: Batch) -> None:
        self.number, self.first, self.batch = number, first, batch
        self.left = 0
        self.opening = 0
        self.retries = 0
        self.stirred = monotonic()  # the last time something of it came back
        self.blob: npt.NDArray[np.uint8] | None = None
        self.how: npt.NDArray[np.void] | None = None


class UringBackend:
    """The ring and its lanes.

    Threads: all calls come from the thread that made it. Fork: the ring closes itself in the child.

    Parameters
    ----------
    entries
        Submission queue entries.
    slots
        Fixed file slots, at most RLIMIT_NOFILE; a batch may have ``slots // LANES`` files.
    window
        Reads in flight; None chooses 16 for reads of 1 MiB and 32 for smaller ones.
    """

    name = "io_uring"

    def __init__(self, entries: int = 512, slots: int = 4096, window: int | None = None) -> None:
        slots = max(LANES, min(slots, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
        self.ring = Ring(entries, 4 * entries)
        try:
            self.ring.register_files(slots)
        except BaseException:
            self.ring.close()
            raise
        self.files_per_batch = slots // LANES
        self.window = window
        self.declined: dict[str, Reason] = {}
        self._slabs: list[Slab] = []
        self._free = list(range(LANES))
        self._lanes: dict[int, _Lane] = {}
        self._opens: deque[Rows] = deque()
        self._reads: deque[tuple[_Lane, Rows]] = deque()
        self._reading = 0
        self._rows_left = 0
        self._done: list[Batch] = []

    @property
    def active(self) -> int:
        return LANES - len(self._free)

    @property
    def hungry(self) -> bool:
        # Whatever is submitted together runs on one worker; only a queue longer than the window keeps it rolling.
        return bool(self._free) and self._rows_left < 3 * self._window

    # ------------------------------------------------------------------ memory

    def adopt(self, slab: Slab) -> bool:
        """Register `slab` beside those before it: drain, unregister, register the longer table."""
        if "registered-buffers" in self.declined:
            return True  # it is read into without registration
        while self._lanes or self.ring.inflight or self.ring.unsubmitted:
            self._step(1.0)
        if self._slabs:
            self.ring.unregister_buffers()
        try:
            self.ring.register_buffers([(s.address, s.nbytes) for s in (*self._slabs, slab)])
        except RegistrationError:
            if self._slabs:
                self.ring.register_buffers([(s.address, s.nbytes) for s in self._slabs])
                self.declined["registered-buffers"] = Reason.MEMLOCK
                return True
            return False
        self._slabs.append(slab)
        slab.buffer = len(self._slabs) - 1
        return True

    def read_plain(self) -> None:
        self.declined["registered-buffers"] = Reason.MEMLOCK

    # ------------------------------------------------------------------ batches

    def begin(self, batch: Batch) -> None:
        number = self._free.pop()
        lane = _Lane(number, number * self.files_per_batch, batch)
        self._lanes[number] = lane
        self._rows_left += len(batch)
        batch.registered = batch.block.buffer != UNREGISTERED
        try:
            if batch.handles is None:
                self._open(lane, np.arange(len(batch.keys), dtype=np.int64))
                return
            fds = np.fromiter((h.buffered_fd for h in batch.handles), np.int32, len(batch.handles))
            self.ring.update_files(lane.first, fds)
        except Exception as error:
            batch.fail(error)
        self._queue_reads(lane)

    def _open(self, lane: _Lane, files: Int64) -> None:
        batch = lane.batch
        if lane.blob is None:
            lane.blob = np.frombuffer(batch.blob(), np.uint8)
            lane.how = np.zeros(1, OPEN_HOW)
            lane.how["flags"], lane.how["resolve"] = batch.root.open_flags, int(batch.root.resolve)
        assert lane.how is not None
        ends = np.flatnonzero(lane.blob == 0)
        starts = np.concatenate(([0], ends[:-1] + 1))
        rows = abi.openat2_rows(
            batch.root.fd,
            lane.blob.ctypes.data + starts[files],
            lane.how.ctypes.data,
            lane.first + files,
            _OPEN | lane.number << 32 | files,
        )
        lane.opening += len(files)
        self._opens.append(rows)

    def _queue_reads(self, lane: _Lane) -> None:
        """Every file is open or known to be missing: the reads may go."""
        batch = lane.batch
        rows = np.arange(len(batch), dtype=np.int64)
        if batch.error is not None:
            rows = rows[:0]
        elif batch.missing.any():
            rows = rows[~batch.missing[batch.file]]
        lane.left = len(rows)
        if not lane.left:
            self._finish(lane)
            return
        self._reads.append((lane, self._read_rows(lane, rows)))

    def _read_rows(self, lane: _Lane, rows: Int64, *, again: bool = False) -> Rows:
        batch = lane.batch
        got = batch.got[rows]
        ask = batch.ask[rows] - got
        # EAGAIN of a read that must not wait: a worker may.
        flags = abi.IOSQE_ASYNC if again or int(ask.max()) >= ASYNC_FROM else 0
        return self.ring.read_rows(
            lane.first + batch.file[rows],
            batch.file_offset[rows] + got,
            batch.address[rows] + got,
            ask,
            lane.number << 32 | rows,
            buf_index=batch.block.buffer if batch.registered else None,
            fixed_file=True,
            flags=flags,
        )

    def _finish(self, lane: _Lane) -> None:
        batch = lane.batch
        batch.check()
        self.ring.update_files(lane.first, np.full(len(batch.keys), -1, np.int32))
        self._rows_left -= len(batch)
        del self._lanes[lane.number]
        self._free.append(lane.number)
        self._done.append(batch)

    # ------------------------------------------------------------------ the loop

    def advance(self, timeout: float) -> list[Batch]:
        if not self._done and self._lanes:
            self._step(timeout)
        done, self._done = self._done, []
        return done

    def _step(self, timeout: float) -> None:
        while self._opens and self.ring.room:
            rows = self._opens[0]
            pushed = self.ring.push(rows)
            if pushed < len(rows):
                self._opens[0] = rows[pushed:]
                break
            self._opens.popleft()
        self._push_reads()
        flying = self.ring.inflight + self.ring.unsubmitted
        if not flying:
            return
        self.ring.enter(max(1, min(self._window // 4, flying)), timeout)
        completions = self.ring.reap()
        if len(completions):
            self._complete(completions)
        now = monotonic()
        for lane in list(self._lanes.values()):
            if now - lane.stirred > _STUCK:
                lane.stirred = now
                self._look_at(lane)

    def _look_at(self, lane: _Lane) -> None:
        """Nothing has come for long. A disk may be slow; a read of a FIFO would wait for its writer for ever."""
        batch = lane.batch
        if batch.handles is not None:
            return
        waiting = np.flatnonzero((batch.submitted > 0) & (batch.completed == 0))
        for file in np.unique(batch.file[waiting]).tolist():
            if batch.is_regular(file):
                continue
            rows = waiting[batch.file[waiting] == file]
            self.ring.push(abi.cancel_rows(lane.number << 32 | rows, np.full(len(rows), _CANCEL)))

    @property
    def _window(self) -> int:
        if self.window is not None:
            return self.window
        if not self._reads:
            return 32
        return 16 if int(self._reads[0][1]["len"][0]) > 512 << 10 else 32

    def _push_reads(self) -> None:
        room = self._window - self._reading
        now = monotonic()
        while room > 0 and self._reads:
            lane, rows = self._reads[0]
            pushed = self.ring.push(rows[:room])
            which = (rows["user_data"][:pushed] & 0xFFFFFFFF).astype(np.int64)
            submitted = lane.batch.submitted
            submitted[which] = np.where(submitted[which] > 0, submitted[which], now)
            self._reading += pushed
            room -= pushed
            if pushed == len(rows):
                self._reads.popleft()
            else:
                self._reads[0] = (lane, rows[pushed:])
                if not pushed:
                    break

    def _complete(self, completions: Rows) -> None:
        data = completions["user_data"].astype(np.int64)
        result = completions["res"].astype(np.int64)
        group = data >> 32
        answers = group == _CANCEL >> 32
        if answers.any():
            group, data, result = group[~answers], data[~answers], result[~answers]
        while len(group):
            same = group == group[0]
            lane = self._lanes[int(group[0]) & 0xFF]
            lane.stirred = monotonic()
            handle = self._opened if group[0] & (_OPEN >> 32) else self._read
            if same.all():
                handle(lane, data & 0xFFFFFFFF, result)
                return
            handle(lane, data[same] & 0xFFFFFFFF, result[same])
            rest = ~same
            group, data, result = group[rest], data[rest], result[rest]

    def _opened(self, lane: _Lane, files: Int64, result: Int64) -> None:
        lane.opening -= len(files)
        failed = result < 0
        if failed.any():
            again = failed & np.isin(-result, _RETRY)
            if again.any() and lane.retries < _OPEN_RETRIES:
                lane.retries += 1
                self._open(lane, files[again])
                failed &= ~again
            for file, code in zip(files[failed].tolist(), (-result[failed]).tolist(), strict=True):
                lane.batch.fail_open(file, code)
        if not lane.opening:
            self._queue_reads(lane)

    def _read(self, lane: _Lane, rows: Int64, result: Int64) -> None:
        batch = lane.batch
        self._reading -= len(rows)
        batch.completed[rows] = monotonic()
        if (result >= batch.want[rows]).all() and not batch.got[rows].any():
            batch.got[rows] = result
            lane.left -= len(rows)
        else:
            self._read_slowly(lane, rows, result)
        if not lane.left:
            self._finish(lane)

    def _read_slowly(self, lane: _Lane, rows: Int64, result: Int64) -> None:
        """A read that failed, came short, was interrupted, or met the end of its file."""
        batch = lane.batch
        batch.got[rows] += np.maximum(result, 0)
        ended = (result == 0) | (batch.got[rows] >= batch.want[rows]) | (batch.error is not None)
        again = ~ended & ((result > 0) | np.isin(-result, _RETRY))
        for row, code in zip(rows[~ended & ~again].tolist(), result[~ended & ~again].tolist(), strict=True):
            batch.fail_read(row, -code)
        lane.left -= len(rows) - int(again.sum())
        if again.any():
            self._reads.appendleft((lane, self._read_rows(lane, rows[again], again=True)))

    def close(self) -> None:
        """Wait for everything in flight, then let go of files and buffers."""
        self.ring.close()
