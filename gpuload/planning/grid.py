"""Cuts a selection on a grid of chunks into pieces: contiguous byte ranges inside chunks, and where they go.

Along each dimension only the chunks that hold a selected element are listed, by arithmetic on its range or its list
of coordinates; the chunks of the selection are the product of these lists. So the cost is that of what is touched,
never that of the array.

A chunk whose bytes can be read in parts is cut into *bands*. The slowest storage axis of which one slab fits into
`piece_bytes` is the banded one: a band takes as many of its slabs as fit, and a single index of every slower axis,
which makes it one contiguous range. Bands without a selected element are not planned. The others shrink to the
bytes from their first to their last selected element, so that a narrow selection reads little.

Elements are always taken in ascending order of their coordinates: a negative step of the selection turns up as a
negative stride in the destination, and source strides are positive. Elements of a listed dimension follow no stride;
`Lists` tells how many strides away each of them is, once for all pieces that share a band, however many these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuload.errors import SelectionError
from gpuload.planning.axis import INT64_MAX, AxisIndices, highest, lowest
from gpuload.planning.selection import Selection
from gpuload.planning.touch import Touched, combine, coordinates, count_bands, count_chunks, divide, touch
from gpuload.request import Int64

MAX_PIECES = 1 << 26  # of one plan: at three dimensions it takes 5 GiB then


@dataclass(frozen=True, slots=True)
class ChunkForm:
    """How the elements of a decoded chunk lie in its bytes. Chunks at the array's edge are stored in full size.

    Parameters
    ----------
    shape
        Elements along each array dimension.
    itemsize
        Bytes of an element.
    order
        ``order[i]`` is the array dimension at storage axis i, slowest first: (0, 1, 2) is C, (2, 1, 0) is F.
    """

    shape: tuple[int, ...]
    itemsize: int
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.shape))):
            raise ValueError(f"order {self.order} is no permutation of the {len(self.shape)} dimensions")
        if self.itemsize < 1 or any(extent < 0 for extent in self.shape):
            raise ValueError(f"no chunk has shape {self.shape} and items of {self.itemsize} bytes")

    @property
    def nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.shape) * self.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one index to the next, per storage axis."""
        strides = []
        stride = self.itemsize
        for dim in reversed(self.order):
            strides.append(stride)
            stride *= self.shape[dim]
        return tuple(reversed(strides))


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Where the elements of listed axes are: element i of a piece along such an axis has entry ``entry + i``.

    Parameters
    ----------
    entry
        int64 (n, k): first entry of each piece along each axis; -1 along an axis that is not listed.
    take
        int64 (q,): how many source strides behind the first element of its piece each entry is; ascending in a piece.
    put
        int64 (q,): how many strides of the destination behind the piece's `place` it goes; in any order, none twice
        in a piece.
    """

    entry: Int64
    take: Int64
    put: Int64

    @property
    def axes(self) -> list[int]:
        """The listed axes."""
        return np.flatnonzero(self.entry[0] >= 0).tolist() if len(self.entry) else []


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The m chunks a selection touches, and n pieces of them; each is one contiguous range of a decoded chunk.

    Element ``(i, j, ...)`` of a piece is at byte ``source + i * source_strides[0] + ...`` of the piece and goes to
    byte ``place + i * place_strides[0] + ...`` of the destination. The strides are the same for all pieces.
    Along an axis that is listed, `lists` gives what stands there in place of i.

    Parameters
    ----------
    chunks
        int64 (m, ndim): coordinates of the touched chunks, in C order of the grid; of points, in that order along their
        dimensions before the others.
    chunk
        int64 (n,): the row of `chunks` each piece belongs to; non-decreasing, and every row occurs.
    offset, size
        int64 (n,): first byte of the piece inside its decoded chunk, and its bytes. The pieces of a chunk ascend
        and do not overlap.
    source
        int64 (n,): byte of the first selected element inside the piece.
    place
        int64 (n,): byte of the destination where it goes, relative to the destination's first element.
    count
        int64 (n, k): selected elements along each axis, in storage order.
    source_strides, place_strides
        k strides in bytes; those of the destination may be negative.
    lists
        Of the axes whose elements follow no stride; None where there is no such axis.
    """

    chunks: Int64
    chunk: Int64
    offset: Int64
    size: Int64
    source: Int64
    place: Int64
    count: Int64
    source_strides: tuple[int, ...]
    place_strides: tuple[int, ...]
    lists: Lists | None = None

    def __len__(self) -> int:
        return len(self.chunk)

    def subset(self, which: np.ndarray[tuple[int], np.dtype[Any]]) -> Pieces:
        """Some of the pieces, chosen by a bool (n,) mask or in the order of an int64 array; all chunks stay."""
        columns = ("chunk", "offset", "size", "source", "place", "count")
        lists = self.lists
        return replace(
            self,
            lists=None if lists is None else replace(lists, entry=lists.entry[which]),
            **{name: getattr(self, name)[which] for name in columns},
        )

    @property
    def elements(self) -> int:
        """Selected elements of all pieces."""
        return int(self.count.prod(axis=1, dtype=np.int64).sum())


def cut(
    selection: Selection,
    array_shape: Sequence[int],
    form: ChunkForm,
    place_strides: Sequence[int],
    *,
    piece_bytes: int | None,
) -> Pieces:
    """Plan all chunks of a selection at once.

    Parameters
    ----------
    selection
        What to read; inside `array_shape`.
    array_shape
        Elements along each array dimension.
    form
        Of the chunks of the array's regular grid.
    place_strides
        Bytes from one element of the destination box to the next, per array dimension; zero and negative ones are
        as good as others.
    piece_bytes
        The longest piece; it is exceeded only where a single element is longer. None: each chunk is one piece, the
        whole of it, as encoded chunks need.

    Raises
    ------
    SelectionError
        The selection is outside the array, touches more than `MAX_PIECES` pieces, or its offsets or those of a
        chunk do not fit into 64 bits.
    """
    if piece_bytes is not None and piece_bytes < 1:
        raise ValueError(f"piece_bytes must be positive, not {piece_bytes}")
    _check(selection, array_shape, form, place_strides)
    dims = range(len(form.shape))
    axes = selection.axes
    back = [not isinstance(axis, AxisIndices) and axis.step < 0 for axis in axes]
    signed = [-stride if reverse else stride for reverse, stride in zip(back, place_strides, strict=True)]
    ordered = tuple(signed[dim] for dim in form.order)
    if 0 in selection.box:
        none, table = np.empty(0, np.int64), np.empty((0, len(dims)), np.int64)
        return Pieces(table, none, none, none, none, none, table, form.strides, ordered)

    extents = band_extents(form, piece_bytes)
    # A list touches no more than its length; the chunks of a range are counted before they are listed.
    along = [
        touch(axis, extent) if isinstance(axis, AxisIndices) else axis
        for axis, extent in zip(axes, form.shape, strict=True)
    ]
    limit_pieces(
        math.prod(
            len(axis) if isinstance(axis, Touched) else count_chunks(axis, extent)
            for axis, extent in zip(along, form.shape, strict=True)
        )
    )
    chunks = [
        axis if isinstance(axis, Touched) else touch(axis, extent)
        for axis, extent in zip(along, form.shape, strict=True)
    ]
    limit_pieces(math.prod(int(count_bands(chunks[dim], extents[dim]).sum()) for dim in dims))
    bands = [divide(chunks[dim], extents[dim]) for dim in dims]
    chunk, rows = combine(bands, form.order)

    count = np.empty((len(chunk), len(dims)), np.int64)
    first = np.zeros(len(chunk), np.int64)  # byte of the first selected element inside the chunk
    size = np.full(len(chunk), form.itemsize, np.int64)
    place = np.zeros(len(chunk), np.int64)
    source_strides = tuple(bands[dim].step * stride for dim, stride in zip(form.order, form.strides, strict=True))
    lists = _lists(bands, rows, form.order)
    for axis, (dim, stride) in enumerate(zip(form.order, form.strides, strict=True)):
        band, row = bands[dim], rows[dim]
        count[:, axis] = band.count[row]
        first += (band.first * stride)[row]
        size += (band.span * stride)[row]
        if band.inside is None:
            origin = place_strides[dim] * (axes[dim].count - 1) if back[dim] else 0  # of the lowest coordinate
            place += (band.index * ordered[axis] + origin)[row]
    offset, source = first, np.zeros(len(chunk), np.int64)
    if piece_bytes is None:
        offset, source = source, first
        size[:] = form.nbytes
    return Pieces(coordinates(bands), chunk, offset, size, source, place, count, source_strides, ordered, lists)


def _lists(bands: Sequence[Touched], rows: Sequence[Int64], order: Sequence[int]) -> Lists | None:
    """The lists of all listed dimensions, one behind the other, and where the pieces begin in them."""
    entry = np.full((len(rows[0]) if rows else 0, len(order)), -1, np.int64)
    take, put = [], []
    begin = 0
    for axis, dim in enumerate(order):
        band = bands[dim]
        if band.inside is None or band.ordinal is None:
            continue
        entry[:, axis] = begin + band.index[rows[dim]]
        take.append(band.inside - np.repeat(band.first, band.count))
        put.append(band.ordinal)
        begin += len(band.inside)
    return Lists(entry, np.concatenate(take), np.concatenate(put)) if take else None


def _check(selection: Selection, shape: Sequence[int], form: ChunkForm, place_strides: Sequence[int]) -> None:
    """Refuse what does not belong together, and all that could overflow in the arithmetic that follows."""
    ndim = len(form.shape)
    if not len(selection.axes) == len(shape) == len(place_strides) == ndim:
        raise ValueError(
            f"dimensions differ: selection {len(selection.axes)}, array {len(shape)}, chunk {ndim}, "
            f"destination {len(place_strides)}"
        )
    if 0 in selection.box:
        return
    for dim, (axis, size) in enumerate(zip(selection.axes, shape, strict=True)):
        steps = isinstance(axis, AxisIndices) or (axis.step != 0 and axis.count > 0)
        if not steps or lowest(axis) < 0 or highest(axis) >= size:
            raise SelectionError(f"{axis} is out of bounds for axis {dim} with size {size}")
        if highest(axis) > INT64_MAX:
            raise SelectionError(f"index {highest(axis)} of axis {dim} does not fit into 64 bits")
    if 0 in form.shape:
        raise SelectionError(f"chunks of shape {form.shape} hold no elements")
    if form.nbytes > INT64_MAX:
        raise SelectionError(f"a chunk of {form.nbytes} bytes has offsets that do not fit into 64 bits")
    reach = sum((axis.count - 1) * abs(stride) for axis, stride in zip(selection.axes, place_strides, strict=True))
    if max(reach, math.prod(selection.box), *map(abs, place_strides)) > INT64_MAX:
        raise SelectionError(f"a result of shape {selection.shape} has offsets that do not fit into 64 bits")


def limit_pieces(pieces: int) -> None:
    """Refuse to plan more than `MAX_PIECES` at once."""
    if pieces > MAX_PIECES:
        raise SelectionError(
            f"the selection needs {pieces} pieces of chunks, at most {MAX_PIECES} can be planned at once"
        )


def band_extents(form: ChunkForm, piece_bytes: int | None) -> tuple[int, ...]:
    """Largest extent of a piece along each array dimension."""
    extents = list(form.shape)
    if piece_bytes is None or form.nbytes <= piece_bytes:
        return tuple(extents)
    for dim, stride in zip(form.order, form.strides, strict=True):
        if stride <= piece_bytes:
            extents[dim] = min(extents[dim], piece_bytes // stride)
            break
        extents[dim] = 1
    return tuple(extents)
