"""`Entries`: of a virtual store, where each entry is, how large it is, and its bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from gpuload.config import flag, integer
from gpuload.engine.reader import fetch, handle_cache
from gpuload.errors import ConfigError, GpuloadError, NotFoundError
from gpuload.files.paths import path_of
from gpuload.files.root import Root
from gpuload.memory.device import HOST, Device, GpuDevice
from gpuload.request import Int64, Reason
from gpuload.zarr.keys import DOCUMENTS
from gpuload.zarr.virtual_group import INLINE_KEY, Group
from gpuload.zarr.virtual_listing import Listing
from gpuload.zarr.virtual_load import configured_roots, load
from gpuload.zarr.virtual_paths import AllowedRoots
from gpuload.zarr.virtual_refs import INLINE

_MISSING = -2  # in place of a file: there is no such entry


class Entries:
    """The entries of a store that are ranges of local files: of kerchunk's JSON references, or of a zip archive.

    Every read goes through registered file handles and is recorded.

    Threads: safe. Fork: safe for the host. Pickle: none, its store has the path and the options.

    Parameters
    ----------
    path, roots, follow_links
        As `VirtualStore` has them; it raises the same.
    """

    def __init__(
        self, path: str | os.PathLike[str], roots: Sequence[str | os.PathLike[str]], follow_links: bool | None
    ) -> None:
        self.path = os.path.abspath(path_of(path))
        self.follow_links = flag("follow_links") if follow_links is None else follow_links
        directory = os.path.dirname(self.path)
        self.roots = tuple(dict.fromkeys(os.path.abspath(path_of(root)) for root in (*roots, *configured_roots())))
        try:
            self._references = load(self.path)
            if self._references.members is not None:  # all is in this one file, wherever a link to it may be
                directory = os.path.dirname(self._references.paths[0])
            self._allowed = AllowedRoots(directory, (directory, *self.roots))
            found = [self._allowed.find(name) for name in self._references.paths]
        except (NotFoundError, ConfigError):
            raise
        except GpuloadError as error:
            raise type(error)(f"{self.path!r} {error}") from error
        self._files = [key for _, key in found]
        self._root_of = np.array([number for number, _ in found], np.int64)
        self._opened: dict[int, Root] = {}
        self._listing = Listing(self._references.rows)
        self._numbers: dict[str, int] | None = None
        self._lock = threading.Lock()

    def root(self, number: int = 0) -> Root:
        """One of the directories, held open; opened when it is first needed."""
        with self._lock:
            root = self._opened.get(number)
            if root is None:
                root = self._opened[number] = Root(self._allowed.roots[number], follow_links=self.follow_links)
            return root

    @property
    def keys(self) -> Iterable[str]:
        """The keys of all entries."""
        return self._references.rows

    def has(self, key: str) -> bool:
        return key in self._references.rows

    def within(self, path: str) -> str:
        """The path of a node of an archive, as the archive has it, in this store: without the directory of them all."""
        members = self._references.members
        return path if members is None else f"{path.strip('/')}/".removeprefix(members.directory).strip("/")

    def unpacks(self, prefix: str) -> bool:
        """Whether a chunk whose key starts with `prefix` has to be unpacked before its codecs can decode it."""
        members = self._references.members
        if members is None or not members.is_packed(slice(None)).any():
            return False
        keys = [key for key in self.below(prefix) if key.rpartition("/")[2] not in DOCUMENTS]
        return bool(members.is_packed(self._rows(keys)).any())

    def locate(self, keys: Sequence[str]) -> Iterator[Group]:
        """Where the entries of `keys` are as they are stored, in as many groups as it takes."""
        rows = self._rows(keys)
        self._find(rows, keys)
        yield from self._groups(rows, keys)

    def _rows(self, keys: Sequence[str]) -> Int64:
        """The number of each entry, -1 where there is none."""
        return np.fromiter(map(self._references.rows.get, keys, repeat(-1)), np.int64, len(keys))

    def _find(self, rows: Int64, keys: Sequence[str]) -> None:
        """Make sure that it is known where members of an archive begin."""
        members = self._references.members
        there = np.flatnonzero(rows >= 0)
        if members is None or not members.is_unknown(rows[there]).any():
            return
        rows, keys = rows[there], [keys[i] for i in there.tolist()]
        for group in self._groups(rows, keys):
            with group.open() as (handle,):
                members.find(handle.buffered_fd, rows, keys)

    def _groups(self, row: Int64, keys: Sequence[str]) -> Iterator[Group]:
        references = self._references
        absent = row < 0
        file, offset, size = (
            (column[row] if len(column) else np.zeros(len(row), np.int64))
            for column in (references.file, references.offset, references.size)
        )
        file[absent] = _MISSING
        nowhere = np.full(len(keys), -1, np.int64)
        if absent.any():
            yield Group(self.root(), [], keys, absent, nowhere, np.zeros_like(row), np.zeros_like(row))
        if (within := file == INLINE).any():
            at = np.where(within, 0, -1)
            yield Group(self.root(), [INLINE_KEY], keys, within, at, offset, size, memoryview(references.inline))
        used = np.unique(file[file >= 0])
        wave = handle_cache().wave_size
        for number in np.unique(self._root_of[used]).tolist():
            of_root = used[self._root_of[used] == number]
            for first in range(0, len(of_root), wave):
                files = of_root[first : first + wave]
                at = np.minimum(np.searchsorted(files, file), len(files) - 1)
                chosen = files[at] == file
                names = [self._files[i] for i in files.tolist()]
                yield Group(
                    self.root(number),
                    names,
                    keys,
                    chosen,
                    np.where(chosen, at, -1),
                    offset,
                    size,
                    identity=None if references.members is None else references.members.identity,
                )

    def stats(self, keys: Sequence[str]) -> list[os.stat_result | None]:
        """Of the files that the entries are in, the document itself for those inline; None where there is no entry."""
        result: list[os.stat_result | None] = [None] * len(keys)
        for group in self._groups(self._rows(keys), keys):
            if not group.keys:
                continue
            found = [self.status()] if group.inline is not None else group.root.stats(group.keys)
            for i in np.flatnonzero(group.chosen).tolist():
                result[i] = found[int(group.file[i])]
        return result

    def spans(self, prefix: str) -> tuple[Sequence[str], Int64, Int64, Int64]:
        """The n keys that start with `prefix`, and of each the file (`INLINE` for none), the offset and the size."""
        keys = self.below(prefix)
        references = self._references
        row = self._rows(keys)
        self._find(row, keys)
        return keys, references.file[row], references.offset[row], references.size[row]

    def file_number(self, key: str) -> int | None:
        """The number in `spans` of a file that is in the record by `key`; None for none of these."""
        if self._numbers is None:
            self._numbers = {name: i for i, name in enumerate(self._files)} | {INLINE_KEY: INLINE}
        return self._numbers.get(key)

    def files_below(self, prefix: str) -> list[os.stat_result]:
        """The status of each file, and of the document itself, that the entries are in whose keys start with `prefix`.

        Files that are not there are left out.
        """
        found = [self.status()]
        keys = self.below(prefix)
        for group in self._groups(self._rows(keys), keys):
            if group.inline is None and group.keys:
                found += [status for status in group.root.stats(group.keys) if status is not None]
        return found

    def status(self) -> os.stat_result:
        """Of the document itself, as it is now."""
        return os.stat(self.path)

    def below(self, prefix: str) -> Sequence[str]:
        """The keys that start with `prefix`."""
        return self._listing.below(prefix)

    def names_below(self, prefix: str) -> Iterable[str]:
        """The names right below `prefix`."""
        return self._listing.names(prefix)

    def sizes(self, keys: Sequence[str]) -> list[int | None]:
        """Bytes of each entry, as `fetch` gives them; None where there is none."""
        rows = self._rows(keys)
        members = self._references.members
        if members is not None:
            return [int(members.unpacked[row]) if row >= 0 else None for row in rows.tolist()]
        result: list[int | None] = [None] * len(keys)
        for group in self._groups(rows, keys):
            if group.inline is not None:
                length = group.size
            elif group.keys:
                with group.open() as handles:
                    length = group.sizes(handles)
            if group.keys:
                for i in np.flatnonzero(group.chosen).tolist():
                    result[i] = int(length[i])
        return result

    def fetch(
        self,
        keys: Sequence[str],
        offsets: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
        *,
        device: Device = HOST,
        reason: Reason | None = None,
        most: int | None = None,
    ) -> list[Any]:
        """Whole entries or ranges of them, as `engine.reader.fetch` takes and gives them.

        Parameters
        ----------
        most
            Bytes that an entry may have.
        """
        rows = self._rows(keys)
        starts = [0] * len(keys) if offsets is None else offsets
        lengths = [-1] * len(keys) if sizes is None else sizes
        result: list[Any] = [None] * len(keys)
        members = self._references.members
        packed = self._packed(rows)
        if members is not None and packed:
            for i in packed:
                document = most is None and keys[i].rpartition("/")[2] in DOCUMENTS
                members.check(int(rows[i]), keys[i], integer("references.limit") if document else most)
            stored = self._stored(rows[packed], [keys[i] for i in packed], [0] * len(packed), [-1] * len(packed),
                                  HOST, Reason.HOST_CODEC, None)  # fmt: skip
            for i, data in zip(packed, stored, strict=True):
                whole = members.unpack(int(rows[i]), keys[i], data)
                start, size = _part(len(whole), starts[i], lengths[i])
                result[i] = _on(device, whole[start : start + size])
        plain = sorted(set(range(len(keys))).difference(packed)) if packed else range(len(keys))
        if plain:
            found = self._stored(
                rows[plain] if packed else rows,
                [keys[i] for i in plain] if packed else keys,
                [starts[i] for i in plain],
                [lengths[i] for i in plain],
                device,
                reason,
                most,
            )
            for i, data in zip(plain, found, strict=True):
                result[i] = data
        return result

    def _packed(self, rows: Int64) -> list[int]:
        """Which of the entries have to be unpacked."""
        members = self._references.members
        if members is None or not len(self._references.rows):
            return []
        packed: list[int] = np.flatnonzero((rows >= 0) & members.is_packed(rows)).tolist()
        return packed

    def _stored(
        self,
        rows: Int64,
        keys: Sequence[str],
        starts: Sequence[int],
        lengths: Sequence[int],
        device: Device,
        reason: Reason | None,
        most: int | None,
    ) -> list[Any]:
        """Ranges of entries, as they are stored."""
        result: list[Any] = [None] * len(keys)
        self._find(rows, keys)
        for group in self._groups(rows, keys):
            if not group.keys:
                continue
            chosen = np.flatnonzero(group.chosen).tolist()
            if group.inline is not None and device.is_host:  # in memory already: nothing is read
                for i in chosen:
                    start, size = _part(int(group.size[i]), starts[i], lengths[i])
                    result[i] = np.frombuffer(group.inline, np.uint8, size, int(group.offset[i]) + start)
                continue
            with group.open() as handles:
                whole = group.sizes(handles, most=most)[chosen].tolist()
                ranges = [_part(n, starts[i], lengths[i]) for i, n in zip(chosen, whole, strict=True)]
                file = group.file[chosen].tolist()
                begins = [at + start for at, (start, _) in zip(group.offset[chosen].tolist(), ranges, strict=True)]
                parts = fetch(
                    group.root, [group.keys[i] for i in file], begins, [size for _, size in ranges],
                    device=device, handles=[handles[i] for i in file], reason=reason,
                )  # fmt: skip
            for i, part in zip(chosen, parts, strict=True):
                result[i] = part
        return result


def _part(length: int, start: int, size: int) -> tuple[int, int]:
    """A range inside of `length` bytes: offset and bytes."""
    start = max(0, length + start) if start < 0 else min(start, length)
    room = length - start
    return start, room if size < 0 else min(size, room)


def _on(device: Device, data: Any) -> Any:
    """Bytes of the host, on `device`."""
    if not isinstance(device, GpuDevice):
        return data
    with device.handle:
        return device.xp.asarray(data)
