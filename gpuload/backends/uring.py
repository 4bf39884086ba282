"""io_uring: reads into registered buffers from registered files, kept rolling by one thread.

Each batch has a lane, a run of slots in the ring's file table. Its files are opened straight into those slots (no
descriptor, no close a file) or, when already open, put there. A read starts only after its own open succeeded and what
was opened proved to be no pipe, so that no read can meet the file that had its slot before, or wait for a writer. Slots
are emptied when there is nothing left to read.

Cached reads are memory copies. Where there are cores for it, rings with a thread of their own each do them (`pollers`).
Else, with `IOSQE_ASYNC`, the kernel's workers do them, on all cores as long as it is fed in one of two ways. Long reads
go through a rolling window: fewer in flight than queued, new ones as old ones complete (all at once would run on one
core). Short ones, whose every completion would cost as much as the read, are submitted a batch at a time as linked
chains that the kernel works off by itself; what of a chain was cancelled behind an open that failed, or came short,
goes through the window.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
from collections import deque
from time import monotonic

import numpy as np

from gpuload.backends.base import Batch
from gpuload.backends.chains import weave
from gpuload.backends.lanes import ASYNC_FROM, CANCEL, CHAIN, CHECK, OPEN, RETRY, ROW, Lane, descriptors
from gpuload.backends.polled import Polled, how_many
from gpuload.backends.rings import make_ring
from gpuload.bindings import uring_abi as abi
from gpuload.bindings.uring_abi import Rows
from gpuload.errors import ConfigError, RegistrationError
from gpuload.memory.slabs import UNREGISTERED, Slab
from gpuload.request import Int64, Reason

LANES = 16
_STUCK = 0.25  # seconds after which a read that brings nothing is looked at: it may be of a FIFO
_OPEN_RETRIES = 64
CHAIN_UP_TO = 512 << 10  # longer reads take so long that waking for each costs little
WINDOW = 32  # reads in flight
_BESIDE = 0.001  # seconds to wait for pollers while the ring has work, too
_DEPTH = 3  # batches that are under way together, at least; workers that find nothing to do are slow to come back
_MODES = ("auto", "window", "chains", "polled")


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
        Reads in flight through the window; None: 32.
    mode
        ``"window"``, ``"chains"`` or ``"polled"``; ``"auto"``: polled where there are pollers and nothing but reading
        to be done, else chains for reads of 32 to 512 KiB, where most files are there.
    pollers
        Rings with a thread of their own; None: three for four cores, at most 15, and none with less than 8 cores.
    """

    name = "io_uring"

    def __init__(
        self,
        entries: int = 2048,
        slots: int = 8192,
        window: int | None = None,
        mode: str = "auto",
        pollers: int | None = None,
    ) -> None:
        if mode not in _MODES:
            raise ConfigError(f"uring.mode = {mode!r} is none of {', '.join(_MODES)}")
        slots = max(LANES, min(slots, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
        self.ring = make_ring(entries)
        self.chains = max(16, os.cpu_count() or 1)
        try:
            self.ring.register_files(slots)
        except BaseException:
            self.ring.close()
            raise
        self.files_per_batch = slots // LANES
        self.window, self.mode = window or WINDOW, mode
        self.declined: dict[str, Reason] = {}
        # What follows an open in a chain looks its slot up when it starts, not when it is submitted (5.17).
        self.linked = abi.Feature.LINKED_FILE in self.ring.features
        n = how_many(forced=mode == "polled") if pollers is None else pollers
        may_poll = self.linked and mode in ("auto", "polled")
        self.polled = Polled(n if may_poll else 0, lanes=LANES, files_per_batch=self.files_per_batch)
        self._slabs: list[Slab] = []
        self._free = list(range(LANES))
        self._lanes: dict[int, Lane] = {}
        self._opens: deque[Rows] = deque()
        self._reads: deque[tuple[Lane, Rows]] = deque()
        self._reading = 0
        self._rows_left = 0
        self._woven: deque[Rows] = deque()
        self._chained: dict[int, Lane] = {}
        self._done: list[Batch] = []
        self._empty = np.full(self.files_per_batch, -1, np.int32)
        self._used: dict[int, int] = {}  # files in the slots of each lane since it was last emptied

    @property
    def active(self) -> int:
        # One that failed at once is done before anything was submitted: somebody must still come for it.
        return LANES - len(self._free) + len(self._done)

    @property
    def hungry(self) -> bool:
        # Whatever is submitted together runs on one worker; only a queue longer than the window keeps it rolling.
        if not self._free:
            return False
        if self.polled.lanes:
            return self.polled.hungry
        return len(self._lanes) < _DEPTH or self._rows_left < _DEPTH * self.window

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
        lane = Lane(number, number * self.files_per_batch, batch)
        self._lanes[number] = lane
        self._rows_left += len(batch)
        batch.registered = batch.block.buffer != UNREGISTERED and batch.vectors is None
        try:
            if batch.registered:
                self._check_block(batch)
            if batch.handles is None:
                lane.names = batch.names()
            if self.polled.suits(batch, forced=self.mode == "polled") and self.polled.begin(lane):
                return
            self._install(lane)
            if self._suits_chains(batch):
                self._begin_chains(lane)
                return
        except Exception as error:
            batch.fail(error)
        lane.list_rows()
        if lane.names is not None and batch.error is None:
            self._open(lane, np.arange(len(batch.keys), dtype=np.int64))
        else:
            self._queue_reads(lane)

    def _install(self, lane: Lane) -> None:
        """Put files that are open into the slots of a lane."""
        if lane.batch.handles is not None:
            self.ring.update_files(lane.first, descriptors(lane.batch))

    def _check_block(self, batch: Batch) -> None:
        """The rows of a batch lie in its block; the block must lie in its registered buffer."""
        address, nbytes = self.ring.buffers[batch.block.buffer]
        if not address <= batch.block.address <= address + nbytes - batch.block.nbytes:
            self.ring.check_ranges(batch.block.buffer, batch.block.address, batch.block.nbytes)

    def _open(self, lane: Lane, files: Int64) -> None:
        rows = lane.opening_rows(files, checked=self.linked)
        lane.opening += len(rows)
        self._opens.append(rows)

    def _queue_reads(self, lane: Lane) -> None:
        """Every file is open or known to be missing: the reads may go."""
        batch = lane.batch
        rows = lane.rows
        if batch.error is not None:
            rows = np.zeros(0, np.int64)
        elif batch.missing.any():
            rows = np.arange(len(batch)) if rows is None else rows
            rows = rows[~batch.missing[batch.file[rows]]]
        lane.left = len(batch) if rows is None else len(rows)
        if not lane.left:
            self._finish(lane)
            return
        self._reads.append((lane, lane.window_rows(rows)))

    def _finish(self, lane: Lane) -> None:
        batch = lane.batch
        lane.unlist_rows()
        lane.close_files()
        batch.check()
        if not lane.goals:
            self._used[lane.number] = max(self._used.get(lane.number, 0), len(batch.keys))
        self._rows_left -= len(batch)
        del self._lanes[lane.number]
        self._free.append(lane.number)
        self._done.append(batch)

    def rest(self) -> None:
        while self._used and not self._lanes:
            number, files = self._used.popitem()
            self.ring.update_files(number * self.files_per_batch, self._empty[:files])
        if not self._lanes:
            self.polled.rest()

    # ------------------------------------------------------------------ polled

    def _read_again(self, lane: Lane) -> None:
        """What the pollers did not read whole is read anew, from the same file or a new open: through the window."""
        batch = lane.batch
        batch.got[lane.rows] = 0
        batch.completed[lane.rows] = 0
        lane.goals = []
        opened = None if lane.fixed else lane.slot
        lane.slot, lane.fixed = lane.first + np.arange(len(batch.keys)), True
        lane.list_rows()
        if opened is None:
            self._open(lane, batch.file[lane.rows])
        else:
            self.ring.update_files(lane.first, opened)
            self._queue_reads(lane)

    # ------------------------------------------------------------------ chains

    def _suits_chains(self, batch: Batch) -> bool:
        if self.mode == "window" or not len(batch) or batch.direct:
            return False
        if self.mode == "auto":
            longest = int(batch.ask.max())
            # Into place there is nothing to do between two completions, so nothing is won by seeing each.
            if not batch.dense or longest < ASYNC_FROM or (longest > CHAIN_UP_TO and batch.vectors is None):
                return False
        opens = 0 if batch.handles is not None else len(batch.keys)
        return (self.linked or not opens) and len(batch) + 2 * opens <= self.ring.sq_entries

    def _begin_chains(self, lane: Lane) -> None:
        batch = lane.batch
        opened = batch.handles is not None
        files = 0 if opened else len(batch.keys)
        lane.opened = np.zeros(files, np.int64)
        order = weave(batch.file, files, self.chains, opened=opened)
        rows = lane.chain_rows(order)
        batch.submitted[:] = monotonic()
        lane.left = len(rows)
        self._chained[lane.number] = lane
        self._woven.append(rows)

    def _chains_completed(self, data: Int64, result: Int64, now: float) -> None:
        """Completions of chains, of any lanes, all at once."""
        number = data >> 32 & 0xFF
        present = np.flatnonzero(np.bincount(number)).tolist()
        for i in present:
            lane = self._lanes[i]
            what, answer = data, result
            if len(present) > 1:
                mine = number == i
                what, answer = data[mine], result[mine]
            lane.stirred = now
            lane.left -= len(what)
            assert lane.opened is not None
            reads = (what & OPEN) == 0
            rows = what[reads] & ROW
            lane.batch.got[rows] = answer[reads]
            lane.batch.completed[rows] = now
            bad = ~reads & (answer < 0)
            if bad.any():
                self._opens_failed(lane.opened, what[bad], answer[bad])
            if not lane.left:
                del (self.polled.lanes if lane.goals else self._chained)[i]
                self._chains_ended(lane)

    def _opens_failed(self, opened: Int64, what: Int64, answer: Int64) -> None:
        """Note what opens and checks answered that failed; a file that cannot be looked at is tried without a chain."""
        checks = (what & CHECK) != 0
        opened[what[~checks] & ROW] = answer[~checks]
        meant = checks & (answer != -errno.ECANCELED)  # else it never ran: the open before it tells why
        opened[what[meant] & ROW] = np.where(answer[meant] == -errno.ESPIPE, answer[meant], -errno.ECANCELED)

    def _chains_ended(self, lane: Lane) -> None:
        """All of a lane's chains have ended: it is done, or what was cancelled or came short is read once more."""
        batch, opened = lane.batch, lane.opened
        assert opened is not None
        lost = np.zeros(0, np.int64)
        if len(opened) and int(opened.min()) < 0:
            again = np.isin(-opened, RETRY)
            for file in np.flatnonzero((opened < 0) & ~again).tolist():
                batch.fail_open(file, -int(opened[file]))
            lost = np.flatnonzero(again)
        short = (batch.got < batch.want) & (batch.got != 0)  # 0: the file has ended there
        if batch.missing.any():
            short &= ~batch.missing[batch.file]
        for row in np.flatnonzero(short & (batch.got < 0) & ~np.isin(-batch.got, RETRY)).tolist():
            batch.fail_read(row, -int(batch.got[row]))
        np.maximum(batch.got, 0, out=batch.got)
        if batch.error is not None or not short.any():
            self._finish(lane)
            return
        lane.rows = np.flatnonzero(short)
        if lane.goals:
            self._read_again(lane)
            return
        batch.completed[short] = 0
        lane.list_rows()
        if len(lost):
            self._open(lane, lost)
        else:
            self._queue_reads(lane)

    # ------------------------------------------------------------------ the loop

    def advance(self, timeout: float) -> list[Batch]:
        if not self._done and self._lanes:
            self._step(timeout)
        done, self._done = self._done, []
        return done

    def _step(self, timeout: float) -> None:
        while self._opens and self.ring.room:
            rows = self._opens[0]
            pushed = self.ring.push(rows[: self.ring.room & ~1])  # an open goes with its check
            if pushed < len(rows):
                self._opens[0] = rows[pushed:]
                break
            self._opens.popleft()
        while self._woven and self.ring.room >= len(self._woven[0]):  # a chain goes in whole
            self.ring.push(self._woven.popleft())
        self._push_reads()
        flying = self.ring.inflight + self.ring.unsubmitted
        if self.polled.lanes:
            done = self.polled.wait(_BESIDE if flying else timeout)
            if len(done):
                self._chains_completed(done["user_data"].astype(np.int64), done["res"].astype(np.int64), monotonic())
            timeout = 0.0
        if not flying:
            return
        wait = self.window // 4
        if self._chained and not self._reading and not self._opens:
            # Each waking costs a turn of the interpreter: sleep until the oldest batch is likely to be done. The next
            # one has begun by then.
            left = [lane.left for lane in itertools.islice(self._chained.values(), 2)]
            wait = left[0] + (left[1] // 4 if len(left) > 1 else 0)
        self.ring.enter(max(1, min(wait, flying)) if timeout else 0, timeout)
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

    def _look_at(self, lane: Lane) -> None:
        """Nothing has come for long. A disk may be slow; a read of a FIFO would wait for its writer for ever."""
        batch = lane.batch
        if batch.handles is not None:
            return
        waiting = lane.pending()
        for file in np.unique(batch.file[waiting]).tolist():
            if batch.is_regular(file):
                continue
            rows = waiting[batch.file[waiting] == file]
            self.ring.push(lane.cancel_rows(rows))

    def _push_reads(self) -> None:
        room = self.window - self._reading
        while room > 0 and self._reads:
            lane, rows = self._reads[0]
            pushed = self.ring.push(rows[:room])
            if not pushed:
                return
            first = int(rows["user_data"][0]) & ROW
            if pushed == 1:
                if not lane.batch.submitted[first]:  # else it is sent once more
                    lane.batch.submitted[first] = monotonic()
            else:
                which = (rows["user_data"][:pushed] & ROW).astype(np.int64)
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
        what, answer = completions["user_data"].astype(np.int64), completions["res"].astype(np.int64)
        if self._chained:
            chained = (what & CHAIN) != 0
            if chained.all():
                self._chains_completed(what, answer, now)
                return
            if chained.any():
                self._chains_completed(what[chained], answer[chained], now)
                what, answer = what[~chained], answer[~chained]
        for data, result in zip(what.tolist(), answer.tolist(), strict=True):
            if data >= CANCEL:
                continue
            lane = lanes[data >> 32 & 0xFF]
            lane.stirred = now
            row = data & ROW
            if data >= OPEN:
                lane.opening -= 1
                if result < 0 and not data & CHECK:
                    self._open_failed(lane, row, -result)
                elif result == -errno.ESPIPE:
                    lane.batch.fail_open(row, errno.ESPIPE)
                if not lane.opening:
                    self._queue_reads(lane)
                continue
            self._reading -= 1
            lane.completed[row] = now
            if lane.batch.direct and -result not in RETRY:
                self._came_direct(lane, row, result)
            else:
                if result > 0:
                    lane.got[row] += result
                if lane.got[row] < lane.want[row] and self._goes_on(lane, row, result):
                    continue
            lane.left -= 1
            if not lane.left:
                self._finish(lane)

    def _came_direct(self, lane: Lane, row: int, result: int) -> None:
        """Blocks came, or the kernel refused them, or not all of them came: the rest comes through the page cache.

        Where a read ended short the next one would have to start inside a block, which O_DIRECT refuses.
        """
        batch = lane.batch
        if result < 0 and result != -errno.EINVAL:
            batch.fail_read(row, -result)
            return
        got = lane.taken_of(row, max(0, result))
        if got < lane.want[row] and batch.error is None:
            if result < 0:
                batch.refused = Reason.ODIRECT_REFUSED
            got = batch.finish_buffered(row, got)
            lane.completed[row] = monotonic()
        lane.got[row] = got

    def _open_failed(self, lane: Lane, file: int, code: int) -> None:
        if code in RETRY and lane.retries < _OPEN_RETRIES:
            lane.retries += 1
            self._open(lane, np.array([file], np.int64))
        else:
            lane.batch.fail_open(file, code)

    def _goes_on(self, lane: Lane, row: int, result: int) -> bool:
        """A read that came short, failed, or met the end of its file: whether it is sent once more."""
        batch = lane.batch
        if result == 0 or batch.error is not None:
            return False
        if result < 0 and -result not in RETRY:
            batch.fail_read(row, -result)
            return False
        lane.completed[row] = 0.0
        self._reads.appendleft((lane, lane.rest_of(row)))
        return True

    def close(self) -> None:
        """Wait for everything in flight, then let go of files and buffers."""
        self.polled.close()
        self.ring.close()
        for lane in self._lanes.values():
            lane.close_files()
