"""Permutations of n numbers by a counter: any place of any of them is computed alone, so none is kept in memory.

The same everywhere and for ever: nothing but integer arithmetic, no random generator of a library.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuload.request import Int64

UInt64 = npt.NDArray[np.uint64]

_SORTED = 1 << 16  # up to so many numbers are sorted by their hashes: every permutation is as likely as any other
_ROUNDS = 8
_ONE, _THIRTY, _TWENTY_SEVEN, _THIRTY_ONE = (np.uint64(n) for n in (1, 30, 27, 31))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(values: UInt64, key: int) -> UInt64:
    """64 bits for each value that look like chance (the finaliser of SplitMix64); another `key` gives others.

    Parameters
    ----------
    values
        uint64, any shape.
    key
        0 to 2**64 - 1.
    """
    mixed = (values + _ONE) * _GOLDEN + np.uint64(key)
    mixed = (mixed ^ (mixed >> _THIRTY)) * _FIRST
    mixed = (mixed ^ (mixed >> _TWENTY_SEVEN)) * _SECOND
    result: UInt64 = mixed ^ (mixed >> _THIRTY_ONE)
    return result


def key_of(*parts: int) -> int:
    """One key of several numbers, each from 0 on and of any size: ``key_of(seed, epoch)``; their order counts."""
    key = len(parts)
    for part in parts:
        rest = part
        while True:
            rest, word = divmod(rest, 1 << 64)
            key = int(mix(np.array([key ^ word], np.uint64), word)[0])
            if not rest:
                break
    return key


class Permutation:
    """A permutation of 0 to n - 1. A value: threads, fork and pickle are safe.

    Small ones come from sorting hashes. Large ones are a Feistel network over the next power of two, walked until it is
    back among the n numbers, which takes fewer than two steps on average; they need memory for what is asked alone.

    Parameters
    ----------
    n
        How many numbers.
    key
        Which permutation, 0 to 2**64 - 1.
    """

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self._key = key
        self._order: Int64 | None = None
        if n <= _SORTED:
            self._order = np.argsort(mix(np.arange(n, dtype=np.uint64), key), kind="stable")
            return
        bits = (n - 1).bit_length()
        self._low = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << (bits // 2)) - 1)
        self._high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        self._keys = [key_of(key, number) for number in range(_ROUNDS)]

    def __call__(self, places: Int64) -> Int64:
        """The numbers at `places`, int64 of any shape, each from 0 to n - 1."""
        if self._order is not None:
            return self._order[places]
        values = self._network(places.astype(np.uint64))
        n = np.uint64(self.n)
        outside = np.flatnonzero(values.ravel() >= n)
        flat = values.ravel()
        while len(outside):
            flat[outside] = self._network(flat[outside])
            outside = outside[flat[outside] >= n]
        return flat.reshape(places.shape).astype(np.int64)

    def _network(self, values: UInt64) -> UInt64:
        low, high = values & self._low_mask, values >> self._low
        for number, key in enumerate(self._keys):
            if number % 2:
                low = low ^ (mix(high, key) & self._low_mask)
            else:
                high = high ^ (mix(low, key) & self._high_mask)
        result: UInt64 = (high << self._low) | low
        return result
