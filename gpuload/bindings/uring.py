"""A ring that reads files: the queues, and the buffers and files registered with them.

It knows nothing of chunks, short reads or retries: its user gives rows and interprets results.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpuload.bindings import uring_abi as abi
from gpuload.bindings.limits import file_mappings, memlock_limit
from gpuload.bindings.syscalls import AT_FDCWD, OPEN_HOW
from gpuload.bindings.uring_abi import Rows
from gpuload.bindings.uring_queues import Queues
from gpuload.bindings.uring_setup import UringUnavailable
from gpuload.errors import BackendError, RegistrationError
from gpuload.request import Reason

__all__ = ["Ring", "UringUnavailable"]


class Ring(Queues):
    """One io_uring instance with its registered buffers and file table.

    Threads, fork and pickle: as `Queues`. Registered buffers and files belong to this ring alone.

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
    ops
        The opcodes that the kernel knows.
    direct_open
        Files can be opened straight into slots (Linux 5.15).
    buffers
        Registered buffers as (address, nbytes).
    n_files
        Slots of the file table.

    Raises
    ------
    UringUnavailable
        No ring can be made here; `reason` says why.
    """

    def __init__(
        self, entries: int = 256, cq_entries: int | None = None, *, setup_flags: int | None = None, idle: int = 0
    ) -> None:
        super().__init__(entries, cq_entries, setup_flags=setup_flags, idle=idle)
        self.buffers: tuple[tuple[int, int], ...] = ()
        self._buffer_address = self._buffer_size = np.zeros(0, np.int64)
        self.n_files = 0
        try:
            self.ops = self._probe()
            self.direct_open = abi.OP_OPENAT2 in self.ops and self._try_direct_open()
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------------------------------------- buffers

    def register_buffers(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Pin memory for READ_FIXED; it must not be freed, remapped or given back to the system while registered.

        The memlock limit is charged by whole pages, of 2 MiB where they are huge, and once more for each ring.

        Parameters
        ----------
        buffers
            (address, nbytes) of each: at most 16384, of 1 byte to 1 GiB, of anonymous memory.

        Raises
        ------
        RegistrationError
            Too many, empty or too large, or memory of a file (before any call); over the memlock limit (`reason`
            ``memlock``); unmapped or read-only.
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
        for start, stop, file in file_mappings():
            for i, (address, nbytes) in enumerate(buffers):
                if start < address + nbytes and address < stop:
                    raise RegistrationError(f"buffer {i} is memory of a file, {file!r}, which cannot be pinned")
        vector = np.array(buffers, np.uint64).reshape(-1, 2)
        try:
            self._register(abi.REGISTER_BUFFERS, vector.ctypes.data, len(vector))
        except OSError as error:
            raise _registration_error(error, int(vector[:, 1].sum())) from error
        self.buffers = tuple((int(address), int(nbytes)) for address, nbytes in buffers)
        self._buffer_address, self._buffer_size = vector.T.astype(np.int64)

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
            self._buffer_address = self._buffer_size = np.zeros(0, np.int64)

    def check_ranges(self, buf_index: npt.ArrayLike, address: npt.ArrayLike, size: npt.ArrayLike) -> None:
        """Refuse address ranges outside the registered buffer they name.

        Raises
        ------
        RegistrationError
            Naming the first such range and its buffer.
        """
        index, first, length = np.asarray(buf_index), np.asarray(address, np.int64), np.asarray(size, np.int64)
        lowest, highest = (int(index), int(index)) if not index.ndim else (index.min(initial=0), index.max(initial=0))
        if not 0 <= lowest <= highest < len(self.buffers):
            raise RegistrationError(f"no registered buffer {min(lowest, 0) or highest}: there are {len(self.buffers)}")
        start, capacity = self._buffer_address[index], self._buffer_size[index]
        offset = first - start
        outside = (offset < 0) | (length < 0) | (offset > capacity - length)  # a sum of addresses could wrap round
        if outside.any():
            i = int(np.argmax(outside))
            index, first, length, _ = (a.reshape(-1) for a in np.broadcast_arrays(index, first, length, outside))
            address_of, nbytes = self.buffers[index[i]]
            raise RegistrationError(
                f"{length[i]} bytes at {first[i]:#x} are outside registered buffer {index[i]}: "
                f"{nbytes} bytes at {address_of:#x}"
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

    def describe(self) -> str:
        """One line on what this ring is made of."""
        flags = "|".join(str(flag.name) for flag in self.setup_flags)
        pinned = sum(nbytes for _, nbytes in self.buffers)
        return (
            f"io_uring: {self.sq_entries} entries, {self.cq_entries} completions, {flags}; {len(self.ops)} opcodes, "
            f"{'' if self.direct_open else 'no '}direct opens; {len(self.buffers)} registered buffers "
            f"({pinned} bytes), {self.n_files} file slots"
        )

    def detach(self, why: str) -> None:
        """Let go of the descriptor, the mappings and the registrations."""
        self.buffers, self.n_files = (), 0
        super().detach(why)

    def _refuse_in_flight(self, what: str) -> None:
        self._check()
        if self.unsubmitted or self.inflight:
            raise BackendError(f"cannot {what} with {self.unsubmitted + self.inflight} reads in flight: drain first")

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
        self.push(abi.openat2_rows(AT_FDCWD, ctypes.addressof(path), how.ctypes.data, 0, [0]))
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
