"""From a selection that somebody has already divided among chunks back to the one selection it was.

A codec pipeline of zarr-python is handed a list of chunks, with what is taken of each and where that goes. Read chunk
by chunk it would cost what gpuload's planner saves, so the list is put together again: the chunks of an indexer are
the product of what it touches along each dimension, and along one dimension the parts of all chunks are a range or a
list. What is no such product is not guessed at.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpuload.planning.axis import Axis, AxisRange, from_array
from gpuload.planning.selection import PointSelection, Selection
from gpuload.request import Int64

Part = Any  # along one dimension: an integer, a slice, or an array of integers or booleans


def gather(
    chunks: Int64,
    sources: Sequence[Sequence[Part]],
    places: Sequence[Sequence[Part]],
    *,
    extents: Sequence[int],
    dropped: Sequence[int],
    shape: Sequence[int],
) -> Selection | None:
    """Put a divided selection together.

    Parameters
    ----------
    chunks
        int64 (n, ndim): coordinates of the chunks on the grid.
    sources
        n times, per array dimension, what is taken of the chunk.
    places
        n times, per axis of the result, where that goes.
    extents
        Elements of a chunk along each array dimension.
    dropped
        Dimensions that are no axis of the result though `sources` does not show it by an integer.
    shape
        Of the result.

    Returns
    -------
    selection
        Of shape `shape`; None if the chunks are no product, or do not fill the result as one selection does.
    """
    n, ndim = chunks.shape
    along = [np.unique(column) for column in chunks.T]
    lengths = [len(numbers) for numbers in along]
    if n == 0 or math.prod(lengths) != n or any(len(row) != ndim for row in sources):
        return None
    kept = [dim for dim in range(ndim) if dim not in dropped and not _is_integer(sources[0][dim])]
    if len(kept) != len(shape) or any(len(row) != len(kept) for row in places):
        return None
    columns: list[list[Part]] = []
    targets: list[list[Part]] = []
    inner = n
    for dim, numbers in enumerate(along):
        inner //= lengths[dim]
        if not np.array_equal(chunks[:, dim], np.tile(np.repeat(numbers, inner), n // (lengths[dim] * inner))):
            return None
        rows = range(0, lengths[dim] * inner, inner)
        columns.append([sources[row][dim] for row in rows])
        if dim in kept:
            axis = kept.index(dim)
            targets.append([places[row][axis] for row in rows])
    if not _same(sources, itertools.product(*columns)):
        return None
    spread = [targets[kept.index(dim)] if dim in kept else [None] * lengths[dim] for dim in range(ndim)]
    if not _same(places, (tuple(row[dim] for dim in kept) for row in itertools.product(*spread))):
        return None
    axes = []
    for dim, numbers in enumerate(along):
        size = shape[kept.index(dim)] if dim in kept else 1
        target = targets[kept.index(dim)] if dim in kept else [slice(0, 1)]
        axis_of = _axis(numbers, columns[dim], target, extents[dim], size, dim)
        if axis_of is None:
            return None
        axes.append(axis_of)
    return Selection(tuple(axes), tuple(kept))


def gather_points(
    chunks: Int64, sources: Sequence[Sequence[Part]], places: Sequence[Part], *, extents: Sequence[int], size: int
) -> PointSelection | None:
    """Put points that were divided among chunks together.

    Parameters
    ----------
    chunks, extents
        As for `gather`.
    sources
        n times, per array dimension, the coordinates of the points of the chunk inside it.
    places
        n times, where these go: a slice, or an array of integers.
    size
        Points in all.

    Returns
    -------
    selection
        Of shape ``(size,)``; None if the points do not fill the result, each place once.
    """
    ndim = chunks.shape[1]
    if not ndim or any(len(row) != ndim for row in sources):
        return None
    where = [np.arange(*place.indices(size)) if isinstance(place, slice) else np.ravel(place) for place in places]
    counts = [len(place) for place in where]
    order = np.concatenate(where) if where else np.empty(0, np.int64)
    if not np.array_equal(np.sort(order), np.arange(size)):
        return None
    index = np.empty((ndim, size), np.int64)
    for dim in range(ndim):
        parts = [np.ravel(row[dim]) for row in sources]
        if [len(part) for part in parts] != counts:
            return None
        index[dim, order] = np.concatenate(parts) + np.repeat(chunks[:, dim] * extents[dim], counts)
    return PointSelection(tuple(range(ndim)), tuple(index), (size,), (), (), (0,))


def _is_integer(part: Part) -> bool:
    return isinstance(part, int | np.integer) and not isinstance(part, bool)


def _same(rows: Sequence[Sequence[Part]], product: Iterable[Sequence[Part]]) -> bool:
    """Whether the rows are the product, part by part."""
    expected = list(product)
    with contextlib.suppress(ValueError):  # of arrays that are not one and the same
        if all(map(operator.eq, rows, expected)):
            return True
    return all(all(map(_equal, row, parts)) for row, parts in zip(rows, expected, strict=True))


def _equal(a: Part, b: Part) -> bool:
    if a is b:
        return True
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


def _axis(
    numbers: Int64, sources: Sequence[Part], places: Sequence[Part], extent: int, size: int, dim: int
) -> Axis | None:
    """What is taken along one dimension: of each chunk, by its number, and put where the result has `size` elements."""
    if all(map(_is_integer, sources)):
        return AxisRange(int(numbers[0]) * extent + int(sources[0]), 1, 1) if len(sources) == 1 else None
    if all(isinstance(part, slice) for part in itertools.chain(sources, places)):
        found = _as_range(numbers, sources, places, extent, size)
        if found is not None:
            return found
    # Coordinates, one by one. A place that is given twice, or not at all, shows in how many there are.
    index = np.full(size, -1, np.int64)
    total = 0
    for number, source, place in zip(numbers.tolist(), sources, places, strict=True):
        inside = _coordinates(source, extent)
        total += len(inside)
        where = place if isinstance(place, slice) else np.ravel(place)
        if len(index[where]) != len(inside):
            return None
        index[where] = inside + number * extent
    if total != size or (size and int(index.min()) < 0):
        return None
    return from_array(index, int(index.max(initial=0)) + 1, dim)


def _coordinates(source: Part, extent: int) -> Int64:
    if isinstance(source, slice):
        return np.arange(*source.indices(extent), dtype=np.int64)
    values = np.ravel(source)
    return np.flatnonzero(values) if values.dtype.kind == "b" else values.astype(np.int64, copy=False)


def _as_range(
    numbers: Int64, sources: Sequence[slice], places: Sequence[slice], extent: int, size: int
) -> AxisRange | None:
    """The range whose parts these slices are, by arithmetic on all of them; None if they are not."""
    parts = np.array([part.indices(extent) for part in sources], np.int64)
    start, stop, step = parts.T
    ends = np.array([part.indices(size) for part in places], np.int64)
    if not ((step > 0).all() and (ends[:, 2] == 1).all()):
        return None
    count = np.maximum(0, -((start - stop) // step))
    done = np.cumsum(count)
    if int(done[-1]) != size or not (np.array_equal(ends[:, 1], done) and np.array_equal(ends[:, 0], done - count)):
        return None
    if not size:
        return AxisRange(0, 1, 0)
    held = count > 0
    first = (numbers * extent + start)[held]
    stride = int(step[0]) if size > 1 else 1
    if ((step != stride) & (count > 1)).any():
        return None
    if not np.array_equal(first, int(first[0]) + (done - count)[held] * stride):
        return None
    return AxisRange(int(first[0]), stride, size)
