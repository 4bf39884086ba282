"""`VirtualStore`: a zarr store for reading whose entries are ranges of other files: references, members of a zip."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.config import config, flag, integer
from gpuload.engine.reader import fetch, handle_cache, lease
from gpuload.errors import (
    ChunkReadError,
    ChunkSizeError,
    ConfigError,
    GpuloadError,
    NotFoundError,
    NotZarrError,
    ReadOnlyError,
)
from gpuload.files.geometry import Identity
from gpuload.files.handle import FileHandle
from gpuload.files.memory import memory_file
from gpuload.files.paths import path_of
from gpuload.files.root import OPEN_FLAGS, Root, irregular
from gpuload.memory.device import HOST, Device, resolve
from gpuload.request import Int64, Reason
from gpuload.zarr._compat import (
    Buffer,
    BufferPrototype,
    ByteRequest,
    Store,
    buffer_of,
    byte_range,
    default_buffer_prototype,
    wants_device,
)
from gpuload.zarr.virtual_paths import AllowedRoots
from gpuload.zarr.virtual_refs import INLINE, WHOLE, References, parse

Bools = npt.NDArray[np.bool_]

INLINE_KEY = "inline"  # in place of a file's key: what the document itself holds
_MISSING = -2  # in place of a file: there is no such entry


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Of m entries, those in files of one root that may be open at one time; or inline, or not there at all.

    Parameters
    ----------
    root
        What `keys` are below of.
    keys
        The files.
    names
        The keys of the m entries themselves, for messages.
    chosen
        bool (m,): which entries are meant.
    file
        int64 (m,): the entry of `keys` each is in; -1 for those that are not there, or not meant.
    offset, size
        int64 (m,): the range of the file; size `WHOLE`: all of it.
    inline
        In place of files, what the only one is to hold of.
    """

    root: Root
    keys: list[str]
    names: Sequence[str]
    chosen: Bools
    file: Int64
    offset: Int64
    size: Int64
    inline: memoryview | None = None

    @contextmanager
    def open(self) -> Iterator[list[FileHandle]]:
        """Handles of the files, for the time of a block.

        Raises
        ------
        ChunkReadError
            A file is not there: what refers to it is not simply missing.
        """
        if self.inline is not None:
            with memory_file(INLINE_KEY, self._runs(self.inline)) as handle:
                yield [handle]
            return
        self.root.refresh()
        with lease(self.root, self.keys) as handles:
            found = [handle for handle in handles if handle is not None]
            if len(found) < len(handles):
                lacking = handles.index(None)
                name = self.names[int(np.argmax(self.file == lacking))]
                path = f"{self.root.path}/{self.keys[lacking]}"
                raise ChunkReadError(name, errno.ENOENT, f"refers to {path!r}, which is not there")
            yield found

    def _runs(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Of what is inline only what is wanted, neighbours together, each where it is in all of it."""
        start = self.offset[self.chosen]
        order = np.argsort(start, kind="stable")
        start = start[order]
        end = np.maximum.accumulate(start + self.size[self.chosen][order])
        first = np.flatnonzero(np.append(True, start[1:] > end[:-1]))
        last = np.append(first[1:], len(start)) - 1
        for a, b in zip(start[first].tolist(), end[last].tolist(), strict=True):
            yield a, data[a:b]

    def sizes(self, handles: Sequence[FileHandle], *, exact: int | None = None, most: int | None = None) -> Int64:
        """Bytes of each entry, checked against the files as they are.

        Parameters
        ----------
        exact, most
            What each must have, or may have.

        Raises
        ------
        ChunkSizeError
            A range that ends beyond its file, or of a wrong size; names its key.
        """
        ends = np.array([*(handle.size for handle in handles), 0], np.int64)[self.file]
        size = np.where(self.size == WHOLE, ends, self.size)
        there = self.file >= 0
        beyond = there & (self.offset + size > ends)
        if beyond.any():
            at = int(np.argmax(beyond))
            path = handles[int(self.file[at])].path
            raise ChunkSizeError(
                self.names[at], int(size[at]), max(0, int(ends[at] - self.offset[at])),
                f"refers to bytes {int(self.offset[at])} to {int(self.offset[at] + size[at])} of {path!r}, which has "
                f"{int(ends[at])}",
            )  # fmt: skip
        if exact is not None and (wrong := there & (size != exact)).any():
            at = int(np.argmax(wrong))
            raise ChunkSizeError(self.names[at], exact, int(size[at]), "a chunk without codecs")
        if most is not None and (wrong := there & (size > most)).any():
            at = int(np.argmax(wrong))
            raise ChunkSizeError(self.names[at], most, int(size[at]), "far more than such a chunk may take")
        return size


class VirtualStore(Store):
    """A zarr store, for reading, whose entries are ranges of local files, as kerchunk's JSON references tell.

    Every read goes through registered file handles and is recorded.

    Threads: safe. Fork: safe for the host. Pickle: by path and options.

    Parameters
    ----------
    path
        Of the references: JSON of version 0 or 1, as kerchunk and VirtualiZarr write it.
    roots
        Directories that references may lead to, besides the one that `path` is in and those that are configured
        (`references.roots`).
    follow_links
        Let links below those directories leave them; None: as configured.

    Raises
    ------
    NotFoundError, NotZarrError
        There is no such file, or it holds no references.
    NotLocalError, EscapesStoreError
        One of them is not of a local file, or leads out of the directories.
    UnsupportedArrayError
        One of them would have to be computed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        roots: Sequence[str | os.PathLike[str]] = (),
        follow_links: bool | None = None,
    ) -> None:
        super().__init__(read_only=True)
        self.path = os.path.abspath(path_of(path))
        self.follow_links = flag("follow_links") if follow_links is None else follow_links
        directory = os.path.dirname(self.path)
        self.roots = tuple(dict.fromkeys(os.path.abspath(path_of(root)) for root in (*roots, *_configured())))
        try:
            self._references = _loaded(self.path)
            self._allowed = AllowedRoots(directory, (directory, *self.roots))
            found = [self._allowed.find(name) for name in self._references.paths]
        except (NotFoundError, ConfigError):
            raise
        except GpuloadError as error:
            raise type(error)(f"{self.path!r} {error}") from error
        self._files = [key for _, key in found]
        self._root_of = np.array([number for number, _ in found], np.int64)
        self._opened: dict[int, Root] = {}
        self._directories: dict[str, dict[str, None]] | None = None
        self._sorted: list[str] | None = None
        self._numbers: dict[str, int] | None = None
        self._lock = threading.Lock()

    def root(self, number: int = 0) -> Root:
        """One of the directories, held open; opened when it is first needed."""
        with self._lock:
            root = self._opened.get(number)
            if root is None:
                root = self._opened[number] = Root(self._allowed.roots[number], follow_links=self.follow_links)
            return root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and (self.path, self.roots, self.follow_links) == (
            other.path,
            other.roots,
            other.follow_links,
        )

    __hash__ = None  # type: ignore[assignment] # as zarr's own stores

    def __repr__(self) -> str:
        return f"VirtualStore({self.path!r})"

    def __str__(self) -> str:
        return self.path

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.path, self.roots, self.follow_links)

    # Where entries are.

    def has(self, key: str) -> bool:
        return key in self._references.rows

    def locate(self, keys: Sequence[str]) -> Iterator[Group]:
        """Where the entries of `keys` are, in as many groups as it takes."""
        references = self._references
        row = np.fromiter(map(references.rows.get, keys, repeat(-1)), np.int64, len(keys))
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
                yield Group(self.root(number), names, keys, chosen, np.where(chosen, at, -1), offset, size)

    def stats(self, keys: Sequence[str]) -> list[os.stat_result | None]:
        """Of the files that the entries are in, the document itself for those inline; None where there is no entry."""
        result: list[os.stat_result | None] = [None] * len(keys)
        for group in self.locate(keys):
            if not group.keys:
                continue
            found = [self.status()] if group.inline is not None else group.root.stats(group.keys)
            for i in np.flatnonzero(group.chosen).tolist():
                result[i] = found[int(group.file[i])]
        return result

    def spans(self, prefix: str) -> tuple[list[str], Int64, Int64, Int64]:
        """The n keys that start with `prefix`, and of each the file (`INLINE` for none), the offset and the size."""
        keys = list(self.below(prefix))
        references = self._references
        row = np.fromiter((references.rows[key] for key in keys), np.int64, len(keys))
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
        for group in self.locate(self.below(prefix)):
            if group.inline is None and group.keys:
                found += [status for status in group.root.stats(group.keys) if status is not None]
        return found

    def status(self) -> os.stat_result:
        """Of the document itself, as it is now."""
        return os.stat(self.path)

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
        result: list[Any] = [None] * len(keys)
        for group in self.locate(keys):
            if not group.keys:
                continue
            if group.inline is not None and device.is_host:  # in memory already: nothing is read
                for i in np.flatnonzero(group.chosen).tolist():
                    begin, length = int(group.offset[i]), int(group.size[i])
                    start, size = _part(length, 0 if offsets is None else offsets[i], -1 if sizes is None else sizes[i])
                    result[i] = np.frombuffer(group.inline, np.uint8, size, begin + start)
                continue
            with group.open() as handles:
                rows = np.flatnonzero(group.chosen).tolist()
                lengths = group.sizes(handles, most=most)[rows].tolist()
                ranges = [
                    _part(n, 0 if offsets is None else offsets[i], -1 if sizes is None else sizes[i])
                    for i, n in zip(rows, lengths, strict=True)
                ]
                file = group.file[rows].tolist()
                starts = [at + start for at, (start, _) in zip(group.offset[rows].tolist(), ranges, strict=True)]
                parts = fetch(
                    group.root, [group.keys[i] for i in file], starts, [size for _, size in ranges],
                    device=device, handles=[handles[i] for i in file], reason=reason,
                )  # fmt: skip
            for i, part in zip(rows, parts, strict=True):
                result[i] = part
        return result

    # Reading, as zarr-python asks for it.

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        return (await asyncio.to_thread(self._get, prototype, [(key, byte_range)]))[0]

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        return self._get(prototype, [(key, byte_range)])[0]

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return await asyncio.to_thread(self._get, prototype, list(key_ranges))

    def _get(
        self, prototype: BufferPrototype | None, ranges: Sequence[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        prototype = prototype or default_buffer_prototype()
        wanted = [byte_range(request) for _, request in ranges]
        device = resolve("cuda") if wants_device(prototype) else HOST
        found = self.fetch(
            [key for key, _ in ranges], [offset for offset, _ in wanted], [size for _, size in wanted], device=device
        )
        return [None if data is None else buffer_of(prototype, data) for data in found]

    async def exists(self, key: str) -> bool:
        return self.has(key)

    async def getsize(self, key: str) -> int:
        sizes = self.sizes([key])[0]
        if sizes is None:
            raise FileNotFoundError(key)
        return sizes

    def sizes(self, keys: Sequence[str]) -> list[int | None]:
        """Bytes of each entry; None where there is none."""
        result: list[int | None] = [None] * len(keys)
        for group in self.locate(keys):
            if group.inline is not None:
                length = group.size
            elif group.keys:
                with group.open() as handles:
                    length = group.sizes(handles)
            if group.keys:
                for i in np.flatnonzero(group.chosen).tolist():
                    result[i] = int(length[i])
        return result

    # Listing.

    @property
    def supports_listing(self) -> bool:
        return True

    async def list(self) -> AsyncIterator[str]:
        for key in self._references.rows:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self.below(prefix):
            yield key

    def below(self, prefix: str) -> Sequence[str]:
        """The keys that start with `prefix`."""
        keys = self._sorted
        if keys is None:
            keys = self._sorted = sorted(self._references.rows)
        first = bisect_left(keys, prefix)
        return keys[first : bisect_left(keys, True, first, key=lambda key: not key.startswith(prefix))]

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        if self._directories is None:
            self._directories = _directories(self._references.rows)
        for name in self._directories.get(prefix.strip("/"), ()):
            yield name

    # Writing: nothing.

    @property
    def supports_writes(self) -> bool:
        return False

    @property
    def supports_deletes(self) -> bool:
        return False

    async def set(self, key: str, value: Buffer) -> None:
        raise self._for_reading()

    async def delete(self, key: str) -> None:
        raise self._for_reading()

    def _for_reading(self) -> ReadOnlyError:
        return ReadOnlyError(f"{self!r}: references are for reading only")


def _part(length: int, start: int, size: int) -> tuple[int, int]:
    """A range inside of `length` bytes: offset and bytes."""
    start = max(0, length + start) if start < 0 else min(start, length)
    room = length - start
    return start, room if size < 0 else min(size, room)


def _directories(keys: Iterable[str]) -> dict[str, dict[str, None]]:
    """The names right below each prefix."""
    found: dict[str, dict[str, None]] = {}
    for key in keys:
        rest: str = key
        while rest:
            above, _, name = rest.rpartition("/")
            names = found.get(above)
            if names is None:
                found[above] = {name: None}
            elif name in names:
                break
            else:
                names[name] = None
                break
            rest = above
    return found


def _configured() -> list[str]:
    roots = config.get("references.roots")
    if isinstance(roots, str):
        roots = [roots]
    if not isinstance(roots, list | tuple) or not all(isinstance(root, str | os.PathLike) for root in roots):
        raise ConfigError(f"references.roots = {roots!r} is no list of directories")
    return [os.fspath(root) for root in roots]


_kept: weakref.WeakValueDictionary[tuple[str, Identity], References] = weakref.WeakValueDictionary()


def _loaded(path: str) -> References:
    """The references in a file; parsed once, as long as a store of it lives."""
    try:
        fd = os.open(path, OPEN_FLAGS | os.O_CLOEXEC)
    except OSError as error:
        raise NotFoundError(error.errno or 0, os.strerror(error.errno or 0), path) from error
    try:
        status = os.fstat(fd)
        special = irregular(path, status)
        if special is not None:
            raise NotZarrError(str(special))
        limit = integer("references.limit")
        if status.st_size > limit:
            raise NotZarrError(f"has {status.st_size} bytes, references may have {limit} at most (references.limit)")
        identity = Identity.of(status)
        known = _kept.get((path, identity))
        if known is None:
            with open(fd, "rb", closefd=False) as file:
                known = parse(file.read(status.st_size))
            _kept[path, identity] = known
        return known
    finally:
        os.close(fd)


def _unpickle(path: str, roots: tuple[str, ...], follow_links: bool) -> VirtualStore:
    return VirtualStore(path, roots=roots, follow_links=follow_links)
