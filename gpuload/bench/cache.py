"""The page cache of an array's files: what of them is in it, and how to empty it of them alone.

Metadata (``zarr.json``) stays cached: it is opened before the clock starts.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

from gpuload.bench.cases import chunk_files
from gpuload.bindings.libc import failure, libc

_mincore = libc.mincore
_mincore.restype = ctypes.c_int
_mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def drop(path: str) -> None:
    """Have what is not yet on the drive written there, then take the chunk files at `path` out of the page cache."""
    for name in chunk_files(path):
        fd = os.open(name, os.O_RDONLY)
        try:
            os.fsync(fd)  # a page that is still to be written stays
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def cached_share(path: str) -> float | None:
    """How much of the chunk files at `path` is in the page cache, counted page by page: 0 to 1.

    Looked up by mincore(2), which reads nothing: a read that must not wait has the kernel read ahead. None where there
    is no chunk.
    """
    there = pages = 0
    for name in chunk_files(path):
        found, of = _resident(name)
        there, pages = there + found, pages + of
    return there / pages if pages else None


def _resident(name: str) -> tuple[int, int]:
    """Pages of a file that are in the page cache, and all its pages."""
    size = os.path.getsize(name)
    if not size:
        return 0, 0
    flags = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    fd = os.open(name, os.O_RDONLY)
    try:
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as view:
            first = np.frombuffer(view, np.uint8)
            answer = _mincore(first.ctypes.data, size, flags.ctypes.data)
            del first
            if answer < 0:
                raise failure(name)
    finally:
        os.close(fd)
    return int((flags & 1).sum()), len(flags)
