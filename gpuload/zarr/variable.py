"""`Variable`: arrays joined along a dimension, and parts of them, that are read when they are indexed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.errors import SelectionError
from gpuload.memory.device import HOST, Device
from gpuload.planning.axis import Axis, AxisRange
from gpuload.planning.selection import PointSelection, normalise
from gpuload.request import Int64
from gpuload.zarr import formatting
from gpuload.zarr.array import Array

Index = range | Int64 | int  # what is taken along a dimension; an integer takes the dimension away


@dataclass(frozen=True, eq=False, repr=False)
class Variable:
    """Arrays of one name, joined along a dimension without a copy, and the part of them that was selected.

    Indexed like an `Array` by integers, slices and index arrays along one dimension; nothing is read before.

    Threads: safe. Fork: as its arrays. Pickle: by path and options.

    Parameters
    ----------
    name
        Its name in its dataset.
    parts
        The arrays, one behind the other along dimension `axis`; alike but for their length along it.
    axis
        The dimension that they are joined along.
    stacked
        That dimension is a new one, and each array is one element of it.
    index
        What is taken along each dimension of the joined array.
    joined_dims
        Names of the dimensions of the joined array.
    """

    name: str
    parts: tuple[Array, ...]
    axis: int
    stacked: bool
    index: tuple[Index, ...]
    joined_dims: tuple[str | None, ...]

    @classmethod
    def of(cls, name: str, array: Array) -> Variable:
        """All of one array."""
        return cls(name, (array,), 0, stacked=False, index=tuple(map(range, array.shape)), joined_dims=array.dims)

    @property
    def dims(self) -> tuple[str | None, ...]:
        """Names of the dimensions, None for each without a name."""
        return tuple(dim for dim, index in zip(self.joined_dims, self.index, strict=True) if not _is_one(index))

    @property
    def shape(self) -> tuple[int, ...]:
        """As NumPy has it."""
        return tuple(len(index) for index in self.index if not isinstance(index, int))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        """zarr's dtype, that of results on the host."""
        return self.parts[0].dtype

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """Of what indexing gives."""
        return self.parts[0].result_dtype

    @property
    def result_device(self) -> Device:
        """Where results are made: the arrays' device, or the host for what that cannot hold."""
        return self.parts[0].result_device

    @property
    def attrs(self) -> Mapping[str, Any]:
        """User attributes of the first array."""
        return self.parts[0].attrs

    @property
    def device(self) -> str:
        return self.parts[0].device

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __getitem__(self, selection: Any) -> Any:
        """Read what NumPy's indexing gives: integers, slices of any step, ``...``, None, one index array.

        Returns
        -------
        array
            CuPy array on `device`, ready on its current stream, or NumPy array.

        Raises
        ------
        SelectionError
            An index out of bounds; several index arrays, which an `Array` alone can read.
        ChunkError
            A chunk that cannot be read or decoded; names its key.
        """
        selected = normalise(selection, self.shape)
        if isinstance(selected, PointSelection):
            raise SelectionError(
                f"{self!r}: several index arrays, and masks of several dimensions, select points, which can be read of "
                "a whole array alone: gpuload.open it and index that"
            )
        out = self.result_device.empty(selected.shape, self.result_dtype)
        self.fill([_values(axis) for axis in selected.axes], selected.as_box(out))
        return out

    def fill(self, places: Sequence[range | Int64], out: Any) -> None:
        """Read an orthogonal selection.

        Parameters
        ----------
        places
            Per dimension what to read along it: a range or int64 coordinates.
        out
            NumPy or CuPy array with one dimension each, of `result_dtype`, with any strides.
        """
        if 0 in out.shape:
            return
        box = out[tuple(None if isinstance(index, int) else slice(None) for index in self.index)]
        front = (slice(None),) * self.axis
        for part, keys, place in self._reads(places):
            part.oindex.read(keys, out=box[(*front, place.start if self.stacked else place)])

    def absent(self, places: Sequence[range | Int64]) -> Iterator[tuple[Array, str]]:
        """The chunks or shards of the same selection that have no file: array, and key below the root of its store."""
        if all(len(place) for place in places):
            for part, keys, _ in self._reads(places):
                for key in part.absent(keys):
                    yield part, key

    def bounds(self, dim: int) -> Int64:
        """int64 (chunks + 1,): where along dimension `dim` another chunk begins, from 0 to the length.

        Of chunks in shards these are the inner chunks. Where coordinates are selected that are not in order, a chunk
        may begin several times.
        """
        base = [d for d, index in enumerate(self.index) if not isinstance(index, int)][dim]
        index = self.index[base]
        assert not isinstance(index, int)
        edges = self._edges(base)
        if isinstance(index, range) and index.step > 0:
            bounds = np.clip(-(-(edges - index.start) // index.step), 0, len(index))
            return np.unique(np.concatenate(([0], bounds, [len(index)])))
        chunk = np.searchsorted(edges, np.asarray(index), side="right")
        return np.concatenate(([0], np.flatnonzero(np.diff(chunk)) + 1, [len(index)])).astype(np.int64)

    def select(self, dim: int, key: Any) -> Variable:
        """The same with only a part along dimension `dim`: an integer, a slice, an index array or a mask.

        Raises
        ------
        SelectionError
            It does not fit.
        """
        selected = normalise((slice(None),) * dim + (key,), self.shape)
        if isinstance(selected, PointSelection):
            raise SelectionError(f"an index of several dimensions cannot select along {self.dims[dim]!r}")
        base = [d for d, index in enumerate(self.index) if not isinstance(index, int)][dim]
        index = self.index[base]
        assert not isinstance(index, int)
        taken: Index = _take(index, _values(selected.axes[dim]))
        if dim not in selected.result:
            assert not isinstance(taken, int)
            taken = int(taken[0])
        return replace(self, index=(*self.index[:base], taken, *self.index[base + 1 :]))

    def _edges(self, base: int) -> Int64:
        """Where chunks begin along a dimension of the joined array, and its length."""
        if base == self.axis and self.stacked:
            return np.arange(len(self.parts) + 1)
        own = base - (self.stacked and base > self.axis)
        if base != self.axis:
            return self.parts[0].chunk_bounds(own)
        edges, offset = [np.zeros(1, np.int64)], 0
        for part in self.parts:
            edges.append(part.chunk_bounds(own)[1:] + offset)
            offset += part.shape[own]
        return np.unique(np.concatenate(edges))

    def _reads(self, places: Sequence[range | Int64]) -> Iterator[tuple[Array, tuple[slice | Int64, ...], slice]]:
        """What to read of which array, and the part of the result, along `axis`, that it is."""
        visible = iter(places)
        base = [
            range(index, index + 1) if isinstance(index, int) else _take(index, next(visible)) for index in self.index
        ]
        if not self.parts[0].shape and not self.stacked:
            yield self.parts[0], (), slice(None)
            return
        for part, inside, first, last in self._runs(base[self.axis]):
            keys = [_key(inside if d == self.axis else b) for d, b in enumerate(base)]
            if self.stacked:
                del keys[self.axis]
            yield part, tuple(keys), slice(first, last)

    def _runs(self, along: range | Int64) -> Iterator[tuple[Array, range | Int64, int, int]]:
        """Of coordinates along `axis`, each run that lies in one part: coordinates inside it, and their places."""
        if len(self.parts) == 1:
            yield self.parts[0], along, 0, len(along)
            return
        lengths = [1 if self.stacked else part.shape[self.axis] for part in self.parts]
        ends = np.cumsum(lengths)
        coordinates = np.asarray(along, np.int64)
        part = np.searchsorted(ends, coordinates, side="right")
        changes = np.ones(len(part), bool)
        # Each array of a stack is one element: a run of several could not be read at once.
        changes[1:] = True if self.stacked else part[1:] != part[:-1]
        firsts = np.flatnonzero(changes)
        for first, last in zip(firsts.tolist(), [*firsts[1:].tolist(), len(part)], strict=True):
            number = int(part[first])
            start = int(ends[number]) - lengths[number]
            inside = along[first:last]
            if isinstance(inside, range):
                inside = range(inside.start - start, inside.stop - start, inside.step)
            else:
                inside = inside - start
            yield self.parts[number], inside, first, last

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a variable in files cannot become a NumPy array without a copy")
        values = self.load_host()
        return values if dtype is None else values.astype(dtype, copy=False)

    def load_host(self) -> npt.NDArray[Any]:
        """All of it in host memory, as NumPy array of `dtype`."""
        out = HOST.empty(self.shape, self.dtype)
        on_host = replace(self, parts=tuple(part.on_host() for part in self.parts))
        on_host.fill([range(n) for n in self.shape], out)
        result: npt.NDArray[Any] = out
        return result

    def __repr__(self) -> str:
        name = f" {formatting.printable(self.name)!r}" if self.name else ""
        joined = f" of {len(self.parts)} arrays" if len(self.parts) > 1 else ""
        dims = formatting.dims(self.dims, self.shape)
        return f"<gpuload.Variable{name} {dims} {self.dtype}{joined} on {self.device}>"

    def part(self, name: str) -> formatting.Part:
        """Its line in what its dataset holds."""
        joined = f"{len(self.parts)} arrays" if len(self.parts) > 1 else ""
        return formatting.Part(name, formatting.dims(self.dims, self.shape), str(self.dtype), joined)


def _is_one(index: Index) -> bool:
    return isinstance(index, int)


def _values(axis: Axis) -> range | Int64:
    if isinstance(axis, AxisRange):
        return range(axis.start, axis.start + axis.count * axis.step, axis.step)
    return axis.index


def _take(index: range | Int64, places: range | Int64) -> range | Int64:
    """The coordinates at `places` of `index`."""
    if isinstance(places, range):
        if not len(places):
            return index[:0]
        stop: int | None = places[-1] + (1 if places.step > 0 else -1)
        return index[places.start : None if stop == -1 else stop : places.step]
    if isinstance(index, range):
        return index.start + places * index.step
    return index[places]


def _key(coordinates: range | Int64) -> slice | Int64:
    """What to index with."""
    if not isinstance(coordinates, range):
        return coordinates
    if not len(coordinates):
        return slice(0, 0)
    stop = coordinates[-1] + (1 if coordinates.step > 0 else -1)
    return slice(coordinates.start, None if stop < 0 else stop, coordinates.step)
