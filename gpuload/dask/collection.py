"""`from_zarr`: a zarr array in local files as a dask array whose blocks are read where they are computed."""

from __future__ import annotations

import os
import warnings
from typing import Any

import dask.array
import zarr
from dask.array.core import PerformanceWarning
from dask.base import tokenize
from zarr.abc.store import Store

from gpuload.dask.blocks import divide, misaligned
from gpuload.dask.reader import BlockReader
from gpuload.errors import UnsupportedArrayError
from gpuload.memory.device import HOST, Device
from gpuload.zarr import Array, Dataset
from gpuload.zarr import open as open_node
from gpuload.zarr.reader import device_dtype
from gpuload.zarr.state import look
from gpuload.zarr.variable import Variable

Node = str | os.PathLike[str] | zarr.Array[Any] | zarr.Group | Store | Array | Dataset


def from_zarr(
    x: Node,
    component: str | None = None,
    chunks: Any = "auto",
    device: str | Device = "auto",
    *,
    strict: bool | None = None,
    follow_links: bool | None = None,
) -> dask.array.Array:
    """A zarr array as a dask array; nothing is read but its metadata, and the stamps of its files.

    The graph is one layer with one reader: no data, no open file, nothing that grows with the number of chunks. What is
    sliced is not read: dask fuses a slice of a block with the reading of that block.

    Parameters
    ----------
    x
        What `gpuload.open` takes, or an `Array` or `Dataset` that is open already.
    component
        Path of the array below a group.
    chunks
        Of the dask array. ``"auto"``, or a size as ``"64 MiB"``: blocks of about that size, dask's own by default, of
        whole shards, or of whole chunks where a shard is larger than that. None: one block a chunk. Otherwise as dask
        takes them; where blocks then begin inside of a chunk, a warning says so, since that chunk is read several
        times.
    device
        Where blocks are made, as `gpuload.open` has it; ``"auto"`` is decided by each process that computes. For an `x`
        that is open already it is as it was opened.
    strict, follow_links
        As `gpuload.open` has them, likewise.

    Returns
    -------
    array
        dask array of CuPy arrays on a GPU, of NumPy arrays without one. Its name tells the state of the files: the same
        for the same state, another after any change.

    Raises
    ------
    UnsupportedArrayError
        A group; say which of its arrays.
    KeyError
        There is no such component.
    ChangedError
        When blocks are computed: their files are not any more what they were in this call.

    Warns
    -----
    dask.array.PerformanceWarning
        Blocks begin inside of chunks.
    """
    node: Array | Variable | Dataset
    if isinstance(x, Array | Dataset):
        node = x
    else:
        node = open_node(x, device=device, strict=strict, follow_links=follow_links)
    if component is not None:
        if not isinstance(node, Dataset):
            raise KeyError(f"{node!r} is an array and holds no {component!r}")
        node = node[component]
    if isinstance(node, Dataset):
        names = ", ".join(map(repr, node)) or "none"
        raise UnsupportedArrayError(
            f"{node.name or 'the root'!r} is a group: give one of its arrays as component: {names}"
        )
    if isinstance(node, Variable):
        raise UnsupportedArrayError(f"{node!r} is a part of an array, or several: give an array, and select with dask")
    extents = _extents(node, chunks)
    source = node.source
    state = look(source)
    token = tokenize(
        os.path.realpath(source.place), source.path, node.layout.fields, node.device, source.strict, state.digest,
        state.documents, node.shape, str(node.result_dtype),
    )  # fmt: skip
    on = source.device if source.device.holds(device_dtype(node.dtype)) else HOST
    made: dask.array.Array = dask.array.from_array(  # type: ignore[no-untyped-call]
        BlockReader(node, state, token),
        chunks=extents,
        name=f"gpuload-{tokenize(token, extents)}",
        asarray=False,
        inline_array=True,
        meta=on.empty((0,) * node.ndim, node.result_dtype),
    )
    return made


def _extents(array: Array, chunks: Any) -> tuple[tuple[int, ...], ...]:
    inner = array.layout.chunk_edges if array.chunks is None else array.chunks
    extents = divide(chunks, array.shape, array.result_dtype, inner, array.shards)
    crossed = misaligned(extents, inner)
    if crossed:
        warnings.warn(
            f"blocks begin inside of stored chunks along dimension {', '.join(map(str, crossed))}: such chunks are "
            f"read once for each block; multiples of {tuple(inner)} avoid that, as chunks='auto' does",
            PerformanceWarning,
            stacklevel=3,
        )
    return extents
