"""`save`: arrays in memory as a new zarr store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuload.config import flag
from gpuload.errors import DeviceError, UnsupportedArrayError
from gpuload.files.paths import place_of
from gpuload.files.writer import Writer
from gpuload.memory.device import of
from gpuload.planning.selection import orthogonal
from gpuload.zarr import _compat
from gpuload.zarr.array import Array
from gpuload.zarr.create import Form, Plan, new_place, plan_array, write_documents
from gpuload.zarr.dataset import Dataset, node_at
from gpuload.zarr.source import Source
from gpuload.zarr.store import DeviceStore
from gpuload.zarr.write import hidden


def save(
    path: str | os.PathLike[str],
    value: Any,
    *,
    chunks: Sequence[int] | int | None = None,
    shards: Sequence[int] | int | str | None = None,
    codecs: str | Sequence[Any] | None = "none",
    fill_value: Any = None,
    dims: Sequence[str | None] | None = None,
    attrs: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    durable: bool | None = None,
) -> Array | Dataset:
    """Write an array, or a group of arrays, as a new zarr v3 store.

    Nothing can be opened at `path` until all of it is written.

    Parameters
    ----------
    path
        Of the store, a directory, or a ``file://`` URL; directories above it are made. Where it is a link, the store
        is made where that leads.
    value
        NumPy or CuPy array, anything NumPy makes an array of, or an `Array`; or a mapping of names to these, or to
        further mappings: a group.
    chunks
        Elements of a chunk along each dimension, of an inner chunk where there are shards. None: about 1 MiB.
    shards
        Elements of a shard along each dimension; None: every chunk has a file of its own; ``"auto"``: about 128 MiB,
        but no shards of structures and raw bytes, which not every zarr-python can open.
    codecs
        ``"none"``, which leaves every byte to the fastpath; ``"zstd"``, ``"blosc"``, ``"gzip"``; or codecs of
        zarr-python, from bytes to bytes.
    fill_value
        Of what is not stored; None: zarr-python's own choice for the data type.
    dims
        Names of the dimensions.
    attrs
        User attributes, of the group where it is one.
    overwrite
        Delete the store that is at `path`; otherwise that is an error.
    durable
        Have all of it on the drive before this returns; None: as configured.

    Returns
    -------
    node
        What was saved, opened with ``mode="r+"``, for results where the configuration says.

    Raises
    ------
    ExistsError
        Something is at `path` already; also with `overwrite`, where it is no zarr store.
    NotLocalError
        A URL of something else than local files.
    UnsupportedArrayError
        What zarr-python cannot describe: chunks that do not divide the shards, a data type it does not know. A masked
        array of which elements are masked. Structures in shards of a given size.
    ChunkWriteError
        The kernel refuses, as where the disk is full; names the chunk. What was written is deleted again.
    """
    form = Form(chunks=chunks, shards=shards, codecs=codecs, fill_value=fill_value, dims=dims)
    place = place_of(path)
    nodes, arrays = _plans(value, form, dict(attrs or {}))
    durable = flag("durable") if durable is None else durable
    with new_place(place, overwrite=overwrite):
        store = DeviceStore(place)
        for plan, elements in arrays:
            plan.writer(store, durable=durable, align=None).assign(orthogonal(..., plan.metadata.shape), elements)
        with Writer(store.directory, durable=durable) as writer:
            write_documents(writer, nodes)
    return node_at(Source(store, "", zarr_format=3, device="auto", strict=None))


def _plans(
    value: Any, form: Form, attrs: Mapping[str, Any]
) -> tuple[dict[str, _compat.Metadata], list[tuple[Plan, Any]]]:
    """The metadata of every node by its path, and the arrays with what is in them."""
    nodes: dict[str, _compat.Metadata] = {}
    arrays: list[tuple[Plan, Any]] = []
    for path, member in _walk("", value):
        here = attrs if not path else {}
        if member is None:
            nodes[path] = _compat.group_metadata(here)
            continue
        elements = _elements(path, member)
        plan = plan_array(path, tuple(elements.shape), elements.dtype, replace(form, attrs=here))
        nodes[path] = plan.metadata
        arrays.append((plan, elements))
    return nodes, arrays


def _walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Paths and arrays below a value; None in the place of a group."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    yield path, None
    for name, member in value.items():
        if not isinstance(name, str) or not name or "/" in name or name.startswith((".", "__")) or name == "zarr.json":
            raise UnsupportedArrayError(f"{name!r} cannot be the name of an array or a group")
        yield from _walk(f"{path}/{name}" if path else name, member)


def _elements(path: str, value: Any) -> Any:
    if isinstance(value, Array):
        return value[...]
    masked = hidden(value)
    if masked is not None:
        raise UnsupportedArrayError(f"{path or 'the array'}: {masked}")
    try:
        of(value)
    except DeviceError:
        return np.asarray(value)
    return value
