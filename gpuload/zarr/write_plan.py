"""Which chunks an assignment touches, what of each, and where in the value that is: arithmetic alone.

A chunk here is what has a key: a shard where there are shards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.planning.axis import Axis, AxisIndices, AxisRange
from gpuload.planning.selection import AnySelection, PointSelection, Selection
from gpuload.planning.touch import touch
from gpuload.request import Int64
from gpuload.zarr.touched import each_axis, of_points

WAVE_CHUNKS = 1024

Along = slice | Int64


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A chunk along one dimension.

    Parameters
    ----------
    chunk, begin, extent
        Its coordinate on the grid, its first element, and its elements, those beyond the array's end among them.
    visible
        How many of its elements the array has.
    inside, place
        The elements assigned to, and where in the value each comes from.
    whole
        Whether these are all that the array has of it.
    """

    chunk: int
    begin: int
    extent: int
    visible: int
    inside: Along
    place: Along
    whole: bool


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A chunk and what is assigned to it: ``chunk.transpose(axes)[inside] = box[place]``.

    Parameters
    ----------
    coordinates, begin
        On the grid, and its first element along each dimension.
    shape
        Elements as stored, those beyond the array's end among them.
    visible
        Elements that the array has, from the chunk's first on.
    axes, inside, place
        The elements assigned to, and where in the value each comes from.
    whole
        Nothing of what the array has here stays, so that nothing needs to be read.
    """

    coordinates: tuple[int, ...]
    begin: tuple[int, ...]
    shape: tuple[int, ...]
    visible: tuple[int, ...]
    axes: tuple[int, ...]
    inside: tuple[Along, ...]
    place: tuple[Along, ...]
    whole: bool

    @property
    def present(self) -> Selection:
        """All that the array has here, as a selection of the array."""
        axes = tuple(AxisRange(begin, 1, count) for begin, count in zip(self.begin, self.visible, strict=True))
        return Selection(axes, tuple(range(len(axes))))


def targets(selection: AnySelection, shape: Sequence[int], edges: Sequence[int | tuple[int, ...]]) -> Iterator[Target]:
    """The chunks a selection touches, in C order of the grid; nothing is listed but what is touched along each axis.

    Parameters
    ----------
    selection
        Ranges, lists or points; repeats are allowed, the last one counts.
    shape, edges
        Of the array, and of its chunks: per dimension one extent, or that of each.
    """
    if 0 in selection.box:
        return
    if isinstance(selection, PointSelection):
        for chunk in of_points(edges, selection):
            visible = tuple(map(_visible, chunk.shape, shape, chunk.begin))
            yield Target(
                chunk.coordinates, chunk.begin, chunk.shape, visible, chunk.axes, chunk.source, chunk.place, whole=False
            )
        return
    along = [list(_parts(*each)) for each in zip(selection.axes, shape, edges, strict=True)]
    axes = tuple(range(len(along)))
    for parts in itertools.product(*along):
        yield Target(
            tuple(part.chunk for part in parts),
            tuple(part.begin for part in parts),
            tuple(part.extent for part in parts),
            tuple(part.visible for part in parts),
            axes,
            each_axis([part.inside for part in parts], [part.extent for part in parts]),
            each_axis([part.place for part in parts], selection.box),
            whole=all(part.whole for part in parts),
        )


def _visible(extent: int, size: int, begin: int) -> int:
    return min(extent, size - begin)


def waves(
    selection: AnySelection, shape: Sequence[int], edges: Sequence[int | tuple[int, ...]], elements: int
) -> Iterator[list[Target]]:
    """`targets`, in lists of at most `elements` stored elements; a larger chunk is a list of its own."""
    wave: list[Target] = []
    taken = 0
    for target in targets(selection, shape, edges):
        size = math.prod(target.shape)
        if wave and (taken + size > elements or len(wave) == WAVE_CHUNKS):
            yield wave
            wave, taken = [], 0
        wave.append(target)
        taken += size
    if wave:
        yield wave


def _parts(axis: Axis, size: int, edges: int | tuple[int, ...]) -> Iterator[Part]:
    if isinstance(edges, tuple):
        yield from _uneven(axis, size, edges)
        return
    touched = touch(axis, edges)
    chunks, firsts, counts, ordinals = (
        column.tolist() for column in (touched.chunk, touched.first, touched.count, touched.index)
    )
    for chunk, first, count, at in zip(chunks, firsts, counts, ordinals, strict=True):
        begin = chunk * edges
        visible = min(edges, size - begin)
        if touched.inside is not None:
            assert touched.ordinal is not None
            rows = slice(at, at + count)
            yield Part(chunk, begin, edges, visible, touched.inside[rows], touched.ordinal[rows], whole=False)
            continue
        assert isinstance(axis, AxisRange)
        inside = slice(first, first + (count - 1) * touched.step + 1, touched.step)
        yield Part(chunk, begin, edges, visible, inside, _place(axis, at, count), whole=count == visible)


def _place(axis: AxisRange, at: int, count: int) -> slice | Int64:
    """Where elements of a range are in the value, counted from the lowest one."""
    if axis.step > 0:
        return slice(at, at + count)
    first = axis.count - 1 - at
    return slice(first, first - count if first >= count else None, -1)


def _uneven(axis: Axis, size: int, edges: tuple[int, ...]) -> Iterator[Part]:
    """Chunks of different extents: every element is looked up."""
    if isinstance(axis, AxisIndices):
        at = axis.index
    else:
        at = axis.start + axis.step * np.arange(axis.count, dtype=np.int64)
    ends = np.cumsum(edges)
    order = np.argsort(at, kind="stable")
    number = np.searchsorted(ends, at[order], side="right")
    bounds = [*np.flatnonzero(np.diff(number, prepend=-1)).tolist(), len(at)]
    for first, last in itertools.pairwise(bounds):
        chunk = int(number[first])
        begin = int(ends[chunk]) - edges[chunk]
        place = order[first:last]
        visible = min(edges[chunk], size - begin)
        whole = isinstance(axis, AxisRange) and len(place) == visible
        yield Part(chunk, begin, edges[chunk], visible, at[place] - begin, place, whole=whole)
