"""Arrays that only zarr-python's own codec pipeline decodes: filters, nested shards, strings, objects, structures.

Their chunks are fetched through registered file handles like all others, a bounded amount at a time, decoded by that
pipeline and put in place with NumPy on the host.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload import events
from gpuload.engine.reader import fetch
from gpuload.errors import ChunkDecodeError, UnsupportedArrayError
from gpuload.files.root import Root
from gpuload.planning.axis import Axis, AxisIndices
from gpuload.planning.selection import AnySelection, PointSelection, Selection
from gpuload.request import Filled, Int64, Reason
from gpuload.zarr import _compat
from gpuload.zarr._compat import Metadata
from gpuload.zarr.layout import Layout

Edges = int | tuple[int, ...]

_WAVE_BYTES = 64 << 20  # of decoded chunks at once; a larger chunk is a wave of its own
_WAVE_CHUNKS = 1024


@dataclass(frozen=True, slots=True)
class _Touched:
    """A chunk along one dimension: its number and extent, what is taken from it, and where that goes."""

    chunk: int
    extent: int
    source: slice | Int64
    place: slice | Int64


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A touched chunk: its coordinates and shape; ``box[place] = chunk.transpose(axes)[source]``."""

    coordinates: tuple[int, ...]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    source: tuple[Any, ...]
    place: tuple[Any, ...]


def read_foreign(
    metadata: Metadata, layout: Layout, root: Root, prefix: str, selection: AnySelection, box: Any, reason: Reason
) -> None:
    """Read `selection` into `box`, a NumPy array of the selection's box; the record says `reason`.

    Raises
    ------
    ChunkDecodeError
        A chunk the codecs refuse; names its key.
    UnsupportedArrayError
        A codec that turns out to be missing.
    """
    for wave in _waves(layout, selection):
        keys = [prefix + key for key in layout.keys(_coordinates(wave))]
        encoded = fetch(root, keys, reason=reason)
        missing = nbytes = 0
        present = [i for i, data in enumerate(encoded) if data is not None]
        shapes = [wave[i].shape for i in present]
        chunks = _decode(metadata, shapes, [encoded[i] for i in present], [keys[i] for i in present])
        decoded = dict(zip(present, chunks, strict=True))
        for i, chunk in enumerate(wave):
            if i in decoded:
                box[chunk.place] = decoded[i].transpose(chunk.axes)[chunk.source]
            else:
                box[chunk.place] = layout.fill_value
                missing += 1
                nbytes += np.size(box[chunk.place]) * layout.dtype.itemsize
        if missing:
            events.publish(Filled(missing, nbytes))


def _key(parts: Sequence[slice | Int64], shape: Sequence[int]) -> tuple[Any, ...]:
    """What indexes each axis for itself: slices as they are, or all as lists where one is."""
    if all(isinstance(part, slice) for part in parts):
        return tuple(parts)
    return np.ix_(
        *(np.arange(size)[part] if isinstance(part, slice) else part for part, size in zip(parts, shape, strict=True))
    )


def _decode(
    metadata: Metadata, shapes: Sequence[tuple[int, ...]], encoded: Sequence[Any], keys: Sequence[str]
) -> list[npt.NDArray[Any]]:
    try:
        return _compat.decode_chunks(metadata, shapes, encoded)
    except Exception as error:
        # The pipeline decodes many at once and does not say which one failed: ask again, one by one.
        for key, shape, data in zip(keys, shapes, encoded, strict=True):
            try:
                _compat.decode_chunks(metadata, [shape], [data])
            except Exception as one:
                if _compat.is_unknown_codec(one):
                    raise UnsupportedArrayError(f"{key!r}: {one}") from one
                raise ChunkDecodeError(
                    key, f"its {len(data)} stored bytes cannot be decoded: {type(one).__name__}: {one}"
                ) from one
        raise ChunkDecodeError(keys[0], f"{type(error).__name__}: {error}") from error


def touched_chunks(layout: Layout, selection: AnySelection) -> Iterator[Int64]:
    """Coordinates of the chunks a selection touches, int64 (m, ndim), some at a time."""
    for wave in _waves(layout, selection):
        yield _coordinates(wave)


def _coordinates(wave: list[_Chunk]) -> Int64:
    return np.array([chunk.coordinates for chunk in wave], np.int64).reshape(len(wave), len(wave[0].shape))


def _waves(layout: Layout, selection: AnySelection) -> Iterator[list[_Chunk]]:
    """The touched chunks, as many at a time as memory allows."""
    edges = layout.chunk_edges
    chunks = _of_points(edges, selection) if isinstance(selection, PointSelection) else _of_axes(edges, selection)
    wave: list[_Chunk] = []
    nbytes = 0
    for chunk in chunks:
        size = max(layout.dtype.itemsize, 1) * math.prod(chunk.shape)
        if wave and (nbytes + size > _WAVE_BYTES or len(wave) == _WAVE_CHUNKS):
            yield wave
            wave, nbytes = [], 0
        wave.append(chunk)
        nbytes += size
    if wave:
        yield wave


def _of_axes(edges: Sequence[Edges], selection: Selection) -> Iterator[_Chunk]:
    """The chunks that a selection touches whose axes are each for itself."""
    along = [list(_touched(axis, edge)) for axis, edge in zip(selection.axes, edges, strict=True)]
    for parts in itertools.product(*along):
        shape = tuple(part.extent for part in parts)
        yield _Chunk(
            coordinates=tuple(part.chunk for part in parts),
            shape=shape,
            axes=tuple(range(len(parts))),
            source=_key([part.source for part in parts], shape),
            place=_key([part.place for part in parts], selection.box),
        )


def _of_points(edges: Sequence[Edges], selection: PointSelection) -> Iterator[_Chunk]:
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
        extents, inside = [], []
        for dim, index, number in zip(selection.dims, selection.index, numbers[first].tolist(), strict=True):
            begin, extent = _bounds(number, edges[dim])
            extents.append(extent)
            inside.append(index[points] - begin)
        for parts in itertools.product(*along):
            axes = (*selection.dims, *selection.others)
            ordered = np.argsort(axes).tolist()
            coordinates = (*numbers[first].tolist(), *(part.chunk for part in parts))
            shape = (*extents, *(part.extent for part in parts))
            yield _Chunk(
                coordinates=tuple(coordinates[i] for i in ordered),
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
        yield _Touched(chunk, extent, source, place)
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
        yield _Touched(chunk, extent, index[place] - begin, place)
