"""`inspect`: what share of a store can take the fastpath as it is stored, and what stops the rest.

From metadata, indexes of shards and sizes of files alone: no chunk is read, and no GPU is needed. What a drive or a
driver does to a request is not known here; `gpuload.trace` tells who served it.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.engine.reader import fetch
from gpuload.errors import ChunkSizeError
from gpuload.files.blocks import direct_reason
from gpuload.files.geometry import Geometry, geometry
from gpuload.files.paths import path_of
from gpuload.files.root import Root
from gpuload.memory.device import fits_device
from gpuload.planning.aligned import DIRECT_ALIGN, enclose
from gpuload.request import Int64, Reason
from gpuload.zarr import _compat
from gpuload.zarr.array import Array
from gpuload.zarr.chunk_files import ChunkFiles, chunk_files, chunk_test
from gpuload.zarr.keys import DOCUMENTS
from gpuload.zarr.layout import Layout, Road
from gpuload.zarr.shards import EMPTY, IndexForm
from gpuload.zarr.source import Source
from gpuload.zarr.stores import store_at
from gpuload.zarr.tree import walk
from gpuload.zarr.virtual_entries import Entries

_MENDED = (Reason.HOST_CODEC, Reason.TAIL)  # by `gpuload pack`
_SAMPLE = 256  # files, at most, that are looked at for a display
_SAMPLE_BYTES = 4 << 20  # of indexes that are read for one
_WAVE_BYTES = 64 << 20  # of indexes in memory


@dataclass(frozen=True, slots=True)
class ArrayInspection:
    """What is known of one array without reading it.

    Parameters
    ----------
    name
        Path below the root of the store, ``""`` at the root.
    chunks
        Elements of a chunk, an inner one where there are shards; None where they differ in shape.
    shards
        Elements of a shard, or None.
    codecs
        Names, in the order of encoding; those of the inner chunks where there are shards.
    fastpath_bytes, fallback_bytes
        Stored bytes of its chunks that can take the fastpath, and the others.
    reasons
        How many bytes each condition stops; they add up to `fallback_bytes`.
    pack
        The command that would mend what can be mended by writing the store anew, or None.
    """

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    shards: tuple[int, ...] | None
    codecs: tuple[str, ...]
    fastpath_bytes: int
    fallback_bytes: int
    reasons: Mapping[Reason, int]
    pack: str | None

    @property
    def share(self) -> float:
        """Of the bytes, what can take the fastpath; 1.0 where nothing is stored."""
        total = self.fastpath_bytes + self.fallback_bytes
        return self.fastpath_bytes / total if total else 1.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "chunks": None if self.chunks is None else list(self.chunks),
            "shards": None if self.shards is None else list(self.shards),
            "codecs": list(self.codecs),
            "fastpath_bytes": self.fastpath_bytes,
            "fallback_bytes": self.fallback_bytes,
            "reasons": {str(reason): nbytes for reason, nbytes in self.reasons.items()},
            "pack": self.pack,
        }


def inspect(path: str | os.PathLike[str]) -> tuple[ArrayInspection, ...]:
    """Say of each array of a store how much of it can take the fastpath as stored, and what stops the rest.

    Parameters
    ----------
    path
        Of a zarr store in local files, of kerchunk's JSON references to ranges of some, or of a zip archive.

    Returns
    -------
    arrays
        In the order of their paths.

    Raises
    ------
    StoreError
        What cannot be opened.
    ChunkError
        What cannot be a chunk: a file of another size than chunks without codecs have, a directory or a FIFO; a shard
        whose index cannot be right.
    """
    place = path_of(path)
    store = store_at(os.path.abspath(place))
    nodes = walk(Source(store, "", zarr_format=None, device="cpu", strict=False))
    command = _pack_command(place)
    return tuple(_inspect(node.array, command)[0] for node in nodes if node.array is not None)


def sample(array: Array) -> tuple[ArrayInspection, bool] | None:
    """The same of one array, from no more of its files than can be looked at in an instant.

    Returns
    -------
    inspection, complete
        Of those files; and whether they are all. None where even the index of one shard is too large for that.
    """
    index = array.layout.index
    most = _SAMPLE if index is None else min(_SAMPLE, _SAMPLE_BYTES // index.nbytes)
    return _inspect(array, _pack_command(array.source.place), most) if most else None


def _inspect(array: Array, command: str, most: int | None = None) -> tuple[ArrayInspection, bool]:
    described, layout, source = array.description, array.layout, array.source
    if source.references is None:
        stored, complete = _in_files(source.root, source.prefix, described, layout, most)
    else:
        stored, complete = _in_references(source.references, source.prefix, described, layout, most)
    total = sum(int(ranges.size.sum()) for ranges in stored)
    stopped: Counter[Reason] = Counter()
    fast = 0
    if not fits_device(described.dtype):
        stopped[Reason.HOST_DTYPE] = total
    elif layout.road is not Road.RAW:
        stopped[Reason.HOST_CODEC] = total
    else:
        for ranges in stored:
            aligned, refused = ranges.eligible()
            stopped[Reason.TAIL] += int(ranges.size.sum()) - aligned
            if refused is None:
                fast += aligned
            else:
                stopped[refused] += aligned
    reasons = {reason: nbytes for reason, nbytes in stopped.items() if nbytes}
    found = ArrayInspection(
        name=array.name,
        shape=described.shape,
        chunks=described.chunks,
        shards=described.shards,
        codecs=_codec_names(described),
        fastpath_bytes=fast,
        fallback_bytes=total - fast,
        reasons=reasons,
        pack=command if any(reason in reasons for reason in _MENDED) else None,
    )
    return found, complete


@dataclass(frozen=True, slots=True, eq=False)
class _Ranges:
    """Stored bytes of chunks, in files of one file system: int64 (n,) columns.

    Parameters
    ----------
    geometry
        Of one of the files; None: it was deleted meanwhile.
    offset, size, file_size
        Of each chunk, and of the file it is in.
    """

    geometry: Geometry | None
    offset: Int64
    size: Int64
    file_size: Int64

    def eligible(self) -> tuple[int, Reason | None]:
        """How many bytes are in whole blocks of their files, and why even these cannot take the fastpath, if so."""
        if not self.size.any():
            return 0, None
        refused, align = None, DIRECT_ALIGN
        if self.geometry is not None:
            refused, align = direct_reason(self.geometry), self.geometry.direct_offset_align
        start, stop = enclose(self.offset, self.size, self.file_size, align)
        end = self.offset + self.size
        direct = np.where(stop > start, np.minimum(stop, end) - np.maximum(start, self.offset), 0)
        return int(np.maximum(direct, 0).sum()), refused


def _in_files(
    root: Root, prefix: str, described: _compat.Description, layout: Layout, most: int | None
) -> tuple[list[_Ranges], bool]:
    """Where the chunks of an array are whose files are its chunks or shards; and whether these are all."""
    files = chunk_files(root, prefix, described, most)
    if not files.keys:
        return [], files.complete
    if layout.index is None:
        file, offset, size = np.arange(len(files.keys)), np.zeros(len(files.keys), np.int64), files.size
    else:
        file, offset, size = _inner_chunks(root, files, layout.index)
    if layout.road is Road.RAW:
        _check_sizes(files.keys, file, size, layout)
    return [_Ranges(_geometry(root, files.keys[0]), offset, size, files.size[file])], files.complete


def _in_references(
    store: Entries, prefix: str, described: _compat.Description, layout: Layout, most: int | None
) -> tuple[list[_Ranges], bool]:
    """The same where the store refers to ranges of other files; what is inline is in none that takes the fastpath."""
    is_chunk, _ = chunk_test(described)
    below = store.below(prefix)
    names = [key[len(prefix) :] for key in below[:most]]
    keys = [prefix + name for name in names if name not in DOCUMENTS and is_chunk(name)]
    exact = layout.form.nbytes if layout.form is not None and layout.road is Road.RAW else None
    found = []
    for group in store.locate(keys):
        if not group.keys:
            continue
        rows = np.flatnonzero(group.chosen)
        with group.open() as handles:
            sizes = np.array([handle.size for handle in handles], np.int64)
            found.append(
                _Ranges(
                    handles[0].geometry,
                    group.offset[rows],
                    group.sizes(handles, exact=exact)[rows],
                    sizes[group.file[rows]],
                )
            )
    return found, most is None or len(below) <= most


def _check_sizes(keys: list[str], file: Int64, size: Int64, layout: Layout) -> None:
    """Refuse chunks of another size than all must have where nothing is encoded, as a read of them does."""
    assert layout.form is not None
    wrong = size != layout.form.nbytes
    if wrong.any():
        at = int(np.argmax(wrong))
        hint = "" if layout.index is None else "in the index of the shard, for an inner chunk without codecs"
        raise ChunkSizeError(keys[file[at]], layout.form.nbytes, int(size[at]), hint)


def _inner_chunks(root: Root, files: ChunkFiles, form: IndexForm) -> tuple[Int64, Int64, Int64]:
    """Shard, first byte and bytes of each inner chunk, from the indexes alone."""
    found: list[tuple[Int64, Int64, Int64]] = [(np.zeros(0, np.int64),) * 3]
    wave = max(1, _WAVE_BYTES // form.nbytes)
    for first in range(0, len(files.keys), wave):
        keys = files.keys[first : first + wave]
        where = 0 if form.at_start else -form.nbytes
        raws = fetch(root, keys, [where] * len(keys), [form.nbytes] * len(keys))
        for i, (key, raw) in enumerate(zip(keys, raws, strict=True), first):
            if raw is None:  # deleted since it was listed
                continue
            length = int(files.size[i])
            entries = form.parse(key, raw, length)
            entries = entries[~(entries == EMPTY).all(axis=1)]
            limit = np.uint64(length)
            if ((entries[:, 0] > limit) | (entries[:, 1] > limit - np.minimum(entries[:, 0], limit))).any():
                ends = [offset + size for offset, size in entries.tolist()]
                raise ChunkSizeError(key, max(ends), length, "the index has inner chunks beyond the end of the shard")
            found.append((np.full(len(entries), i), entries[:, 0].astype(np.int64), entries[:, 1].astype(np.int64)))
    file, offset, size = (np.concatenate(column) for column in zip(*found, strict=True))
    return file, offset, size


def _geometry(root: Root, key: str) -> Geometry | None:
    try:
        fd = root.open(key, os.O_PATH)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return geometry(fd)
    finally:
        os.close(fd)


def _codec_names(described: _compat.Description) -> tuple[str, ...]:
    codecs = described.codecs
    if described.shards is not None:
        codecs = tuple(codecs[0]["configuration"]["codecs"])
    return tuple(str(codec.get("name", codec.get("id"))) for codec in (*described.filters, *codecs))


def _pack_command(path: str) -> str:
    stem = path.rstrip("/").removesuffix(".zip").removesuffix(".zarr").removesuffix(".json") or "store"
    return f"gpuload pack {shlex.quote(path)} {shlex.quote(f'{stem}.packed.zarr')}"
