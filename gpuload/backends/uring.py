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
_ROW = 0xFFFFFFFF
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
    """One batch on its way through the ring.

    What comes back is noted row by row in lists: for the few completions of one round that is cheaper than arrays.
    """

    __slots__ = ("batch", "completed", "first", "got", "left", "names", "number", "opening", "retries", "stirred", "want")

    def __init__(self, number: int, first: int, batch: Batch) -> None:
        self.number, self.first, self.batch = number, first, batch
        self.left = 0
        self.opening = 0
        self.retries = 0
        self.stirred = 0.0  # the last time something of it came back
        self.names: Int64 | None = None
        self.want: list[int] = batch.want.tolist()
        self.got = [0] * len(batch)
        self.completed = [0.0] * len(batch)


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
        self._hows: dict[tuple[int, int], npt.NDArray[np.void]] = {}
        self._count: Int64 = np.arange(max(1024, self.files_per_batch), dtype=np.int64)
        self._empty = np.full(self.files_per_batch, -1, np.int32)

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
        lane.stirred = monotonic()
        self._lanes[number] = lane
        self._rows_left += len(batch)
        batch.registered = batch.block.buffer != UNREGISTERED
        try:
            if batch.registered:
                self._check_block(batch)
            if batch.handles is None:
                lane.names = batch.names()
                self._open(lane, self._count[: len(batch.keys)])
                return
            fds = np.fromiter((h.buffered_fd for h in batch.handles), np.int32, len(batch.handles))
            self.ring.update_files(lane.first, fds)
        except Exception as error:
            batch.fail(error)
        self._queue_reads(lane)

    def _check_block(self, batch: Batch) -> None:
        """The rows of a batch lie in its block; the block must lie in its registered buffer."""
        address, nbytes = self.ring.buffers[batch.block.buffer]
        if not address <= batch.block.address <= address + nbytes - batch.block.nbytes:
            self.ring.check_ranges(batch.block.buffer, batch.block.address, batch.block.nbytes)

    def _open(self, lane: _Lane, files: Int64) -> None:
        assert lane.names is not None
        root = lane.batch.root
        how = self._hows.get((root.open_flags, root.resolve))
        if how is None:
            how = self._hows[root.open_flags, root.resolve] = np.zeros(1, OPEN_HOW)
            how["flags"], how["resolve"] = root.open_flags, int(root.resolve)
        rows = abi.openat2_rows(
            root.fd, lane.names[files], how.ctypes.data, lane.first + files, files + (_OPEN | lane.number << 32)
        )
        lane.opening += len(files)
        self._opens.append(rows)

    def _queue_reads(self, lane: _Lane) -> None:
        """Every file is open or known to be missing: the reads may go."""
        batch = lane.batch
        rows: Int64 | None = None
        if batch.error is not None:
            rows = self._count[:0]
        elif batch.missing.any():
            rows = np.flatnonzero(~batch.missing[batch.file])
        lane.left = len(batch) if rows is None else len(rows)
        if not lane.left:
            self._finish(lane)
            return
        self._reads.append((lane, self._read_rows(lane, rows)))

    def _read_rows(self, lane: _Lane, which: Int64 | None) -> Rows:
        """Reads of all rows of a batch, or of some, from their beginning."""
        batch = lane.batch
        rows = abi.read_rows(
            batch.file + lane.first,
            batch.file_offset,
            batch.address,
            batch.ask,
            self._numbers(len(batch)) + (lane.number << 32),
            buf_index=batch.block.buffer if batch.registered else None,
            flags=abi.IOSQE_ASYNC if max(lane.want) >= ASYNC_FROM else 0,
        )
        return rows if which is None else rows[which]

    def _numbers(self, n: int) -> Int64:
        if n > len(self._count):
            self._count = np.arange(2 * n, dtype=np.int64)
        return self._count[:n]

    def _finish(self, lane: _Lane) -> None:
        batch = lane.batch
        batch.got[:] = lane.got
        batch.completed[:] = lane.completed
        batch.check()
        self.ring.update_files(lane.first, self._empty[: len(batch.keys)])
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
        else:
            self._look_around()

    def _look_around(self) -> None:
        """Nothing came for as long as the caller would wait."""
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
        waiting = np.flatnonzero((batch.submitted > 0) & (np.array(lane.completed) == 0))
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
        while room > 0 and self._reads:
            lane, rows = self._reads[0]
            pushed = self.ring.push(rows[:room])
            if not pushed:
                return
            first = int(rows["user_data"][0]) & _ROW
            if pushed == 1:
                if not lane.batch.submitted[first]:  # else it is sent once more
                    lane.batch.submitted[first] = monotonic()
            else:
                which = (rows["user_data"][:pushed] & _ROW).astype(np.int64)
                lane.batch.submitted[which] = monotonic()
            self._reading += pushed
            room -= pushed
            if pushed == len(rows):
                self._reads.popleft()
            else:
                self._reads[0] = (lane, rows[pushed:])

    def _complete(self, completions: Rows) -> None:
        now = monotonic()
        lanes = self._lanes
        for data, result in zip(completions["user_data"].tolist(), completions["res"].tolist(), strict=True):
            if data >= _CANCEL:
                continue
            lane = lanes[data >> 32 & 0xFF]
            lane.stirred = now
            row = data & _ROW
            if data >= _OPEN:
                lane.opening -= 1
                if result < 0:
                    self._open_failed(lane, row, -result)
                if not lane.opening:
                    self._queue_reads(lane)
                continue
            self._reading -= 1
            lane.completed[row] = now
            if result > 0:
                lane.got[row] += result
            if lane.got[row] < lane.want[row] and self._goes_on(lane, row, result):
                continue
            lane.left -= 1
            if not lane.left:
                self._finish(lane)

    def _open_failed(self, lane: _Lane, file: int, code: int) -> None:
        if code in _RETRY and lane.retries < _OPEN_RETRIES:
            lane.retries += 1
            self._open(lane, np.array([file], np.int64))
        else:
            lane.batch.fail_open(file, code)

    def _goes_on(self, lane: _Lane, row: int, result: int) -> bool:
        """A read that came short, failed, or met the end of its file: whether it is sent once more."""
        batch = lane.batch
        if result == 0 or batch.error is not None:
            return False
        if result < 0 and -result not in _RETRY:
            batch.fail_read(row, -result)
            return False
        got = lane.got[row]
        rest = abi.read_rows(
            lane.first + batch.file[row : row + 1],
            batch.file_offset[row : row + 1] + got,
            batch.address[row : row + 1] + got,
            batch.ask[row : row + 1] - got,
            np.array([lane.number << 32 | row], np.int64),
            buf_index=batch.block.buffer if batch.registered else None,
            flags=abi.IOSQE_ASYNC,  # EAGAIN of a read that must not wait: a worker may
        )
        self._reads.appendleft((lane, rest))
        return True

    def close(self) -> None:
        """Wait for everything in flight, then let go of files and buffers."""
        self.ring.close()
