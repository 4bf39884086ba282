"""Chunks of one variable that were read for a run of samples, and the samples cut from them.

A stage reads whole chunks, each once: what the stage before it has already, is taken from there. Threads: made by the
thread that reads, then the consumer's. Fork and pickle: none.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.data.lost import Watch
from gpuload.errors import ChunkError
from gpuload.request import Int64
from gpuload.zarr.variable import Variable

Places = tuple["range | Int64", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Along:
    """How samples lie along one dimension of a variable.

    Parameters
    ----------
    dim
        Number of the dimension in the variable.
    column
        The column of the samples' starts that is meant.
    window
        Elements of a sample.
    kept
        Whether batches have this dimension; a single element without a window has not.
    bounds
        int64 (chunks + 1,): where each chunk begins, and the length.
    """

    dim: int
    column: int
    window: int
    kept: bool
    bounds: Int64

    def chunks(self, starts: Int64) -> tuple[Int64, Int64]:
        """The first and the last chunk of each sample, int64 (n,), by number."""
        first = np.searchsorted(self.bounds, starts, side="right") - 1
        if self.window == 1:
            return first, first
        return first, np.searchsorted(self.bounds, starts + (self.window - 1), side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """A variable, and the dimensions along which samples are cut from it.

    Parameters
    ----------
    variable
        What is read.
    axes
        One or more, in the order of the variable's dimensions.
    reuse
        Whether chunks of one stage may serve the next; without, each stage reads just the rows it needs.
    """

    variable: Variable
    axes: tuple[Along, ...]
    reuse: bool

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of a sample in a batch."""
        windows = {along.dim: along for along in self.axes}
        return tuple(
            windows[dim].window if dim in windows else length
            for dim, length in enumerate(self.variable.shape)
            if dim not in windows or windows[dim].kept
        )

    def stage(
        self, starts: Int64, before: Stage | None, watch: Watch, *, skip: bool, floor: int | None = None
    ) -> Stage:
        """Read what samples need.

        Parameters
        ----------
        starts
            int64 (n, columns): where each starts.
        before
            The stage before, of the same variable.
        watch
            Tells chunks that were lost from chunks that were never there.
        skip
            Leave out samples whose chunks cannot be read, instead of raising.
        floor
            Where samples come in order: along the first column none that follows starts before it. Chunks that one of
            those may need are kept from the stage before.

        Raises
        ------
        ChunkError
            One cannot be read.
        """
        kind = Rows if len(self.axes) == 1 else Boxes
        return kind(self, starts, before if self.reuse else None, watch, skip=skip, floor=floor)


class Stage(ABC):
    """What was read of one variable for n samples.

    Attributes
    ----------
    good
        bool (n,): the samples whose chunks could all be read.
    errors
        Those of the chunks that could not.
    """

    good: npt.NDArray[np.bool_]

    def __init__(self, of: Sampled, watch: Watch, *, skip: bool) -> None:
        self.of = of
        self.errors: list[ChunkError] = []
        self._device = of.variable.result_device
        self._watch, self._skip = watch, skip

    @abstractmethod
    def take(self, samples: Int64) -> Any:
        """A new array (m, *sample_shape) of the `samples`, int64 (m,), on the caller's current stream."""

    def _read(self, places: Places, out: Any) -> bool:
        """Fill `out`; False where a chunk cannot be read and is to be skipped."""
        try:
            self._watch.fill(self.of.variable, places, out)
        except ChunkError as error:
            if not self._skip:
                raise
            self.errors.append(error)
            return False
        return True


class Rows(Stage):
    """Of a variable that is sampled along one dimension: rows of chunks, one behind the other in one array."""

    def __init__(
        self, of: Sampled, starts: Int64, before: Stage | None, watch: Watch, *, skip: bool, floor: int | None
    ) -> None:
        super().__init__(of, watch, skip=skip)
        self._along = along = of.axes[0]
        self._starts = starts[:, along.column]
        first, last = along.chunks(self._starts)
        needed = _between(first, last)
        known = before if isinstance(before, Rows) else None
        if known is not None and floor is not None and along.column:
            needed = np.union1d(needed, known.chunks)  # they come again, with the next place along the first dimension
        old = np.isin(needed, known.chunks) if known is not None else np.zeros(len(needed), bool)
        chunks = np.concatenate((needed[old], needed[~old]))
        sizes = along.bounds[chunks + 1] - along.bounds[chunks]
        ends = np.cumsum(sizes)
        self._sorted = np.argsort(chunks, kind="stable")
        self.chunks: Int64 = chunks[self._sorted]
        self._base = (ends - sizes)[self._sorted]  # the row where each of these begins
        shape = of.variable.shape
        self._rest = shape[: along.dim] + shape[along.dim + 1 :]
        rows = int(ends[-1])
        self.block = self._device.empty((rows, *self._rest), of.variable.result_dtype)
        count = int(old.sum())
        if known is not None and count:
            self._copy(known, chunks[:count], ends[:count])
        bad = self._read_new(chunks[count:], int(ends[count - 1]) if count else 0)
        self.good = np.ones(len(starts), bool)
        for chunk in bad:
            self.good &= (last < chunk) | (first > chunk)
        if bad:  # not to be handed on
            keep = ~np.isin(self.chunks, bad)
            self.chunks, self._base = self.chunks[keep], self._base[keep]

    def _copy(self, known: Rows, chunks: Int64, ends: Int64) -> None:
        bounds = self._along.bounds
        for chunk, end in zip(chunks.tolist(), ends.tolist(), strict=True):
            size = int(bounds[chunk + 1] - bounds[chunk])
            start = int(known._base[np.searchsorted(known.chunks, chunk)])
            self.block[end - size : end] = known.block[start : start + size]

    def _read_new(self, chunks: Int64, row: int) -> list[int]:
        """Read chunks into the rows from `row` on; returns those that could not be read."""
        if not len(chunks):
            return []
        bounds = self._along.bounds
        if chunks[-1] - chunks[0] == len(chunks) - 1:
            rows: range | Int64 = range(int(bounds[chunks[0]]), int(bounds[chunks[-1] + 1]))
        else:
            sizes = bounds[chunks + 1] - bounds[chunks]
            shift = np.repeat(bounds[chunks] - (np.cumsum(sizes) - sizes), sizes)
            rows = np.arange(int(sizes.sum())) + shift
        if self._read(self._places(rows), self._as_variable(self.block[row : row + len(rows)])):
            return []
        self.errors.clear()
        bad = []
        for chunk in chunks.tolist():
            inside = range(int(bounds[chunk]), int(bounds[chunk + 1]))
            if not self._read(self._places(inside), self._as_variable(self.block[row : row + len(inside)])):
                bad.append(chunk)
            row += len(inside)
        return bad

    def _places(self, rows: range | Int64) -> Places:
        shape, dim = self.of.variable.shape, self._along.dim
        return (*map(range, shape[:dim]), rows, *map(range, shape[dim + 1 :]))

    def _as_variable(self, rows: Any) -> Any:
        """Rows with their dimension where the variable has it."""
        dim = self._along.dim
        return rows.transpose((*range(1, dim + 1), 0, *range(dim + 1, rows.ndim))) if dim else rows

    def take(self, samples: Int64) -> Any:
        along, xp = self._along, self._device.xp
        places = self._starts[samples][:, None] + np.arange(along.window)
        chunk = np.searchsorted(along.bounds, places, side="right") - 1
        index = self._base[np.searchsorted(self.chunks, chunk)] + places - along.bounds[chunk]
        taken = xp.take(self.block, xp.asarray(index.ravel()), 0)
        if not along.kept:
            return taken
        taken = taken.reshape((len(samples), along.window, *self._rest))
        dim = along.dim
        return taken.transpose((0, *range(2, dim + 2), 1, *range(dim + 2, taken.ndim))) if dim else taken


class Boxes(Stage):
    """Of a variable that is sampled along several dimensions: of each chunk an array, whole along the other ones."""

    def __init__(
        self, of: Sampled, starts: Int64, before: Stage | None, watch: Watch, *, skip: bool, floor: int | None
    ) -> None:
        super().__init__(of, watch, skip=skip)
        self._starts = starts[:, [along.column for along in of.axes]]
        chunks = [along.chunks(column) for along, column in zip(of.axes, self._starts.T, strict=True)]
        self._first = np.stack([first for first, _ in chunks], axis=1)
        self._last = np.stack([last for _, last in chunks], axis=1)
        known = before.boxes if isinstance(before, Boxes) else {}
        self.boxes: dict[tuple[int, ...], Any] = {}
        bad = []
        for chunk in _boxes_between(self._first, self._last):
            found = known.get(chunk)
            if found is None:
                places = self._places(chunk)
                found = self._device.empty([len(place) for place in places], of.variable.result_dtype)
                if not self._read(places, found):
                    bad.append(chunk)
                    continue
            self.boxes[chunk] = found
        if floor is not None:
            slowest = [number for number, along in enumerate(of.axes) if along.column == 0]
            for chunk, found in known.items():
                if all(of.axes[n].bounds[chunk[n] + 1] > floor for n in slowest):
                    self.boxes.setdefault(chunk, found)
        self.good = np.ones(len(starts), bool)
        for chunk in bad:
            self.good &= ((self._last < chunk) | (self._first > chunk)).any(axis=1)

    def _places(self, chunk: Sequence[int]) -> tuple[range, ...]:
        places = [range(length) for length in self.of.variable.shape]
        for along, number in zip(self.of.axes, chunk, strict=True):
            places[along.dim] = range(int(along.bounds[number]), int(along.bounds[number + 1]))
        return tuple(places)

    def take(self, samples: Int64) -> Any:
        variable, axes = self.of.variable, self.of.axes
        shape = list(variable.shape)
        for along in axes:
            shape[along.dim] = along.window
        out = self._device.empty((len(samples), *shape), variable.result_dtype)
        for row, sample in enumerate(samples.tolist()):
            ranges = [range(a, b + 1) for a, b in zip(self._first[sample], self._last[sample], strict=True)]
            for chunk in itertools.product(*ranges):
                source: list[Any] = [slice(None)] * len(shape)
                target: list[Any] = [row, *source]
                for along, number, start in zip(axes, chunk, self._starts[sample].tolist(), strict=True):
                    begin = int(along.bounds[number])
                    low, high = max(begin, start), min(int(along.bounds[number + 1]), start + along.window)
                    source[along.dim] = slice(low - begin, high - begin)
                    target[along.dim + 1] = slice(low - start, high - start)
                out[tuple(target)] = self.boxes[chunk][tuple(source)]
        return out.reshape((len(samples), *self.of.sample_shape))


def _between(first: Int64, last: Int64) -> Int64:
    """All numbers from a `first` to its `last`, each once, ascending."""
    span = int((last - first).max())
    return np.unique(np.concatenate([np.minimum(first + step, last) for step in range(span + 1)]))


def _boxes_between(first: Int64, last: Int64) -> list[tuple[int, ...]]:
    """The same of coordinates, int64 (n, k)."""
    spans = (last - first).max(axis=0)
    corners = [np.minimum(first + step, last) for step in itertools.product(*(range(int(n) + 1) for n in spans))]
    return [tuple(row) for row in np.unique(np.concatenate(corners), axis=0).tolist()]
