"""What the machine itself can do: the speeds no reader can pass, measured in the same run.

All are GB/s, the best of a few tries, and None where there is nothing to measure.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from gpuload.bench.cases import chunk_files

MIB = 1 << 20
_TRIES = 3


def cached(path: str, threads: int, total: int = 1 << 30) -> float | None:
    """`preadv` over the page cache in `threads` threads, 1 MiB a call, into memory that was touched before."""
    buffers = [bytearray(MIB) for _ in range(threads)]
    return _read(path, os.O_RDONLY, total, buffers)


def direct(path: str, total: int = 256 * MIB) -> float | None:
    """O_DIRECT in four threads, 8 MiB a call; None where the file system refuses it, too."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())  # or the reads would wait for the writing
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    buffers = [mmap.mmap(-1, 8 * MIB) for _ in range(4)]  # page aligned
    try:
        return _read(path, os.O_RDONLY | os.O_DIRECT, total, buffers, tries=1)
    except OSError:
        return None
    finally:
        for buffer in buffers:
            buffer.close()


def decoder(path: str) -> float | None:
    """Decoded bytes of the zstd chunks at `path`: all cores, stored bytes in memory, no chunk placed anywhere."""
    from numcodecs.zstd import Zstd

    stored: list[bytes] = []
    for name in chunk_files(path):
        with open(name, "rb") as file:
            stored.append(file.read())
    if not stored:
        return None
    threads = min(os.cpu_count() or 1, len(stored))
    rooms = [np.zeros(len(Zstd().decode(stored[0])), np.uint8) for _ in range(threads)]

    def share(i: int) -> int:
        codec = Zstd()
        for chunk in stored[i::threads]:
            codec.decode(chunk, out=rooms[i])
        return len(stored[i::threads]) * rooms[i].nbytes

    return _best(threads, share, _TRIES)


def pinned_copy(nbytes: int = 1 << 30) -> float:
    """One copy from pinned host memory to the GPU."""
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


def cached_share(path: str) -> float | None:
    """How much of the array at `path` is in the page cache, from samples of it: 0 to 1.

    None where the file system does not tell: where it does not know reads that must not wait.
    """
    files = chunk_files(path)
    there = asked = 0
    buffer = bytearray(1)
    for name in files[:: max(1, len(files) // 1024)]:
        fd = os.open(name, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            for offset in range(0, size, max(MIB, size // 16)):
                asked += 1
                with suppress(BlockingIOError):
                    there += os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError:
            return None
        finally:
            os.close(fd)
    return there / asked if asked else None


def _read(
    path: str, flags: int, total: int, buffers: list[bytearray] | list[mmap.mmap], *, tries: int = _TRIES
) -> float | None:
    """Read at most `total` bytes of a file, in turn into `buffers`, each the room of one thread and of one call."""
    step, threads = len(buffers[0]), len(buffers)
    fd = os.open(path, flags)

    def share(i: int) -> int:
        moved = 0
        for offset in range(i * step, min(total, size), threads * step):
            moved += os.preadv(fd, [buffers[i]], offset)
        return moved

    try:
        size = os.fstat(fd).st_size
        return _best(threads, share, tries)
    finally:
        os.close(fd)


def _best(threads: int, share: Callable[[int], int], tries: int) -> float | None:
    """GB/s of ``share(0) ... share(threads - 1)`` together, each of which returns its bytes."""
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(tries):
            start = time.perf_counter()
            moved = sum(pool.map(share, range(threads)))
            best = max(best, moved / (time.perf_counter() - start) / 1e9)
    return best or None
