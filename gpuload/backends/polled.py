"""The batches that rings with a thread of their own work on: which suit, how they begin, what has come of them."""

from __future__ import annotations

from time import monotonic

import numpy as np

from gpuload.backends.base import Batch
from gpuload.backends.lanes import ASYNC_FROM, Lane, descriptors
from gpuload.backends.pollers import Pollers, share
from gpuload.bindings.limits import usable_cores
from gpuload.bindings.uring_abi import Rows
from gpuload.errors import BackendError

MOST = 15
FLIGHT = 64 << 20  # bytes that are under way together, about; with more the slabs leave the CPU's caches
_FROM = 8  # cores: fewer are better left to who decodes, copies and computes


def how_many(*, forced: bool) -> int:
    """Rings to make: three for four cores; none where there are few, unless it is `forced`."""
    cores = usable_cores()
    return min(MOST, max(1, cores * 3 // 4)) if forced or cores >= _FROM else 0


class Polled:
    """Lanes whose batches are divided among pollers.

    Parameters
    ----------
    n
        Rings, which are made when they are first needed; 0 from then on where none can be made.
    lanes, files_per_batch
        At most; every lane has slots of its own in each ring.
    """

    def __init__(self, n: int, *, lanes: int, files_per_batch: int) -> None:
        self.n = n
        self.pollers: Pollers | None = None
        self.lanes: dict[int, Lane] = {}
        self._most, self._slots = lanes, -(-files_per_batch // n) if n else 0

    def suits(self, batch: Batch, *, forced: bool) -> bool:
        """Whether pollers may read a batch and, unless it is `forced`, do it faster than workers."""
        if not self.n or batch.vectors is not None or batch.direct or not len(batch):
            return False
        if not forced and not (batch.undecoded and batch.dense and int(batch.ask.max()) >= ASYNC_FROM):
            return False
        return self.ready()

    def ready(self) -> bool:
        """Whether there are pollers; makes them, the first time."""
        if self.pollers is None and self.n:
            try:
                self.pollers = Pollers(self.n, self._most * self._slots)
            except BackendError:
                self.n = 0
        return self.pollers is not None

    @property
    def hungry(self) -> bool:
        """Whether less is under way than there should be."""
        return len(self.lanes) < 2 or sum(lane.batch.block.nbytes for lane in self.lanes.values()) < FLIGHT

    def begin(self, lane: Lane) -> bool:
        """Divide a lane's batch; False where the rings have no room for it."""
        batch, pollers = lane.batch, self.pollers
        assert pollers is not None
        files = len(batch.keys) if batch.handles is None and len(batch.keys) == len(batch) else 0
        shares = share(len(batch), len(pollers), opened=not files)
        if not pollers.fits(shares):
            return False
        if files:
            lane.slot = lane.number * self._slots + np.arange(files) // len(pollers)
        elif batch.handles is not None:
            lane.slot, lane.fixed = descriptors(batch).astype(np.int64), False
        elif not lane.open_files():  # read by several rings: each must see the same file
            return False
        registered, batch.registered = batch.registered, False  # memory is registered with one ring
        lane.opened = np.zeros(files, np.int64)
        rows = lane.chain_rows(shares.order, 0)
        batch.submitted[:] = monotonic()
        lane.left = len(rows)
        lane.goals = pollers.submit(rows, shares)
        self.lanes[lane.number] = lane
        batch.registered = registered
        return True

    def wait(self, timeout: float) -> Rows:
        """Wait for the oldest batch, and take what has come of all."""
        assert self.pollers is not None
        self.pollers.wait(next(iter(self.lanes.values())).goals, timeout)
        return self.pollers.reap()

    def rest(self) -> None:
        """Empty the slots."""
        if self.pollers is not None:
            self.pollers.rest()

    def close(self) -> None:
        """Wait for everything in flight, then free the rings. Idempotent."""
        if self.pollers is not None:
            self.pollers.close()
