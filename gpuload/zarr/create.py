"""Makes arrays and groups: their metadata by zarr-python, their documents written last.

A node is there for readers when its document is. Written after the chunks, and the documents of what is below it, it
lets nobody open half of a store, also where the writer is killed.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuload.errors import ChunkWriteError, ExistsError, UnsupportedArrayError
from gpuload.files.writer import Writer
from gpuload.zarr import _compat
from gpuload.zarr.layout import layout_of
from gpuload.zarr.reader import Reader
from gpuload.zarr.source import Source
from gpuload.zarr.store import DeviceStore
from gpuload.zarr.write import ArrayWriter

CHUNK_BYTES = 1 << 20
SHARD_BYTES = 128 << 20

Extents = Sequence[int]

_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup")


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """An array to be made.

    Parameters
    ----------
    path
        Below the root of its store, ``""`` at the root.
    metadata
        As zarr-python has it.
    """

    path: str
    metadata: _compat.Metadata

    def reader(self, store: DeviceStore) -> Reader:
        """What reads its chunks to the host; the document need not be there."""
        return Reader(layout_of(_compat.describe(self.metadata)), self._source(store), self.metadata)

    def _source(self, store: DeviceStore) -> Source:
        return Source(store, self.path, zarr_format=3, device="cpu", strict=False)

    def writer(self, store: DeviceStore, *, durable: bool | None, align: int | None) -> ArrayWriter:
        """What writes its chunks; the document need not be there."""
        layout = layout_of(_compat.describe(self.metadata))
        return ArrayWriter(self._source(store), self.metadata, layout, durable=durable, align=align)


@dataclass(frozen=True, slots=True)
class Form:
    """How an array is to be stored.

    Parameters
    ----------
    chunks
        Elements of a chunk (an inner chunk where there are shards); None: about 1 MiB, whole rows.
    shards
        Elements of a shard; None: no shards; ``"auto"``: about 128 MiB.
    codecs
        ``"none"``, a name of `CODECS`, or codecs of zarr-python from bytes to bytes.
    """

    chunks: Extents | int | None = None
    shards: Extents | int | str | None = None
    codecs: str | Sequence[Any] | None = "none"
    fill_value: Any = None
    dims: Sequence[str | None] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)


def plan_array(path: str, shape: tuple[int, ...], dtype: Any, form: Form) -> Plan:
    """The metadata of a new array.

    Raises
    ------
    UnsupportedArrayError
        What zarr-python refuses: chunks that do not divide shards, a data type without a form in zarr v3. Shards of
        structures or raw bytes, which not every zarr-python can open again.
    """
    itemsize = dtype.itemsize if isinstance(dtype, np.dtype) else 8
    chunks = choose_chunks(shape, itemsize) if form.chunks is None else _extents(form.chunks, shape)
    shards = form.shards
    if isinstance(dtype, np.dtype) and dtype.kind == "V" and shards is not None:
        if shards != "auto":
            what = "structures" if dtype.names else "raw bytes"
            raise UnsupportedArrayError(
                f"{path or 'the array'}: zarr-python 3.1.6 cannot open shards of {what} ({dtype}): leave shards out, "
                "and every chunk has a file of its own"
            )
        shards = None
    if isinstance(shards, str):
        if shards != "auto":
            raise UnsupportedArrayError(f"shards {shards!r} are neither 'auto' nor extents")
        shards = choose_shards(shape, chunks, itemsize)
    try:
        metadata = _compat.array_metadata(
            shape=shape,
            dtype=dtype,
            chunks=chunks,
            shards=None if shards is None else _extents(shards, shape),
            compressors=_compat.compressors(form.codecs),
            fill_value=form.fill_value,
            dimension_names=form.dims,
            attributes=dict(form.attrs),
        )
    except (ValueError, TypeError) as error:
        raise UnsupportedArrayError(f"{path or 'the array'}: {error}") from error
    return Plan(path, metadata)


def choose_chunks(shape: Extents, itemsize: int, nbytes: int = CHUNK_BYTES) -> tuple[int, ...]:
    """Chunks of about `nbytes`: as many whole rows, in C order, as fit."""
    chunks = [max(1, n) for n in shape]
    for axis in range(len(chunks)):
        rest = math.prod(chunks[axis + 1 :]) * max(1, itemsize)
        chunks[axis] = min(chunks[axis], max(1, nbytes // rest))
        if chunks[axis] * rest <= nbytes and chunks[axis] > 1:
            break
    return tuple(chunks)


def choose_shards(shape: Extents, chunks: Extents, itemsize: int, nbytes: int = SHARD_BYTES) -> tuple[int, ...]:
    """Shards of about `nbytes`: as many neighbouring chunks, in C order, as fit."""
    shards = list(chunks)
    for axis in reversed(range(len(shards))):
        most = max(1, -(-max(1, shape[axis]) // chunks[axis]))
        fits = max(1, nbytes // max(1, math.prod(shards) * itemsize))
        shards[axis] *= min(most, fits)
    return tuple(shards)


def _extents(given: Extents | int, shape: Extents) -> tuple[int, ...]:
    extents = (int(given),) * len(shape) if isinstance(given, int) else tuple(int(n) for n in given)
    if len(extents) != len(shape) or any(n < 1 for n in extents):
        raise UnsupportedArrayError(f"chunks or shards of {extents} for an array of shape {tuple(shape)}")
    return extents


@contextmanager
def new_place(path: str, *, overwrite: bool) -> Iterator[None]:
    """A directory for a new store, as `make_place` makes it; what a block that raises left there is deleted.

    Half of a store cannot be opened, and would only stand in the way of the next try.
    """
    stood = os.path.isdir(path) and not os.listdir(path)
    make_place(path, overwrite=overwrite)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)
            if not stood:
                os.rmdir(path)
        raise


def make_place(path: str, *, overwrite: bool) -> None:
    """Make the directory `path` for a new store.

    Raises
    ------
    ExistsError
        Something is there. With `overwrite`, a zarr store is deleted; anything else still is an error.
    ChunkWriteError
        The kernel refuses.
    """
    try:
        _clear(path, overwrite=overwrite)
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        if isinstance(error, ExistsError):
            raise
        number = error.errno or 0
        raise ChunkWriteError(path, number, f"no store can be made there: {os.strerror(number)}") from error


def _clear(path: str, *, overwrite: bool) -> None:
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        if not os.path.lexists(path):  # it is a directory above that is none
            raise
        raise ExistsError(f"{path!r} is a file") from error
    if not names:
        return
    if not any(name in _DOCUMENTS for name in names):
        raise ExistsError(f"{path!r} is a directory with something else than a zarr store in it")
    if not overwrite:
        raise ExistsError(f"{path!r} holds a zarr store; overwrite=True (--overwrite) deletes it first")
    for name in _DOCUMENTS:  # no reader may find a store of which a part is gone
        if name in names:
            os.unlink(os.path.join(path, name))
    shutil.rmtree(path)


def write_documents(writer: Writer, nodes: Mapping[str, _compat.Metadata]) -> None:
    """Write the documents of arrays and groups, by path, those below a node before its own."""
    for path in sorted(nodes, key=lambda name: (-name.count("/") if name else 1, name)):
        for name, data in _compat.documents(nodes[path]).items():
            writer.write(f"{path}/{name}" if path else name, data)
