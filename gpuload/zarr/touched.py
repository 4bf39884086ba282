"""Which chunks a selection touches, what is taken from each, and where in its box that goes: arithmetic alone.

A chunk here is what has a key, a shard where there are shards. Nothing is listed but what is touched.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.planning.axis import Axis, AxisIndices
from gpuload.planning.selection import PointSelection, Selection
from gpuload.request import Int64

Edges = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Touched:
    """A chunk along one dimension: its number, first element, extent, what is taken from it, and where that goes."""

    chunk: int
    begin: int
    extent: int
    source: slice | Int64
    place: slice | Int64


@dataclass(frozen=True, slots=True)
class TouchedChunk:
    """A touched chunk: ``box[place] = chunk.transpose(axes)[source]``.

    Parameters
    ----------
    coordinates
        On the grid.
    begin
        Its first element, along each dimension.
    shape
        Its elements, those beyond the array's end among them.
    """

    coordinates: tuple[int, ...]
    begin: tuple[int, ...]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    source: tuple[Any, ...]
    place: tuple[Any, ...]


def each_axis(parts: Sequence[slice | Int64], shape: Sequence[int]) -> tuple[Any, ...]:
    """What indexes each axis for itself: slices as they are, or all as lists where one is."""
    if all(isinstance(part, slice) for part in parts):
        return tuple(parts)
    return np.ix_(
        *(np.arange(size)[part] if isinstance(part, slice) else part for part, size in zip(parts, shape, strict=True))
    )


def of_axes(edges: Sequence[Edges], selection: Selection) -> Iterator[TouchedChunk]:
    """The chunks that a selection touches whose axes are each for itself."""
    along = [list(_touched(axis, edge)) for axis, edge in zip(selection.axes, edges, strict=True)]
    for parts in itertools.product(*along):
        shape = tuple(part.extent for part in parts)
        yield TouchedChunk(
            coordinates=tuple(part.chunk for part in parts),
            begin=tuple(part.begin for part in parts),
            shape=shape,
            axes=tuple(range(len(parts))),
            source=each_axis([part.source for part in parts], shape),
            place=each_axis([part.place for part in parts], selection.box),
        )


def of_points(edges: Sequence[Edges], selection: PointSelection) -> Iterator[TouchedChunk]:
    """The chunks that hold points."""
    numbers = np.stack(
        [_numbers(index, edges[dim]) for dim, index in zip(selection.dims, selection.index, strict=True)], axis=1
    )
    order = np.lexsort(numbers.T[::-1])
    numbers = numbers[order]
    starts = np.append(True, (np.diff(numbers, axis=0) != 0).any(axis=1))
    bounds = [*np.flatnonzero(starts).tolist(), len(order)]
    along = [list(_touched(axis, edges[dim])) for dim, axis in zip(selection.others, selection.axes, strict=True)]
    for first, last in itertools.pairwise(bounds):
        points = order[first:last]
        places = np.unravel_index(points, selection.points)
        begins, extents, inside = [], [], []
        for dim, index, number in zip(selection.dims, selection.index, numbers[first].tolist(), strict=True):
            begin, extent = _bounds(number, edges[dim])
            begins.append(begin)
            extents.append(extent)
            inside.append(index[points] - begin)
        for parts in itertools.product(*along):
            axes = (*selection.dims, *selection.others)
            ordered = np.argsort(axes).tolist()
            coordinates = (*numbers[first].tolist(), *(part.chunk for part in parts))
            firsts = (*begins, *(part.begin for part in parts))
            shape = (*extents, *(part.extent for part in parts))
            yield TouchedChunk(
                coordinates=tuple(coordinates[i] for i in ordered),
                begin=tuple(firsts[i] for i in ordered),
                shape=tuple(shape[i] for i in ordered),
                axes=axes,
                source=(*inside, *(part.source for part in parts)),
                place=(*places, *(part.place for part in parts)),
            )


def _numbers(index: Int64, edges: Edges) -> Int64:
    """The chunk each coordinate along a dimension is in."""
    if isinstance(edges, tuple):
        return np.searchsorted(np.cumsum(edges), index, side="right").astype(np.int64)
    return index // edges


def _bounds(chunk: int, edges: Edges) -> tuple[int, int]:
    """Where a chunk along a dimension begins, and its extent."""
    if isinstance(edges, tuple):
        return sum(edges[:chunk]), edges[chunk]
    return chunk * edges, edges


def _touched(axis: Axis, edges: Edges) -> Iterator[_Touched]:
    """The chunks that are touched along a dimension, in ascending order; only those, however far apart they are."""
    if isinstance(axis, AxisIndices):
        yield from _listed(axis.index, edges)
        return
    step = abs(axis.step)
    low = axis.start if axis.step > 0 else axis.start + (axis.count - 1) * axis.step
    ends = list(itertools.accumulate(edges)) if isinstance(edges, tuple) else None
    ordinal = 0
    while ordinal < axis.count:
        at = low + ordinal * step
        if ends is None:
            assert isinstance(edges, int)
            chunk, extent = at // edges, edges
            begin = chunk * edges
        else:
            chunk = bisect.bisect_right(ends, at)
            extent = edges[chunk]  # type: ignore[index]
            begin = ends[chunk] - extent
        count = min(axis.count - ordinal, -(-(begin + extent - at) // step))
        source = slice(at - begin, at - begin + (count - 1) * step + 1, step)
        if axis.step > 0:
            place = slice(ordinal, ordinal + count)
        else:
            first = axis.count - 1 - ordinal
            place = slice(first, first - count if first >= count else None, -1)
        yield _Touched(chunk, begin, extent, source, place)
        ordinal += count


def _listed(index: Int64, edges: Edges) -> Iterator[_Touched]:
    """The chunks that listed elements touch."""
    order = np.argsort(index, kind="stable")
    numbers = _numbers(index[order], edges)
    bounds = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for first, last in itertools.pairwise([*bounds, len(index)]):
        chunk = int(numbers[first])
        begin, extent = _bounds(chunk, edges)
        place = order[first:last]
        yield _Touched(chunk, begin, extent, index[place] - begin, place)
