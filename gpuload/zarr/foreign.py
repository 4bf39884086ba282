"""Arrays that only zarr-python's own codec pipeline decodes: filters, nested shards, strings, objects, structures.

Their chunks are fetched through registered file handles like all others, a bounded amount at a time, decoded by that
pipeline and put in place with NumPy on the host.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.engine.reader import fetch
from gpuload.errors import ChunkDecodeError, UnsupportedArrayError
from gpuload.files.root import Root
from gpuload.planning.axis import Axis, AxisIndices
from gpuload.planning.selection import Selection
from gpuload.request import Int64
from gpuload.zarr import _compat
from gpuload.zarr._compat import Metadata
from gpuload.zarr.layout import Layout

_WAVE_BYTES = 64 << 20  # of decoded chunks at once; a larger chunk is a wave of its own
_WAVE_CHUNKS = 1024


@dataclass(frozen=True, slots=True)
class _Touched:
    """A chunk along one dimension: its number and extent, what is taken from it, and where that goes."""

    chunk: int
    extent: int
    source: slice | Int64
    place: slice | Int64


def read_foreign(metadata: Metadata, layout: Layout, root: Root, prefix: str, selection: Selection, box: Any) -> None:
    """Read `selection` into `box`, a NumPy array with one axis per array dimension.

    Raises
    ------
    ChunkDecodeError
        A chunk the codecs refuse; names its key.
    UnsupportedArrayError
        A codec that turns out to be missing.
    """
    for wave in _waves(layout, selection):
        keys = [prefix + key for key in layout.keys(_coordinates(wave))]
        encoded = fetch(root, keys)
        present = [i for i, data in enumerate(encoded) if data is not None]
        shapes = [tuple(part.extent for part in wave[i]) for i in present]
        chunks = _decode(metadata, shapes, [encoded[i] for i in present], [keys[i] for i in present])
        decoded = dict(zip(present, chunks, strict=True))
        for i, chunk in enumerate(wave):
            place = _key([part.place for part in chunk], box.shape)
            if i in decoded:
                box[place] = decoded[i][_key([part.source for part in chunk], decoded[i].shape)]
            else:
                box[place] = layout.fill_value


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


def touched_chunks(layout: Layout, selection: Selection) -> Iterator[Int64]:
    """Coordinates of the chunks a selection touches, int64 (m, ndim), some at a time."""
    for wave in _waves(layout, selection):
        yield _coordinates(wave)


def _coordinates(wave: list[tuple[_Touched, ...]]) -> Int64:
    return np.array([[part.chunk for part in chunk] for chunk in wave], np.int64).reshape(len(wave), len(wave[0]))


def _waves(layout: Layout, selection: Selection) -> Iterator[list[tuple[_Touched, ...]]]:
    """The touched chunks, as many at a time as memory allows."""
    along = [list(_touched(axis, edges)) for axis, edges in zip(selection.axes, layout.chunk_edges, strict=True)]
    wave: list[tuple[_Touched, ...]] = []
    nbytes = 0
    for chunk in itertools.product(*along):
        size = max(layout.dtype.itemsize, 1)
        for part in chunk:
            size *= part.extent
        if wave and (nbytes + size > _WAVE_BYTES or len(wave) == _WAVE_CHUNKS):
            yield wave
            wave, nbytes = [], 0
        wave.append(chunk)
        nbytes += size
    if wave:
        yield wave


def _touched(axis: Axis, edges: int | tuple[int, ...]) -> Iterator[_Touched]:
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


def _listed(index: Int64, edges: int | tuple[int, ...]) -> Iterator[_Touched]:
    """The chunks that listed elements touch."""
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(edges) if isinstance(edges, tuple) else None
    numbers = index[order] // edges if ends is None else np.searchsorted(ends, index[order], side="right")
    bounds = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for first, last in itertools.pairwise([*bounds, len(index)]):
        chunk = int(numbers[first])
        extent = edges[chunk] if isinstance(edges, tuple) else edges
        begin = chunk * extent if ends is None else int(ends[chunk]) - extent
        place = order[first:last]
        yield _Touched(chunk, extent, index[place] - begin, place)
