"""The C library: one `ctypes` object for all calls, and errno turned into `OSError`.

The GIL is released during each call.
"""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
raw_syscall = libc.syscall
raw_syscall.restype, raw_syscall.argtypes = ctypes.c_long, [ctypes.c_long] * 7


def failure(path: str | bytes | None = None) -> OSError:
    """The errno of the last call as an exception, which may name a path."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), path) if path is not None else OSError(code, os.strerror(code))


def syscall(number: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> int:
    """Make one system call with the GIL released; pointers are passed as addresses.

    Raises
    ------
    OSError
        The kernel's errno.
    """
    result: int = raw_syscall(number, a, b, c, d, e, f)
    if result < 0:
        raise failure()
    return result
