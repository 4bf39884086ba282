"""Two ways of reading, in turn: how much of the one's speed the other keeps, and how sure that is.

Neighbours in time share what else the machine does, so what is compared is each pair, not two heaps of reads.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def kept(seconds: Sequence[float], beside: Sequence[float]) -> float | None:
    """The share of the speed of `beside` that `seconds` kept: the median over the pairs."""
    return statistics.median(_ratios(seconds, beside)) if seconds and beside else None


def interval(seconds: Sequence[float], beside: Sequence[float], level: float = 0.95) -> list[float] | None:
    """Where the median of all pairs there could be lies, at least at `level`: a pair of order statistics.

    It supposes nothing of how times are spread; None where there are too few pairs for it (fewer than 6 at 95 %).
    """
    ratios = sorted(_ratios(seconds, beside))
    n = len(ratios)
    outside, cut = 0.0, 0
    while cut < n // 2 and outside + 2 * math.comb(n, cut) / 2**n <= 1 - level:
        outside += 2 * math.comb(n, cut) / 2**n
        cut += 1
    return [ratios[cut - 1], ratios[n - cut]] if cut else None


def _ratios(seconds: Sequence[float], beside: Sequence[float]) -> list[float]:
    return [b / a for a, b in zip(seconds, beside, strict=True)]
