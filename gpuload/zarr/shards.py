"""The index of a shard: where its inner chunks lie in the file.

An index belongs to one content of one file. It is read from the open file its chunks are read from, kept under that
file's identity, and whoever reads by it makes sure afterwards that nobody wrote to the file: `changed`.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuload.engine.reader import fetch
from gpuload.errors import ChunkDecodeError, ChunkSizeError
from gpuload.files.geometry import Identity
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root
from gpuload.request import Int64
from gpuload.zarr import _compat

EMPTY = 2**64 - 1  # offset and size of an inner chunk that was never written
_WAVE_BYTES = 64 << 20  # of indexes fetched together

Index = npt.NDArray[np.uint64]  # (inner chunks, 2): offset and size, in C order of the shard's grid


@dataclass(frozen=True, slots=True)
class IndexForm:
    """How the index of every shard of an array is stored.

    Parameters
    ----------
    grid
        Inner chunks along each dimension of a shard.
    at_start
        The index is the first thing in the file, not the last.
    big_endian
        Byte order of its numbers.
    checksum
        A CRC-32C follows it.
    """

    grid: tuple[int, ...]
    at_start: bool = False
    big_endian: bool = False
    checksum: bool = True

    @property
    def nbytes(self) -> int:
        """Stored bytes of an index."""
        return 16 * math.prod(self.grid) + (4 if self.checksum else 0)

    def parse(self, key: str, raw: npt.NDArray[np.uint8], file_size: int) -> Index:
        """The index in `raw`.

        Raises
        ------
        ChunkSizeError
            The file is shorter than an index.
        ChunkDecodeError
            The checksum is wrong, or chunks overlap.
        """
        if len(raw) != self.nbytes:
            raise ChunkSizeError(key, self.nbytes, file_size, "a shard is at least as long as its index")
        if self.checksum:
            stored = int.from_bytes(raw[-4:].tobytes(), "little")
            computed = _compat.crc32c(raw[:-4])
            if stored != computed:
                raise ChunkDecodeError(
                    key, f"the index of the shard has crc32c {stored:#010x}, its bytes {computed:#010x}"
                )
            raw = raw[:-4]
        index = np.frombuffer(raw, ">u8" if self.big_endian else "<u8").astype(np.uint64).reshape(-1, 2)
        self._check_apart(key, index, file_size)
        return index

    def _check_apart(self, key: str, index: Index, file_size: int) -> None:
        """Refuse an index whose chunks share some of their bytes, with each other or with it; all of them they may.

        What is beyond the end of the file is seen when it is asked for.
        """
        inside = (index[:, 0] <= file_size) & (index[:, 1] <= file_size) & (index[:, 1] > 0)
        offset, size = index[inside].astype(np.int64).T
        end = offset + size
        # Ranges are apart just when as many have ended as have begun where the next begins: two short sorts tell it.
        if (np.sort(offset)[1:] < np.sort(end)[:-1]).any():
            order = np.lexsort((end, offset))
            offset, end = offset[order], end[order]
            cut = (offset[1:] < end[:-1]) & ~((offset[1:] == offset[:-1]) & (end[1:] == end[:-1]))
            if cut.any():
                at = int(np.argmax(cut))
                raise ChunkDecodeError(
                    key,
                    f"the index of the shard has inner chunks that overlap: bytes {offset[at]} to {end[at]} and "
                    f"{offset[at + 1]} to {end[at + 1]}",
                )
        start = 0 if self.at_start else file_size - self.nbytes
        within = (offset < start + self.nbytes) & (end > start) & (end <= file_size)
        if within.any():
            at = int(np.argmax(within))
            raise ChunkDecodeError(
                key, f"the index of the shard has an inner chunk at bytes {offset[at]} to {end[at]}, where it is itself"
            )


class IndexCache:
    """The indexes used last, at most `capacity` bytes of them. Threads: safe. Fork: a copy. Pickle: none."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.nbytes = 0
        self._entries: OrderedDict[object, tuple[Identity, Index]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: object, identity: Identity) -> Index | None:
        """The index kept under `name`, if it is of this content of the file."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or entry[0] != identity:
                return None
            self._entries.move_to_end(name)
            return entry[1]

    def put(self, name: object, identity: Identity, index: Index) -> None:
        """Keep `index`; the ones not used for longest go."""
        with self._lock:
            old = self._entries.pop(name, None)
            self.nbytes += index.nbytes - (0 if old is None else old[1].nbytes)
            self._entries[name] = identity, index
            while self.nbytes > self.capacity and len(self._entries) > 1:
                _, (_, evicted) = self._entries.popitem(last=False)
                self.nbytes -= evicted.nbytes


cache = IndexCache(64 << 20)


def locate(
    root: Root,
    keys: Sequence[str],
    handles: Sequence[FileHandle | None],
    form: IndexForm,
    shard: Int64,
    inner: Int64,
    *,
    exact: int | None,
) -> tuple[Int64, Int64, Int64]:
    """Find inner chunks in their shards.

    Parameters
    ----------
    keys, handles
        Of the shards: open files, leased by the caller; None where there is no such file.
    shard, inner
        int64 (m,): the shard of each chunk (as an entry of `keys`), and its number in the shard's grid in C order.
    exact
        Bytes each chunk must have; None if they may vary.

    Returns
    -------
    file, offset, size
        int64 (m,): the shard, first byte and bytes of each chunk; a chunk that does not exist has file -1.

    Raises
    ------
    ChunkSizeError, ChunkDecodeError
        An index that is cut off, fails its checksum, names bytes beyond the end of the file or chunks of a wrong size.
    """
    file, offset, size = shard.copy(), np.zeros_like(shard), np.zeros_like(shard)
    order = np.argsort(shard, kind="stable")
    bounds = np.searchsorted(shard[order], np.arange(len(keys) + 1))
    wave = max(1, _WAVE_BYTES // form.nbytes)
    for first in range(0, len(keys), wave):
        part = slice(first, first + wave)
        for i, index in enumerate(_indexes(root, keys[part], handles[part], form), first):
            rows = order[bounds[i] : bounds[i + 1]]
            handle = handles[i]
            if index is None or handle is None:
                file[rows] = -1
                continue
            found, offset[rows], size[rows] = _ranges(keys[i], index[inner[rows]], handle.size, exact)
            file[rows[~found]] = -1
    return file, offset, size


def changed(handles: Sequence[FileHandle | None]) -> str | None:
    """The key of an open file that was written to since it was opened, or None.

    A file that was replaced is not meant: what is open stays as it was, but for its ctime.
    """
    for handle in handles:
        if handle is None:
            continue
        status, identity = os.fstat(handle.buffered_fd), handle.identity
        if (status.st_size, status.st_mtime_ns) != (identity.size, identity.mtime_ns):
            return handle.key
    return None


def _indexes(
    root: Root, keys: Sequence[str], handles: Sequence[FileHandle | None], form: IndexForm
) -> list[Index | None]:
    """The index of each shard, from the cache or the file."""
    indexes: list[Index | None] = [None] * len(keys)
    wanted = []
    for i, (key, handle) in enumerate(zip(keys, handles, strict=True)):
        if handle is not None:
            indexes[i] = cache.get((root.identity, key, form), handle.identity)
            if indexes[i] is None:
                wanted.append(i)
    if not wanted:
        return indexes
    offset = 0 if form.at_start else -form.nbytes
    raws = fetch(
        root,
        [keys[i] for i in wanted],
        [offset] * len(wanted),
        [form.nbytes] * len(wanted),
        handles=[handles[i] for i in wanted],
    )
    for i, raw in zip(wanted, raws, strict=True):
        handle = handles[i]
        assert handle is not None
        index = form.parse(keys[i], raw, handle.size)
        cache.put((root.identity, keys[i], form), handle.identity, index)
        indexes[i] = index
    return indexes


def _ranges(key: str, entries: Index, file_size: int, exact: int | None) -> tuple[npt.NDArray[np.bool_], Int64, Int64]:
    """Which chunks exist, and their offsets and sizes, checked against the file."""
    offset, size = entries[:, 0], entries[:, 1]
    found = ~((offset == EMPTY) & (size == EMPTY))
    limit = np.uint64(file_size)
    outside = found & ((offset > limit) | (size > limit - np.minimum(offset, limit)))
    if outside.any():
        at = int(np.argmax(outside))
        raise ChunkSizeError(
            key,
            int(offset[at]) + int(size[at]),
            file_size,
            f"the index has an inner chunk of {int(size[at])} bytes at {int(offset[at])}, beyond the end of the shard",
        )
    if exact is not None and (wrong := found & (size != exact)).any():
        raise ChunkSizeError(key, exact, int(size[np.argmax(wrong)]), "an inner chunk without codecs")
    zero = np.uint64(0)
    return found, np.where(found, offset, zero).astype(np.int64), np.where(found, size, zero).astype(np.int64)
