"""Vectored reads: one read of a file into many places, and the table of those places."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from gpuload.bindings.libc import failure, libc
from gpuload.request import Int64

IOVEC = np.dtype([("base", "u8"), ("length", "u8")])
"""``struct iovec`` of 64-bit systems: where to, and how many bytes."""
IOV_MAX = 1024

_preadv = libc.preadv
_preadv.restype = ctypes.c_ssize_t
_preadv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]


def preadv(fd: int, table: int, count: int, offset: int) -> int:
    """Read at `offset` into the `count` places of the table at address `table`; returns the bytes, 0 at the end.

    Raises
    ------
    OSError
        The kernel's errno.
    """
    n: int = _preadv(fd, table, count, offset)
    if n < 0:
        raise failure()
    return n


def behind(table: npt.NDArray[np.void], done: int) -> npt.NDArray[np.void]:
    """What is left of a table when its first `done` bytes are there: a table of its own."""
    ends: Int64 = np.cumsum(table["length"].astype(np.int64))
    first = int(np.searchsorted(ends, done, side="right"))
    rest = table[first:].copy()
    if len(rest):
        begun = done - (int(ends[first]) - int(rest["length"][0]))
        rest["base"][0] += np.uint64(begun)
        rest["length"][0] -= np.uint64(begun)
    return rest
