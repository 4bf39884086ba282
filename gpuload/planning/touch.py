"""What is touched along one dimension: chunks, bands of chunks, and the products of these over all dimensions.

Only chunks and bands that hold a selected element are listed, by arithmetic: a step of 10**8 over 10**9 elements
lists ten of them, however small they are. Coordinates are walked in ascending order, whatever the sign of a range's
step or the order of a list, and repeats of a listed one come one after the other.
No number in here is larger than the highest selected coordinate, so a coordinate below 2**63 cannot overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuload.planning.axis import Axis, AxisIndices, AxisRange, highest, lowest
from gpuload.request import Int64


@dataclass(frozen=True, slots=True, eq=False)
class Touched:
    """The t touched chunks along a dimension, and e touched bands of them: one a chunk unless divided.

    Parameters
    ----------
    chunk
        int64 (t,): coordinate of each chunk on the grid, ascending.
    bands, begin
        int64 (t,): touched bands of each chunk, and the row of the first one in the columns below.
    index
        int64 (e,): ordinal of the band's first element among the selected ones, counted from the lowest.
    first, count
        int64 (e,): its coordinate inside the chunk, and how many elements of the band are selected.
    step
        Distance of neighbours; 1 where no band has two.
    inside, ordinal
        Of an axis that lists its elements, None otherwise: int64 (count,), the coordinate of each element inside its
        chunk and its place among the selected ones. Those of a band are ``index:index + count``.
    """

    chunk: Int64
    bands: Int64
    begin: Int64
    index: Int64
    first: Int64
    count: Int64
    step: int
    inside: Int64 | None = None
    ordinal: Int64 | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def span(self) -> Int64:
        """Distance of the first and the last selected element of each band, int64 (e,)."""
        if self.inside is None:
            return (self.count - 1) * self.step
        last: Int64 = self.inside[self.index + self.count - 1]
        return last - self.first


def count_chunks(axis: AxisRange, extent: int) -> int:
    """Number of chunks of `extent` elements that `touch` will list for a range that is not empty."""
    if abs(axis.step) >= extent:
        return axis.count
    return highest(axis) // extent - lowest(axis) // extent + 1


def touch(axis: Axis, extent: int) -> Touched:
    """List the chunks of `extent` elements that an axis touches; it must not be empty."""
    if isinstance(axis, AxisIndices):
        return _touch_listed(axis.index, extent)
    low, high, step = lowest(axis), highest(axis), abs(axis.step) if axis.count > 1 else 1
    if step >= extent:  # no two elements in one chunk
        index = np.arange(axis.count, dtype=np.int64)
        chunk, first = np.divmod(low + index * step, extent)
        ones = np.ones_like(index)
        return Touched(chunk, ones, index, index, first, ones, 1)
    chunk = np.arange(low // extent, high // extent + 1, dtype=np.int64)
    base = chunk * extent
    index = np.maximum(0, -((low - base) // step))
    # The end of the last chunk may lie beyond 2**63, so the ends are compared inside the chunk.
    last = (base - low + np.minimum(extent - 1, high - base)) // step
    return Touched(
        chunk, np.ones_like(chunk), np.arange(len(chunk)), index, low - base + index * step, last - index + 1, step
    )


def _touch_listed(index: Int64, extent: int) -> Touched:
    ordinal = np.arange(len(index)) if (np.diff(index) >= 0).all() else np.argsort(index, kind="stable")
    number, inside = np.divmod(index[ordinal], extent)
    begin = np.flatnonzero(np.diff(number, prepend=-1))
    count = np.diff(begin, append=len(index))
    ones = np.ones_like(begin)
    return Touched(number[begin], ones, np.arange(len(begin)), begin, inside[begin], count, 1, inside, ordinal)


def count_bands(touched: Touched, extent: int) -> Int64:
    """Number of touched bands of `extent` elements in each chunk, int64 (t,)."""
    if touched.inside is not None:
        starts = _starts_band(touched, touched.inside // extent)
        return np.add.reduceat(starts, touched.index, dtype=np.int64)
    if touched.step >= extent:
        return touched.count
    last = touched.first + (touched.count - 1) * touched.step
    counts: Int64 = last // extent - touched.first // extent + 1
    return counts


def divide(touched: Touched, extent: int) -> Touched:
    """Divide chunks, as `touch` lists them, into bands of `extent` elements."""
    bands = count_bands(touched, extent)
    begin = np.cumsum(bands) - bands
    total = int(begin[-1] + bands[-1])
    if total == len(touched):
        return touched
    if touched.inside is not None:
        index = np.flatnonzero(_starts_band(touched, touched.inside // extent))
        count = np.diff(index, append=len(touched.inside))
        return replace(touched, bands=bands, begin=begin, index=index, first=touched.inside[index], count=count)
    owner = np.repeat(np.arange(len(bands)), bands)
    ordinal = np.arange(total) - begin[owner]
    first, step = touched.first[owner], touched.step
    if step >= extent:  # no two elements in one band
        skipped, count, step_inside = ordinal, np.ones_like(ordinal), 1
    else:
        base = (first // extent + ordinal) * extent
        end = first + (touched.count[owner] - 1) * step
        skipped = np.maximum(0, -((first - base) // step))
        count = (base - first + np.minimum(extent - 1, end - base)) // step - skipped + 1
        step_inside = step
    return replace(
        touched,
        bands=bands,
        begin=begin,
        index=touched.index[owner] + skipped,
        first=first + skipped * step,
        count=count,
        step=step_inside,
    )


def _starts_band(touched: Touched, band: Int64) -> npt.NDArray[np.bool_]:
    """bool (count,): the listed elements that are the first of their band, or of their chunk."""
    starts: npt.NDArray[np.bool_] = np.diff(band, prepend=-1) != 0
    starts[touched.index] = True
    return starts


def coordinates(touched: Sequence[Touched]) -> Int64:
    """List all touched chunks: int64 (m, ndim) grid coordinates, in C order."""
    lengths = tuple(len(along.chunk) for along in touched)
    chunks = np.empty((*lengths, len(lengths)), np.int64)
    for dim, along in enumerate(touched):
        chunks[..., dim] = along.chunk.reshape(-1, *(1,) * (len(lengths) - dim - 1))
    return chunks.reshape(math.prod(lengths), len(lengths))


def combine(touched: Sequence[Touched], order: Sequence[int]) -> tuple[Int64, list[Int64]]:
    """Combine the bands of all dimensions to n pieces.

    Parameters
    ----------
    touched
        One per array dimension.
    order
        The array dimension at each storage axis, slowest first.

    Returns
    -------
    chunk
        int64 (n,): row of each piece's chunk in `coordinates`. Pieces go through the chunks in C order of the grid,
        and through the bands of a chunk in storage order.
    rows
        Per array dimension int64 (n,): row of each piece's band in the columns of that dimension.
    """
    lengths = tuple(len(along.chunk) for along in touched)
    total = inner = math.prod(lengths)
    chunk = np.arange(total, dtype=np.int64)
    rows: list[Int64] = []
    for length in lengths:
        inner //= length
        rows.append(np.tile(np.repeat(np.arange(length, dtype=np.int64), inner), total // (length * inner)))
    divided = [dim for dim in order if len(touched[dim]) > lengths[dim]]
    if not divided:
        return chunk, rows
    pieces = np.ones(total, np.int64)
    for dim in divided:
        pieces *= touched[dim].bands[rows[dim]]
    chunk = np.repeat(chunk, pieces)
    rows = [row[chunk] for row in rows]
    ordinal = np.arange(len(chunk)) - (np.cumsum(pieces) - pieces)[chunk]
    for dim in reversed(divided):  # the digits of a number with mixed bases, the fastest storage axis last
        ordinal, band = np.divmod(ordinal, touched[dim].bands[rows[dim]])
        rows[dim] = touched[dim].begin[rows[dim]] + band
    return chunk, rows
