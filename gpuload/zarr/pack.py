"""`pack`: copies a store into shards that the fastpath can read whole: aligned, and without codecs unless asked for.

Shard by shard, each read through gpuload and written beside its place, so that memory for a few shards is enough and
an interruption loses no more. The documents of the new store are written last: until then it cannot be opened.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpuload import tasks
from gpuload.config import flag
from gpuload.errors import ChunkDecodeError, ConfigError, ExistsError
from gpuload.files.paths import path_of, place_of
from gpuload.files.writer import Writer
from gpuload.planning.aligned import DIRECT_ALIGN
from gpuload.planning.axis import AxisRange
from gpuload.planning.selection import Selection
from gpuload.tasks import Task
from gpuload.zarr import _compat
from gpuload.zarr.create import Form, Plan, make_place, plan_array, write_documents
from gpuload.zarr.pack_journal import NAME, Journal, Stat, discard
from gpuload.zarr.reader import Reader
from gpuload.zarr.source import Source
from gpuload.zarr.store import DeviceStore
from gpuload.zarr.stores import store_at
from gpuload.zarr.tree import Node, walk
from gpuload.zarr.write_plan import targets

_AT_ONCE = 2  # shards in memory: one is read while another is written

Extents = Sequence[int]


@dataclass(frozen=True, slots=True)
class Packed:
    """What a pack has done.

    Parameters
    ----------
    arrays, groups
        Of the new store.
    shards
        Shards (or chunks, where there are no shards) of the new store, empty ones too.
    skipped
        Those that an interrupted pack had finished.
    nbytes
        Of the elements.
    verified
        Values that were read back and compared; 0 where that was not asked for.
    """

    arrays: int
    groups: int
    shards: int
    skipped: int
    nbytes: int
    verified: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pack is: `done` of `total` bytes of elements, packed or, at the end, verified."""

    done: int
    total: int
    array: str
    verifying: bool


@dataclass(frozen=True, eq=False)
class _Work:
    """One array: what it is made of, and what it will be."""

    node: Node
    plan: Plan

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """Elements of what has a key."""
        described = _compat.describe(self.plan.metadata)
        edges = described.chunks if described.shards is None else described.shards
        assert edges is not None
        return edges

    @property
    def itemsize(self) -> int:
        return self.node.layout.dtype.itemsize

    def boxes(self) -> Iterator[Selection]:
        """The elements of each shard."""
        shape = self.node.layout.shape
        if 0 in shape:
            return
        grid = [range(0, n, extent) for n, extent in zip(shape, self.edges, strict=True)]
        for corner in itertools.product(*grid):
            counts = (min(e, n - at) for e, n, at in zip(self.edges, shape, corner, strict=True))
            axes = tuple(AxisRange(at, 1, count) for at, count in zip(corner, counts, strict=True))
            yield Selection(axes, tuple(range(len(axes))))

    def key(self, box: Selection) -> str:
        """Of the shard, below the root of the new store."""
        chunk = tuple(
            axis.start // e for axis, e in zip(box.axes, self.edges, strict=True) if isinstance(axis, AxisRange)
        )
        name = self.plan.metadata.encode_chunk_key(chunk)
        return f"{self.plan.path}/{name}" if self.plan.path else name

    def made_of(self, box: Selection) -> list[Stat]:
        """The files of the source that hold these elements."""
        layout, source = self.node.layout, self.node.source
        chunks = [target.coordinates for target in targets(box, layout.shape, layout.chunk_edges)]
        keys = layout.keys(np.array(chunks, np.int64).reshape(len(chunks), len(layout.shape)))
        return source.made_of([source.prefix + key for key in keys])

    def read(self, box: Selection) -> Any:
        """Those elements, from the source."""
        assert self.node.array is not None
        return self.node.array[_slices(box)]


def pack(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    chunks: Extents | None = None,
    shards: Extents | str | None = "auto",
    codec: str | None = "none",
    align: int = DIRECT_ALIGN,
    overwrite: bool = False,
    verify: bool = False,
    durable: bool | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Packed:
    """Copy a zarr store (v2 or v3, an array or a whole tree) into a new v3 store that suits the fastpath.

    Attributes, names of dimensions and fill values are kept; numbers are stored little-endian. If it is interrupted,
    the same call goes on where it was: shards that are finished, and whose sources have not changed, are skipped.

    Parameters
    ----------
    source, target
        Paths of the two stores, or ``file://`` URLs. The source may be kerchunk's JSON references.
    chunks
        Elements of an inner chunk along each dimension, for arrays of just so many dimensions; None, and for all other
        arrays: as they are, at most the whole array.
    shards
        Elements of a shard; ``"auto"``: about 128 MiB. None: no shards, every chunk has a file of its own, and what of
        it is beyond its last whole block remains a tail; so it is with ``"auto"`` for structures and raw bytes.
    codec
        ``"none"``, ``"zstd"``, ``"blosc"`` or ``"gzip"``.
    align
        Bytes, a power of two: inner chunks start at its multiples, and shards end at one.
    overwrite
        Delete the store, or the interrupted pack, that is at `target`.
    verify
        Read both stores when all is written, and compare every value, bit for bit.
    durable
        As for `gpuload.save`.
    progress
        Called now and then, from this thread.

    Raises
    ------
    ExistsError
        Something is at `target` already: also a pack of something else, or with other options, that was interrupted.
    NotLocalError
        A URL of something else than local files.
    UnsupportedArrayError
        An array that cannot be stored so, such as structures in shards of a given size.
    ChunkDecodeError
        With `verify`: values differ; names the shard.
    StoreError, ChunkError
        What cannot be read or written; names it. Nothing can be opened at `target` then, and the call may be repeated.
    """
    if align < 1 or align & (align - 1):
        raise ConfigError(f"{align=} is no power of two")
    durable = flag("durable") if durable is None else durable
    store = store_at(os.path.abspath(path_of(source)))
    nodes = list(walk(Source(store, "", zarr_format=None, device="cpu", strict=False)))
    works = [_Work(node, _plan(node, chunks, shards, codec)) for node in nodes if node.array is not None]
    groups = [node for node in nodes if node.array is None]
    place = place_of(target)
    _check_apart(nodes[0].source.place, place)
    _prepare(place, overwrite=overwrite)
    total = sum(work.itemsize * math.prod(work.node.layout.shape) for work in works)
    description = _description(nodes, chunks, shards, codec, align)
    words, steps = f"packing {os.path.basename(place)}", 1 + verify
    with Journal(place, description) as journal, tasks.work(words, steps * total) as task:
        report = _Reporter(progress, total, task)
        made = DeviceStore(place)
        shards_done = skipped = 0
        for work in works:
            done, left_out = _pack_array(work, made, journal, align, durable=durable, report=report)
            shards_done, skipped = shards_done + done, skipped + left_out
        documents = {work.plan.path: work.plan.metadata for work in works}
        documents |= {node.path: _compat.group_metadata(_compat.attributes(node.metadata)) for node in groups}
        if verify:
            # Before anybody can open it: the plans know what the documents will say.
            report.begin_verifying()
            _verify(works, made, report)
        with Writer(made.directory, durable=durable) as writer:
            write_documents(writer, documents)
        journal.remove()
    values = sum(math.prod(work.node.layout.shape) for work in works) if verify else 0
    return Packed(len(works), len(groups), shards_done, skipped, total, values)


def _plan(node: Node, chunks: Extents | None, shards: Extents | str | None, codec: str | None) -> Plan:
    """How an array will be stored."""
    assert node.array is not None
    described = _compat.describe(node.metadata)
    shape = described.shape
    inner = chunks if chunks is not None and len(chunks) == len(shape) else described.chunks
    if inner is not None:
        inner = tuple(max(1, min(extent, n)) for extent, n in zip(inner, shape, strict=True))
    outer = shards
    if not isinstance(shards, str) and shards is not None:
        fits = inner is not None and len(shards) == len(shape)
        outer = tuple(-(-n // e) * e for n, e in zip(shards, inner or (), strict=True)) if fits else "auto"
    fixed = not described.dtype.hasobject and described.dtype.kind != "T"  # in bytes of an element
    attrs = dict(described.attrs)
    if node.metadata.zarr_format == 2 and (any(described.dims) or not shape):
        attrs.pop("_ARRAY_DIMENSIONS", None)  # v3 has a place of its own for them
    form = Form(
        chunks=inner,
        shards=outer if fixed else None,  # nothing of what differs in size can be aligned
        codecs=codec,
        fill_value=described.fill,
        dims=described.dims if any(described.dims) else None,
        attrs=attrs,
    )
    return plan_array(node.path, shape, described.dtype.newbyteorder("<") if fixed else node.metadata.dtype, form)


def _check_apart(source: str, target: str) -> None:
    one, other = os.path.realpath(source), os.path.realpath(target)
    if os.path.commonpath([one, other]) in (one, other):
        raise ExistsError(f"{target!r} and {source!r}: one of the stores would be inside the other")


def _prepare(place: str, *, overwrite: bool) -> None:
    """Make the directory; an interrupted pack stays there to be gone on with."""
    if os.path.isfile(os.path.join(place, NAME)):
        if not overwrite:
            return
        discard(place)
    make_place(place, overwrite=overwrite)


def _description(
    nodes: Sequence[Node],
    chunks: Extents | None,
    shards: Extents | str | None,
    codec: str | None,
    align: int,
) -> dict[str, Any]:
    """What is packed, and how: what must be the same for a pack that goes on."""
    return {
        "source": os.path.realpath(nodes[0].source.place),
        "chunks": chunks if chunks is None else list(chunks),
        "shards": shards if shards is None or isinstance(shards, str) else list(shards),
        "codec": codec,
        "align": align,
        "nodes": {
            node.path: {name: data.decode() for name, data in _compat.documents(node.metadata).items()}
            for node in nodes
        },
    }


class _Reporter:
    """Counts bytes, and tells `progress`."""

    def __init__(self, progress: Callable[[Progress], None] | None, total: int, task: Task) -> None:
        self._progress, self._total, self._done, self._verifying = progress, total, 0, False
        self._task = task

    def begin_verifying(self) -> None:
        self._done, self._verifying = 0, True

    def add(self, array: str, nbytes: int) -> None:
        self._done += nbytes
        self._task.add(nbytes)
        if self._progress is not None:
            self._progress(Progress(self._done, self._total, array, self._verifying))


def _pack_array(
    work: _Work, made: DeviceStore, journal: Journal, align: int, *, durable: bool, report: _Reporter
) -> tuple[int, int]:
    """Write the shards of one array; returns how many there are, and how many were finished before."""
    writer = work.plan.writer(made, durable=durable, align=align)
    root = made.directory

    def pack_shard(box: Selection) -> bool:
        key, made_of = work.key(box), work.made_of(box)
        if journal.has(key, root.stat(key), made_of):
            return True
        values = work.read(box)
        writer.assign(box, values)
        # The source as it was before it was read: if it changed meanwhile, the shard is not finished for a next run.
        journal.add(key, root.stat(key), made_of)
        return False

    total = skipped = 0
    for box, was_there in _side_by_side(pack_shard, work.boxes()):
        total, skipped = total + 1, skipped + was_there
        report.add(work.plan.path, math.prod(box.shape) * work.itemsize)
    return total, skipped


def _side_by_side(function: Callable[[Selection], Any], boxes: Iterator[Selection]) -> Iterator[tuple[Selection, Any]]:
    """`function` for each box, a few at a time; results as they come. After an error nothing new is begun."""

    def inside(box: Selection) -> Any:
        with tasks.part_of(Task("", 0)):  # what is read here is a part of the pack
            return function(box)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running: dict[Future[Any], Selection] = {}
        for box in boxes:
            running[pool.submit(inside, box)] = box
            if len(running) >= _AT_ONCE:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        for future in list(running):
            yield running.pop(future), future.result()


def _verify(works: Sequence[_Work], made: DeviceStore, report: _Reporter) -> None:
    for work in works:
        reader, dtype = work.plan.reader(made), _compat.describe(work.plan.metadata).dtype

        def differs(box: Selection, work: _Work = work, reader: Reader = reader, dtype: Any = dtype) -> bool:
            values = work.read(box)
            found = np.empty(values.shape, dtype)
            reader.fill(box, found)
            return not _same(values, found)

        for box, wrong in _side_by_side(differs, work.boxes()):
            if wrong:
                raise ChunkDecodeError(work.key(box), "holds other values than the source")
            report.add(work.plan.path, math.prod(box.shape) * work.itemsize)


def _same(one: Any, other: Any) -> bool:
    """Equal in every bit, byte order aside; strings and objects by value."""
    if one.dtype.hasobject or one.dtype.kind == "T":
        return bool(np.array_equal(one, other))
    native = one.dtype.newbyteorder("=")
    return bool(np.ascontiguousarray(one, native).tobytes() == np.ascontiguousarray(other, native).tobytes())


def _slices(box: Selection) -> tuple[slice, ...]:
    return tuple(slice(axis.start, axis.start + axis.count) for axis in box.axes if isinstance(axis, AxisRange))
