"""One read on its way through the engine: what is left of it, and what came back.

Threads: made by the caller; `reading`, `lent` and `out` are the I/O thread's, `cancelled` and `ready` are for both.
"""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.backends import registry
from gpuload.backends.base import Batch
from gpuload.engine.ledger import Ledger
from gpuload.engine.plan import Part, Plan
from gpuload.engine.scatter import Sink
from gpuload.memory.slabs import Block


class Job:
    """One read on its way: the plan, what is left of it, and the queue its caller waits on.

    Parameters
    ----------
    plan, sink
        What to read and where it goes.
    choice
        The backend that serves.
    inline
        The I/O thread places batches itself.
    nested
        Its caller holds blocks of another job meanwhile: it never waits for the pool, which those may have emptied.
    """

    def __init__(
        self, plan: Plan, choice: registry.Choice, sink: Sink, *, inline: bool = False, nested: bool = False
    ) -> None:
        self.plan, self.choice, self.sink, self.inline, self.nested = plan, choice, sink, inline, nested
        self.ready: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self.parts: dict[int, Part] = {}
        self.taken = False  # the I/O thread knows it
        self.ended = False  # the I/O thread is done with it, and puts no more batches
        self.next = 0  # the batch that is admitted next
        self.reading = 0  # batches in the backend
        self.lent = 0  # blocks not given back
        self.out: dict[int, Block] = {}  # of these, the ones in the caller's hands, by number of the batch
        self.error: BaseException | None = None
        self.cancelled = False
        self.dense = True  # the last batch that was read lacked few files or none
        self.ledger = Ledger(plan, choice)

    @property
    def admissible(self) -> bool:
        return self.next < len(self.plan) and self.error is None and not self.cancelled

    def fail(self, error: BaseException) -> None:
        """Keep the first error; nothing more is read."""
        if self.error is None:
            self.error = error


def place(job: Job, batch: Batch) -> Any:
    """Place a batch that was read (and decoded) with its job's sink; returns the event that frees its block or None."""
    part = job.parts.pop(batch.index)
    return job.sink.place(part, batch.block, missing_pieces(batch, part))


def missing_pieces(batch: Batch, part: Part) -> npt.NDArray[np.bool_] | None:
    """bool (pieces,): those whose file is not there; None: all are."""
    if not batch.missing.any():
        return None
    missing = np.zeros(part.last - part.first, bool)
    missing[batch.piece] = batch.missing[batch.file]
    return missing
