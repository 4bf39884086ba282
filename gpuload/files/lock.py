"""Lets one writer at a time change what must be read before it is written: an array's shape, a node's attributes.

The lock is the kernel's (flock), on the directory itself: nothing is left behind, nor seen by readers, and it ends with
the process that holds it, however that ends. It holds between the threads and the processes of one machine. A file
system that does not lock directories, as NFS, is written to without: there, let one writer at a time append.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpuload.files.root import Root


@contextmanager
def locked(root: Root, directory: str) -> Iterator[None]:
    """Hold the lock of a directory below `root`, and wait before for whoever has it.

    Threads: safe, they exclude each other. Fork: the child does not hold it once the block has ended here.

    Parameters
    ----------
    directory
        Below the root; ``""`` is the root itself.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        There is no such directory.
    """
    path = directory.rstrip("/") or "."
    while True:
        root.refresh()
        fd = root.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
            except OSError:
                yield  # this file system has no such locks
                return
            # While this waited, another directory may have been put in its place.
            status, now = os.fstat(fd), root.stat(path)
            if now is None or (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
                continue
            try:
                yield
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)  # before the close: a forked child may have the descriptor, too
            return
        finally:
            os.close(fd)
