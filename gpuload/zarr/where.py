"""Which chunk of an array a range of a file belongs to: from the keys and offsets of a record to coordinates."""

from __future__ import annotations

import itertools
import os
import re
import weakref
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gpuload.engine.reader import handle_cache, lease
from gpuload.errors import ChunkError
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root
from gpuload.request import Int64
from gpuload.zarr import shards
from gpuload.zarr.array import Array
from gpuload.zarr.layout import Layout
from gpuload.zarr.shards import Index, IndexForm
from gpuload.zarr.virtual_entries import Entries
from gpuload.zarr.virtual_refs import WHOLE


def grid_of(array: Array) -> tuple[int, ...]:
    """How many chunks there are along each dimension: inner ones, where gpuload reads inner chunks."""
    return tuple(len(starts) - 1 for starts in edges_of(array))


def edges_of(array: Array) -> tuple[range | list[int], ...]:
    """Per dimension, where each chunk begins, and where the last one ends; it may end beyond the array."""
    layout = array.layout
    extents = layout.form.shape if layout.index is not None and layout.form is not None else layout.chunk_edges
    return tuple(
        [0, *itertools.accumulate(extent)]
        if isinstance(extent, tuple)
        else range(0, -(-n // max(1, extent)) * extent + 1, max(1, extent))
        for n, extent in zip(layout.shape, extents, strict=True)
    )


def chunks_of(array: Array, keys: Sequence[str], offsets: Int64) -> Int64:
    """The chunk that each of n ranges is part of.

    Where there are shards, their indexes are read, if they are not known already, without a record of it.

    Parameters
    ----------
    keys
        n keys of files below the root of the store, of this array or of others.
    offsets
        int64 (n,): where each range begins in its file.

    Returns
    -------
    chunks
        int64 (n,): the number of each chunk in the grid, in C order; -1 for what is no chunk of this array, as its
        metadata or the index of a shard.
    """
    distinct, number = np.unique(np.asarray(keys, object), return_inverse=True)
    if array.source.references is not None:
        return _Ranges.of(array, array.source.references).chunks([str(key) for key in distinct], number, offsets)
    prefix = array.source.prefix
    names = [str(key) for key in distinct.tolist()]
    files = _coordinates(array.layout, [key[len(prefix) :] if key.startswith(prefix) else "" for key in names])
    index = array.layout.index
    shape = np.array(grid_of(array), np.int64).reshape(-1)
    if index is None:
        return _numbers(files, shape)[number]
    chunks = np.full(len(offsets), -1, np.int64)
    order = np.argsort(number, kind="stable")
    bounds = np.searchsorted(number[order], np.arange(len(names) + 1))
    wave = handle_cache().wave_size
    known = [i for i in range(len(names)) if files[i, 0] >= 0]
    for first in range(0, len(known), wave):
        part = known[first : first + wave]
        for i, found in zip(part, _indexes(array.source.root, [names[i] for i in part], index), strict=True):
            if found is not None:
                rows = order[bounds[i] : bounds[i + 1]]
                chunks[rows] = _inner(found, offsets[rows], files[i], index.grid, shape)
    return chunks


class _Ranges:
    """Which ranges of which files the chunks of an array are, as its references have them, in the order of both."""

    _known: ClassVar[weakref.WeakKeyDictionary[Array, _Ranges]] = weakref.WeakKeyDictionary()

    def __init__(self, array: Array, store: Entries) -> None:
        self._store = store
        prefix = array.source.prefix
        keys, file, offset, size = store.spans(prefix)
        shape = np.array(grid_of(array), np.int64).reshape(-1)
        chunk = _numbers(_coordinates(array.layout, [key[len(prefix) :] for key in keys]), shape)
        order = np.lexsort((offset, file))
        order = order[chunk[order] >= 0]
        self._file, self._offset, self._chunk = file[order], offset[order], chunk[order]
        self._end = np.where(size[order] == WHOLE, np.iinfo(np.int64).max, self._offset + size[order])

    @classmethod
    def of(cls, array: Array, store: Entries) -> _Ranges:
        """Made once for each array."""
        known = cls._known.get(array)
        if known is None:
            known = cls._known[array] = cls(array, store)
        return known

    def chunks(self, names: Sequence[str], number: Int64, offsets: Int64) -> Int64:
        """The chunks that ranges belong to, which begin at `offsets` of the file that `names` has at `number`."""
        chunks = np.full(len(offsets), -1, np.int64)
        for i, name in enumerate(names):
            file = self._store.file_number(name)
            if file is None:
                continue
            first, last = np.searchsorted(self._file, [file, file + 1])
            rows = np.flatnonzero(number == i)
            at = np.searchsorted(self._offset[first:last], offsets[rows], side="right") - 1 + first
            inside = at >= first
            inside[inside] = offsets[rows[inside]] < self._end[at[inside]]
            chunks[rows[inside]] = self._chunk[at[inside]]
        return chunks


def _coordinates(layout: Layout, keys: list[str]) -> Int64:
    """int64 (n, ndim): coordinates of the file with each key, -1 for a key that is none of the array's."""
    ndim = len(layout.shape)
    found = np.full((len(keys), max(1, ndim)), -1, np.int64)
    if not ndim:
        (only,) = layout.keys(np.zeros((1, 0), np.int64))
        found[[key == only for key in keys]] = 0
        return found
    candidates = [re.findall(r"\d+", key)[-ndim:] for key in keys]
    rows = [i for i, numbers in enumerate(candidates) if len(numbers) == ndim and all(len(n) < 19 for n in numbers)]
    if rows:
        coordinates = np.array([[int(n) for n in candidates[i]] for i in rows], np.int64)
        # Whatever the numbers of a name may mean: a chunk's name is the one that its coordinates give.
        same = [keys[i] == name for i, name in zip(rows, layout.keys(coordinates), strict=True)]
        found[np.array(rows)[same]] = coordinates[same]
    return found


def _numbers(coordinates: Int64, shape: Int64) -> Int64:
    """C-order numbers of chunks in a grid; -1 for those outside."""
    if not len(shape):
        return coordinates[:, 0]
    number = np.zeros(len(coordinates), np.int64)
    for dim, extent in enumerate(shape.tolist()):
        number = number * extent + coordinates[:, dim]
    inside = ((coordinates >= 0) & (coordinates < shape)).all(axis=1)
    return np.where(inside, number, -1)


def _indexes(root: Root, keys: Sequence[str], form: IndexForm) -> list[Index | None]:
    with lease(root, keys) as handles:
        return [_index(root, key, handle, form) for key, handle in zip(keys, handles, strict=True)]


def _index(root: Root, key: str, handle: FileHandle | None, form: IndexForm) -> Index | None:
    """The index of one shard, from the cache or past every backend; None where there is none."""
    if handle is None:
        return None
    known = shards.cache.get((root.identity, key, form), handle.identity)
    if known is not None:
        return known
    at = 0 if form.at_start else max(0, handle.size - form.nbytes)
    try:
        return form.parse(key, np.frombuffer(os.pread(handle.buffered_fd, form.nbytes, at), np.uint8), handle.size)
    except (OSError, ChunkError):
        return None  # whoever reads it is told; here it has no chunks


def _inner(index: Index, offsets: Int64, shard: Int64, grid: tuple[int, ...], shape: Int64) -> Int64:
    """The chunk each offset in one shard is in."""
    there = np.flatnonzero(index[:, 0] != shards.EMPTY)
    order = there[np.argsort(index[there, 0], kind="stable")]
    if not len(order):
        return np.full(len(offsets), -1, np.int64)
    starts, sizes = index[order, 0].astype(np.int64), index[order, 1].astype(np.int64)
    at = np.searchsorted(starts, offsets, side="right") - 1
    inside = (at >= 0) & (offsets < starts[at] + np.maximum(sizes[at], 1))
    inner = np.stack(np.unravel_index(order[np.maximum(at, 0)], grid), axis=1)
    numbers = _numbers(shard * np.array(grid, np.int64) + inner, shape)
    return np.where(inside, numbers, -1)
