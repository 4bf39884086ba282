"""What the machine itself can do: the speeds no reader can pass, measured in the same run."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

MIB = 1 << 20


def cached(path: str, threads: int, total: int = 1 << 30) -> float:
    """GB/s of `preadv` over the page cache in `threads` threads, 1 MiB a call, into memory that was touched before."""
    size = min(os.path.getsize(path), total)
    fd = os.open(path, os.O_RDONLY)
    buffers = [bytearray(MIB) for _ in range(threads)]

    def share(i: int) -> None:
        for offset in range(i * MIB, size - MIB + 1, threads * MIB):
            os.preadv(fd, [buffers[i]], offset)

    try:
        best = 0.0
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(3):
                start = time.perf_counter()
                list(pool.map(share, range(threads)))
                best = max(best, size / (time.perf_counter() - start) / 1e9)
        return best
    finally:
        os.close(fd)


def direct(path: str, total: int = 256 * MIB) -> float | None:
    """GB/s of O_DIRECT reads of 8 MiB in four threads; None where the file system refuses O_DIRECT."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None
    size = min(os.path.getsize(path), total)
    buffers = [mmap.mmap(-1, 8 * MIB) for _ in range(4)]

    def share(i: int) -> None:
        for offset in range(i * 8 * MIB, size - 8 * MIB + 1, 32 * MIB):
            os.preadv(fd, [buffers[i]], offset)

    try:
        start = time.perf_counter()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(share, range(4)))
        return size / (time.perf_counter() - start) / 1e9
    finally:
        os.close(fd)


def pinned_copy(nbytes: int = 1 << 30) -> float:
    """GB/s of one copy from pinned host memory to the GPU, the best of five."""
    import cupy

    memory = cupy.cuda.alloc_pinned_memory(nbytes)
    source = np.frombuffer(memory, np.uint8, nbytes)
    source[::4096] = 1
    target = cupy.empty(nbytes, cupy.uint8)
    best = 0.0
    for _ in range(5):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        target.set(source)
        cupy.cuda.Device().synchronize()
        best = max(best, nbytes / (time.perf_counter() - start) / 1e9)
    return best
