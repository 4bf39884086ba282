"""Arrays that only zarr-python's own codec pipeline decodes: filters, nested shards, strings, objects, structures.

Their chunks are fetched through registered file handles like all others, a bounded amount at a time, decoded by that
pipeline and put in place with NumPy on the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload import events, tasks
from gpuload.errors import ChunkDecodeError, UnsupportedArrayError
from gpuload.planning.selection import AnySelection, PointSelection
from gpuload.request import Filled, Int64, Reason
from gpuload.zarr import _compat
from gpuload.zarr._compat import Metadata
from gpuload.zarr.layout import Layout
from gpuload.zarr.source import Source
from gpuload.zarr.touched import TouchedChunk, of_axes, of_points

_WAVE_BYTES = 64 << 20  # of decoded chunks at once; a larger chunk is a wave of its own
_WAVE_CHUNKS = 1024
_MOST_TIMES = 16  # what elements are in memory; strings may be that much longer than their pointers


def read_foreign(
    metadata: Metadata, layout: Layout, source: Source, selection: AnySelection, box: Any, reason: Reason
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
        keys = [source.prefix + key for key in layout.keys(_coordinates(wave))]
        largest = max(math.prod(chunk.shape) for chunk in wave) * max(layout.dtype.itemsize, 1)
        encoded = source.fetch(keys, reason, most=_MOST_TIMES * largest + _WAVE_BYTES)
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
        task = tasks.current()
        if task is not None:
            task.add(sum(np.size(box[chunk.place]) for chunk in wave) * layout.dtype.itemsize)


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


def _coordinates(wave: list[TouchedChunk]) -> Int64:
    return np.array([chunk.coordinates for chunk in wave], np.int64).reshape(len(wave), len(wave[0].shape))


def _waves(layout: Layout, selection: AnySelection) -> Iterator[list[TouchedChunk]]:
    """The touched chunks, as many at a time as memory allows."""
    edges = layout.chunk_edges
    chunks = of_points(edges, selection) if isinstance(selection, PointSelection) else of_axes(edges, selection)
    wave: list[TouchedChunk] = []
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
