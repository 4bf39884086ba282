"""`to_zarr`: a dask array into a zarr array, each block into chunks or shards that no other block writes to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import dask.array

from gpuload.config import flag
from gpuload.dask.blocks import misaligned
from gpuload.errors import AssignmentError
from gpuload.files.paths import place_of
from gpuload.files.writer import Writer
from gpuload.planning.selection import Selection, normalise
from gpuload.zarr import Array
from gpuload.zarr import open as open_node
from gpuload.zarr._compat import Metadata, describe
from gpuload.zarr.create import Form, new_place, plan_array, write_documents
from gpuload.zarr.layout import layout_of
from gpuload.zarr.source import Source
from gpuload.zarr.store import DeviceStore
from gpuload.zarr.write import ArrayWriter


def to_zarr(
    array: dask.array.Array,
    target: str | os.PathLike[str] | Array,
    *,
    region: Sequence[slice] | None = None,
    chunks: Sequence[int] | int | None = None,
    shards: Sequence[int] | int | None = None,
    codecs: str | Sequence[Any] | None = "none",
    fill_value: Any = None,
    dims: Sequence[str | None] | None = None,
    attrs: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    durable: bool | None = None,
) -> Array:
    """Compute a dask array into a zarr array, block by block, from whatever memory the blocks are in.

    A chunk or shard is a file that is replaced as a whole. Two blocks that share one would each write back what they
    saw of the other's part, so that is refused before anything is computed.

    Parameters
    ----------
    array
        What is written.
    target
        A path or ``file://`` URL, where a new store is made: nothing can be opened there until all of it is written. Or
        an `Array` that was opened with ``mode="r+"``.
    region
        Of an `Array`: where to write, a slice of step 1 for each dimension; None: everywhere.
    chunks, shards, codecs, fill_value, dims, attrs, overwrite, durable
        Of a new store, as `gpuload.save` has them; but None for `chunks` is the extents of the blocks.

    Returns
    -------
    array
        What was written, opened with ``mode="r+"``.

    Raises
    ------
    AssignmentError
        Blocks begin inside of a chunk or shard, or the shape is not that of the region; nothing was computed.
    ExistsError, UnsupportedArrayError, ChunkWriteError, ReadOnlyError
        As `gpuload.save` and assignment to an `Array` raise them. Of a new store nothing is left.
    """
    if isinstance(target, Array):
        where = _region(region, target.shape)
        if tuple(len(range(*along.indices(n))) for along, n in zip(where, target.shape, strict=True)) != array.shape:
            raise AssignmentError(f"an array of shape {array.shape} does not fit the region {where} of {target!r}")
        _check(array, [along.start for along in where], target.layout.chunk_edges)
        _store(array, target, where)
        return target
    if region is not None:
        raise AssignmentError("a region is part of an array that is there: give that, opened with mode='r+'")
    chunks = tuple(along[0] or 1 for along in array.chunks) if chunks is None else chunks
    form = Form(chunks=chunks, shards=shards, codecs=codecs, fill_value=fill_value, dims=dims, attrs=dict(attrs or {}))
    metadata = plan_array("", array.shape, array.dtype, form).metadata
    _check(array, [0] * array.ndim, describe(metadata).chunk_edges)
    durable = flag("durable") if durable is None else durable
    place = place_of(target)
    with new_place(place, overwrite=overwrite):
        _store(array, NewArray(place, metadata, durable=durable), None)
        with Writer(DeviceStore(place).directory, durable=durable) as writer:
            write_documents(writer, {"": metadata})
    made = open_node(place, mode="r+")
    assert isinstance(made, Array)
    return made


class NewArray:
    """An array whose documents are still to be written, as dask assigns to it.

    Threads: safe. Fork: safe. Pickle: by path and metadata.
    """

    def __init__(self, place: str, metadata: Metadata, *, durable: bool) -> None:
        self._place, self._metadata, self._durable = place, metadata, durable
        self.shape = tuple(metadata.shape)

    def __setitem__(self, selection: Any, value: Any) -> None:
        source = Source(DeviceStore(self._place), "", zarr_format=3, device="cpu", strict=False)
        layout = layout_of(describe(self._metadata))
        selected = normalise(selection, self.shape)
        assert isinstance(selected, Selection)
        ArrayWriter(source, self._metadata, layout, durable=self._durable).assign(selected, value)


def _region(region: Sequence[slice] | None, shape: tuple[int, ...]) -> tuple[slice, ...]:
    given = (slice(None),) * len(shape) if region is None else tuple(region)
    if len(given) != len(shape) or any(getattr(along, "step", 0) not in (None, 1) for along in given):
        raise AssignmentError(f"a region of an array of shape {shape} is as many slices of step 1, not {region!r}")
    return tuple(slice(*along.indices(n)) for along, n in zip(given, shape, strict=True))


def _check(array: dask.array.Array, starts: Sequence[int], edges: Sequence[int | tuple[int, ...]]) -> None:
    """Refuse blocks that share a chunk or shard with each other."""
    # A region may begin inside of a chunk: one block writes to that, too.
    inside = misaligned(array.chunks, edges, starts)
    if inside:
        raise AssignmentError(
            f"blocks begin inside of chunks or shards along dimension {', '.join(map(str, inside))}, so that two of "
            f"them would write to one file: rechunk to multiples of {tuple(edges)}, beginning at a multiple of them"
        )


def _store(array: dask.array.Array, target: Any, region: tuple[slice, ...] | None) -> None:
    dask.array.store([array], [target], lock=False, regions=None if region is None else [region])
