"""Merges byte ranges that lie close together in a file into fewer, longer ones.

Many inner chunks of a shard, or many references into one file, are neighbours there. One read of the whole stretch
costs less than one read each, even with a hole between them.
"""

from __future__ import annotations

import numpy as np

from gpuload.request import Int64

MAX_BYTES = (1 << 62) - 1  # of all stretches together, so that no sum can overflow


def coalesce(
    file: Int64, offset: Int64, size: Int64, *, gap: int, limit: int
) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """Merge ranges of the same file.

    Parameters
    ----------
    file, offset, size
        int64 (n,): the file of each range, its first byte and its bytes. In any order; ranges may overlap.
    gap
        The largest hole, in bytes, that is read along.
    limit
        The most bytes of a merged range. A single range that is longer stays as it is.

    Returns
    -------
    range_file, range_offset, range_size
        int64 (r,): the merged ranges, sorted by file and offset.
    member
        int64 (n,): the merged range that holds each of the given ones.
    inner
        int64 (n,): its first byte inside that range.
    """
    if gap < 0 or limit < 1:
        raise ValueError(f"{gap=} must not be negative and {limit=} must be positive")
    n = len(file)
    if n == 0:
        none = np.zeros(0, np.int64)
        return none, none, none, none, none
    if offset.min() < 0 or size.min() < 0 or int(offset.max()) + int(size.max()) > MAX_BYTES:
        raise ValueError("offsets and sizes must not be negative, nor beyond 2**62")
    order = _order(file, offset, size)
    files, starts, sizes = file[order], offset[order], size[order]
    ends = starts + sizes
    new_file = np.diff(files, prepend=files[0] - 1) != 0

    # A range inside an earlier one needs nothing of its own: it goes where its leader goes. Leaders have ascending
    # starts and ascending ends, which makes the rest a search.
    reach = _running_maximum(ends, new_file)
    leads = new_file | np.append(True, ends[1:] > reach[:-1])
    leader = np.cumsum(leads) - 1
    starts, ends, new_file, files = starts[leads], ends[leads], new_file[leads], files[leads]

    # A cluster is what holes do not separate. Set end to end, all clusters are one line with ascending ends.
    new_cluster = new_file | np.append(True, starts[1:] - ends[:-1] > min(gap, MAX_BYTES))
    firsts = np.flatnonzero(new_cluster)
    lasts = np.append(firsts[1:], len(starts)) - 1
    cluster = np.cumsum(new_cluster) - 1
    spans = ends[lasts] - starts[firsts]
    if len(spans) * int(spans.max()) > MAX_BYTES and sum(spans.tolist()) > MAX_BYTES:
        raise ValueError("the ranges together are too large to be addressed")
    shift = (np.cumsum(spans) - spans - starts[firsts])[cluster]
    stop = np.searchsorted(ends + shift, starts + shift + min(limit, MAX_BYTES), side="right")
    stop = np.maximum(np.minimum(stop, lasts[cluster] + 1), np.arange(1, len(starts) + 1))

    first = np.array(_follow(stop.tolist()), np.int64)
    last = np.append(first[1:], len(starts)) - 1
    merged = np.zeros(len(starts), np.int64)
    merged[first[1:]] = 1
    member = np.empty(n, np.int64)
    member[order] = np.cumsum(merged)[leader]
    return files[first], starts[first], ends[last] - starts[first], member, offset - starts[first][member]


def _order(file: Int64, offset: Int64, size: Int64) -> Int64:
    """By file, then offset, the longest first; the usual sorted input costs only the look."""
    ascends = (file[1:] > file[:-1]) | ((file[1:] == file[:-1]) & (offset[1:] > offset[:-1]))
    return np.arange(len(file)) if ascends.all() else np.lexsort((-size, offset, file))


def _running_maximum(ends: Int64, new_file: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Int64:
    """The largest end up to each range, counted anew in each file."""
    if (new_file[1:] | (ends[1:] >= ends[:-1])).all():
        return ends
    levels, rank = np.unique(ends, return_inverse=True)  # ranks: with the file on top they fit into 64 bits
    base = (np.cumsum(new_file) - 1) * len(levels)
    running: Int64 = levels[np.maximum.accumulate(rank + base) - base]
    return running


def _follow(stop: list[int]) -> list[int]:
    """The first range of each merged one."""
    firsts = [0]
    while (following := stop[firsts[-1]]) < len(stop):
        firsts.append(following)
    return firsts
