"""Makes the copy of pieces into their places as simple as it can be: few axes, long rows.

A piece of a chunk that is full along its fastest axes, in a destination that lies the same way, is a few long rows
or even one. Strides are shared by all pieces of a plan, so axes are merged only where it is right for every piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuload.planning.grid import Pieces


def overlaps(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether elements of an array share memory, so that it cannot hold just any values.

    Parameters
    ----------
    shape, strides
        Of the array; strides in bytes, of any sign.
    itemsize
        Bytes of an element.
    """
    if 0 in shape:
        return False
    axes = sorted((abs(stride), n) for stride, n in zip(strides, shape, strict=True) if n > 1)
    reach = itemsize  # bytes that all axes so far span
    for stride, n in axes:
        if stride < reach:
            break
        reach += stride * (n - 1)
    else:
        return False
    # Axes that interleave: seldom, and mostly because elements do overlap.
    span = itemsize + sum(stride * (n - 1) for stride, n in axes)
    if axes[0][0] < itemsize or math.prod(shape) * itemsize > span:
        return True
    start = np.zeros(1, np.int64)
    for stride, n in axes:
        start = np.add.outer(start, stride * np.arange(n)).ravel()
    start.sort()
    return bool((np.diff(start) < itemsize).any())


def collapse(pieces: Pieces, itemsize: int) -> Pieces:
    """Merge axes that lie contiguously in source and destination, and drop those of a single element.

    Neighbouring axes become one if, for every piece, a step of the slower one is as many bytes as all steps of the
    faster one together, in the source and in the destination, or the piece takes no step along the slower one. A
    listed axis follows no stride: it stays as it is, and keeps its neighbours apart.

    Parameters
    ----------
    pieces
        As planned; only `count`, the strides and the axes of `lists` change.
    itemsize
        Bytes of an element.

    Returns
    -------
    pieces
        With at least one axis. Its last axis is a contiguous row if both of its strides are `itemsize`.
    """
    counts: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    sources: list[int] = []
    places: list[int] = []
    kept: list[int] = []  # the axis each of these was, or the fastest of those it was
    listed = [] if pieces.lists is None else pieces.lists.axes
    for axis in reversed(range(len(pieces.source_strides))):
        count = pieces.count[:, axis]
        source, place = pieces.source_strides[axis], pieces.place_strides[axis]
        single = count == 1
        if single.all() and axis not in listed:
            continue
        if counts and axis not in listed and kept[-1] not in listed:
            inner = counts[-1]
            joint = (source == inner * sources[-1]) & (place == inner * places[-1])
            if (joint | single).all():
                counts[-1] = count * inner
                continue
        counts.append(count)
        sources.append(source)
        places.append(place)
        kept.append(axis)
    lists = pieces.lists
    if lists is not None:
        lists = replace(lists, entry=np.ascontiguousarray(lists.entry[:, kept[::-1]]))
    if not counts:
        counts, sources, places = [np.ones(len(pieces), np.int64)], [itemsize], [itemsize]
    return replace(
        pieces,
        count=np.ascontiguousarray(np.stack(counts[::-1], axis=1)),
        source_strides=tuple(sources[::-1]),
        place_strides=tuple(places[::-1]),
        lists=lists,
    )
