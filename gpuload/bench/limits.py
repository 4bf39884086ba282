"""What the machine itself can do: the speeds no reader can pass, measured in the same run.

All are GB/s, the best of a few tries, and None where there is nothing to measure.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gpuload.bench.cases import chunk_files

MIB = 1 << 20
_TRIES = 3
_CALL = 8 * MIB


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


class Decoder:
    """The zstd chunks at `path`, in memory: decoded by all cores, no chunk placed anywhere.

    Threads: one at a time.
    """

    def __init__(self, path: str) -> None:
        from numcodecs.zstd import Zstd

        self._stored: list[bytes] = []
        for name in chunk_files(path):
            with open(name, "rb") as file:
                self._stored.append(file.read())
        self._codec = Zstd
        threads = min(os.cpu_count() or 1, len(self._stored))
        self._rooms = [np.zeros(len(Zstd().decode(self._stored[0])), np.uint8) for _ in range(threads)]

    def measure(self) -> float | None:
        """Decoded bytes, all of them once."""
        return _best(len(self._rooms), self._share, 1) if self._rooms else None

    def _share(self, i: int) -> int:
        codec, threads = self._codec(), len(self._rooms)
        for chunk in self._stored[i::threads]:
            codec.decode(chunk, out=self._rooms[i])
        return len(self._stored[i::threads]) * self._rooms[i].nbytes


class Drive:
    """The chunk files at `path`, read past the page cache: O_DIRECT, several threads, at most 8 MiB a call.

    Threads: one at a time.
    """

    def __init__(self, path: str, threads: int = 8) -> None:
        self._files = chunk_files(path)
        self._threads = threads

    def measure(self) -> float | None:
        """All of their bytes once; None where the file system refuses it."""
        self._rooms = [mmap.mmap(-1, _CALL) for _ in range(self._threads)]  # page aligned
        try:
            return _best(self._threads, self._share, 1)
        except OSError:
            return None
        finally:
            for room in self._rooms:
                room.close()

    def _share(self, i: int) -> int:
        moved = 0
        alone = len(self._files) >= self._threads  # else threads share a file
        for name in self._files[i :: self._threads] if alone else self._files:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECT)
            try:
                size = os.fstat(fd).st_size
                first, step = (0, _CALL) if alone else (i * _CALL, self._threads * _CALL)
                for offset in range(first, size, step):
                    moved += os.preadv(fd, [self._rooms[i]], offset)
            finally:
                os.close(fd)
        return moved


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
