"""The two queues a ring shares with the kernel: rows in, completions out, one system call a batch.

Both are seen as arrays, so a batch of any length costs a few slice copies; the GIL is released inside the system call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import warnings
import weakref
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from gpuload.bindings import uring_abi as abi
from gpuload.bindings.libc import syscall
from gpuload.bindings.mapping import map_descriptor
from gpuload.bindings.uring_abi import Feature, Rows, Setup
from gpuload.bindings.uring_setup import SYS_ENTER, SYS_REGISTER, set_up
from gpuload.errors import BackendError

_U32 = 0xFFFFFFFF
_ROW = np.dtype("V64")  # copied as 64 opaque bytes, where SQE would go field by field
_LOG_ROWS = 1 << 14
_DRAIN = _U32  # user_data of drain's own request; its completion is thrown away with the rest

# enter came back early for one of these: a signal, the timeout, or the caller must reap first. The caller's loop over
# `reap` goes on in each case.
_EARLY = (errno.EINTR, errno.ETIME, errno.EAGAIN, errno.EBUSY)


class Queues:
    """An io_uring instance without its registrations: what `Ring` is built on.

    Threads: belongs to the thread that made it, other threads are refused. Fork: the child drops it at once and is
    refused; the parent's reads go on. Not picklable.

    Parameters
    ----------
    entries
        Rows that fit the submission queue; rounded up to a power of two.
    cq_entries
        Completions that fit the completion queue, which bounds what is in flight; default twice `entries`.
    setup_flags
        Exactly these `Setup` flags, rather than the best set that the kernel takes.
    idle
        With `Setup.SQPOLL`: milliseconds without work after which the ring's own thread goes to sleep.

    Attributes
    ----------
    fd
        The ring's descriptor, -1 once closed.
    setup_flags, features
        What the kernel took, and what it tells of itself.
    deferred
        Completions are posted inside `enter` only (DEFER_TASKRUN).
    sq_entries, cq_entries
        Sizes of the queues.

    Raises
    ------
    UringUnavailable
        No ring can be made here; `reason` says why.
    """

    def __init__(
        self, entries: int = 256, cq_entries: int | None = None, *, setup_flags: int | None = None, idle: int = 0
    ) -> None:
        self.fd, params = set_up(entries, cq_entries, setup_flags, idle)
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._why_closed = "the ring is closed"
        try:
            self._attach(params[0])
        except BaseException:
            os.close(self.fd)
            self.fd = -1
            raise
        _live.add(self)

    def _attach(self, params: np.void) -> None:
        """Map the queues and lay arrays over them."""
        self.setup_flags, self.features = Setup(int(params["flags"])), Feature(int(params["features"]))
        self.deferred = bool(self.setup_flags & Setup.DEFER_TASKRUN)
        # The ring's own thread takes what is queued; asleep, it must be told.
        self._flags = abi.ENTER_GETEVENTS | (abi.ENTER_SQ_WAKEUP if self.setup_flags & Setup.SQPOLL else 0)
        self.sq_entries, self.cq_entries = int(params["sq_entries"]), int(params["cq_entries"])
        sq, cq = params["sq"], params["cq"]
        size = max(int(sq["array"]) + 4 * self.sq_entries, int(cq["cqes"]) + abi.CQE.itemsize * self.cq_entries)
        self._queues = map_descriptor(self.fd, size, abi.OFF_RINGS)
        self._entries = map_descriptor(self.fd, abi.SQE.itemsize * self.sq_entries, abi.OFF_SQES)

        def word(offset: int) -> ctypes.c_uint32:
            return ctypes.c_uint32.from_address(self._queues.address + offset)

        self._sq_head, self._sq_tail = word(int(sq["head"])), word(int(sq["tail"]))
        self._cq_head, self._cq_tail = word(int(cq["head"])), word(int(cq["tail"]))
        queues = self._queues.array
        index = int(sq["array"])
        queues[index : index + 4 * self.sq_entries].view(np.uint32)[:] = np.arange(self.sq_entries)
        cqes = int(cq["cqes"])
        self._cqes: Rows = queues[cqes : cqes + abi.CQE.itemsize * self.cq_entries].view(abi.CQE)
        self._sqes: npt.NDArray[np.void] = self._entries.array.view(_ROW)
        # opcode and flags are a row's first two bytes, so each row has one 16-bit key to be counted by.
        self._keys = self._entries.array.view(np.uint16)[:: abi.SQE.itemsize // 2]
        self._log = np.zeros(_LOG_ROWS + self.sq_entries, np.uint16)
        self._logged = 0
        self._counts = np.zeros(1 << 16, np.int64)
        self._skipped = 0
        self._time = (ctypes.c_int64 * 2)()
        self._argument = (ctypes.c_uint64 * 3)(0, 0, ctypes.addressof(self._time))

    # What is queued and in flight is read from the words that the kernel shares, not counted beside them: an exception
    # at any point (Ctrl-C right after the system call) then leaves nothing out of step.

    @property
    def unsubmitted(self) -> int:
        """Rows pushed but not yet taken by the kernel."""
        return (self._sq_tail.value - self._sq_head.value) & _U32

    @property
    def inflight(self) -> int:
        """Rows the kernel took whose completions have not been reaped."""
        return (self._sq_head.value - self._cq_head.value - self._skipped) & _U32

    @property
    def ready(self) -> bool:
        """Whether `reap` would find something."""
        return self._cq_tail.value != self._cq_head.value

    @property
    def room(self) -> int:
        """Rows that `push` takes now: a chain of linked rows must go in whole."""
        pending = self._sq_tail.value - self._cq_head.value - self._skipped & _U32
        return min(self.sq_entries - self.unsubmitted, self.cq_entries - pending)

    def push(self, rows: Rows) -> int:
        """Queue as many rows as fit, from the front; returns how many. Nothing starts before `enter`."""
        self._check()
        n = min(len(rows), self.room)
        start = self._sq_tail.value & (self.sq_entries - 1)
        self.put(rows[:n])
        first = min(n, self.sq_entries - start)
        keys, logged = self._log, self._logged
        keys[logged : logged + first] = self._keys[start : start + first]
        if first < n:
            keys[logged + first : logged + n] = self._keys[: n - first]
        self._logged = logged + n
        if self._logged >= _LOG_ROWS:
            self._fold()
        return n

    def put(self, rows: Rows) -> None:
        """Queue rows that are known to fit, uncounted: `push` for one whose every microsecond counts."""
        tail, n, opaque = self._sq_tail.value, len(rows), rows.view(_ROW)
        start = tail & (self.sq_entries - 1)
        first = self.sq_entries - start
        if n <= first:
            self._sqes[start : start + n] = opaque
        else:
            self._sqes[start:] = opaque[:first]
            self._sqes[: n - first] = opaque[first:]
        self._sq_tail.value = tail + n & _U32  # the kernel reads it after the rows: stores stay in order, or we enter

    def enter(self, wait: int = 0, timeout: float | None = None) -> None:
        """Submit all that is queued and wait for completions, with the GIL released.

        May return early, after a signal or with rows still unsubmitted while the kernel is short of memory: callers
        loop over `enter` and `reap`.

        Parameters
        ----------
        wait
            Completions to wait for; never more than are in flight.
        timeout
            Seconds to wait at most.

        Raises
        ------
        BackendError
            The ring cannot be used: closed, after fork, from another thread, or the kernel says so.
        """
        self._check()
        flags, argument, size = self._flags, 0, 0
        if timeout is not None:
            self._time[0], self._time[1] = int(timeout), int(timeout % 1 * 1e9)
            flags |= abi.ENTER_EXT_ARG
            argument, size = ctypes.addressof(self._argument), ctypes.sizeof(self._argument)
        while True:
            queued = self.unsubmitted
            least = min(wait, queued + self.inflight)
            try:
                submitted = syscall(SYS_ENTER, self.fd, queued, least, flags, argument, size)
            except OSError as error:
                if error.errno in _EARLY:
                    return
                raise BackendError(f"io_uring_enter: {error.strerror}") from error
            if submitted == queued or not submitted:
                return

    def reap(self) -> Rows:
        """Take all posted completions: a copy, (n,) `CQE` records in order of completion."""
        self._check()
        head = self._cq_head.value
        n = (self._cq_tail.value - head) & _U32
        start = head & (self.cq_entries - 1)
        if start + n <= self.cq_entries:
            done = self._cqes[start : start + n].copy()
        else:
            done = np.concatenate([self._cqes[start:], self._cqes[: start + n - self.cq_entries]])
        self._cq_head.value = head + n & _U32
        return done

    def forget(self, n: int) -> None:
        """Count `n` rows in flight as done: rows with CQE_SKIP_SUCCESS, once they are known to post nothing.

        A row that fails posts its completion all the same, and then the rows linked behind it post none, skipped or
        not. The count must be exact before `drain` or `close`, which wait for what is missing.
        """
        self._skipped += n

    def drain(self) -> None:
        """Cancel what can be cancelled, wait for the rest, and throw the completions away.

        Nothing writes to the buffers afterwards. Ctrl-C is held back until then.
        """
        interrupt: KeyboardInterrupt | None = None
        patience = 0.001
        while self.unsubmitted or self.inflight:
            try:
                if self.unsubmitted:
                    # Behind a row still queued with IO_LINK the request would become part of that chain, and wait.
                    self.enter()
                else:
                    # A read that a worker of the kernel is just putting to sleep is in none of the places where the
                    # kernel looks for what to cancel, so one request may miss it: what stays is asked for again.
                    self.push(abi.cancel_all_rows([_DRAIN]))
                    self.enter(self.cq_entries, patience)
                    patience = min(2 * patience, 0.1)
                self.reap()
            except KeyboardInterrupt as signal:
                interrupt = signal
        if interrupt is not None:
            raise interrupt

    @property
    def counts(self) -> dict[tuple[int, int], int]:
        """Rows pushed so far by (opcode, flags)."""
        self._fold()
        return {(int(k) & 0xFF, int(k) >> 8): int(self._counts[k]) for k in np.flatnonzero(self._counts)}

    def _fold(self) -> None:
        self._counts += np.bincount(self._log[: self._logged], minlength=1 << 16)
        self._logged = 0

    def close(self) -> None:
        """Drain and free the ring, its pins and its files; idempotent.

        Raises
        ------
        BackendError
            From another thread, while reads are in flight.
        """
        if self.fd < 0:
            return
        if self._pid == os.getpid() and (self.unsubmitted or self.inflight):
            self.drain()
        self.detach("the ring is closed")

    def detach(self, why: str) -> None:
        """Let go of the descriptor and of the mappings: a mapping that lives on would keep the pins and the files."""
        fd, self.fd = self.fd, -1
        self._why_closed = why
        self._sq_head = self._sq_tail = self._cq_head = self._cq_tail = ctypes.c_uint32(0)
        self._skipped = 0
        self._sqes = self._cqes = np.zeros(0, _ROW)
        self._keys = np.zeros(0, np.uint16)
        self._queues.close()
        self._entries.close()
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            warnings.warn(f"unclosed ring {self!r}", ResourceWarning, source=self, stacklevel=1)
            self.detach("the ring is closed")

    def __reduce__(self) -> str:
        raise TypeError("a ring cannot be pickled")

    def _check(self) -> None:
        if self.fd < 0:
            raise BackendError(self._why_closed)
        if self._thread != threading.get_ident():
            raise BackendError("the ring belongs to the thread that made it")
        if self._pid != os.getpid():
            raise BackendError("the ring belongs to the parent process")

    def _register(self, opcode: int, argument: int = 0, n: int = 0) -> int:
        return syscall(SYS_REGISTER, self.fd, opcode, argument, n)


_live: weakref.WeakSet[Queues] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The inherited descriptor would keep the parent's pins and files alive for as long as the child runs.
    for queues in list(_live):
        queues.detach("the ring belongs to the parent process: make a new one after fork")


os.register_at_fork(after_in_child=_after_fork_in_child)
