"""`Array`: one zarr array, read chunk by chunk through registered file handles into one destination."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from gpuload.errors import (
    DestinationError,
    DeviceError,
    ReadOnlyError,
    SelectionError,
    UnsupportedArrayError,
)
from gpuload.files.lock import locked
from gpuload.memory.device import HOST, Device, of
from gpuload.planning.placement import overlaps
from gpuload.planning.selection import AnySelection, blocks, normalise, orthogonal, vectorised
from gpuload.request import Int64
from gpuload.zarr import _compat, formatting
from gpuload.zarr.append import append
from gpuload.zarr.attributes import Attributes
from gpuload.zarr.layout import Layout, layout_of
from gpuload.zarr.reader import Reader, device_dtype
from gpuload.zarr.source import Source
from gpuload.zarr.write import ArrayWriter

Understand = Callable[[Any, tuple[int, ...]], AnySelection]  # from what is between the brackets, and a shape


class Array:
    """A zarr array in local files; nothing is read but what is indexed.

    Threads: safe. Fork: a host read works in the child, a device read raises `AfterForkError`. Pickle: by path and
    options; the metadata are read again.

    Attributes
    ----------
    shape, ndim, size, nbytes
        As NumPy has them.
    dtype
        zarr's dtype, in zarr's byte order: that of results on the host. Results on a device are native-endian.
    chunks
        Shape of the chunks that are read one by one (inner chunks where there are shards); None if they differ in
        shape.
    shards
        Shape of the shards, or None.
    dims
        Names of the dimensions, None for each without a name.
    attrs
        User attributes; with ``mode="r+"`` they may be changed, as `update_attributes` does.
    name
        Path of the array below the root of its store, ``""`` at the root.
    device
        Where results are made: ``"cpu"`` or ``"cuda:N"``. What a device cannot hold (strings, structures, objects)
        comes as a NumPy array all the same, recorded with the reason ``host-dtype``. Dates and durations come to a
        device as the int64 they are stored as; `time_unit` and `as_times` say what these mean.
    """

    def __init__(self, source: Source, metadata: _compat.Metadata, fields: Sequence[str] = ()) -> None:
        self._source = source
        description = _compat.describe(metadata)
        if _compat.loses_byte_order(metadata):
            (document,) = source.fetch([f"{source.prefix}zarr.json"])
            if document is not None:
                description = _compat.with_codecs_of(description, document.tobytes())
        whole = layout_of(description)
        references = source.references
        if references is not None and (whole.index is not None or references.unpacks(source.prefix)):
            whole = whole.as_foreign()  # the shards are ranges themselves; or what is stored has to be unpacked first
        self._layout = whole
        for name in fields:
            self._layout = self._layout.field(name)
        self._metadata = metadata
        self._description = description
        self._reader = Reader(self._layout, source, metadata, whole=whole)
        self.name = source.path
        self.chunks = description.chunks
        self.shards = description.shards
        self.dims = description.dims
        self.attrs = Attributes(source, description.attrs)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._layout.dtype

    @property
    def ndim(self) -> int:
        return len(self._layout.shape)

    @property
    def size(self) -> int:
        return math.prod(self._layout.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self._layout.dtype.itemsize

    @property
    def device(self) -> str:
        return self._source.device.name

    @property
    def fields(self) -> dict[str, Array]:
        """Of an array of structures, each field as an array of its own, that reads nothing else into its results.

        ``array.fields["flux"][2:5]`` is ``array["flux", 2:5]``, and goes to the device where that can hold the field.
        """
        return {name: self._of_field(name) for name in self.dtype.names or ()}

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """Of what indexing gives: `dtype` on the host; on a device native-endian, int64 for dates and durations."""
        return self.dtype if self.result_device.is_host else device_dtype(self.dtype)

    @property
    def result_device(self) -> Device:
        """Where results are made: `device`, or the host for what that cannot hold."""
        device = self._source.device
        if not device.is_host and not device.holds(device_dtype(self.dtype)):
            return HOST
        return device

    @property
    def time_unit(self) -> str | None:
        """Of dates and durations what one count of them is: ``"s"``, ``"25us"``; None for other dtypes."""
        if self.dtype.kind not in "mM":
            return None
        unit, count = np.datetime_data(self.dtype)
        return unit if count == 1 else f"{count}{unit}"

    def as_times(self, result: Any) -> npt.NDArray[Any]:
        """Dates or durations in host memory, of a result of this array.

        Parameters
        ----------
        result
            What reading gave: a CuPy array of int64 on a device, where the least one is NaT; or a NumPy array.

        Raises
        ------
        UnsupportedArrayError
            The array has neither dates nor durations.
        """
        if self.dtype.kind not in "mM":
            raise UnsupportedArrayError(f"{self!r} has neither dates nor durations")
        host = result if isinstance(result, np.ndarray) else result.get()
        return np.asarray(host).astype(self.dtype.newbyteorder("="), copy=False)

    @property
    def source(self) -> Source:
        """Where it is and how it was opened."""
        return self._source

    @property
    def description(self) -> _compat.Description:
        """What zarr-python understands of its metadata."""
        return self._description

    @property
    def layout(self) -> Layout:
        """How the elements lie in the files."""
        return self._layout

    def chunk_bounds(self, dim: int) -> Int64:
        """int64 (chunks + 1,): where each chunk, of shards each inner one, begins along `dim`; at last the length."""
        size = self.shape[dim]
        edge = self.chunks[dim] if self.chunks is not None else self._layout.chunk_edges[dim]
        starts = np.arange(0, size, max(edge, 1)) if isinstance(edge, int) else np.cumsum((0, *edge[:-1]))
        return np.append(starts, size).astype(np.int64, copy=False)

    def absent(self, keys: tuple[slice | Int64, ...]) -> Iterator[str]:
        """The keys, below the store's root, of the chunks or shards of an `oindex` selection that have no file."""
        for key, there in self._reader.files(orthogonal(keys, self.shape)):
            if not there:
                yield key

    def on_host(self) -> Array:
        """The same array with results in host memory."""
        source = self._source
        here = Source(source.store, source.path, zarr_format=source.zarr_format, device=HOST, strict=source.strict)
        return Array(here, self._metadata, self._layout.fields)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __getitem__(self, selection: Any) -> Any:
        """Read what NumPy's indexing gives: integers, slices of any step, ``...``, None, and index arrays.

        An index array is a list, or an array in host memory: integers in any order, with repeats, of any shape, or
        booleans, of the shape of the dimensions it stands for. Several of them are broadcast to each other and select
        points, as in NumPy; `oindex` has each select along its own axis. The name of a field of an array of structures
        selects that field, several names a structure of those, as zarr has it: ``array["flux", 2:5]``.

        Returns
        -------
        array
            CuPy array on `device`, ready on its current stream, or NumPy array; 0-d for an element, as CuPy does.

        Raises
        ------
        SelectionError
            An index that is out of bounds, a mask of another shape, or what is no index.
        ChunkError
            A chunk that cannot be read or decoded; names its key. Nothing is returned.
        """
        return self._read(normalise, selection, None)

    def __setitem__(self, selection: Any, value: Any) -> None:
        """Write `value` into the chunks that the selection touches, each of them replaced as a whole.

        Parameters
        ----------
        selection
            As for reading by these brackets.
        value
            NumPy or CuPy array, or scalar, that can be broadcast to the shape of the selection. Of an element that is
            selected more than once, the last value counts.

        Raises
        ------
        ReadOnlyError
            The array was not opened with ``mode="r+"``.
        SelectionError, AssignmentError
            An index that does not fit the array, a value that does not fit the selection.
        ChunkError
            A chunk that cannot be written; or read, where a part of it stays. Others may have been written by then.
        """
        self._assign(normalise, selection, value)

    def append(self, values: Any, axis: int = 0, *, durable: bool | None = None) -> None:
        """Add `values` behind the end along `axis`; the array has its new shape afterwards.

        The end is where it is now in the store: what others appended since this array was opened stays. Who appends at
        the same time, from another thread or process of this machine, waits; not so on file systems that do not lock
        directories, as NFS, nor where zarr-python appends.

        Readers see the old shape until all chunks are written. Others that have the array open must open it again.

        Parameters
        ----------
        values
            NumPy or CuPy array of this array's shape, but for any length along `axis`.
        axis
            Dimension to grow.
        durable
            Have it on the drive before this returns; None: as configured.

        Raises
        ------
        ReadOnlyError
            The array was not opened with ``mode="r+"``.
        AssignmentError
            Values of another shape.
        SelectionError
            This is a single field of structures.
        UnsupportedArrayError
            Chunks that differ in shape.
        ChunkError
            As by assignment; the shape is the old one then.
        """
        if self._layout.fields:
            raise SelectionError("single fields can only be read")
        source = self._source
        if source.store.read_only:
            raise ReadOnlyError(f"{source!r} was opened for reading; to append, open it with mode='r+'")
        with locked(source.root, source.prefix):
            # Not the shape and the attributes that it was opened with: others may have appended since.
            now = _reopen(source, ())
            append(source, now._metadata, now.shape, values, axis, durable)  # noqa: SLF001 - an array as this one
        self.__dict__.update(_reopen(self._source, self._layout.fields).__dict__)

    def update_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set user attributes, all of them by one write; others stay. The same as ``array.attrs.update``.

        Readers see the attributes before or after, and so they do in the consolidated metadata of groups above.

        Raises
        ------
        ReadOnlyError
            The array was not opened with ``mode="r+"``.
        AssignmentError
            What JSON has no form for.
        ChunkWriteError
            The kernel refuses.
        """
        self.attrs.update(attributes)

    @property
    def oindex(self) -> Indexer:
        """Orthogonal selections, as zarr's ``oindex``: ``array.oindex[rows, :, mask]``.

        Along each axis stands an integer, a slice of any step, a list or array of integers in any order and with
        repeats, or a mask; each selects along its own axis alone. The result has the axes in the array's order,
        without those of integers.
        """
        return self._indexer(orthogonal)

    @property
    def vindex(self) -> Indexer:
        """Points, as zarr's ``vindex``: ``array.vindex[rows, columns]``, or a mask of the array's shape.

        Index arrays of any shape are broadcast to each other; what they have in common comes first in the result,
        before the axes of slices. Each chunk that holds a point is read once, in whatever order and however often its
        points are listed.
        """
        return self._indexer(vectorised)

    @property
    def blocks(self) -> Indexer:
        """Whole chunks, by their place on the grid, as zarr's ``blocks``: ``array.blocks[0, -1]``, ``blocks[2:4]``.

        Counted are the chunks that have a key: shards, where there are shards. Every axis stays, also that of an
        integer.
        """
        edges = self._layout.chunk_edges
        return self._indexer(lambda keys, shape: blocks(keys, shape, edges))

    def read(self, sel: Any = ..., out: Any = None) -> Any:
        """Read a selection, into `out` if it is given.

        Parameters
        ----------
        sel
            As for indexing; by default everything.
        out
            NumPy or CuPy array of just the shape of the selection, with any strides. Its dtype is `dtype`; in native
            byte order on a device. Its content is undefined after an error.

        Returns
        -------
        array
            `out`, or a new array.

        Raises
        ------
        DestinationError
            `out` has another shape or dtype, is read-only, or is no array the device of this Array can fill.
        """
        return self._read(normalise, sel, out)

    def to_dask(self, chunks: Any = "auto") -> Any:
        """As a dask array that reads where this does: `gpuload.dask.from_zarr`, where `chunks` is explained."""
        # By name, because that package stands above this one.
        return importlib.import_module("gpuload.dask").from_zarr(self, chunks=chunks)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("an array in files cannot become a NumPy array without a copy")
        selection = normalise(..., self.shape)
        out = HOST.empty(selection.shape, self.dtype)
        self._reader.fill(selection, out)
        result: npt.NDArray[Any] = out if dtype is None else out.astype(dtype, copy=False)
        return result

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        part = self.part(self.name)
        return f"<gpuload.Array{name} {part.dims} {part.dtype} {part.chunks} on {self.device}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        # What draws arrays knows of groups, too.
        page: str = importlib.import_module("gpuload.zarr.outline").array_page(self)
        return page

    def part(self, name: str) -> formatting.Part:
        """The line of this array in what its group holds."""
        shards = f" shards={self.shards}" if self.shards else ""
        return formatting.Part(
            name, formatting.dims(self.dims, self.shape), str(self.dtype), f"chunks={self.chunks}{shards}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._source, self._layout.fields)

    def _of_field(self, name: str) -> Array:
        return Array(self._source, self._metadata, (*self._layout.fields, name))

    def _indexer(self, understand: Understand) -> Indexer:
        return Indexer(
            lambda keys, out: self._read(understand, keys, out),
            lambda keys, value: self._assign(understand, keys, value),
        )

    def _assign(self, understand: Understand, keys: Any, value: Any) -> None:
        """Write `value` where `understand` finds `keys`."""
        if self._layout.fields or _names(keys)[0]:
            raise SelectionError("single fields can only be read: assign whole structures")
        ArrayWriter(self._source, self._metadata, self._layout).assign(understand(keys, self.shape), value)

    def _read(self, understand: Understand, keys: Any, out: Any) -> Any:
        """Read what `understand` makes of `keys`, among which there may be names of fields."""
        names, keys = _names(keys)
        if len(names) == 1:
            return self._of_field(names[0])._read(understand, keys, out)  # noqa: SLF001 - an array as this one
        selection = understand(keys, self.shape)
        if names:
            return self._make_fields(names, selection, out)
        if out is None:
            return self._make(selection)
        self._check_destination(out, selection)
        self._reader.fill(selection, out)
        return out

    def _make_fields(self, names: Sequence[str], selection: AnySelection, out: Any) -> Any:
        """Structures of some of the fields, in that order: in host memory, as all structures are."""
        dtype = np.dtype([(name, self._layout.field(name).dtype) for name in names])
        if out is None:
            out = HOST.empty(selection.shape, dtype)
        self._check_destination(out, selection, dtype)
        whole = np.empty(selection.shape, self.dtype)
        self._reader.fill(selection, whole)
        for name in names:
            out[name] = whole[name]
        return out

    def _make(self, selection: AnySelection) -> Any:
        out = self.result_device.empty(selection.shape, self.result_dtype)
        self._reader.fill(selection, out)
        return out

    def _check_destination(self, out: Any, selection: AnySelection, dtype: np.dtype[Any] | None = None) -> None:
        try:
            device = of(out)
        except DeviceError as error:
            raise DestinationError(f"out: {error}") from error
        expected = self.result_device
        if device.name != expected.name:
            raise DestinationError(f"out is on {device.name}, but {self!r} gives results on {expected.name}")
        dtype = dtype or self.result_dtype
        if out.dtype != dtype:
            raise DestinationError(f"out has dtype {out.dtype!r}, the array {dtype!r}")
        if tuple(out.shape) != selection.shape:
            raise DestinationError(f"out has shape {tuple(out.shape)}, the selection {selection.shape}")
        if device.is_host and not out.flags.writeable:
            raise DestinationError("out is read-only")
        if overlaps(out.shape, out.strides, out.dtype.itemsize):
            raise DestinationError(f"out has elements that share memory: shape {out.shape}, strides {out.strides}")


class Indexer:
    """One way to select from an `Array`: between brackets, or with a destination.

    Only chunks that hold a selected element are read or written, and each of them once.

    Threads: safe. Fork: as its `Array`. Pickle: none, take it from its `Array`.
    """

    def __init__(self, read: Callable[[Any, Any], Any], assign: Callable[[Any, Any], None]) -> None:
        self._read, self._assign = read, assign

    def __getitem__(self, selection: Any) -> Any:
        """Read a selection; returns and raises what indexing an `Array` does."""
        return self._read(selection, None)

    def __setitem__(self, selection: Any, value: Any) -> None:
        """Write `value` where the selection is; raises what assigning to an `Array` does."""
        self._assign(selection, value)

    def read(self, sel: Any, out: Any = None) -> Any:
        """Read a selection, into `out` if it is given, under the conditions of `Array.read`."""
        return self._read(sel, out)


def _names(keys: Any) -> tuple[list[str], Any]:
    """The names of fields among the keys of a selection, and the rest of it."""
    if isinstance(keys, str):
        return [keys], ...
    if not isinstance(keys, tuple):
        return [], keys
    names = [key for key in keys if isinstance(key, str)]
    return names, tuple(key for key in keys if not isinstance(key, str)) if names else keys


def _reopen(source: Source, fields: tuple[str, ...]) -> Array:
    node = source.node()
    if not isinstance(node, zarr.Array):
        raise UnsupportedArrayError(f"{source!r} is no array any more")
    return Array(source, node.metadata, fields)
