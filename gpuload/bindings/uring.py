"""The io_uring ring in NumPy: rows in, completions out, one system call a batch.

The kernel's queues are seen as arrays, so a batch of any length costs a few slice copies; the GIL is released inside
the system call. A `Ring` knows nothing of files, chunks or retries: its user gives rows and interprets results.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import warnings
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from gpuload.bindings import uring_abi as abi
from gpuload.bindings.syscalls import OPEN_HOW, map_descriptor, memlock_limit, syscall
from gpuload.bindings.uring_abi import Feature, Rows, Setup
from gpuload.bindings.uring_setup import SYS_ENTER, SYS_REGISTER, UringUnavailable, set_up
from gpuload.errors import BackendError, RegistrationError
from gpuload.request import Reason

__all__ = ["Ring", "UringUnavailable"]

_U32 = 0xFFFFFFFF
_ROW = np.dtype("V64")  # copied as 64 opaque bytes, where SQE would go field by field
_LOG_ROWS = 1 << 14
_DRAIN = _U32  # user_data of drain's own request; its completion is thrown away with the rest

# enter came back early for one of these: a signal, the timeout, or the caller must reap first. The caller's loop over
# `reap` goes on in each case.
_EARLY = (errno.EINTR, errno.ETIME, errno.EAGAIN, errno.EBUSY)


class Ring:
    """One io_uring instance with its registered buffers and file table.

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

    Attributes
    ----------
    fd
        The ring's descriptor, -1 once closed.
    setup_flags, features, ops
        What the kernel took, what it tells of itself, and the opcodes it knows.
    deferred
        Completions are posted inside `enter` only (DEFER_TASKRUN).
    direct_open
        Files can be opened straight into slots (Linux 5.15 and OPENAT2).
    sq_entries, cq_entries
        Sizes of the queues.
    buffers
        Registered buffers as (address, nbytes).
    n_files
        Slots of the file table.

    Raises
    ------
    UringUnavailable
        No ring can be made here; `reason` says why.
    """

    def __init__(self, entries: int = 256, cq_entries: int | None = None, *, setup_flags: int | None = None) -> None:
        self.fd, params = set_up(entries, cq_entries, setup_flags)
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._why_closed = "the ring is closed"
        try:
            self._attach(params[0])
            self.buffers: tuple[tuple[int, int], ...] = ()
            self._buffer_address = self._buffer_size = np.zeros(0, np.uint64)
            self.n_files = 0
            self.ops = self._probe()
            self.direct_open = abi.OP_OPENAT2 in self.ops and self._try_direct_open()
        except BaseException:
            os.close(self.fd)
            self.fd = -1
            raise
        _rings.add(self)

    def _attach(self, params: np.void) -> None:
        """Map the queues and lay arrays over them."""
        self.setup_flags, self.features = Setup(int(params["flags"])), Feature(int(params["features"]))
        self.deferred = bool(self.setup_flags & Setup.DEFER_TASKRUN)
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

    # -------------------------------------------------------------------------------------------- queues

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
    def room(self) -> int:
        """Rows that `push` takes now: a chain of linked rows must go in whole."""
        pending = self._sq_tail.value - self._cq_head.value - self._skipped & _U32
        return min(self.sq_entries - self.unsubmitted, self.cq_entries - pending)

    def push(self, rows: Rows) -> int:
        """Queue as many rows as fit, from the front; returns how many. Nothing starts before `enter`."""
        self._check()
        tail = self._sq_tail.value
        n = min(len(rows), self.room)
        start = tail & (self.sq_entries - 1)
        first = min(n, self.sq_entries - start)
        opaque = rows.view(_ROW)
        self._sqes[start : start + first] = opaque[:first]
        keys, logged = self._log, self._logged
        keys[logged : logged + first] = self._keys[start : start + first]
        if first < n:
            self._sqes[: n - first] = opaque[first:n]
            keys[logged + first : logged + n] = self._keys[: n - first]
        self._sq_tail.value = tail + n & _U32  # the kernel reads it in this thread's enter: program order is enough
        self._logged = logged + n
        if self._logged >= _LOG_ROWS:
            self._fold()
        return n

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
        flags, argument, size = abi.ENTER_GETEVENTS, 0, 0
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
        """Count `n` rows in flight as done: rows with CQE_SKIP_SUCCESS, once they are known to post nothing."""
        self._skipped += n

    def drain(self) -> None:
        """Cancel what can be cancelled, wait for the rest, and throw the completions away.

        Nothing writes to the buffers afterwards. Ctrl-C is held back until then.
        """
        interrupt: KeyboardInterrupt | None = None
        cancelled = False
        while self.unsubmitted or self.inflight:
            try:
                if not cancelled and self.room:
                    cancelled = bool(self.push(abi.cancel_all_rows(_DRAIN)))
                self.enter(self.cq_entries)
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

    # -------------------------------------------------------------------------------------------- buffers

    def register_buffers(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Pin memory for READ_FIXED; it must not be freed, remapped or given back to the system while registered.

        Parameters
        ----------
        buffers
            (address, nbytes) of each: at most 16384, of 1 byte to 1 GiB, of anonymous memory.

        Raises
        ------
        RegistrationError
            Too many, empty or too large (before any call); over the memlock limit (`reason` ``memlock``); memory of
            a file or unmapped.
        BackendError
            Reads are in flight, or buffers are registered already.
        """
        self._refuse_in_flight("register buffers")
        if self.buffers:
            raise BackendError("buffers are registered already: unregister them first")
        if not 0 < len(buffers) <= abi.MAX_BUFFERS:
            raise RegistrationError(f"cannot register {len(buffers)} buffers: 1 to {abi.MAX_BUFFERS} fit a ring")
        for i, (_, nbytes) in enumerate(buffers):
            if not 0 < nbytes <= abi.MAX_BUFFER_BYTES:
                raise RegistrationError(
                    f"buffer {i} has {nbytes} bytes: 1 to {abi.MAX_BUFFER_BYTES} (1 GiB) can be registered"
                )
        vector = np.array(buffers, np.uint64).reshape(-1, 2)
        try:
            self._register(abi.REGISTER_BUFFERS, vector.ctypes.data, len(vector))
        except OSError as error:
            raise _registration_error(error, int(vector[:, 1].sum())) from error
        self.buffers = tuple((int(address), int(nbytes)) for address, nbytes in buffers)
        self._buffer_address, self._buffer_size = vector[:, 0].copy(), vector[:, 1].copy()

    def unregister_buffers(self) -> None:
        """Unpin all buffers; nothing to do without any.

        Raises
        ------
        BackendError
            Reads are in flight.
        """
        self._refuse_in_flight("unregister buffers")
        if self.buffers:
            self._register(abi.UNREGISTER_BUFFERS)
            self.buffers = ()
            self._buffer_address = self._buffer_size = np.zeros(0, np.uint64)

    def check_ranges(self, buf_index: npt.ArrayLike, address: npt.ArrayLike, size: npt.ArrayLike) -> None:
        """Refuse address ranges outside the registered buffer they name.

        Raises
        ------
        RegistrationError
            Naming the first such range and its buffer.
        """
        index, first, length = np.broadcast_arrays(
            np.asarray(buf_index), np.asarray(address, np.uint64), np.asarray(size, np.uint64)
        )
        if index.size and not 0 <= index.min() <= index.max() < len(self.buffers):
            raise RegistrationError(f"no registered buffer {index.max()}: there are {len(self.buffers)}")
        start, capacity = self._buffer_address[index], self._buffer_size[index]
        # No sum of two addresses: it could wrap round.
        inside = (first >= start) & (length <= capacity) & (first - start <= capacity - length)
        if not inside.all():
            i = int(np.argmin(inside))
            raise RegistrationError(
                f"{length.flat[i]} bytes at {int(first.flat[i]):#x} are outside registered buffer {index.flat[i]}: "
                f"{capacity.flat[i]} bytes at {int(start.flat[i]):#x}"
            )

    def read_rows(
        self,
        fd: npt.ArrayLike,
        offset: npt.ArrayLike,
        address: npt.ArrayLike,
        size: npt.ArrayLike,
        user_data: npt.ArrayLike,
        *,
        buf_index: npt.ArrayLike | None = None,
        fixed_file: bool = True,
        flags: npt.ArrayLike = 0,
    ) -> Rows:
        """`uring_abi.read_rows`, checked: an address range outside its registered buffer raises RegistrationError."""
        if buf_index is not None:
            self.check_ranges(buf_index, address, size)
        return abi.read_rows(
            fd, offset, address, size, user_data, buf_index=buf_index, fixed_file=fixed_file, flags=flags
        )

    # -------------------------------------------------------------------------------------------- files

    def register_files(self, n: int) -> None:
        """Make a table of `n` empty slots.

        Raises
        ------
        RegistrationError
            More slots than RLIMIT_NOFILE allows (`reason` ``fd-limit``).
        BackendError
            There is a table already.
        """
        self._check()
        if self.n_files:
            raise BackendError("there is a file table already: unregister it first")
        empty = np.full(n, -1, np.int32)
        try:
            self._register(abi.REGISTER_FILES, empty.ctypes.data, n)
        except OSError as error:
            reason = Reason.FD_LIMIT if error.errno == errno.EMFILE else None
            raise RegistrationError(f"cannot make a table of {n} files: {error.strerror}", reason) from error
        self.n_files = n

    def unregister_files(self) -> None:
        """Drop the table and the files in it; nothing to do without one.

        Raises
        ------
        BackendError
            Reads are in flight.
        """
        self._refuse_in_flight("unregister files")
        if self.n_files:
            self._register(abi.UNREGISTER_FILES)
            self.n_files = 0

    def update_files(self, first: int, fds: npt.ArrayLike) -> None:
        """Put descriptors into the slots from `first` on; they may be closed afterwards. -1 clears a slot.

        Raises
        ------
        BackendError
            A slot outside the table, or a descriptor that is not open; slots before it are changed.
        """
        self._check()
        table = np.ascontiguousarray(fds, np.int32).reshape(-1)
        done = 0
        while done < len(table):
            update = np.array([first + done, table.ctypes.data + 4 * done], np.uint64)
            try:
                # The kernel stops at the first bad descriptor and tells how far it came.
                done += self._register(abi.REGISTER_FILES_UPDATE, update.ctypes.data, len(table) - done)
            except OSError as error:
                raise BackendError(
                    f"cannot put descriptor {table[done]} into slot {first + done} of {self.n_files}: {error.strerror}"
                ) from error

    # -------------------------------------------------------------------------------------------- the rest

    def limit_workers(self, bounded: int) -> None:
        """Let at most `bounded` kernel threads serve this ring's reads of files (5.15; before it, no-op)."""
        self._check()
        limits = (ctypes.c_uint32 * 2)(bounded, 0)
        try:
            self._register(abi.REGISTER_IOWQ_MAX_WORKERS, ctypes.addressof(limits), 2)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise BackendError(f"cannot limit the ring's workers: {error.strerror}") from error

    def describe(self) -> str:
        """One line on what this ring is made of."""
        flags = "|".join(str(flag.name) for flag in self.setup_flags)
        pinned = sum(nbytes for _, nbytes in self.buffers)
        return (
            f"io_uring: {self.sq_entries} entries, {self.cq_entries} completions, {flags}; {len(self.ops)} opcodes, "
            f"{'' if self.direct_open else 'no '}direct opens; {len(self.buffers)} registered buffers "
            f"({pinned} bytes), {self.n_files} file slots"
        )

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
        self.buffers, self.n_files = (), 0
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

    def _refuse_in_flight(self, what: str) -> None:
        self._check()
        if self.unsubmitted or self.inflight:
            raise BackendError(f"cannot {what} with {self.unsubmitted + self.inflight} reads in flight: drain first")

    def _register(self, opcode: int, argument: int = 0, n: int = 0) -> int:
        return syscall(SYS_REGISTER, self.fd, opcode, argument, n)

    def _probe(self) -> frozenset[int]:
        """Opcodes that the kernel knows."""
        answer = np.zeros(abi.PROBE.itemsize + 256 * abi.PROBE_OP.itemsize, np.uint8)
        self._register(abi.REGISTER_PROBE, answer.ctypes.data, 256)
        count = int(answer[: abi.PROBE.itemsize].view(abi.PROBE)["ops_len"][0])
        ops = answer[abi.PROBE.itemsize :].view(abi.PROBE_OP)[:count]
        return frozenset(ops["op"][(ops["flags"] & abi.PROBE_SUPPORTED) != 0].tolist())

    def _try_direct_open(self) -> bool:
        """Whether OPENAT2 takes a slot: without a table it says ENXIO, a kernel that knows no slots says EINVAL."""
        how = np.zeros(1, OPEN_HOW)
        how["flags"] = os.O_PATH
        path = ctypes.create_string_buffer(b"/")
        self.push(abi.openat2_rows(-100, ctypes.addressof(path), how.ctypes.data, 0, [0]))
        while self.unsubmitted or not len(done := self.reap()):
            self.enter(1)
        self._logged = 0
        return int(done["res"][0]) != -errno.EINVAL


def _registration_error(error: OSError, nbytes: int) -> RegistrationError:
    if error.errno == errno.ENOMEM:
        limit = memlock_limit()
        if limit is not None:
            return RegistrationError(
                f"cannot pin {nbytes} bytes: RLIMIT_MEMLOCK is {limit}, raise it with ulimit -l", Reason.MEMLOCK
            )
        return RegistrationError(f"cannot pin {nbytes} bytes: not enough memory")
    if error.errno == errno.EFAULT:
        return RegistrationError(f"cannot pin {nbytes} bytes: memory of a file, read-only or not mapped")
    return RegistrationError(f"cannot pin {nbytes} bytes: {error.strerror}")


_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The inherited descriptor would keep the parent's pins and files alive for as long as the child runs.
    for ring in list(_rings):
        ring.detach("the ring belongs to the parent process: make a new one after fork")


os.register_at_fork(after_in_child=_after_fork_in_child)
