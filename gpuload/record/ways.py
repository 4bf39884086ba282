"""The ways ranges were served in, and what is counted for each: exact totals, busy time, latencies.

Not thread-safe by itself: the recorder that owns these holds its lock around every call.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpuload.request import Decode, Float64, Int64, ReadPath, Reason, Served


class Way(NamedTuple):
    """What the ranges of one line of a summary share."""

    path: ReadPath
    backend: str
    reason: Reason | None
    decode: Decode
    declined: tuple[tuple[str, Reason], ...]

    @classmethod
    def of(cls, served: Served) -> Way:
        """The way of one block; a word that is not in its closed list is a ValueError."""
        return cls(
            path=ReadPath(served.read_path),
            backend=served.backend,
            reason=None if served.reason is None else Reason(served.reason),
            decode=Decode(served.decode),
            declined=tuple((backend, Reason(reason)) for backend, reason in sorted(served.declined.items())),
        )

    @property
    def declined_by(self) -> Mapping[str, Reason]:
        """The same as `declined`, as a mapping of its own."""
        return dict(self.declined)


class Busy:
    """How long at least one of many intervals was open, kept incrementally in bounded memory.

    The newest intervals are kept apart, sorted and disjoint; older ones are folded into one number. An interval that
    arrives after its time was folded counts only from the end of the folded time on: never too much, in the worst case
    a gap too little.
    """

    KEPT = 128

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._folded = 0.0
        self._floor = -math.inf

    def add(self, start: float, end: float) -> None:
        """Count [start, end], in seconds of one clock."""
        starts, ends = self._starts, self._ends
        # Nearly always the interval is, or goes on from, the newest one.
        if starts and starts[-1] <= start <= ends[-1]:
            if end > ends[-1]:
                ends[-1] = end
            return
        start = max(start, self._floor)
        if not start < end:
            return
        first, last = bisect_left(ends, start), bisect_right(starts, end)
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        if len(starts) > self.KEPT:
            old = self.KEPT // 2
            self._folded += sum(ends[:old]) - sum(starts[:old])
            self._floor = ends[old - 1]
            del starts[:old], ends[:old]

    @property
    def seconds(self) -> float:
        return self._folded + sum(e - s for s, e in zip(self._starts, self._ends, strict=True))


class Latencies:
    """A histogram of latencies for each way, with bins so fine that a quantile is at most 1 % off.

    A bin is the exponent and the leading `_FINE` bits of the mantissa of a float64, so that finding it takes a shift.
    """

    _FINE = 6
    _SHIFT = 52 - _FINE
    _FIRST = (1023 - 30) << _FINE  # 2**-30 s, about 1 ns: everything shorter shares the first bin
    _BINS = 42 << _FINE  # up to 2**12 s, a little over an hour: everything longer shares the last
    _EDGES = ((np.arange(_BINS + 1) + _FIRST) << _SHIFT).view(np.float64)
    _MIDDLES = (_EDGES[:-1] + _EDGES[1:]) / 2

    def __init__(self) -> None:
        self._counts: Int64 = np.zeros((0, self._BINS), np.int64)

    def add(self, way: Int64, latency: Float64) -> None:
        """Count n latencies, in seconds, that were each measured in way number `way`."""
        if (ways := int(way.max()) + 1) > len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros((ways - len(self._counts), self._BINS), np.int64)])
        bins = np.clip((latency.view(np.int64) >> self._SHIFT) - self._FIRST, 0, self._BINS - 1)
        counts = np.bincount(way * self._BINS + bins, minlength=self._counts.size)
        self._counts += counts.reshape(self._counts.shape)

    def quantiles(self, way: int, *shares: float) -> list[float]:
        """For each share, the latency in seconds that this part of the requests did not exceed."""
        counts = self._counts[way].cumsum()
        n = int(counts[-1])
        found: list[float] = self._MIDDLES[counts.searchsorted([max(1, math.ceil(q * n)) for q in shares])].tolist()
        return found


@dataclass(slots=True)
class Total:
    """Exact sums over all ranges that were served in one way."""

    number: int
    way: Way
    key: str
    requests: int = 0
    bytes: int = 0
    moved: int = 0
    busy: Busy = field(default_factory=Busy)
