"""System calls that Python lacks: statx and openat2; and, from its neighbours, memory to pin and its limit."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np

from gpuload.bindings.libc import failure, libc, raw_syscall
from gpuload.bindings.limits import memlock_limit
from gpuload.bindings.mapping import Mapping, map_anonymous

__all__ = [
    "AT_EMPTY_PATH",
    "AT_FDCWD",
    "AT_SYMLINK_NOFOLLOW",
    "OPEN_HOW",
    "STATX_BASIC_STATS",
    "STATX_DIOALIGN",
    "Mapping",
    "Resolve",
    "Statx",
    "map_anonymous",
    "memlock_limit",
    "openat2",
    "openat2_supported",
    "statx",
]

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000
STATX_BASIC_STATS = 0x7FF
STATX_DIOALIGN = 0x2000

# Newer calls have one number on every architecture that Linux gained since 2019, and on x86-64.
_SYS_OPENAT2 = 437
_EAGAIN_RETRIES = 64


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
    function = getattr(libc, "statx", None)
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
            raise failure(path)
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
        descriptor: int = raw_syscall(_SYS_OPENAT2, dir_fd, where, what, ctypes.sizeof(how), 0, 0)
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
