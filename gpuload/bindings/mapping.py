"""Anonymous memory made for pinning, and a ring's shared memory: mapped, aligned, touched, absent after fork.

Not `mmap.mmap`: it would unmap in a forked child what is not there, and what the child has put in its place.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.bindings.libc import failure, libc

_MADV_DONTFORK, _MADV_HUGEPAGE, _MADV_NOHUGEPAGE, _MADV_POPULATE_WRITE = 10, 14, 15, 23
_MAP_POPULATE = 0x8000

_mmap = libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_munmap = libc.munmap
_munmap.restype, _munmap.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t]
_madvise = libc.madvise
_madvise.restype, _madvise.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


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
        raise failure()
    return address


def map_descriptor(fd: int, nbytes: int, offset: int) -> Mapping:
    """Map a ring's shared memory, pre-faulted and absent in a forked child (a mapping there would keep it alive)."""
    mapping = Mapping(_map(nbytes, mmap.MAP_SHARED | _MAP_POPULATE, fd, offset), nbytes)
    if _madvise(mapping.address, nbytes, _MADV_DONTFORK) < 0:
        raise failure()
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
        raise failure()
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
            raise failure()
