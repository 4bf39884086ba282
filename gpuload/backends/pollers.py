"""Rings that a thread of the kernel each works off by itself: cached reads on many cores, and nobody to be woken.

A worker that the kernel lends to a ring sleeps when its queue is empty, and is slow to come back. The thread of a ring
made with SQPOLL looks at the queue for as long as there is work, and does cached reads itself: what is queued runs on
as many cores as there are rings, while Python prepares the next. What is not cached is read without holding it up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from gpuload.backends.chains import Weave, weave
from gpuload.bindings import uring_abi as abi
from gpuload.bindings.libc import raw_syscall
from gpuload.bindings.uring import Ring
from gpuload.bindings.uring_abi import Rows
from gpuload.bindings.uring_setup import SYS_ENTER

IDLE = 2  # milliseconds that a thread looks for more before it sleeps
ENTRIES = 1024
_SETUP = abi.Setup.SQPOLL | abi.Setup.CQSIZE | abi.Setup.CLAMP | abi.Setup.SUBMIT_ALL


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """How a batch is divided among rings.

    Parameters
    ----------
    order
        Places of its rows; a chain is one file: its open, its check and its read.
    bounds
        Rows of the i-th share: from this place to the next.
    n
        The reads.
    """

    order: Weave
    bounds: tuple[int, ...]
    n: int

    @property
    def longest(self) -> int:
        """Rows of the longest share."""
        return max(b - a for a, b in pairwise(self.bounds))


@lru_cache(maxsize=64)
def share(n: int, rings: int, *, opened: bool) -> Shares:
    """Divide a batch of `n` reads, each of a file of its own unless they are `opened`, among so many rings or fewer."""
    if opened:
        order = weave(np.zeros(n, np.int64), 1, rings, opened=True)
        last = np.arange(n)
    else:
        order = weave(np.arange(n), n, rings, opened=False)
        last = order.open_at + 2
    return Shares(replace(order, last=last), (0, *(order.last + 1).tolist()), n)


class Pollers:
    """The rings, and how far each of them is.

    Threads: all calls come from the thread that made it. Fork: the rings close themselves in the child.

    Parameters
    ----------
    n
        How many.
    slots
        Fixed file slots of each.
    """

    def __init__(self, n: int, slots: int) -> None:
        self.rings: list[Ring] = []
        self.slots = slots
        self._pushed, self._reaped = [0] * n, [0] * n
        self._turn = 0
        self._used = False
        try:
            for _ in range(n):
                ring = Ring(ENTRIES, 4 * ENTRIES, setup_flags=_SETUP, idle=IDLE)
                self.rings.append(ring)
                ring.register_files(slots)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.rings)

    def fits(self, shares: Shares) -> bool:
        """Whether every ring can take a share now."""
        held = max(a - b for a, b in zip(self._pushed, self._reaped, strict=True))
        return held + shares.longest <= ENTRIES

    def submit(self, rows: Rows, shares: Shares) -> list[int]:
        """Hand each share to a ring, going round; returns how much each ring has been given by then."""
        n, which, bounds = len(self.rings), self._turn, shares.bounds
        self._turn = (which + shares.n) % n  # the first ones have a read more than the last: another time, others
        for start, stop in pairwise(bounds):
            ring = self.rings[which]
            ring.put(rows[start:stop])
            self._pushed[which] += stop - start
            raw_syscall(SYS_ENTER, ring.fd, 0, 0, abi.ENTER_SQ_WAKEUP, 0, 0)
            which = which + 1 if which + 1 < n else 0
        self._used = True
        return self._pushed.copy()

    def wait(self, goals: list[int], timeout: float) -> None:
        """Sleep until the ring that lacks most has worked off what it had been given when `goals` was told."""
        left = [goal - done for goal, done in zip(goals, self._reaped, strict=True)]
        most = max(left)
        if most <= 0:  # others came first: whatever comes next
            left = [ring.inflight + ring.unsubmitted for ring in self.rings]
            most = min(1, max(left))
        self.rings[left.index(max(left))].enter(most, timeout)

    def reap(self) -> Rows:
        """What has completed in all rings."""
        found = []
        for i, ring in enumerate(self.rings):
            if ring.ready:
                done = ring.reap()
                self._reaped[i] += len(done)
                found.append(done)
        return found[0] if len(found) == 1 else np.concatenate(found) if found else np.empty(0, abi.CQE)

    def rest(self) -> None:
        """Empty the slots."""
        if self._used:
            self._used = False
            empty = np.full(self.slots, -1, np.int32)
            for ring in self.rings:
                ring.update_files(0, empty)

    def close(self) -> None:
        """Wait for everything in flight, then free the rings. Idempotent."""
        for ring in self.rings:
            ring.close()
