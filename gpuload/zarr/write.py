"""`ArrayWriter`: from an assignment to files of chunks, each of them replaced whole.

A chunk that is assigned to in full is written without a look at what was there. Of any other, what stays is read
first, through registered handles as all reads. Each file is written beside its place and renamed into it, so that a
reader sees a chunk or a shard as it was before, or as it is afterwards. Between the chunks of one assignment there is
no such order: a reader may see some of them new and others old.

Two writers of one chunk: the last one to finish wins, whole. Where both assign to parts of it, what the other one
assigned may be lost, as with zarr-python: let writers at one time divide an array along its chunks, or its shards.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from gpuload.config import flag, integer, integer_or_none
from gpuload.errors import AssignmentError, DeviceError, ReadOnlyError
from gpuload.files.writer import Writer
from gpuload.memory.device import GpuDevice, of
from gpuload.planning.selection import AnySelection, PointSelection
from gpuload.request import Int64
from gpuload.zarr import _compat
from gpuload.zarr.layout import Layout
from gpuload.zarr.reader import Reader
from gpuload.zarr.source import Source
from gpuload.zarr.write_encode import Elements, Encoder
from gpuload.zarr.write_plan import Along, Target, waves
from gpuload.zarr.write_shard import Bytes

_R = TypeVar("_R")


class ArrayWriter:
    """Writes into the chunks of one array.

    Threads: safe. Fork: safe. Pickle: none, it is made with its `Array`.

    Parameters
    ----------
    source, metadata, layout
        As the `Reader` of the array has them.
    durable
        As `Writer` has it; None: as configured.
    align
        As `Encoder` has it.

    Raises
    ------
    ReadOnlyError
        The array was opened for reading.
    """

    def __init__(
        self,
        source: Source,
        metadata: _compat.Metadata,
        layout: Layout,
        *,
        durable: bool | None = None,
        align: int | None = None,
    ) -> None:
        if source.store.read_only:
            raise ReadOnlyError(f"{source!r} was opened for reading; to write, open it with mode='r+'")
        self._source, self._layout = source, layout
        self._encoder = Encoder(metadata, layout, align=align)
        # What stays of a chunk is read to the host, which is no fallback from anything.
        on_host = Source(source.store, source.path, zarr_format=source.zarr_format, device="cpu", strict=False)
        self._reader = Reader(layout, on_host, metadata)
        self._durable = flag("durable") if durable is None else durable

    def assign(self, selection: AnySelection, value: Any) -> None:
        """Write `value` where `selection` is; of repeats in a list, or of points, the last one counts, as by NumPy.

        Parameters
        ----------
        value
            Array in host or device memory, or scalar, that can be broadcast to the shape of the selection. Its
            elements are cast as NumPy's assignment does. A device array is copied to the host some chunks at a time;
            the values of points all at once.

        Raises
        ------
        AssignmentError
            A value of another shape, or whose elements cannot be cast.
        ChunkError
            A chunk that cannot be written, or that must be read before and cannot be. Chunks may have been written
            by then.
        """
        layout = self._layout
        array = _as_array(value, layout.dtype)
        if isinstance(selection, PointSelection) and not isinstance(array, np.ndarray):
            array = array.get()
        box = selection.as_box(_broadcast(array, selection.shape))
        if 0 in selection.box:
            return
        self._source.root.refresh()
        elements = max(1, integer("batch_bytes") // max(1, layout.dtype.itemsize))
        threads = integer_or_none("decode.threads") or os.cpu_count() or 1
        with Writer(self._source.root, durable=self._durable) as writer, ThreadPoolExecutor(threads) as pool:
            for wave in waves(selection, layout.shape, layout.chunk_edges, elements):
                chunks = _map(pool, self._merge, wave, _pick(box, wave))
                self._put(writer, pool, [target.coordinates for target in wave], self._encoder.encode(chunks))

    def _put(
        self,
        writer: Writer,
        pool: ThreadPoolExecutor,
        coordinates: Sequence[tuple[int, ...]],
        encoded: Sequence[Bytes | None],
    ) -> None:
        prefix = self._source.prefix
        chunks: Int64 = np.array(coordinates, np.int64).reshape(len(coordinates), len(self._layout.shape))
        keys = [prefix + key for key in self._layout.keys(chunks)]

        def put(key: str, data: Bytes | None) -> None:
            if data is None:
                writer.delete(key)
            else:
                writer.write(key, data.data)

        _map(pool, put, keys, encoded)

    def _merge(self, target: Target, value: Elements) -> Elements:
        """The chunk in full size: what is assigned, what stays, and the fill value beyond the array's end."""
        dtype = self._layout.dtype
        if target.whole and target.visible == target.shape and _is_plain(target) and value.dtype == dtype:
            return value
        chunk = self._encoder.blank(target.shape) if target.visible != target.shape else np.empty(target.shape, dtype)
        if not target.whole:
            here = chunk[tuple(map(slice, target.visible))]
            if here.flags.c_contiguous:
                self._reader.fill(target.present, here)
            else:
                kept = np.empty(target.visible, dtype)
                self._reader.fill(target.present, kept)
                here[...] = kept
        try:
            chunk.transpose(target.axes)[target.inside] = value
        except (TypeError, ValueError, OverflowError) as error:
            raise AssignmentError(
                f"{value.dtype} elements cannot be written to an array of {dtype}: {error}"
            ) from error
        return chunk


def _is_plain(target: Target) -> bool:
    """Whether the value has the chunk's elements in their order."""
    return all(isinstance(part, slice) for part in target.inside)


def hidden(value: Any) -> str | None:
    """What to say of a masked array of which elements are masked: zarr has no place for a mask. None: all is well."""
    if not isinstance(value, np.ma.MaskedArray):
        return None
    flags = np.ascontiguousarray(np.ma.getmaskarray(value))
    # A byte each; in structures a byte a field.
    count = np.count_nonzero(flags.view(np.uint8).reshape(flags.size, -1).any(axis=1)) if flags.size else 0
    if not count:
        return None
    return (
        f"{count} elements are masked, and a zarr array has no mask: give array.filled(value) to store a value in "
        "their place, and numpy.ma.getmaskarray(array) as an array of its own to keep the mask"
    )


def _as_array(value: Any, dtype: np.dtype[Any]) -> Any:
    """`value` as an array of any device; what has no dtype yet gets the array's."""
    masked = hidden(value)
    if masked is not None:
        raise AssignmentError(masked)
    try:
        of(value)
    except DeviceError:
        pass
    else:
        return value
    try:
        return np.asarray(value, None if hasattr(value, "dtype") else dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise AssignmentError(f"{type(value).__name__} cannot be written to an array of {dtype}: {error}") from error


def _broadcast(value: Any, shape: tuple[int, ...]) -> Any:
    """A view of `value` in `shape`; leading axes of one element may be too many, as in NumPy's assignment."""
    given = tuple(value.shape)
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value[0]
    fits = value.ndim <= len(shape) and all(n in (1, m) for n, m in zip(value.shape[::-1], shape[::-1], strict=False))
    if not fits:
        raise AssignmentError(f"a value of shape {given} does not fit a selection of shape {shape}")
    module = np if isinstance(value, np.ndarray) else of(value).xp
    return module.broadcast_to(value, shape)


def _pick(box: Any, wave: Sequence[Target]) -> list[Elements]:
    """What is assigned to each chunk, in host memory; from a device it is one copy for all of them."""
    if isinstance(box, np.ndarray):
        # With the ellipsis an array without dimensions gives an array, not its element, which may be a mere str.
        return [box[(*target.place, ...)] for target in wave]
    device = of(box)
    assert isinstance(device, GpuDevice)
    xp = device.xp
    places = [[along if isinstance(along, slice) else along.ravel() for along in target.place] for target in wave]
    shapes = [tuple(map(_count, place)) for place in places]
    ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
    with device.handle:
        together = device.empty((ends[-1],), box.dtype)
        for place, shape, end in zip(places, shapes, ends, strict=True):
            part = box[tuple(along if isinstance(along, slice) else slice(None) for along in place)]
            for axis, along in enumerate(place):
                if not isinstance(along, slice):
                    part = xp.take(part, xp.asarray(along), axis)
            together[end - math.prod(shape) : end].reshape(shape)[...] = part
        host = together.get()
    return [part.reshape(shape) for part, shape in zip(np.split(host, ends[:-1]), shapes, strict=True)]


def _count(along: Along) -> int:
    """How many elements are taken along a dimension."""
    if not isinstance(along, slice):
        return len(along)
    step = along.step or 1
    stop = -1 if along.stop is None else along.stop  # only a slice that goes down ends before the first element
    return len(range(along.start, stop, step))


def _map(pool: ThreadPoolExecutor, function: Callable[..., _R], *arguments: Iterable[Any]) -> list[_R]:
    """`function` for each, in the pool's threads where there are several; all of them end before an error is raised."""
    rows = list(zip(*arguments, strict=True))
    if len(rows) == 1:
        return [function(*rows[0])]
    futures = [pool.submit(function, *row) for row in rows]
    failure = None
    for future in futures:
        failure = failure or future.exception()
    if failure is not None:
        raise failure
    return [future.result() for future in futures]
