"""`Reader`: from a selection of an array to requests the engine serves."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload import tasks
from gpuload.config import flag, integer
from gpuload.engine.reader import ReadRequest, handle_cache, lease, read
from gpuload.errors import ChunkDecodeError, ChunkError, ChunkReadError, StrictError
from gpuload.files.root import Root, irregular
from gpuload.memory.device import GpuDevice, of
from gpuload.planning.grid import Pieces, cut
from gpuload.planning.points import cut_points
from gpuload.planning.selection import AnySelection, PointSelection
from gpuload.request import Int64, Reason
from gpuload.zarr._compat import Metadata
from gpuload.zarr.foreign import read_foreign, touched_chunks
from gpuload.zarr.layout import Layout, Road
from gpuload.zarr.shards import changed, locate
from gpuload.zarr.source import Source

_SPARE = 1 << 20  # bytes that a small encoded chunk may have over what is expected


class Reader:
    """Fills arrays from one array's chunks. Threads: safe. Fork: safe. Pickle: none, it is made with its `Array`."""

    def __init__(self, layout: Layout, source: Source, metadata: Metadata, *, whole: Layout | None = None) -> None:
        self._layout = layout
        self._whole = whole or layout  # of the structures that `layout` is a field of
        self._source = source
        self._metadata = metadata

    def fill(self, selection: AnySelection, out: Any) -> None:
        """Read `selection` into `out`, a NumPy or CuPy array of just its shape and of the right dtype.

        On a device that dtype is `device_dtype` of the layout's.
        """
        if 0 in selection.box:
            return
        if not tasks.watched():
            self._fill(selection, out)
            return
        with tasks.work(f"reading {self._source.name}", math.prod(selection.box) * self._layout.dtype.itemsize):
            self._fill(selection, out)

    def _fill(self, selection: AnySelection, out: Any) -> None:
        source, layout = self._source, self._layout
        if source.references is None:
            source.root.refresh()
        on_host = isinstance(out, np.ndarray)
        foreign = layout.road is Road.FOREIGN
        if not foreign and (on_host or _is_aligned(layout)):
            self._fill_own(selection, selection.as_box(out), on_host)
            return
        if foreign and self._is_strict() and self._any_file(selection):
            raise StrictError(self._foreign_reason(on_host), f"{source!r} is decoded by zarr-python on the host")
        if not on_host:
            host = np.empty(selection.shape, layout.dtype)
            self._fill(selection, host)
            native = host.astype(layout.dtype.newbyteorder("="), copy=False)
            copy_to_device(native.view(device_dtype(layout.dtype)), out)
            return
        box = selection.as_box(out)
        elements = np.empty(box.shape, self._whole.dtype) if layout.fields else box
        reason = self._foreign_reason(on_host)
        read_foreign(self._metadata, self._whole, source, selection, elements, reason)
        if layout.fields:
            for name in layout.fields:
                elements = elements[name]
            box[...] = elements

    def _foreign_reason(self, on_host: bool) -> Reason:
        return Reason.HOST_CODEC if self._source.device.is_host or not on_host else Reason.HOST_DTYPE

    def _fill_own(self, selection: AnySelection, box: Any, on_host: bool) -> None:
        """By the raw and the encoded road."""
        layout = self._layout
        form = layout.form
        assert form is not None
        piece_bytes = None if layout.decoder else integer("piece_bytes")
        if isinstance(selection, PointSelection):
            pieces = cut_points(selection, layout.shape, form, box.strides, piece_bytes=piece_bytes)
        else:
            pieces = cut(selection, layout.shape, form, box.strides, piece_bytes=piece_bytes)
        if layout.fields:
            pieces = _of_field(pieces, layout)
        fill = self._fill_whole if layout.index is None else self._fill_inner
        if self._source.references is not None:
            fill = self._fill_referenced
        swap = layout.swap(box.dtype)
        fill(pieces, box, 0 if on_host else swap)
        if on_host and swap:
            box.byteswap(inplace=True)

    def _fill_whole(self, pieces: Pieces, box: Any, swap: int) -> None:
        """Each chunk is a file."""
        layout = self._layout
        m = len(pieces.chunks)
        keys = self._keys(pieces.chunks)
        assert layout.form is not None
        nbytes = -1 if layout.decoder else layout.form.nbytes
        file, offset = np.arange(m), np.zeros(m, np.int64)
        size = np.full(m, nbytes)
        request = self._request(self._source.root, keys, file, offset, size, pieces, box, swap, whole=True)
        self._read(request, None)

    def _fill_referenced(self, pieces: Pieces, box: Any, swap: int) -> None:
        """Each chunk is a range of a file, which references tell."""
        layout, references = self._layout, self._source.references
        assert references is not None
        assert layout.form is not None
        exact = layout.form.nbytes if layout.decoder is None else None
        most = None if layout.decoder is None else 2 * layout.decoder.capacity + _SPARE
        keys = self._keys(pieces.chunks)
        for group in references.locate(keys):
            with group.open() as handles:
                size = group.sizes(handles, exact=exact, most=most)
                request = self._request(
                    group.root, group.keys, group.file, group.offset, size, pieces, box, swap, whole=False
                )
                self._read(replace(request, handles=handles).part(group.chosen), [True] * len(handles))

    def _fill_inner(self, pieces: Pieces, box: Any, swap: int) -> None:
        """Each chunk is a range of a shard, which the shard's index tells."""
        layout = self._layout
        assert layout.index is not None
        assert layout.form is not None
        shards, shard, inner = _divide(pieces.chunks, layout.index.grid)
        keys = self._keys(shards)
        exact = None if layout.decoder else layout.form.nbytes
        wave = handle_cache().wave_size
        for first in range(0, len(keys), wave):
            chosen = (shard >= first) & (shard < first + wave)
            names = keys[first : first + wave]
            for last_try in (False, True):
                if self._read_shards(names, shard - first, inner, chosen, exact, pieces, box, swap, last_try=last_try):
                    break

    def _read_shards(
        self,
        keys: list[str],
        shard: Int64,
        inner: Int64,
        chosen: npt.NDArray[np.bool_],
        exact: int | None,
        pieces: Pieces,
        box: Any,
        swap: int,
        *,
        last_try: bool,
    ) -> bool:
        """Read the chosen chunks from the open files of their shards; False: somebody wrote to one meanwhile."""
        layout, root = self._layout, self._source.root
        assert layout.index is not None
        root.refresh()
        with lease(root, keys) as handles:
            try:
                places = np.zeros((3, len(shard)), np.int64)
                places[:, chosen] = locate(root, keys, handles, layout.index, shard[chosen], inner[chosen], exact=exact)
                file, offset, size = places
                request = self._request(root, keys, file, offset, size, pieces, box, swap, whole=False)
                self._read(replace(request, handles=handles).part(chosen), [h is not None for h in handles])
                written = changed(handles)
            except ChunkError:
                written = changed(handles)
                if written is None:
                    raise
        if written is not None and last_try:
            raise ChunkReadError(written, errno.ESTALE, "the shard was written to while it was being read, twice")
        return written is None

    def _request(
        self,
        root: Root,
        keys: list[str],
        file: Int64,
        offset: Int64,
        size: Int64,
        pieces: Pieces,
        box: Any,
        swap: int,
        *,
        whole: bool,
    ) -> ReadRequest:
        layout = self._layout
        return ReadRequest(
            root=root,
            keys=keys,
            file=file,
            offset=offset,
            size=size,
            whole=whole,
            pieces=pieces,
            itemsize=layout.dtype.itemsize,
            swap=swap,
            decoder=layout.decoder,
            fill=layout.fill,
            out=box,
            reason=self._reason(box),
            task=tasks.current(),
        )

    def _read(self, request: ReadRequest, present: Sequence[bool] | None) -> None:
        """Hand `request` to the engine; `present` tells which keys have a file, where that is known."""
        if self._is_strict():
            if present is None:
                present = [stat is not None for stat in request.root.stats(request.keys)]
            there = request.file >= 0
            there[there] = np.asarray(present, bool)[request.file[there]]
            request = replace(request, file=np.where(there, request.file, -1), strict=True)
        else:
            request = replace(request, strict=False)
        try:
            read(request)
        except ChunkDecodeError as error:
            # A FIFO or a terminal may look like a file without bytes.
            status = request.root.stat(error.key)
            special = None if status is None else irregular(error.key, status)
            if special is not None:
                raise special from error
            raise

    def _reason(self, box: Any) -> Reason | None:
        """Why no fastpath can serve this array, whatever the machine."""
        if self._layout.decoder is not None:
            return Reason.HOST_CODEC
        if isinstance(box, np.ndarray) and not self._source.device.is_host:
            return Reason.HOST_DTYPE
        return None

    def _keys(self, chunks: Int64) -> list[str]:
        prefix = self._source.prefix
        keys = self._layout.keys(chunks)
        return [prefix + key for key in keys] if prefix else keys

    def _is_strict(self) -> bool:
        return flag("strict") if self._source.strict is None else self._source.strict

    def _any_file(self, selection: AnySelection) -> bool:
        """Whether one of the chunks of a foreign array has a file."""
        return any(there for _, there in self.files(selection))

    def files(self, selection: AnySelection) -> Iterator[tuple[str, bool]]:
        """The keys of the chunks or shards that a selection touches, and whether each is stored."""
        for chunks in touched_chunks(self._layout, selection):
            keys = self._keys(chunks)
            yield from zip(keys, self._source.present(keys), strict=True)


def device_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What elements of `dtype` are on a device: in native byte order, and dates and durations their 64-bit counts."""
    if dtype.kind in "mM":
        return np.dtype(np.int64)
    return dtype if dtype.kind == "T" else dtype.newbyteorder("=")


def _is_aligned(layout: Layout) -> bool:
    """Whether a kernel can load elements from where they are: fields of packed structures may lie at any byte."""
    size = layout.dtype.itemsize
    if not layout.fields or layout.form is None:
        return True
    return layout.form.itemsize % size == 0 and (layout.decoder is None or layout.field_offset % size == 0)


def _of_field(pieces: Pieces, layout: Layout) -> Pieces:
    """Of pieces of structures, what holds one field of them."""
    assert layout.form is not None
    if layout.decoder is not None:
        return replace(pieces, source=pieces.source + layout.field_offset)
    rest = layout.form.itemsize - layout.dtype.itemsize
    return replace(pieces, offset=pieces.offset + layout.field_offset, size=pieces.size - rest)


def copy_to_device(values: npt.NDArray[Any], out: Any) -> None:
    """Copy to a CuPy array of any strides, and wait: the caller may go on with any stream of any device."""
    device = of(out)
    assert isinstance(device, GpuDevice)
    with device.handle:
        out[...] = device.xp.asarray(values)
        device.xp.cuda.get_current_stream().synchronize()


def _divide(chunks: Int64, grid: tuple[int, ...]) -> tuple[Int64, Int64, Int64]:
    """Shards of inner chunks.

    Returns
    -------
    shards
        int64 (s, ndim): coordinates of the touched shards.
    shard
        int64 (m,): the row of `shards` each chunk is in.
    inner
        int64 (m,): its number in the shard's grid, C order.
    """
    shard, inner = np.zeros(len(chunks), np.int64), np.zeros(len(chunks), np.int64)
    for dim, extent in enumerate(grid):
        outer, rest = np.divmod(chunks[:, dim], extent)
        # Numbered among what is touched along the dimension: the product of these cannot overflow, as grids could.
        number, count = _numbered(outer)
        shard = shard * count + number
        inner = inner * extent + rest
    shard, count = _numbered(shard)
    first = np.zeros(count, np.int64)
    first[shard[::-1]] = np.arange(len(chunks))[::-1]
    return chunks[first] // np.array(grid, np.int64), shard, inner


def _numbered(values: Int64) -> tuple[Int64, int]:
    """The rank of each value among the distinct ones, and how many these are."""
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > 4 * len(values):
        present, rank = np.unique(values, return_inverse=True)
        return rank, len(present)
    there = np.zeros(span, np.int64)
    there[values - low] = 1
    return (np.cumsum(there) - 1)[values - low], int(there.sum())
