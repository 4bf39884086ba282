"""What of a file is in the page cache, by cachestat(2) (Linux 6.5): it reads nothing, nor has the kernel read ahead."""

from __future__ import annotations

import ctypes

from gpuload.bindings.libc import syscall

_SYS_CACHESTAT = 451  # on every architecture


def cached_pages(fd: int, offset: int, size: int) -> int:
    """Pages of ``offset:offset + size`` of an open file that are in the page cache, those being written back included.

    Raises
    ------
    OSError
        ENOSYS before Linux 6.5, EPERM for who may neither write the file nor owns it.
    """
    where, found = (ctypes.c_uint64 * 2)(offset, size), (ctypes.c_uint64 * 5)()
    syscall(_SYS_CACHESTAT, fd, ctypes.addressof(where), ctypes.addressof(found))
    return found[0]
