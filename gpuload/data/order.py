"""The order in which an epoch brings the samples, by seed and epoch: the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from gpuload.data.grid import SampleGrid
from gpuload.data.permutation import Permutation, key_of, mix
from gpuload.errors import SampleError
from gpuload.request import Int64

_AT_ONCE = 1 << 16  # cells whose sizes are computed together
_CELLS, _WITHIN, _FULL, _CROP = range(4)  # what a key is for


class Shuffle(StrEnum):
    """How the samples of an epoch are mixed."""

    NONE = "none"
    CHUNK = "chunk"
    FULL = "full"

    @classmethod
    def of(cls, value: object) -> Shuffle:
        """What a user means with False, True, None, ``"chunk"`` or ``"full"``.

        Raises
        ------
        SampleError
            It is nothing of these.
        """
        if value is None or value is False:
            return cls.NONE
        if value is True:
            return cls.CHUNK
        if isinstance(value, str) and value in ("chunk", "full"):
            return cls(value)
        raise SampleError(f"shuffle={value!r}: False, True (which means 'chunk'), 'chunk' or 'full'")


@dataclass(frozen=True)
class Order:
    """The samples of one epoch in their order, each of them once. Computed where it is asked for; little is kept.

    Without shuffling the samples come chunk by chunk, along one dimension thus one after the other. The chunk shuffle
    takes the chunks in a random order, `buffer` of them at a time, and mixes the samples of these. The full shuffle
    mixes all of them.

    Threads: safe. Fork: safe. Pickle: safe.

    Parameters
    ----------
    grid
        The samples.
    shuffle
        How they are mixed.
    buffer
        Chunks whose samples are mixed with each other.
    seed, epoch
        Which order.
    """

    grid: SampleGrid
    shuffle: Shuffle
    buffer: int
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if self.buffer < 1:
            raise SampleError(f"a buffer of {self.buffer} chunks holds no sample; at least 1")
        if self.seed < 0 or self.epoch < 0:
            raise SampleError(f"seed {self.seed}, epoch {self.epoch}: neither may be negative")

    def __len__(self) -> int:
        return self.grid.n

    def __call__(self, first: int, last: int) -> Int64:
        """The samples at places `first` to `last` (excluded) of the epoch.

        Returns
        -------
        windows
            int64 (last - first, axes): the number of the window along each dimension.
        """
        if self.shuffle is Shuffle.FULL:
            return self.grid.windows(self._mixed(np.arange(first, last, dtype=np.int64)))
        parts = [np.empty((0, len(self.grid.axes)), np.int64)]
        buffer = int(np.searchsorted(self.buffers, first, side="right")) - 1
        while first < last:
            start, end = int(self.buffers[buffer]), min(int(self.buffers[buffer + 1]), last)
            parts.append(self._of_buffer(buffer, first - start, end - start))
            first, buffer = end, buffer + 1
        return np.concatenate(parts)

    def end_of_buffer(self, place: int) -> int:
        """The place behind the last sample of the buffer that the one at `place` belongs to; with the full shuffle, of
        all samples.
        """
        if self.shuffle is Shuffle.FULL:
            return self.grid.n
        return int(self.buffers[np.searchsorted(self.buffers, place, side="right")])

    def crops(self, windows: Int64, axis: int, room: int) -> Int64:
        """Where random crops start along a dimension that is not one of the grid's.

        Parameters
        ----------
        windows
            int64 (m, axes): the samples.
        axis
            Number of the dimension among those that are cropped: each has places of its own.
        room
            How many places there are.

        Returns
        -------
        starts
            int64 (m,): 0 to ``room - 1``, another one each epoch.
        """
        key = key_of(self.seed, self.epoch, _CROP, axis)
        chance = mix(self.grid.numbers(windows).astype(np.uint64), key)
        return (chance % np.uint64(room)).astype(np.int64)

    @cached_property
    def buffers(self) -> Int64:
        """int64 (buffers + 1,): the place of the first sample of each, and the number of samples."""
        cells, step = self.grid.cells, max(1, _AT_ONCE // self.buffer) * self.buffer
        sizes = [np.zeros(1, np.int64)]
        for start in range(0, cells, step):
            places = np.arange(start, min(start + step, cells), dtype=np.int64)
            size = self.grid.sizes(self._cells(places))
            sizes.append(np.add.reduceat(size, np.arange(0, len(size), self.buffer)))
        return np.cumsum(np.concatenate(sizes))

    @cached_property
    def _mixed(self) -> Permutation:
        return Permutation(self.grid.n, key_of(self.seed, self.epoch, _FULL))

    @cached_property
    def _cells(self) -> Permutation:
        cells = self.grid.cells
        if self.shuffle is Shuffle.NONE:
            return _Same(cells)
        return Permutation(cells, key_of(self.seed, self.epoch, _CELLS))

    def _of_buffer(self, buffer: int, first: int, last: int) -> Int64:
        """The samples at places `first` to `last` of one buffer."""
        start = buffer * self.buffer
        cells = self._cells(np.arange(start, min(start + self.buffer, self.grid.cells), dtype=np.int64))
        ends = np.cumsum(self.grid.sizes(cells))
        places = np.arange(first, last, dtype=np.int64)
        if self.shuffle is Shuffle.CHUNK:
            places = Permutation(int(ends[-1]), key_of(self.seed, self.epoch, _WITHIN, buffer))(places)
        cell = np.searchsorted(ends, places, side="right")
        inner = places - np.append(0, ends[:-1])[cell]
        return self.grid.within(cells[cell], inner)


class _Same(Permutation):
    """Every number stays where it is."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, places: Int64) -> Int64:
        return places
