"""posix: `preadv` in a few threads, each reading a run of a batch's rows; works wherever files do.

A task is a share of a batch, never a single chunk: one hand-over costs as much as many small reads.
"""

from __future__ import annotations

import os
import queue
import stat
import threading
from time import monotonic

import numpy as np

from gpuload.backends.base import Availability, Batch
from gpuload.bindings.vectors import preadv
from gpuload.memory.slabs import Slab
from gpuload.request import Int64, Reason

LANES = 4  # batches at once: while one ends, the threads have the next


def availability() -> Availability:
    """Always usable where the system has `preadv`."""
    return Availability() if hasattr(os, "preadv") else Availability(Reason.KERNEL_TOO_OLD, "this system has no preadv")


class PosixBackend:
    """A pool of reading threads.

    Threads: `begin` and `advance` come from one thread. Fork: the child must make its own. Its threads serve to the
    very end of the process; those of an executor take no work any more once the main thread has ended.

    Parameters
    ----------
    threads
        How many read at once; None: twice the cores, at most 16.
    """

    name = "posix"
    files_per_batch = 512

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or min(16, 2 * (os.cpu_count() or 1))
        self.declined: dict[str, Reason] = {}
        self._tasks: queue.SimpleQueue[tuple[Batch, Int64] | None] = queue.SimpleQueue()
        self._started: list[threading.Thread] = []
        self._finished: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._left: dict[int, int] = {}

    @property
    def active(self) -> int:
        return len(self._left)

    @property
    def hungry(self) -> bool:
        return len(self._left) < LANES

    def adopt(self, slab: Slab) -> bool:
        """Any memory will do."""
        return True

    def read_plain(self) -> None:
        pass

    def begin(self, batch: Batch) -> None:
        shares = self._shares(batch)
        self._left[id(batch)] = len(shares)
        while len(self._started) < min(self.threads, len(shares) * len(self._left)):
            thread = threading.Thread(
                target=_work, args=(self._tasks, self._finished), name="gpuload-posix", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no more threads are allowed here: those there are do it all
                if not self._started:
                    raise
                break
            self._started.append(thread)
        for rows in shares:
            self._tasks.put((batch, rows))

    def _shares(self, batch: Batch) -> list[Int64]:
        """Rows in runs of about equal bytes; all rows of one file are in one run, so that they see one open file."""
        n = len(batch)
        if n == 0:
            return [np.zeros(0, np.int64)]
        order = np.arange(n) if (np.diff(batch.file) >= 0).all() else np.argsort(batch.file, kind="stable")
        if batch.handles is not None:  # the open file is shared: any cut will do
            return [s for s in np.array_split(order, min(n, self.threads)) if len(s)]
        files = batch.file[order]
        starts = np.flatnonzero(np.concatenate(([True], files[1:] != files[:-1])))
        count = min(len(starts), self.threads)
        cuts = starts[np.arange(count) * len(starts) // count]
        return np.split(order, cuts[1:])

    def advance(self, timeout: float) -> list[Batch]:
        done: list[Batch] = []
        block = True
        while self._left:
            try:
                batch = self._finished.get(block, timeout if block else None)
            except queue.Empty:
                break
            self._left[id(batch)] -= 1
            if not self._left[id(batch)]:
                del self._left[id(batch)]
                batch.check()
                done.append(batch)
                block = False
        return done

    def rest(self) -> None:
        pass

    def close(self) -> None:
        """Wait for all reads, then end the threads. Idempotent."""
        for _ in self._started:
            self._tasks.put(None)
        for thread in self._started:
            thread.join()
        self._started.clear()
        self._left.clear()


def _work(tasks: queue.SimpleQueue[tuple[Batch, Int64] | None], finished: queue.SimpleQueue[Batch]) -> None:
    while (task := tasks.get()) is not None:
        _read_share(*task)
        finished.put(task[0])


def _read_share(batch: Batch, rows: Int64) -> None:
    try:
        fd, current = -1, -1
        try:
            for row in rows.tolist():
                if batch.error is not None:
                    break
                file = int(batch.file[row])
                if file != current:
                    if fd >= 0 and batch.handles is None:
                        os.close(fd)
                    fd, current = -1, file
                    fd = _open(batch, file)
                if fd >= 0:
                    _read_row(batch, row, fd)
        finally:
            if fd >= 0 and batch.handles is None:
                os.close(fd)
    except Exception as error:
        batch.fail(error)


def _open(batch: Batch, file: int) -> int:
    if batch.handles is not None:
        return batch.handles[file].buffered_fd
    try:
        fd = batch.root.open(batch.keys[file])
    except OSError as error:
        if error.errno is None:
            raise
        batch.fail_open(file, error.errno)
        return -1
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        rows = np.flatnonzero(batch.file == file)
        batch.fail_read(int(rows[0]), 0)
        return -1
    return fd


def _read_row(batch: Batch, row: int, fd: int) -> None:
    start = int(batch.address[row]) - batch.block.address
    want, ask, offset = int(batch.want[row]), int(batch.ask[row]), int(batch.file_offset[row])
    memory = memoryview(batch.block.array)  # type: ignore[arg-type]
    batch.submitted[row] = monotonic()
    got = 0
    try:
        while got < want:
            if batch.vectors is None:
                n = os.preadv(fd, [memory[start + got : start + ask]], offset + got)
            else:
                n = preadv(fd, *batch.rest_of_table(row, got), offset + got)
            got += n
            if n == 0:
                break
    except OSError as error:
        batch.fail_read(row, error.errno or 0)
    batch.got[row] = got
    batch.completed[row] = monotonic()
