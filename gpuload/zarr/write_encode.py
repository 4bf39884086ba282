"""From the elements of chunks to the bytes of their files.

Elements without codecs are put in order here. All else is encoded by the codecs of zarr-python, many chunks at a time,
in the threads that it runs them in. Shards of either are put together here, so that their inner chunks can be aligned.

A chunk in which every element is the fill value, bit for bit, is not stored unless zarr's ``array.write_empty_chunks``
says so. (zarr-python itself takes every NaN for a NaN fill value; here one with another payload is kept.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.planning.aligned import DIRECT_ALIGN
from gpuload.zarr import _compat
from gpuload.zarr.layout import Layout, Road
from gpuload.zarr.write_shard import Bytes, arrange, assemble, blank

Elements = npt.NDArray[Any]

_PADDING = 8  # of padding at most an eighth, in shards whose alignment nobody asked for


class Encoder:
    """Encodes chunks of one array.

    Threads: safe. Fork: safe. Pickle: none, it is made with its array.

    Parameters
    ----------
    align
        Bytes that inner chunks start at multiples of, and shards end at. None: those that direct reads want, where
        inner chunks are stored without codecs and padding costs little; else 1.
    """

    def __init__(self, metadata: _compat.Metadata, layout: Layout, *, align: int | None = None) -> None:
        self._metadata, self._layout = metadata, layout
        self.write_empty = _compat.write_empty_chunks()
        self.align = _usual_align(layout) if align is None else align
        self._fill = _fill_element(layout)

    def blank(self, shape: tuple[int, ...]) -> Elements:
        """A chunk full of the fill value, in the array's dtype."""
        chunk = np.empty(shape, self._layout.dtype)
        chunk[...] = self._fill
        return chunk

    def encode(self, chunks: Sequence[Elements]) -> list[Bytes | None]:
        """The file of each chunk, or shard; None for one that is not stored.

        Parameters
        ----------
        chunks
            Of the array's dtype, in full size: also what is beyond the array's end.
        """
        layout = self._layout
        if layout.road is Road.FOREIGN or (layout.road is Road.ENCODED and layout.index is None):
            stored = [self.write_empty or not self._is_empty(chunk) for chunk in chunks]
            encoded = iter(_compat.encode_chunks(self._metadata, [c for c, s in zip(chunks, stored, strict=True) if s]))
            return [next(encoded) if keep else None for keep in stored]
        if layout.index is None:
            return [None if not self.write_empty and self._is_empty(c) else self._raw(c) for c in chunks]
        if layout.road is Road.RAW:
            return [self._raw_shard(chunk) for chunk in chunks]
        return self._encoded_shards(chunks)

    def _raw(self, chunk: Elements) -> Bytes:
        """The elements in storage order and byte order, copied only where they must be."""
        form = self._layout.form
        assert form is not None
        ordered = np.ascontiguousarray(chunk.transpose(form.order), self._layout.stored_dtype)
        return ordered.reshape(-1).view(np.uint8)

    def _raw_shard(self, chunk: Elements) -> Bytes | None:
        layout = self._layout
        form, index = layout.form, layout.index
        assert form is not None
        assert index is not None
        grid = index.grid
        blocks = _blocks(chunk, grid, form.shape)
        stored = self._stored(blocks, len(grid))
        if not stored.any():
            return None
        where = arrange(index, np.where(stored, form.nbytes, -1), self.align)
        file = blank(index, where)
        # Stored inner chunks are at one distance from each other, whatever their places: one copy puts all there.
        ordered = blocks.transpose(*range(len(grid)), *(len(grid) + axis for axis in form.order))
        distance, first = -(-form.nbytes // self.align) * self.align, int(where.offset[np.argmax(stored)])
        shape = ordered.shape[len(grid) :]
        within = _strides(shape, form.itemsize)
        if stored.all():
            strides = (*_strides(grid, distance), *within)
            np.ndarray(ordered.shape, layout.stored_dtype, file.data, first, strides)[...] = ordered
        else:
            count = int(stored.sum())
            room = np.ndarray((count, *shape), layout.stored_dtype, file.data, first, (distance, *within))
            room[...] = ordered[np.unravel_index(np.flatnonzero(stored), grid)]
        return file

    def _encoded_shards(self, chunks: Sequence[Elements]) -> list[Bytes | None]:
        """The inner chunks of all shards are encoded together."""
        form, index = self._layout.form, self._layout.index
        assert form is not None
        assert index is not None
        grid = index.grid
        wanted: list[Elements] = []
        kept = []
        for chunk in chunks:
            blocks = _blocks(chunk, grid, form.shape)
            stored = self._stored(blocks, len(grid))
            kept.append(stored.tolist())
            flat = np.flatnonzero(stored).tolist()
            wanted += [np.ascontiguousarray(blocks[np.unravel_index(i, grid)]) for i in flat]
        encoded = iter(_compat.encode_chunks(self._metadata, wanted, inner=True))
        shards: list[Bytes | None] = []
        for stored in kept:
            parts = [next(encoded) if keep else None for keep in stored]
            shards.append(assemble(index, parts, self.align) if any(stored) else None)
        return shards

    def _is_empty(self, chunk: Elements) -> bool:
        return not bool(self._stored(chunk, 0))

    def _stored(self, blocks: Elements, axes: int) -> npt.NDArray[np.bool_]:
        """Which chunks are stored: those with an element that is not the fill value.

        Parameters
        ----------
        blocks
            Chunks along the first `axes` axes.

        Returns
        -------
        stored
            bool (chunks,): in C order.
        """
        count = math.prod(blocks.shape[:axes])
        if self.write_empty:
            return np.ones(count, bool)
        if blocks.dtype.hasobject or blocks.dtype.kind == "T":
            return np.array([not _compat.all_equal(blocks, self._layout.fill_value)])
        bits, fill = _bits(blocks), _bits(self._fill)
        inside = tuple(range(axes, blocks.ndim))
        # A first element that differs settles it: most chunks are looked at no further.
        stored = bits[(slice(None),) * axes + (0,) * len(inside)] != fill
        if stored.all():
            return np.reshape(stored, count)
        if not stored.any():
            return np.reshape((bits != fill).any(axis=inside), count)
        undecided = np.nonzero(~stored)
        stored[undecided] = (bits[undecided] != fill).any(axis=tuple(range(1, 1 + len(inside))))
        return np.reshape(stored, count)


def _fill_element(layout: Layout) -> npt.NDArray[Any]:
    """The fill value, 0-d, as zarr-python makes it an element."""
    element = np.empty((), layout.dtype)
    element[()] = layout.fill_value
    return element


def _bits(elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Elements as bits, for comparing: no NaN differs from itself, nor does -0.0 equal 0.0."""
    itemsize = elements.dtype.itemsize
    return elements.view(f"u{itemsize}" if itemsize in (1, 2, 4, 8) else f"V{itemsize}")


def _blocks(chunk: Elements, grid: Sequence[int], shape: Sequence[int]) -> Elements:
    """A shard as its inner chunks: a view of shape ``(*grid, *shape)``."""
    apart = chunk.reshape([n for pair in zip(grid, shape, strict=True) for n in pair])
    return apart.transpose(*range(0, apart.ndim, 2), *range(1, apart.ndim, 2))


def _strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Of an array in C order."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _usual_align(layout: Layout) -> int:
    if layout.road is not Road.RAW or layout.form is None:
        return 1
    return DIRECT_ALIGN if -layout.form.nbytes % DIRECT_ALIGN * _PADDING <= layout.form.nbytes else 1
