"""System calls that Python lacks: statx, openat2, anonymous memory for pinning, and the raw call under io_uring.

Everything goes through one `ctypes` library object, so the GIL is released during each call, and errno becomes
`OSError` in one place.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import resource
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000
STATX_BASIC_STATS = 0x7FF
STATX_DIOALIGN = 0x2000

# Newer calls have one number on every architecture that Linux gained since 2019, and on x86-64.
_SYS_OPENAT2 = 437
_EAGAIN_RETRIES = 64

_MADV_DONTFORK, _MADV_HUGEPAGE, _MADV_NOHUGEPAGE, _MADV_POPULATE_WRITE = 10, 14, 15, 23
_MAP_POPULATE = 0x8000
_CAP_IPC_LOCK = 14

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype, _syscall.argtypes = ctypes.c_long, [ctypes.c_long] * 7
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_munmap = _libc.munmap
_munmap.restype, _munmap.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t]
_madvise = _libc.madvise
_madvise.restype, _madvise.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _failure(path: str | bytes | None = None) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), path) if path is not None else OSError(code, os.strerror(code))


def syscall(number: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> int:
    """Make one system call with the GIL released; pointers are passed as addresses.

    Raises
    ------
    OSError
        The kernel's errno.
    """
    result: int = _syscall(number, a, b, c, d, e, f)
    if result < 0:
        raise _failure()
    return result


# ------------------------------------------------------------------------------------------------ statx


class _Time(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_int64), ("nsec", ctypes.c_uint32), ("_reserved", ctypes.c_int32)]


class _StatxBuffer(ctypes.Structure):
    _fields_ = [
        ("mask", ctypes.c_uint32),
        ("blksize", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("nlink", ctypes.c_uint32),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("mode", ctypes.c_uint16),
        ("_pad", ctypes.c_uint16),
        ("ino", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("attributes_mask", ctypes.c_uint64),
        ("atime", _Time),
        ("btime", _Time),
        ("ctime", _Time),
        ("mtime", _Time),
        ("rdev_major", ctypes.c_uint32),
        ("rdev_minor", ctypes.c_uint32),
        ("dev_major", ctypes.c_uint32),
        ("dev_minor", ctypes.c_uint32),
        ("mnt_id", ctypes.c_uint64),
        ("dio_mem_align", ctypes.c_uint32),
        ("dio_offset_align", ctypes.c_uint32),
        ("_spare", ctypes.c_uint64 * 12),
    ]


@dataclass(frozen=True, slots=True)
class Statx:
    """What the kernel says of a file; times in nanoseconds, `dev` as `os.stat` gives it.

    `dio_mem_align` and `dio_offset_align` are bytes, and 0 where the kernel (before 6.1) or the file system does
    not say, or where the file takes no O_DIRECT: `mask & STATX_DIOALIGN` tells the two apart.
    """

    mask: int
    mode: int
    size: int
    ino: int
    dev: int
    mtime_ns: int
    ctime_ns: int
    attributes: int
    dio_mem_align: int
    dio_offset_align: int


def _libc_statx() -> Any:
    """The C library's statx, or None before glibc 2.28 and musl 1.2.3 (its number differs by architecture)."""
    function = getattr(_libc, "statx", None)
    if function is not None:
        function.restype = ctypes.c_int
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    return function


_statx = _libc_statx()


def statx(path: str | bytes = "", *, dir_fd: int = AT_FDCWD, follow: bool = True, empty_path: bool = False) -> Statx:
    """Status of `path` below `dir_fd`, or of `dir_fd` itself with an empty path and ``empty_path=True``.

    Where statx is missing (ENOSYS, or EPERM from an old seccomp profile), the values are those of `os.stat`.

    Raises
    ------
    OSError
        The kernel's errno, with the path.
    """
    if _statx is not None:
        buffer = _StatxBuffer()
        flags = (0 if follow else AT_SYMLINK_NOFOLLOW) | (AT_EMPTY_PATH if empty_path else 0)
        mask = STATX_BASIC_STATS | STATX_DIOALIGN
        if _statx(dir_fd, os.fsencode(path), flags, mask, ctypes.addressof(buffer)) == 0:
            return Statx(
                mask=buffer.mask,
                mode=buffer.mode,
                size=buffer.size,
                ino=buffer.ino,
                dev=os.makedev(buffer.dev_major, buffer.dev_minor),
                mtime_ns=buffer.mtime.sec * 1_000_000_000 + buffer.mtime.nsec,
                ctime_ns=buffer.ctime.sec * 1_000_000_000 + buffer.ctime.nsec,
                attributes=buffer.attributes,
                dio_mem_align=buffer.dio_mem_align if buffer.mask & STATX_DIOALIGN else 0,
                dio_offset_align=buffer.dio_offset_align if buffer.mask & STATX_DIOALIGN else 0,
            )
        if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
            raise _failure(path)
    if empty_path and not path:
        status = os.stat(dir_fd if dir_fd != AT_FDCWD else ".")
    else:
        status = os.stat(path, dir_fd=None if dir_fd == AT_FDCWD else dir_fd, follow_symlinks=follow)
    return Statx(
        mask=STATX_BASIC_STATS,
        mode=status.st_mode,
        size=status.st_size,
        ino=status.st_ino,
        dev=status.st_dev,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        attributes=0,
        dio_mem_align=0,
        dio_offset_align=0,
    )


# ------------------------------------------------------------------------------------------------ openat2


class Resolve(IntFlag):
    """How the kernel may walk a path (``RESOLVE_*`` of openat2(2))."""

    NO_XDEV = 0x01
    NO_MAGICLINKS = 0x02
    NO_SYMLINKS = 0x04
    BENEATH = 0x08
    IN_ROOT = 0x10
    CACHED = 0x20


OPEN_HOW = np.dtype([("flags", "u8"), ("mode", "u8"), ("resolve", "u8")])
"""``struct open_how``, 24 bytes: what openat2 and the ring's OPENAT2 take."""


def openat2(dir_fd: int, path: str | bytes, flags: int, resolve: Resolve, mode: int = 0) -> int:
    """Open `path` below `dir_fd` under the rules of `resolve`; returns the descriptor.

    A rename beside the walk makes the kernel give up with EAGAIN when it cannot prove that ``..`` stays inside; that
    is tried again a bounded number of times, as openat2(2) asks.

    Raises
    ------
    OSError
        The kernel's errno, with the path: EXDEV for a path that leaves `dir_fd`, ELOOP for a link that is not allowed.
    ValueError
        A path with a NUL byte.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    how = (ctypes.c_uint64 * 3)(flags, mode, int(resolve))
    buffer = ctypes.create_string_buffer(name)
    where, what = ctypes.addressof(buffer), ctypes.addressof(how)
    refusals = 0
    while True:
        descriptor: int = _syscall(_SYS_OPENAT2, dir_fd, where, what, ctypes.sizeof(how), 0, 0)
        if descriptor >= 0:
            return descriptor
        code = ctypes.get_errno()
        if code == errno.EINTR:
            continue
        refusals += code == errno.EAGAIN
        if code != errno.EAGAIN or refusals > _EAGAIN_RETRIES:
            raise OSError(code, os.strerror(code), path)


@functools.cache
def openat2_supported() -> bool:
    """Whether openat2 works here (Linux 5.6, not filtered away); found by trying it once."""
    try:
        os.close(openat2(AT_FDCWD, "/", os.O_PATH | os.O_CLOEXEC, Resolve(0)))
    except OSError as error:
        return error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL)
    return True


# ------------------------------------------------------------------------------------------------ memory


class Mapping:
    """A stretch of mapped memory, unmapped by `close` or with the last array that shows it.

    Threads: safe to read and write, close it once nothing uses it. Fork: absent in the child when it was mapped with
    ``dontfork``, and never unmapped there: the child may have mapped something else at this address. Not picklable.

    Attributes
    ----------
    address, nbytes
        Where it starts, and how many bytes are usable.
    """

    def __init__(self, address: int, nbytes: int, *, inherited: bool = False) -> None:
        self.address = address
        self.nbytes = nbytes
        self._inherited = inherited
        self._pid = os.getpid()

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """uint8 (nbytes,) view; it keeps the mapping alive, but an explicit `close` pulls the memory from under it."""
        return np.asarray(self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not self.address:
            raise ValueError("the mapping is closed")
        if self._pid != os.getpid() and not self._inherited:
            raise ValueError("the mapping belongs to the parent process")
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False)}

    def close(self) -> None:
        """Unmap the memory, in the process that mapped it; idempotent."""
        address, self.address = self.address, 0
        if address and self._pid == os.getpid():
            _munmap(address, self.nbytes)

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a mapping cannot be pickled")


def _map(nbytes: int, flags: int, fd: int = -1, offset: int = 0) -> int:
    address: int | None = _mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise _failure()
    return address


def map_descriptor(fd: int, nbytes: int, offset: int) -> Mapping:
    """Map a ring's shared memory, pre-faulted and absent in a forked child (a mapping there would keep it alive)."""
    mapping = Mapping(_map(nbytes, mmap.MAP_SHARED | _MAP_POPULATE, fd, offset), nbytes)
    if _madvise(mapping.address, nbytes, _MADV_DONTFORK) < 0:
        raise _failure()
    return mapping


def map_anonymous(nbytes: int, *, align: int = 2 << 20, huge: bool = True, dontfork: bool = True) -> Mapping:
    """Private memory made for pinning: aligned, of huge pages where the system has them, and already touched.

    Parameters
    ----------
    nbytes
        Size in bytes, at least 1.
    align
        A power of two, at least the page size; the mapping starts on a multiple of it.
    huge
        Ask for transparent huge pages, or for none: of a huge page, pinning any part charges the whole to the memlock
        limit.
    dontfork
        Leave the memory out of a forked child, which then must not touch it. Otherwise fork() copies every pinned
        page at once (0.5 s for 1 GiB).

    Raises
    ------
    OSError
        ENOMEM: not that much memory.
    """
    if nbytes < 1 or align < mmap.PAGESIZE or align & (align - 1):
        raise ValueError(f"cannot map {nbytes} bytes aligned to {align}")
    length = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    start = _map(length + align, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    head = -start % align
    if head:
        _munmap(start, head)
    _munmap(start + head + length, align - head)
    mapping = Mapping(start + head, nbytes, inherited=not dontfork)
    # EINVAL from a kernel without huge pages: then small ones do.
    _madvise(mapping.address, length, _MADV_HUGEPAGE if huge else _MADV_NOHUGEPAGE)
    if dontfork and _madvise(mapping.address, length, _MADV_DONTFORK) < 0:
        raise _failure()
    _populate(mapping, length)
    return mapping


def _populate(mapping: Mapping, length: int) -> None:
    """Have the pages there now: a first touch under way would cost more than the read it serves."""
    while _madvise(mapping.address, length, _MADV_POPULATE_WRITE) < 0:
        code = ctypes.get_errno()
        if code == errno.EINVAL:  # before 5.14
            mapping.array[:: mmap.PAGESIZE] = 0
            return
        if code not in (errno.EAGAIN, errno.EINTR):
            raise _failure()


def memlock_limit() -> int | None:
    """Bytes this process may lock (RLIMIT_MEMLOCK), or None where no limit holds (unlimited, or CAP_IPC_LOCK)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or int(process_status("CapEff") or "0", 16) >> _CAP_IPC_LOCK & 1:
        return None
    return soft


def process_status(field: str) -> str | None:
    """One field of ``/proc/self/status``, or None where it is absent."""
    try:
        with open("/proc/self/status") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name == field:
                    return value.strip()
    except OSError:
        pass
    return None
