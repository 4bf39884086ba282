"""Bytes of this process as an open file, so that the engine reads them as it reads all others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpuload.files.handle import FileHandle


@contextmanager
def memory_file(name: str, parts: Iterable[tuple[int, memoryview]]) -> Iterator[FileHandle]:
    """A file in memory that holds `parts`, each at its offset and nothing between them, for the time of a block.

    No file system that a fastpath takes has it. Threads: safe, each has a file of its own. Fork: as its handle.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        for offset, data in parts:
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:], offset + done)
    except BaseException:
        os.close(fd)
        raise
    with FileHandle(name, name, fd) as handle, handle.lease():
        yield handle
