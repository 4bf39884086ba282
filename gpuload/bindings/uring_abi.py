"""The words of io_uring's kernel interface: flags, record layouts, and the builders of submission rows.

Values only, no system call. A row is one request; builders take columns and give rows, so a batch costs a handful of
NumPy assignments whatever its length. Every column but `user_data` broadcasts. Source of the
layouts and numbers: ``include/uapi/linux/io_uring.h``.
"""

from __future__ import annotations

from enum import IntFlag

import numpy as np
import numpy.typing as npt

from gpuload.bindings.syscalls import OPEN_HOW

Rows = npt.NDArray[np.void]

OP_NOP = 0
OP_READV = 1
OP_READ_FIXED = 4
OP_POLL_ADD = 6
OP_ASYNC_CANCEL = 14
OP_CLOSE = 19
OP_READ = 22
OP_FADVISE = 24
OP_OPENAT2 = 28

IOSQE_FIXED_FILE = 1 << 0
IOSQE_IO_DRAIN = 1 << 1
IOSQE_IO_LINK = 1 << 2
IOSQE_IO_HARDLINK = 1 << 3
IOSQE_ASYNC = 1 << 4
IOSQE_CQE_SKIP_SUCCESS = 1 << 6

ENTER_GETEVENTS = 1 << 0
ENTER_SQ_WAKEUP = 1 << 1
ENTER_EXT_ARG = 1 << 3

REGISTER_BUFFERS, UNREGISTER_BUFFERS = 0, 1
REGISTER_FILES, UNREGISTER_FILES, REGISTER_FILES_UPDATE = 2, 3, 6
REGISTER_PROBE = 8

CANCEL_ALL, CANCEL_ANY = 1 << 0, 1 << 2

OFF_RINGS, OFF_SQES = 0, 0x10000000

MAX_BUFFER_BYTES = 1 << 30
MAX_BUFFERS = 1 << 14
MAX_READ_BYTES = 0x7FFFF000  # the most one read transfers, whatever it asks for


class Setup(IntFlag):
    """Flags of io_uring_setup(2)."""

    SQPOLL = 1 << 1
    CQSIZE = 1 << 3
    CLAMP = 1 << 4
    SUBMIT_ALL = 1 << 7
    COOP_TASKRUN = 1 << 8
    SINGLE_ISSUER = 1 << 12
    DEFER_TASKRUN = 1 << 13


class Feature(IntFlag):
    """What a ring tells of its kernel."""

    SINGLE_MMAP = 1 << 0
    NODROP = 1 << 1
    SUBMIT_STABLE = 1 << 2
    EXT_ARG = 1 << 8
    NATIVE_WORKERS = 1 << 9
    RSRC_TAGS = 1 << 10
    CQE_SKIP = 1 << 11
    LINKED_FILE = 1 << 12


# Every byte of a row belongs to a named field: fancy indexing copies fields only, and what it would leave in a gap
# reaches the kernel as a random EINVAL.
SQE = np.dtype(
    [
        ("opcode", "u1"),
        ("flags", "u1"),
        ("ioprio", "u2"),
        ("fd", "i4"),
        ("off", "u8"),
        ("addr", "u8"),
        ("len", "u4"),
        ("op_flags", "u4"),
        ("user_data", "u8"),
        ("buf_index", "u2"),
        ("personality", "u2"),
        ("file_index", "u4"),
        ("addr3", "u8"),
        ("pad", "u8"),
    ]
)
CQE = np.dtype([("user_data", "u8"), ("res", "i4"), ("flags", "u4")])

_SQ_OFFSETS = np.dtype(
    [(name, "u4") for name in ("head", "tail", "mask", "entries", "flags", "dropped", "array", "resv")]
    + [("user_addr", "u8")]
)
_CQ_OFFSETS = np.dtype(
    [(name, "u4") for name in ("head", "tail", "mask", "entries", "overflow", "cqes", "flags", "resv")]
    + [("user_addr", "u8")]
)
PARAMS = np.dtype(
    [
        ("sq_entries", "u4"),
        ("cq_entries", "u4"),
        ("flags", "u4"),
        ("sq_thread_cpu", "u4"),
        ("sq_thread_idle", "u4"),
        ("features", "u4"),
        ("wq_fd", "u4"),
        ("resv", "u4", 3),
        ("sq", _SQ_OFFSETS),
        ("cq", _CQ_OFFSETS),
    ]
)
PROBE = np.dtype([("last_op", "u1"), ("ops_len", "u1"), ("resv", "u2"), ("resv2", "u4", 3)])
PROBE_OP = np.dtype([("op", "u1"), ("resv", "u1"), ("flags", "u2"), ("resv2", "u4")])
PROBE_SUPPORTED = 1 << 0


def _rows(opcode: int, flags: npt.ArrayLike, user_data: npt.ArrayLike) -> Rows:
    rows: Rows = np.zeros(np.size(user_data), SQE)
    rows["opcode"], rows["flags"], rows["user_data"] = opcode, flags, user_data
    return rows


def read_rows(
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
    """Rows that read `size` bytes at `offset` into memory at `address`; unchecked, see `Ring.read_rows`.

    Parameters
    ----------
    fd
        Slot in the ring's file table, or a descriptor with ``fixed_file=False``.
    offset, address, size
        Bytes; `size` of one read is at most `MAX_READ_BYTES`.
    user_data
        uint64 (n,): comes back with each completion, whose `res` is the bytes read (0 at the end of the file) or
        minus errno.
    buf_index
        Registered buffer that holds the address range: READ_FIXED. None: plain READ.
    flags
        More ``IOSQE_*`` flags.
    """
    if fixed_file:
        flags = np.bitwise_or(flags, IOSQE_FIXED_FILE)
    rows = _rows(OP_READ if buf_index is None else OP_READ_FIXED, flags, user_data)
    rows["fd"], rows["off"], rows["addr"], rows["len"] = fd, offset, address, size
    if buf_index is not None:
        rows["buf_index"] = buf_index
    return rows


def readv_rows(
    slot: npt.ArrayLike,
    offset: npt.ArrayLike,
    table: npt.ArrayLike,
    count: npt.ArrayLike,
    user_data: npt.ArrayLike,
    *,
    flags: npt.ArrayLike = 0,
) -> Rows:
    """Rows that read at `offset` of the files in slots into the `count` places that a table of `IOVEC` names.

    Parameters
    ----------
    table
        Addresses of the tables, which must live until the rows are submitted.
    """
    rows = _rows(OP_READV, np.bitwise_or(flags, IOSQE_FIXED_FILE), user_data)
    rows["fd"], rows["off"], rows["addr"], rows["len"] = slot, offset, table, count
    return rows


def openat2_rows(
    dir_fd: int,
    path_address: npt.ArrayLike,
    how_address: int,
    slot: npt.ArrayLike,
    user_data: npt.ArrayLike,
    *,
    flags: npt.ArrayLike = 0,
) -> Rows:
    """Rows that open files straight into slots of the ring's file table: no descriptor, nothing to close.

    An open that fails leaves the previous file in its slot, where a read would find it: clear the slot with
    `close_rows`, or never read from it. `dir_fd` is a descriptor of the process, not a slot.

    Parameters
    ----------
    path_address
        Addresses of NUL-terminated paths.
    how_address
        Address of one `OPEN_HOW` record without O_CLOEXEC (a slot has no such flag: EINVAL). It and the paths must
        live until the rows are submitted.
    """
    rows = _rows(OP_OPENAT2, flags, user_data)
    rows["fd"], rows["addr"], rows["off"], rows["len"] = dir_fd, path_address, how_address, OPEN_HOW.itemsize
    rows["file_index"] = np.add(slot, 1)
    return rows


def fadvise_rows(slot: npt.ArrayLike, user_data: npt.ArrayLike, *, flags: npt.ArrayLike = 0) -> Rows:
    """Rows that say of the files in slots what holds anyway (POSIX_FADV_NORMAL): -ESPIPE tells a pipe from a file."""
    rows = _rows(OP_FADVISE, np.bitwise_or(flags, IOSQE_FIXED_FILE), user_data)
    rows["fd"] = slot
    return rows


def close_rows(slot: npt.ArrayLike, user_data: npt.ArrayLike, *, flags: npt.ArrayLike = 0) -> Rows:
    """Rows that clear slots of the ring's file table; `res` is -EBADF for a slot that was empty."""
    rows = _rows(OP_CLOSE, flags, user_data)
    rows["file_index"] = np.add(slot, 1)
    return rows


def poll_rows(fd: npt.ArrayLike, events: npt.ArrayLike, user_data: npt.ArrayLike) -> Rows:
    """Rows that complete once when a descriptor has one of `events` (``select.POLL*``); `res` is what it had."""
    rows = _rows(OP_POLL_ADD, 0, user_data)
    rows["fd"], rows["op_flags"] = fd, events
    return rows


def cancel_rows(target: npt.ArrayLike, user_data: npt.ArrayLike) -> Rows:
    """Rows that cancel the request whose `user_data` is `target`; it completes with -ECANCELED."""
    rows = _rows(OP_ASYNC_CANCEL, 0, user_data)
    rows["fd"], rows["addr"] = -1, target
    return rows


def cancel_all_rows(user_data: npt.ArrayLike) -> Rows:
    """One row that cancels everything in flight that has not started or can be interrupted (5.19)."""
    rows = _rows(OP_ASYNC_CANCEL, 0, user_data)
    rows["fd"], rows["op_flags"] = -1, CANCEL_ALL | CANCEL_ANY
    return rows


def nop_rows(user_data: npt.ArrayLike, *, flags: npt.ArrayLike = 0) -> Rows:
    """Rows that do nothing and complete with `res` 0."""
    return _rows(OP_NOP, flags, user_data)
