"""The I/O thread: one a process, it owns the slabs and the backends, takes jobs from callers and keeps I/O rolling.

A caller hands over a job and waits. Batches are admitted in turn, one a job, so that every caller gets a fair share.
A batch that was read is placed at once by the I/O thread where that only starts GPU work; else it goes to the caller,
who decodes and places it while the next ones are read.

What callers tell the thread goes through one `queue.SimpleQueue`, whose `put` cannot be torn by a signal, and may be
told twice: a caller that is interrupted at any point (Ctrl-C) starts over, and neither a lock nor a block is lost.

Threads: `submit` may be called from any. Fork: the child starts a thread, a ring and a pool of its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from gpuload.backends import registry
from gpuload.backends.base import Backend, Batch
from gpuload.config import flag, integer
from gpuload.engine.job import Job, place
from gpuload.errors import TransportError
from gpuload.memory.device import Device, GpuDevice
from gpuload.memory.slabs import SMALLEST_SLAB, Block, SlabPool

_log = logging.getLogger(__name__)

_TIMEOUT = 0.05  # seconds the thread sleeps in the kernel before it looks for new jobs
_BUSY_TIMEOUT = 0.001  # the same while two backends are at work
_LENT = 16  # blocks of one job, those being decoded or copied included


class IoThread:
    """The thread and what it owns."""

    def __init__(self) -> None:
        self.pool = SlabPool(integer("slab.size"), integer("slab.limit"))
        self.dead: BaseException | None = None
        self._backends: dict[str, Backend] = {}
        self._prepared: dict[tuple[str, str], tuple[int, int]] = {}
        self._jobs: deque[Job] = deque()
        # GPU work still reads these blocks, until its event. A job, and the result it holds, may be gone by then.
        self._copying: deque[tuple[Any, Block, weakref.ref[Job]]] = deque()
        self._told: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.SimpleQueue()
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
        TransportError
            The caller is the I/O thread itself.
        """
        if threading.current_thread() is self.thread:
            raise TransportError("the I/O thread would wait for itself: a subscriber to events must not read")
        self.pool.poison = flag("poison")
        known = self._prepared.get((name, device.name))
        if known is None:
            known = self._prepared[name, device.name] = self.call(lambda: self._prepare(name, device))
        return known

    def submit(self, job: Job) -> None:
        """Hand over a job, or make sure that it was; its `ready` queue brings batches, then None."""
        self._told.put((self._begin, (job,)))
        if self.dead is not None:  # it may have looked at what it was told for the last time
            self._fail(job, self.dead)

    def give(self, job: Job, batch: Batch, event: Any = None) -> None:
        """A caller is done with the block of a batch, or will be when the GPU has reached `event`."""
        self._told.put((self._taken_back, (job, batch.index, event)))

    def give_all(self, job: Job) -> None:
        """The caller of an interrupted job is done with every block of it."""
        self._told.put((self._all_taken_back, (job,)))

    def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` on the I/O thread, between batches; returns or raises what it does."""
        answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._told.put((self._answer, (function, answer)))
        if self.dead is not None:
            answer.put((False, self.dead))
        done, value = answer.get()
        if not done:
            raise value
        return value

    def stop(self) -> None:
        """Finish what is in flight, fail what is queued, free everything. Idempotent."""
        self._told.put((self._end_soon, ()))
        if self.thread is not threading.current_thread():
            self.thread.join()

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
        if not self._jobs:
            for backend in self._backends.values():
                backend.rest()
        moved = self._listen()
        moved |= self._reap_copies()
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
        elif self._stop:
            return False
        else:
            self._listen(wait=True)
        return True

    def _listen(self, *, wait: bool = False) -> bool:
        """Do what callers asked for; whether they did. With `wait` until one does."""
        heard = False
        while True:
            try:
                function, arguments = self._told.get(wait and not heard)
            except queue.Empty:
                return heard
            function(*arguments)
            heard = True

    def _begin(self, job: Job) -> None:
        if job.taken:
            return
        job.taken = True
        if self._stop:
            job.fail(self.dead or _stopped(None))
        self._jobs.append(job)

    def _taken_back(self, job: Job, index: int, event: Any) -> None:
        block = job.out.pop(index, None)
        if block is None:
            return
        if event is None:
            self._release(job, block)
        else:
            self._copying.append((event, block, weakref.ref(job)))

    def _all_taken_back(self, job: Job) -> None:
        for index in list(job.out):
            self._taken_back(job, index, None)

    def _end_soon(self) -> None:
        self._stop = True
        for job in self._jobs:
            job.fail(_stopped(None))

    def _answer(self, function: Callable[[], Any], answer: queue.SimpleQueue[tuple[bool, Any]]) -> None:
        try:
            answer.put((True, function()))
        except Exception as error:
            answer.put((False, error))
        except BaseException as error:
            answer.put((False, _stopped(error)))
            raise

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
        return min(integer("batch_bytes"), largest), backend.files_per_batch

    def _grow(self, nbytes: int = 0) -> None:
        """One more slab, for a block of `nbytes`.

        Where the memlock limit refuses its size it is a smaller one, at last one that is not registered.
        """
        size = self.pool.next_size if nbytes <= self.pool.next_size else self.pool.slab_size
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
            else:
                self.pool.slab_size = size

    def _admit(self) -> bool:
        """One batch of each job that may go on; those that got one are the last to get the next, so that none waits."""
        moved = False
        served: list[Job] = []
        try:
            for _ in range(len(self._jobs)):
                job = self._jobs.popleft()
                if not job.admissible and not job.reading:
                    moved = True
                    self._end(job)
                elif self._admit_one(job):
                    moved = True
                    served.append(job)
                else:
                    self._jobs.append(job)
        except BaseException:
            served.append(job)
            raise
        finally:
            self._jobs.extend(served)
        return moved

    def _admit_one(self, job: Job) -> bool:
        backend = self._backends[job.choice.name]
        if not job.admissible or job.lent >= _LENT or not backend.hungry:
            return False
        block: Block | None = None
        try:
            part = job.plan.part(job.next)
            block = self._take(part.block_bytes)
            if block is None:
                if not job.nested:
                    return False
                block = self.pool.own(part.block_bytes)
            batch = job.plan.batch(job.next, part, block)
        except Exception as error:
            if block is not None:
                self.pool.give(block)
            job.fail(error)
            return True
        batch.owner, batch.dense, batch.undecoded = job, job.dense, job.inline
        job.parts[job.next] = part
        job.next += 1
        job.reading += 1
        job.lent += 1
        job.ledger.declined.update(backend.declined)
        backend.begin(batch)
        return True

    def _take(self, nbytes: int) -> Block | None:
        if not self.pool.fits(nbytes):
            return self.pool.own(nbytes) if self.pool.may_own(nbytes) else None
        block = self.pool.take(nbytes)
        if block is None and self.pool.may_grow():
            try:
                self._grow(nbytes)
            except MemoryError:
                if not self.pool.slabs:
                    raise
                self.pool.limit = self.pool.nbytes  # what is there must do
                return self._take(nbytes)
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
        job.dense = 8 * int(batch.missing.sum()) <= len(batch.missing)
        job.ledger.note(batch)
        if not job.inline or (job.plan.vectors is not None and batch.missing.any()):  # filling is work
            job.out[batch.index] = batch.block
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
            self._copying.append((event, batch.block, weakref.ref(job)))

    def _release(self, job: Job | None, block: Block) -> None:
        if job is not None:
            job.lent -= 1
        self.pool.give(block)

    def _reap_copies(self) -> bool:
        moved = False
        while self._copying and self._copying[0][0].done:
            _, block, job = self._copying.popleft()
            self._release(job(), block)
            moved = True
        return moved

    def _end(self, job: Job) -> None:
        """Nothing of the job is in the backend any more: tell what was served, then let the caller go."""
        try:
            if job.inline:
                job.sink.finish()
            job.ledger.close()
        except Exception as error:
            job.fail(error)
        if job.cancelled:  # its caller uses none of them any more, and may have been torn away by one Ctrl-C too many
            self._all_taken_back(job)
        _let_go(job)

    def _fail(self, job: Job, error: BaseException) -> None:
        job.fail(error)
        _let_go(job)

    def _end_all(self, error: BaseException | None) -> None:
        """Callers hear of the end when nothing is in flight any more, those who come later from `dead`."""
        failure = _stopped(error)
        for backend in self._backends.values():
            try:
                backend.close()
            except Exception:
                _log.exception("closing the backend %s failed", backend.name)
        for event, block, late in self._copying:
            event.synchronize()
            self._release(late(), block)
        self._copying.clear()
        self._stop = True
        self.dead = failure
        try:
            self._listen()
        except BaseException:
            _log.exception("the I/O thread failed at its end")
        for job in self._jobs:
            self._fail(job, failure)
        self._jobs.clear()
        # What a caller still decodes or copies from stays mapped: until the last array of it is gone.
        if error is None and not self.pool.lent:
            self.pool.close()


def _let_go(job: Job) -> None:
    job.ended = True
    job.ready.put(None)


def _stopped(error: BaseException | None) -> TransportError:
    failure = TransportError(f"the I/O thread ended: {error or 'it was stopped'}")
    failure.__cause__ = error
    return failure


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
