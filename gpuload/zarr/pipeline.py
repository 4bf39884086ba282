"""`DevicePipeline`: zarr-python's codec pipeline that reads whole selections through gpuload's engine.

zarr-python divides a selection among chunks and hands a pipeline the list. This one puts the list together again, has
the planner and the engine read all of it at once, and leaves to zarr-python's own pipeline, with a reason, what they
cannot take: stores that are no local files, arrays that only zarr-python decodes, and writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar, cast

import numpy as np

from gpuload.config import flag
from gpuload.errors import DeviceError, StrictError, UnsupportedArrayError
from gpuload.memory.device import Device, GpuDevice, of
from gpuload.planning.axis import highest
from gpuload.planning.placement import overlaps
from gpuload.planning.projection import gather, gather_points
from gpuload.planning.selection import AnySelection, PointSelection
from gpuload.request import Int64, Reason
from gpuload.zarr import _compat
from gpuload.zarr._compat import (
    BatchedCodecPipeline,
    Description,
    Metadata,
    NDBuffer,
    Store,
    StorePath,
)
from gpuload.zarr.keys import parse_keys
from gpuload.zarr.layout import Layout, Road, layout_of
from gpuload.zarr.noted import NotedStore
from gpuload.zarr.reader import Reader, copy_to_device
from gpuload.zarr.source import Source
from gpuload.zarr.store import DeviceStore

Row = tuple[Any, Any, Any, Any, bool]  # byte getter, chunk spec, what of the chunk, where in the result, whole chunk
SERVED = "gpuload"  # who read, in the counts: this, or the reason why zarr-python's own pipeline did

T = TypeVar("T")

_counts: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


def pipeline_counts() -> dict[tuple[str, str], int]:
    """Chunks that went through a `DevicePipeline` of this process so far.

    Returns
    -------
    counts
        By what was done (``"read"``, ``"write"``) and by whom: ``"gpuload"``, or the reason why zarr-python's own
        pipeline did it, as ``"not-local"``. Shards count as chunks.
    """
    with _lock:
        return dict(_counts)


def _count(what: str, who: str, chunks: int) -> None:
    with _lock:
        _counts[what, who] += chunks


@dataclass(frozen=True)
class DevicePipeline(BatchedCodecPipeline):
    """A codec pipeline for zarr-python; `gpuload.zarr.enable` has zarr-python use it.

    Chunks of local files go through registered handles in one plan a selection, into the array that zarr-python made
    for it, in host or device memory. Everything else is done by zarr-python's own batched pipeline, which this class
    extends: `pipeline_counts` and the record say why, and with ``strict`` it is an error instead.

    Threads: safe. Fork: safe for the host. Pickle: with the array's metadata and its store.

    Parameters
    ----------
    metadata
        Of the array; None for the pipelines that codecs make for themselves, whose chunks are in memory already.
    store
        Of the array.
    """

    metadata: Metadata = field(default=None, compare=False, repr=False)
    store: Store | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Metadata, store: Store) -> Self:
        return replace(_compat.fitted_pipeline(cls, array_metadata), metadata=array_metadata, store=store)

    def evolve_from_array_spec(self, array_spec: Any) -> Self:
        return replace(super().evolve_from_array_spec(array_spec), metadata=self.metadata, store=self.store)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    @cached_property
    def _form(self) -> tuple[Description, Layout] | None:
        """How the array is stored; None where zarr-python itself has to say what is wrong with it."""
        try:
            description = _compat.describe(self.metadata)
            return description, layout_of(description)
        except UnsupportedArrayError:
            return None

    @cached_property
    def _opened(self) -> dict[str, DeviceStore]:
        """The store by its directory: a LocalStore may be moved."""
        return {}

    @property
    def _local(self) -> DeviceStore | None:
        """The store, if it is one of local files and nobody's own way of reading them."""
        if self.store is None:
            return None
        kind = type(self.store)
        if issubclass(kind, DeviceStore) and kind.get is DeviceStore.get:
            return cast("DeviceStore", self.store)
        root = _compat.local_root(self.store)
        if root is None:
            return None
        store = self._opened.get(root)
        return store or self._opened.setdefault(root, DeviceStore(root, read_only=True))

    async def read(self, batch_info: Iterable[Row], out: NDBuffer, drop_axes: tuple[int, ...] = ()) -> Any:
        batch = list(batch_info)
        if not batch or self.store is None:
            return await self._read_by_zarr(batch, out, drop_axes)
        reason = await _in_thread(lambda: self._serve(batch, out, drop_axes))
        if reason is not None:
            _count("read", reason, len(batch))
            return await self._pass_on(batch, out, drop_axes, reason)
        _count("read", SERVED, len(batch))
        if _compat.wants_results(batch[0][1]):
            return await _in_thread(lambda: self._present(batch))
        return ()

    async def write(self, batch_info: Iterable[Row], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        batch = list(batch_info)
        if self.store is not None:
            _count("write", Reason.ZARR_PIPELINE, len(batch))
        if batch and _compat.wants_device(batch[0][1].prototype):
            # One copy of all of it, rather than one a chunk on the way to its file.
            batch, value = _on_host(batch), _compat.host_buffer(value.as_numpy_array())
        await super().write(batch, value, drop_axes)

    def _serve(self, batch: Sequence[Row], out: NDBuffer, drop_axes: tuple[int, ...]) -> Reason | None:
        """Read all of a batch by the engine, or say why it cannot be."""
        getters, specs, sources, places, _ = zip(*batch, strict=True)
        local = self._local
        if local is None:
            return Reason.NOT_LOCAL
        if self._form is None:
            return Reason.HOST_CODEC
        description, layout = self._form
        if layout.road is Road.FOREIGN:
            return Reason.HOST_DTYPE if description.dtype.hasobject or description.dtype.names else Reason.HOST_CODEC
        mine = all(type(getter) is StorePath and getter.store is self.store for getter in getters)
        found = parse_keys([getter.path for getter in getters], description) if mine else None
        if found is None or any(spec.shape != layout.chunk_edges for spec in specs):
            return Reason.ZARR_PIPELINE
        path, chunks = found
        array = out.as_ndarray_like()
        selection = _selection(chunks, sources, places, specs[0].shape, drop_axes, array)
        device = _destination(array, layout)
        if selection is None or device is None:
            return Reason.ZARR_PIPELINE
        source = Source(local, path, zarr_format=description.zarr_format, device=device, strict=None)
        Reader(_reaching(layout, selection), source, self.metadata).fill(selection, array)
        if isinstance(device, GpuDevice):
            # Whoever waits for this thread knows nothing of its streams.
            with device.handle:
                device.xp.cuda.get_current_stream().synchronize()
        return None

    async def _pass_on(self, batch: list[Row], out: NDBuffer, drop_axes: tuple[int, ...], reason: Reason) -> Any:
        """Read by zarr-python's own pipeline; bytes of local files still come through registered handles."""
        if flag("strict") and await _in_thread(lambda: self._is_there(batch)):
            raise StrictError(reason, f"zarr-python's own codec pipeline reads {batch[0][0]}")
        local = self._local
        assert self.store is not None
        store = NotedStore(self.store, reason) if local is None else local.noting(reason)
        batch = [(StorePath(store, getter.path), *rest) for getter, *rest in batch]
        if not _compat.wants_device(batch[0][1].prototype):
            return await self._read_by_zarr(batch, out, drop_axes)
        # Decoded on the host: device buffers would be copied back chunk by chunk.
        array = out.as_ndarray_like()
        host = _compat.host_buffer(np.empty(array.shape, array.dtype))
        results = await self._read_by_zarr(_on_host(batch), host, drop_axes)
        await _in_thread(lambda: copy_to_device(host.as_numpy_array(), array))
        return results

    async def _read_by_zarr(self, batch: list[Row], out: NDBuffer, drop_axes: tuple[int, ...]) -> Any:
        read: Any = super().read  # gives nothing, or what became of each chunk, by generation
        return await read(batch, out, drop_axes)

    def _is_there(self, batch: Sequence[Row]) -> bool:
        """Whether any of the chunks exists; what is no local file counts as there."""
        local = self._local
        if local is None:
            return True
        root = local.directory
        root.refresh()
        return any(status is not None for status in root.stats([getter.path for getter, *_ in batch]))

    def _present(self, batch: Sequence[Row]) -> Any:
        """What zarr-python wants to know of each chunk where a missing one is to be an error."""
        local = self._local
        assert local is not None
        statuses = local.directory.stats([getter.path for getter, *_ in batch])
        return tuple({"status": "missing" if status is None else "present"} for status in statuses)


async def _in_thread(function: Callable[[], T]) -> T:
    """Call `function` in a thread, and come back when it is done, cancelled or not: it writes to the caller's array."""
    task = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # looked at: nobody else will
        raise


def _selection(
    chunks: Int64,
    sources: Sequence[Any],
    places: Sequence[Any],
    extents: Sequence[int],
    dropped: Sequence[int],
    array: Any,
) -> AnySelection | None:
    if not isinstance(places[0], tuple):  # points, each with a place of its own
        return gather_points(chunks, sources, places, extents=extents, size=array.size) if array.ndim == 1 else None
    return gather(chunks, sources, places, extents=extents, dropped=dropped, shape=array.shape)


def _destination(array: Any, layout: Layout) -> Device | None:
    """The device of an array that elements of `layout` can be read into as they are; None: it is no such array."""
    try:
        device = of(array)
    except DeviceError:
        return None
    dtype = layout.dtype if device.is_host else layout.dtype.newbyteorder("=")
    fits = array.dtype == dtype and not overlaps(array.shape, array.strides, array.dtype.itemsize)
    return device if fits and (not device.is_host or array.flags.writeable) else None


def _reaching(layout: Layout, selection: AnySelection) -> Layout:
    """The layout of an array that may have grown since the pipeline was made; zarr-python has checked the bounds."""
    if 0 in selection.box:
        return layout
    if isinstance(selection, PointSelection):
        last = [int(index.max()) for index in selection.index]
    else:
        last = [highest(axis) for axis in selection.axes]
    shape = tuple(max(n, reach + 1) for n, reach in zip(layout.shape, last, strict=True))
    return layout if shape == layout.shape else replace(layout, shape=shape)


def _on_host(batch: Sequence[Row]) -> list[Row]:
    """The same batch with chunks decoded and encoded in host memory."""
    return [(getter, _compat.on_host(spec), *rest) for getter, spec, *rest in batch]
