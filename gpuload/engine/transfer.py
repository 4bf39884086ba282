"""The I/O thread: one a process, it owns the slabs and the backends, takes jobs from callers and keeps I/O rolling.

A caller hands over a job and waits. Batches are admitted in turn, one a job, so that every caller gets a fair share.
A batch that was read is placed at once by the I/O thread where that only starts GPU work; else it goes to the caller,
who decodes and places it while the next ones are read.

Threads: `submit` may be called from any. Fork: the child starts a thread, a ring and a pool of its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.backends import registry
from gpuload.backends.base import Backend, Batch
from gpuload.config import config
from gpuload.engine.ledger import Ledger
from gpuload.engine.plan import Part, Plan
from gpuload.engine.scatter import Sink
from gpuload.errors import TransportError
from gpuload.memory.device import Device, GpuDevice
from gpuload.memory.slabs import SMALLEST_SLAB, Block, SlabPool, own_block

_log = logging.getLogger(__name__)

_TIMEOUT = 0.05  # seconds the thread sleeps in the kernel before it looks for new jobs
_BUSY_TIMEOUT = 0.001  # the same while two backends are at work
_LENT = 16  # blocks of one job, those being decoded or copied included


class Job:
    """One read on its way: the plan, what is left of it, and the queue its caller waits on.

    Parameters
    ----------
    plan, sink
        What to read and where it goes; without a sink the caller takes the bytes out of `block`.
    choice
        The backend that serves.
    inline
        The I/O thread places batches itself.
    block
        Memory of the caller's own that the plan's only batch is read into.
    """

    def __init__(
        self, plan: Plan, choice: registry.Choice, sink: Sink | None, *, inline: bool = False, block: Block | None = None
    ) -> None:
        self.plan, self.choice, self.sink, self.inline, self.block = plan, choice, sink, inline, block
        self.ready: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self.parts: dict[int, Part] = {}
        self.next = 0  # the batch that is admitted next
        self.reading = 0  # batches in the backend
        self.lent = 0  # blocks not given back
        self.error: BaseException | None = None
        self.cancelled = False
        self.ledger = Ledger(plan, choice)

    @property
    def admissible(self) -> bool:
        return self.next < len(self.plan) and self.error is None and not self.cancelled

    def fail(self, error: BaseException) -> None:
        """Keep the first error; nothing more is read."""
        if self.error is None:
            self.error = error


class IoThread:
    """The thread and what it owns."""

    def __init__(self) -> None:
        self.pool = SlabPool(config.get("slab.size"), config.get("slab.limit"))
        self.dead: BaseException | None = None
        self._backends: dict[str, Backend] = {}
        self._prepared: dict[tuple[str, str], tuple[int, int]] = {}
        self._jobs: deque[Job] = deque()
        self._copying: deque[tuple[Any, Block, Job]] = deque()  # (event, block): GPU work still reads the block
        self._asked: deque[tuple[Callable[[], Any], queue.SimpleQueue[tuple[bool, Any]]]] = deque()
        self._work = threading.Condition()
        self._signals = 0
        self._stop = False
        self.thread = threading.Thread(target=self._run, name="gpuload-io", daemon=True)
        self.thread.start()

    # ------------------------------------------------------------------ for callers

    def prepare(self, name: str, device: Device) -> tuple[int, int]:
        """Make the backend `name` and the first slab, pinned for `device`; returns the bytes and files of a batch.

        Raises
        ------
        BackendUnavailableError
            The backend cannot be used here.
        """
        self.pool.poison = bool(config.get("poison"))
        known = self._prepared.get((name, device.name))
        if known is None:
            known = self._prepared[name, device.name] = self.call(lambda: self._prepare(name, device))
        return known

    def submit(self, job: Job) -> None:
        """Hand over a job; its `ready` queue brings batches, then None."""
        with self._signal():
            self._jobs.append(job)

    def give(self, job: Job, block: Block, event: Any = None) -> None:
        """A caller is done with a block, or will be when the GPU has reached `event`."""
        with self._signal(check=False):
            if event is None:
                self._release(job, block)
            else:
                self._copying.append((event, block, job))

    def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` on the I/O thread, between batches; returns or raises what it does."""
        answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        with self._signal():
            self._asked.append((function, answer))
        done, value = answer.get()
        if not done:
            raise value
        return value

    def stop(self) -> None:
        """Finish what is in flight, fail what is queued, free everything. Idempotent."""
        with self._signal(check=False):
            self._stop = True
        if self.thread is not threading.current_thread():
            self.thread.join()

    @contextmanager
    def _signal(self, *, check: bool = True) -> Iterator[None]:
        with self._work:
            if check and (self._stop or self.dead is not None):
                raise TransportError(f"the I/O thread has ended: {self.dead or 'it was stopped'}") from self.dead
            yield
            self._signals += 1
            self._work.notify()

    # ------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._turn():
                pass
        except BaseException as failure:  # whatever it is, the callers must hear of it
            error = failure
            _log.exception("the I/O thread failed")
        self._end_all(error)

    def _turn(self) -> bool:
        """Do what can be done now; False when the thread is to end."""
        seen = self._signals
        moved = self._answer() or self._reap_copies()
        while self._admit():
            moved = True
        active = [backend for backend in self._backends.values() if backend.active]
        if active:
            timeout = _TIMEOUT if len(active) == 1 else _BUSY_TIMEOUT
            for backend in active:
                for batch in backend.advance(timeout):
                    self._was_read(batch)
        elif moved:
            pass
        elif self._jobs and self._copying:  # a job waits for a block that the GPU still copies from
            self._copying[0][0].synchronize()
        else:
            with self._work:
                if self._stop:
                    return False
                if self._signals == seen:
                    self._work.wait()
        return True

    def _answer(self) -> bool:
        moved = False
        while self._asked:
            function, answer = self._asked.popleft()
            moved = True
            try:
                answer.put((True, function()))
            except Exception as error:
                answer.put((False, error))
        return moved

    def _prepare(self, name: str, device: Device) -> tuple[int, int]:
        if isinstance(device, GpuDevice):
            self.pool.pin_for(device)
        backend = self._backends.get(name)
        if backend is None:
            backend = self._backends[name] = registry.make(name)
            for slab in self.pool.slabs:
                if not backend.adopt(slab):
                    backend.read_plain()
        if not self.pool.slabs:
            self._grow()
        largest = max(slab.nbytes for slab in self.pool.slabs)
        return min(config.get("batch_bytes"), largest), backend.files_per_batch

    def _grow(self) -> None:
        """One more slab; where the memlock limit refuses its size a smaller one, at last one that is not registered."""
        size = self.pool.slab_size
        while True:
            slab = self.pool.grow(size)
            refused = [backend for backend in self._backends.values() if not backend.adopt(slab)]
            if not refused:
                return
            self.pool.drop(slab)
            size //= 2
            if size < SMALLEST_SLAB:
                size = self.pool.slab_size
                for backend in refused:
                    backend.read_plain()

    def _admit(self) -> bool:
        """One batch of each job that may go on, so that none waits for another's end."""
        moved = False
        for _ in range(len(self._jobs)):
            job = self._jobs.popleft()
            if not job.admissible and not job.reading:
                self._end(job)
                moved = True
                continue
            self._jobs.append(job)
            try:
                moved |= self._admit_one(job)
            except Exception as error:
                job.fail(error)
                moved = True
        return moved

    def _admit_one(self, job: Job) -> bool:
        backend = self._backends[job.choice.name]
        if not job.admissible or job.lent >= _LENT or not backend.hungry:
            return False
        part = job.plan.part(job.next)
        block = job.block or self._take(part.block_bytes)
        if block is None:
            return False
        try:
            batch = job.plan.batch(job.next, part, block)
        except BaseException:
            self.pool.give(block)
            raise
        batch.owner = job
        job.parts[job.next] = part
        job.next += 1
        job.reading += 1
        job.lent += 1
        job.ledger.declined.update(backend.declined)
        backend.begin(batch)
        return True

    def _take(self, nbytes: int) -> Block | None:
        if not self.pool.fits(nbytes):
            return own_block(nbytes)
        block = self.pool.take(nbytes)
        if block is None and self.pool.may_grow():
            self._grow()
            block = self.pool.take(nbytes)
        return block

    def _was_read(self, batch: Batch) -> None:
        job: Job = batch.owner
        job.reading -= 1
        if batch.error is not None:
            job.fail(batch.error)
        if job.error is not None or job.cancelled:
            self._release(job, batch.block)
            return
        job.ledger.note(batch)
        if not job.inline:
            job.ready.put(batch)
            return
        try:
            event = place(job, batch)
        except Exception as error:
            job.fail(error)
            event = None
        if event is None:
            self._release(job, batch.block)
        else:
            self._copying.append((event, batch.block, job))

    def _release(self, job: Job, block: Block) -> None:
        job.lent -= 1
        self.pool.give(block)

    def _reap_copies(self) -> bool:
        moved = False
        while self._copying and self._copying[0][0].done:
            _, block, job = self._copying.popleft()
            self._release(job, block)
            moved = True
        return moved

    def _end(self, job: Job) -> None:
        """Nothing of the job is in the backend any more: tell what was served, then let the caller go."""
        if job.inline and job.sink is not None:
            try:
                job.sink.finish()
            except Exception as error:
                job.fail(error)
        job.ledger.close()
        job.ready.put(None)

    def _end_all(self, error: BaseException | None) -> None:
        failure = TransportError(f"the I/O thread ended: {error or 'it was stopped'}")
        failure.__cause__ = error
        with self._work:
            self.dead = failure
        for backend in self._backends.values():
            try:
                backend.close()
            except Exception:
                _log.exception("closing the backend %s failed", backend.name)
        while self._copying:
            event, block, job = self._copying.popleft()
            event.synchronize()
            self._release(job, block)
        for _, answer in self._asked:
            answer.put((False, failure))
        for job in self._jobs:
            job.fail(failure)
            job.ready.put(None)
        self._jobs.clear()
        if error is None:
            self.pool.close()


def place(job: Job, batch: Batch) -> Any:
    """Place a batch that was read (and decoded) with the job's sink; returns the event that frees its block, or None."""
    assert job.sink is not None
    part = job.parts.pop(batch.index)
    return job.sink.place(part, batch.block, missing_pieces(batch, part))


def missing_pieces(batch: Batch, part: Part) -> npt.NDArray[np.bool_] | None:
    """bool (pieces,): those whose file is not there; None: all are."""
    if not batch.missing.any():
        return None
    missing = np.zeros(part.last - part.first, bool)
    missing[batch.piece] = batch.missing[batch.file]
    return missing


# ---------------------------------------------------------------------- one a process

_lock = threading.Lock()
_current: IoThread | None = None
_inherited: list[IoThread] = []  # after fork: kept, so that nothing in them is freed twice


def io_thread() -> IoThread:
    """The process's I/O thread; a new one where there is none, or the last one failed."""
    global _current
    with _lock:
        if _current is None or _current.dead is not None or not _current.thread.is_alive():
            _current = IoThread()
        return _current


def stop() -> None:
    """End the I/O thread and free its slabs; the next read starts another."""
    global _current
    with _lock:
        ending, _current = _current, None
    if ending is not None:
        ending.stop()


def _after_fork_in_child() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _inherited.append(_current)
    _current = None


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(stop)
