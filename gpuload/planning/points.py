"""Cuts a selection of points into pieces: each touched chunk once, its points a list along one axis.

The dimensions whose index arrays are read together are one axis here: a point's place along it is the bytes from the
chunk's first element to the point. So the points of a chunk, sorted, are a list like that of a single dimension, and
everything after the planner treats them as one. The other dimensions are ranges, as in `planning.grid`, whose bands
hold here too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpuload.errors import SelectionError
from gpuload.planning.axis import INT64_MAX, highest, lowest
from gpuload.planning.grid import ChunkForm, Lists, Pieces, band_extents, limit_pieces
from gpuload.planning.selection import PointSelection
from gpuload.planning.touch import Touched, combine, coordinates, count_bands, count_chunks, divide, touch
from gpuload.request import Int64


def cut_points(
    selection: PointSelection,
    array_shape: Sequence[int],
    form: ChunkForm,
    place_strides: Sequence[int],
    *,
    piece_bytes: int | None,
) -> Pieces:
    """Plan all chunks that hold a point at once; as `planning.grid.cut`.

    Parameters
    ----------
    selection
        What to read; inside `array_shape`.
    array_shape, form, piece_bytes
        As for `cut`.
    place_strides
        Bytes from one element of the destination box to the next, per axis of the box.

    Returns
    -------
    pieces
        Their first axis is that of the points. Chunks come in the order of the points' dimensions first.

    Raises
    ------
    SelectionError
        As for `cut`.
    """
    if piece_bytes is not None and piece_bytes < 1:
        raise ValueError(f"piece_bytes must be positive, not {piece_bytes}")
    _check(selection, array_shape, form, place_strides)
    stride = dict(zip(form.order, form.strides, strict=True))
    common = len(selection.points)
    along = dict(zip(selection.others, zip(selection.axes, place_strides[common:], strict=True), strict=True))
    storage = [dim for dim in form.order if dim in along]  # the ranges, slowest first
    to = tuple(along[dim][1] * (-1 if along[dim][0].step < 0 else 1) for dim in storage)
    unit = min(stride[dim] for dim in selection.dims)
    if 0 in selection.box:
        none, table = np.empty(0, np.int64), np.empty((0, 1 + len(storage)), np.int64)
        grid = np.empty((0, len(form.shape)), np.int64)
        strides = (unit, *(stride[dim] for dim in storage))
        return Pieces(grid, none, none, none, none, none, table, strides, (form.itemsize, *to))

    extents = band_extents(form, piece_bytes)
    joint, numbers = _touch(selection, form, extents, stride)
    limit_pieces(len(joint) * math.prod(count_chunks(along[dim][0], form.shape[dim]) for dim in storage))
    chunks = {dim: touch(along[dim][0], form.shape[dim]) for dim in selection.others}
    limit_pieces(len(joint) * math.prod(int(count_bands(chunks[dim], extents[dim]).sum()) for dim in storage))
    bands = {dim: divide(chunks[dim], extents[dim]) for dim in selection.others}
    position = {dim: 1 + i for i, dim in enumerate(selection.others)}
    columns = [joint, *(bands[dim] for dim in selection.others)]
    chunk, rows = combine(columns, [0, *(position[dim] for dim in storage)])

    step, origin, put = _places(selection.points, place_strides[:common], form.itemsize)
    first = joint.first[rows[0]]
    size = form.itemsize + joint.span[rows[0]]
    place = np.full(len(chunk), origin, np.int64)
    count = np.empty((len(chunk), 1 + len(storage)), np.int64)
    count[:, 0] = joint.count[rows[0]]
    for i, dim in enumerate(storage):
        band, row = bands[dim], rows[position[dim]]
        axis, outward = along[dim]
        count[:, 1 + i] = band.count[row]
        first += (band.first * stride[dim])[row]
        size += (band.span * stride[dim])[row]
        lowest_place = outward * (axis.count - 1) if axis.step < 0 else 0
        place += (band.index * to[i] + lowest_place)[row]
    assert joint.inside is not None
    assert joint.ordinal is not None
    entry = np.full(count.shape, -1, np.int64)
    entry[:, 0] = joint.index[rows[0]]
    take = (joint.inside - np.repeat(joint.first, joint.count)) // unit
    lists = Lists(entry, take, joint.ordinal if put is None else put[joint.ordinal])
    offset, source = first, np.zeros(len(chunk), np.int64)
    if piece_bytes is None:
        offset, source = source, first
        size[:] = form.nbytes
    pieces = Pieces(
        chunks=_coordinates(columns, numbers, selection),
        chunk=chunk,
        offset=offset,
        size=size,
        source=source,
        place=place,
        count=count,
        source_strides=(unit, *(bands[dim].step * stride[dim] for dim in storage)),
        place_strides=(step, *to),
        lists=lists,
    )
    # A range may be a slower axis of storage than the points.
    back = (np.diff(chunk) == 0) & (np.diff(offset) < 0)
    return pieces.subset(np.lexsort((offset, chunk))) if back.any() else pieces


def _touch(
    selection: PointSelection, form: ChunkForm, extents: Sequence[int], stride: dict[int, int]
) -> tuple[Touched, Int64]:
    """The chunks and bands that hold points, and the coordinates int64 (t, len(dims)) of these chunks.

    Along the axis of the points, coordinates are bytes from the start of the chunk.
    """
    number, size = np.zeros(len(selection.index[0]), np.int64), 1
    inside = np.zeros_like(number)
    band: Int64 | None = None
    for dim, index in zip(selection.dims, selection.index, strict=True):
        chunk, rest = np.divmod(index, form.shape[dim])
        low = int(chunk.min())
        span = int(chunk.max()) - low + 1
        if size * span > INT64_MAX:  # far apart: number those that occur
            number, size = _ranks(number)
            chunk, span = _ranks(chunk)
            low = 0
        number = number * span + (chunk - low)
        size *= span
        inside += rest * stride[dim]
        if extents[dim] < form.shape[dim]:
            start: Int64 = rest // extents[dim] * (extents[dim] * stride[dim])
            band = start if band is None else band + start
    order = _sorted(number, size, inside, form.nbytes)
    if order is not None:
        number, inside = number[order], inside[order]
        band = None if band is None else band[order]
    starts = np.diff(number, prepend=-1) != 0
    first_of_chunk = np.flatnonzero(starts)
    if band is not None:
        starts[1:] |= np.diff(band) != 0
    begin = np.flatnonzero(starts)
    t = len(first_of_chunk)
    bands = np.diff(np.searchsorted(begin, first_of_chunk), append=len(begin))
    ordinal = np.arange(len(number)) if order is None else order
    points = ordinal[first_of_chunk]
    numbers = np.stack(
        [index[points] // form.shape[dim] for dim, index in zip(selection.dims, selection.index, strict=True)], axis=1
    )
    touched = Touched(
        chunk=np.arange(t, dtype=np.int64),
        bands=bands,
        begin=np.cumsum(bands) - bands,
        index=begin,
        first=inside[begin],
        count=np.diff(begin, append=len(number)),
        step=1,
        inside=inside,
        ordinal=ordinal,
    )
    return touched, numbers


def _ranks(values: Int64) -> tuple[Int64, int]:
    present, rank = np.unique(values, return_inverse=True)
    return rank, len(present)


def _sorted(number: Int64, size: int, inside: Int64, nbytes: int) -> Int64 | None:
    """The order of points by chunk and place in it; None: they are in it."""
    if size * nbytes > INT64_MAX:
        return np.lexsort((inside, number))
    key = number * nbytes + inside
    return None if bool((np.diff(key) >= 0).all()) else np.argsort(key, kind="stable")


def _places(points: tuple[int, ...], strides: Sequence[int], itemsize: int) -> tuple[int, int, Int64 | None]:
    """Where points go: in steps of so many bytes from an origin, so many steps each; None: one each, in order."""
    axes = [(n, stride) for n, stride in zip(points, strides, strict=True) if n > 1]
    step = math.gcd(*(abs(stride) for _, stride in axes)) or itemsize
    origin = sum(stride * (n - 1) for n, stride in axes if stride < 0)
    dense = 1
    for n, stride in reversed(axes):
        if stride != dense * step:
            break
        dense *= n
    else:
        return step, 0, None
    put = np.zeros(1, np.int64)
    for n, stride in axes:
        put = np.add.outer(put, np.arange(n) * (stride // step)).ravel()
    return step, origin, put - origin // step


def _coordinates(columns: Sequence[Touched], numbers: Int64, selection: PointSelection) -> Int64:
    """Coordinates of all touched chunks on the grid, int64 (m, ndim)."""
    found = coordinates(columns)
    chunks = np.empty((len(found), len(selection.dims) + len(selection.others)), np.int64)
    chunks[:, list(selection.dims)] = numbers[found[:, 0]]
    chunks[:, list(selection.others)] = found[:, 1:]
    return chunks


def _check(selection: PointSelection, shape: Sequence[int], form: ChunkForm, place_strides: Sequence[int]) -> None:
    """Refuse what does not belong together, and all that could overflow in the arithmetic that follows."""
    ndim = len(form.shape)
    if not len(selection.dims) + len(selection.others) == len(shape) == ndim or len(place_strides) != len(
        selection.box
    ):
        raise ValueError(
            f"dimensions differ: selection {len(selection.dims) + len(selection.others)}, array {len(shape)}, chunk "
            f"{ndim}, box {len(selection.box)}, destination {len(place_strides)}"
        )
    if 0 in selection.box:
        return
    listed = zip(selection.dims, selection.index, strict=True)
    bounds = [
        *((dim, int(index.min()), int(index.max())) for dim, index in listed),
        *((dim, lowest(axis), highest(axis)) for dim, axis in zip(selection.others, selection.axes, strict=True)),
    ]
    for dim, low, high in bounds:
        if low < 0 or high >= shape[dim]:
            raise SelectionError(f"{low} to {high} is out of bounds for axis {dim} with size {shape[dim]}")
        if high > INT64_MAX:
            raise SelectionError(f"index {high} of axis {dim} does not fit into 64 bits")
    if 0 in form.shape:
        raise SelectionError(f"chunks of shape {form.shape} hold no elements")
    if form.nbytes > INT64_MAX:
        raise SelectionError(f"a chunk of {form.nbytes} bytes has offsets that do not fit into 64 bits")
    reach = sum((n - 1) * abs(stride) for n, stride in zip(selection.box, place_strides, strict=True))
    if max(reach, math.prod(selection.box), *map(abs, place_strides)) > INT64_MAX:
        raise SelectionError(f"a result of shape {selection.shape} has offsets that do not fit into 64 bits")
