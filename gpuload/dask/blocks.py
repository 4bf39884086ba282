"""How a dask array is divided: blocks of whole chunks or shards, as large as dask wants them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import dask
import numpy as np
from dask.array.core import normalize_chunks
from dask.utils import parse_bytes

Extents = tuple[tuple[int, ...], ...]
Edges = Sequence[int | tuple[int, ...]]


def divide(
    chunks: Any, shape: tuple[int, ...], dtype: np.dtype[Any], inner: Edges, shards: tuple[int, ...] | None
) -> Extents:
    """The extents of the blocks along each dimension.

    Parameters
    ----------
    chunks
        What dask takes: ``"auto"``, a size in bytes as text, an extent or extents for each dimension, a mapping of
        dimensions to these; -1 is the whole dimension. None: one block a chunk.
    shape, dtype
        Of the array.
    inner
        Along each dimension the extent of what is read one by one, or the extents where they differ.
    shards
        Extents of a shard, where there are shards.

    Returns
    -------
    extents
        What is left to dask along a dimension is whole shards where these fit into the size of a block, otherwise whole
        chunks, at least one; all else is as asked for.
    """
    if chunks is None:
        return tuple(_one_each(n, edge) for n, edge in zip(shape, inner, strict=True))
    wanted = _by_dimension(chunks, len(shape))
    left = [isinstance(part, str) for part in wanted]
    limit = _limit(wanted)
    unit: Edges = inner
    if shards is not None and math.prod(shards) * dtype.itemsize <= limit:
        unit = shards
    if dtype.hasobject or dtype.kind == "T":  # of unknown size
        wanted = tuple(None if isinstance(part, str) else part for part in wanted)
    fixed = tuple(
        _one_each(n, edge) if part is None or (isinstance(part, str) and not isinstance(edge, int)) else part
        for n, edge, part in zip(shape, unit, wanted, strict=True)
    )
    previous = tuple(min(edge, n) if isinstance(edge, int) else n for n, edge in zip(shape, unit, strict=True))
    extents: Extents = normalize_chunks(  # type: ignore[no-untyped-call]
        tuple("auto" if isinstance(part, str) else part for part in fixed),
        shape,
        limit=limit,
        dtype=dtype,
        previous_chunks=previous,
    )
    return tuple(
        _whole(n, edge, along) if by_dask and isinstance(edge, int) else along
        for n, edge, along, by_dask in zip(shape, unit, extents, left, strict=True)
    )


def misaligned(extents: Extents, inner: Edges, starts: Sequence[int] | None = None) -> list[int]:
    """The dimensions along which one of the blocks, the first one at `starts`, ends where it shares a chunk."""
    starts = [0] * len(extents) if starts is None else starts
    return [
        dim
        for dim, (start, along, edge) in enumerate(zip(starts, extents, inner, strict=True))
        if any(
            begin % edge if isinstance(edge, int) else begin not in {0, *accumulate(edge)}
            for begin in list(accumulate(along, initial=start))[1:-1]
        )
    ]


def _by_dimension(chunks: Any, ndim: int) -> tuple[Any, ...]:
    if isinstance(chunks, Mapping):
        return tuple(chunks.get(dim, chunks.get(dim - ndim)) for dim in range(ndim))
    if isinstance(chunks, str | int | np.integer):
        return (chunks,) * ndim
    parts = tuple(chunks)
    if ndim == 1 and len(parts) != 1 and all(isinstance(n, int | np.integer) for n in parts):
        return (parts,)  # the extents of all blocks, as dask takes them for one dimension
    if len(parts) != ndim:
        raise ValueError(f"chunks {parts!r} are for {len(parts)} dimensions, the array has {ndim}")
    return parts


def _limit(wanted: tuple[Any, ...]) -> int:
    """The size of a block in bytes: as asked for, else as dask is configured."""
    asked = {part for part in wanted if isinstance(part, str)} - {"auto"}
    if len(asked) > 1:
        raise ValueError(f"chunks of several sizes: {', '.join(sorted(asked))}; a block has one")
    return int(parse_bytes(asked.pop() if asked else dask.config.get("array.chunk-size")))


def _one_each(n: int, edge: int | tuple[int, ...]) -> tuple[int, ...]:
    """The extents of the chunks themselves, the last one as far as the array goes."""
    if n == 0:
        return (0,)
    if isinstance(edge, int):
        return (edge,) * (n // edge) + ((n % edge,) if n % edge else ())
    starts = [0, *accumulate(edge)]
    return tuple(min(stop, n) - start for start, stop in pairwise(starts) if start < n)


def _whole(n: int, edge: int, along: tuple[int, ...]) -> tuple[int, ...]:
    """The extents `along`, rounded down to whole multiples of `edge`."""
    return _one_each(n, max(edge, along[0] // edge * edge)) if len(along) > 1 else along
