"""Packs pieces into batches, one after the other, each as large as a slab allows.

A batch is read into one slab, copied to the device in one call and placed by one kernel. The pieces of a group (a
chunk, that is an open file or a decoder's work) stay together where a batch can hold them: a chunk that is spread
over batches has to be held open between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuload.request import Int64

MAX_BYTES = (1 << 62) - 1  # of all pieces together, so that no sum can overflow


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """How n pieces go through slabs in b batches.

    Parameters
    ----------
    bounds
        int64 (b + 1,): batch i has the pieces ``bounds[i]:bounds[i + 1]``.
    slab_offset
        int64 (n,): first byte of each piece in the slab of its batch.
    nbytes
        int64 (b,): bytes of slab each batch takes.
    held
        bool (m,): the groups whose pieces are in more than one batch.
    """

    bounds: Int64
    slab_offset: Int64
    nbytes: Int64
    held: np.ndarray[tuple[int], np.dtype[np.bool_]]

    def __len__(self) -> int:
        return len(self.nbytes)


def batch(size: Int64, group: Int64, *, batch_bytes: int, max_groups: int, align: int = 64, slack: int = 1) -> Batches:
    """Divide pieces into batches, in order.

    Parameters
    ----------
    size
        int64 (n,): bytes of each piece.
    group
        int64 (n,): the group of each piece, as its number; non-decreasing from 0 or more.
    batch_bytes
        The most a batch takes of a slab. A single piece that needs more gets a batch of its own.
    max_groups
        The most groups in a batch: open files, for example.
    align, slack
        A piece takes ``size + slack`` bytes of the slab, rounded up to a multiple of `align`. One byte of slack
        shows that a file is longer than it should be.

    Returns
    -------
    batches
        The groups that fit into `batch_bytes` are never divided. Of a larger group, every batch takes what it can.
    """
    if min(batch_bytes, max_groups, align) < 1 or slack < 0:
        raise ValueError(f"{batch_bytes=}, {max_groups=}, {align=} must be positive and {slack=} not negative")
    n = len(size)
    if n == 0:
        none = np.zeros(0, np.int64)
        return Batches(np.zeros(1, np.int64), none, none, np.zeros(0, np.bool_))
    if size.min() < 0 or group[0] < 0 or (np.diff(group) < 0).any():
        raise ValueError("sizes and groups must not be negative, and groups must ascend")
    if n * (int(size.max()) + slack + align) > MAX_BYTES and _exact_total(size, n * (slack + align)) > MAX_BYTES:
        raise ValueError("the pieces together are too large to be addressed")

    ends = np.cumsum((size + (slack + align - 1)) // align * align)
    starts = np.concatenate(([0], ends[:-1]))
    # For every piece: where would a batch end that starts with it?
    stop = np.searchsorted(ends, starts + min(batch_bytes, MAX_BYTES), side="right")
    group_starts = np.flatnonzero(np.diff(group, prepend=-1))  # the first piece of each group
    rank = np.cumsum(np.diff(group, prepend=-1) > 0) - 1
    group_stops = np.append(group_starts[1:], n)
    stop = np.minimum(stop, group_stops[np.minimum(rank + min(max_groups, n), len(group_stops)) - 1])
    stop = np.maximum(stop, np.arange(1, n + 1))
    # A group that would be divided although it fits into a batch waits for the next one.
    fits = ends[group_stops - 1] - starts[group_starts] <= batch_bytes
    begin = np.append(group_starts[rank], n)[stop]
    divided = (begin < stop) & (begin > np.arange(n)) & np.append(fits[rank], False)[stop]
    stop[divided] = begin[divided]

    bounds = np.fromiter(_follow(stop.tolist()), np.int64)
    first, last = bounds[:-1], bounds[1:] - 1
    nbytes = ends[last] - starts[first]
    slab_offset = starts - np.repeat(starts[first], np.diff(bounds))
    held = np.zeros(int(group[-1]) + 1, np.bool_)
    inner = bounds[1:-1]  # one between two pieces of a group divides the group
    held[group[inner[group[inner] == group[inner - 1]]]] = True
    return Batches(bounds, slab_offset, nbytes, held)


def parts(size: Int64, limit: int, *, least: int = 0) -> tuple[Int64, Int64, Int64]:
    """Divide ranges into parts of at most `limit` bytes, in order; an empty range has `least` of them.

    Returns
    -------
    row, skip, length
        int64: the range each part belongs to, the bytes of it before the part, and the part's own.
    """
    count = np.maximum(least, -(-size // limit))
    row = np.repeat(np.arange(len(size)), count)
    skip = (np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)) * limit
    return row, skip, np.minimum(size[row] - skip, limit)


def _exact_total(size: Int64, extra: int) -> int:
    return sum(map(int, size.tolist())) + extra


def _follow(stop: list[int]) -> list[int]:
    """From the first piece to the end, batch by batch."""
    bounds = [0]
    while bounds[-1] < len(stop):
        bounds.append(stop[bounds[-1]])
    return bounds
