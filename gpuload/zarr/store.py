"""`DeviceStore`: a zarr store of local files that hands out bytes in host or device memory, by registered handles."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from gpuload.config import flag
from gpuload.engine.reader import fetch
from gpuload.errors import EscapesStoreError, NotRegularFileError
from gpuload.files.root import Root
from gpuload.files.writer import is_temporary
from gpuload.memory.device import HOST, Device, resolve
from gpuload.request import Reason
from gpuload.zarr._compat import (
    Buffer,
    BufferPrototype,
    ByteRequest,
    LocalStore,
    buffer_of,
    byte_range,
    cpu_prototype,
    default_buffer_prototype,
    wants_device,
)
from gpuload.zarr.decoding import HostKeys

Range = tuple[str, ByteRequest | None]


class DeviceStore(LocalStore):
    """A zarr store of local files, read through gpuload.

    Every read goes through registered file handles and is recorded. A buffer prototype of device memory gets device
    buffers, any other host ones; metadata, and chunks with codecs that run on the host, get host buffers in any case.
    Keys and links cannot leave the root. Listing and writing are zarr-python's own.

    Threads: safe. Fork: safe for the host. Pickle: by path and options.

    Parameters
    ----------
    root
        The directory.
    read_only
        Refuse writing.
    follow_links
        Let links below the root leave it; None: as configured.

    Raises
    ------
    EscapesStoreError
        From any method: a key with ``..``, an absolute one, or a link that leaves the root.
    """

    def __init__(
        self, root: Path | str | os.PathLike[str], *, read_only: bool = False, follow_links: bool | None = None
    ) -> None:
        super().__init__(Path(root) if isinstance(root, os.PathLike) else root, read_only=read_only)
        self.follow_links = flag("follow_links") if follow_links is None else follow_links
        self._directory: Root | None = None
        self._reason: Reason | None = None
        self._on_host = HostKeys()

    @property
    def directory(self) -> Root:
        """The root, held open; opened when it is first needed, because a store may make it later."""
        directory = self._directory
        if directory is None:
            # Two threads may both come here: they get equal roots, and one of the two stays.
            directory = self._directory = Root(self.root, follow_links=self.follow_links)
        return directory

    def with_read_only(self, read_only: bool = False) -> Self:
        return type(self)(self.root, read_only=read_only, follow_links=self.follow_links)

    def noting(self, reason: Reason) -> DeviceStore:
        """The same store, for reading, with a `reason` in the record why the fastpath cannot serve what is read."""
        store = DeviceStore(self.root, read_only=True, follow_links=self.follow_links)
        store._directory, store._reason = self.directory, reason
        return store

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.root == other.root and self.follow_links == other.follow_links

    __hash__ = None  # type: ignore[assignment] # as zarr's own stores

    def __repr__(self) -> str:
        return f"DeviceStore('{self}')"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_directory": None}

    # Reading: everything ends in `_fetch`.

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        self._ensure_open_sync()
        return self._fetch(prototype, [(key, byte_range)])[0]

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        await self._make_open()
        return (await asyncio.to_thread(self._fetch, prototype, [(key, byte_range)]))[0]

    async def get_partial_values(self, prototype: BufferPrototype, key_ranges: Iterable[Range]) -> list[Buffer | None]:
        await self._make_open()
        return await asyncio.to_thread(self._fetch, prototype, list(key_ranges))

    async def get_ranges(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], *, prototype: BufferPrototype, **_tuning: int
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """Many ranges of one key; how they are merged is gpuload's choice, not the caller's."""
        await self._make_open()
        if byte_ranges:
            yield await asyncio.to_thread(self._fetch_ranges, key, byte_ranges, prototype)

    def get_ranges_sync(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], *, prototype: BufferPrototype, **_tuning: int
    ) -> Sequence[tuple[int, Buffer | None]]:
        self._ensure_open_sync()
        return self._fetch_ranges(key, byte_ranges, prototype) if byte_ranges else []

    async def _make_open(self) -> None:
        if not self._is_open:
            try:
                await self._open()
            except ValueError:  # somebody else opened it meanwhile, which zarr-python takes for a mistake
                if not self._is_open:
                    raise

    def _fetch_ranges(
        self, key: str, ranges: Sequence[ByteRequest | None], prototype: BufferPrototype
    ) -> list[tuple[int, Buffer | None]]:
        buffers = self._fetch(prototype, [(key, request) for request in ranges])
        if any(buffer is None for buffer in buffers):
            # As zarr has it: an absent key is a group of errors here, where it is None for a single one.
            raise BaseExceptionGroup(f"{key!r} cannot be read", [FileNotFoundError(key)])
        return list(enumerate(buffers))

    def _fetch(self, prototype: BufferPrototype | None, ranges: Sequence[Range]) -> list[Buffer | None]:
        prototype = prototype or default_buffer_prototype()
        root = self.directory
        root.refresh()
        if not wants_device(prototype):
            return self._buffers(root, prototype, ranges, HOST, self._reason)
        distinct = {key: self._on_host.has(root, key) for key in dict.fromkeys(key for key, _ in ranges)}
        found: list[Buffer | None] = [None] * len(ranges)
        for on_host in set(distinct.values()):
            mine = [i for i, (key, _) in enumerate(ranges) if distinct[key] == on_host]
            kind, device = (cpu_prototype, HOST) if on_host else (prototype, resolve("cuda"))
            reason = self._reason or (Reason.HOST_CODEC if on_host else None)
            for i, buffer in zip(
                mine, self._buffers(root, kind, [ranges[i] for i in mine], device, reason), strict=True
            ):
                found[i] = buffer
        return found

    def _buffers(
        self, root: Root, prototype: BufferPrototype, ranges: Sequence[Range], device: Device, reason: Reason | None
    ) -> list[Buffer | None]:
        wanted = [byte_range(request) for _, request in ranges]
        offsets, sizes = [offset for offset, _ in wanted], [size for _, size in wanted]
        found = _files(root, [key for key, _ in ranges], offsets, sizes, device, reason)
        return [None if data is None else buffer_of(prototype, data) for data in found]

    # Listing and writing: zarr-python's own, once the key is known to stay inside.

    async def exists(self, key: str) -> bool:
        await asyncio.to_thread(self._contain, key)
        return await super().exists(key)

    async def getsize(self, key: str) -> int:
        await asyncio.to_thread(self._contain, key)
        return await super().getsize(key)

    async def _set(self, key: str, value: Buffer, exclusive: bool = False) -> None:
        await self._make_open()
        self._check_writable()
        await asyncio.to_thread(self._contain_file, key)
        await super()._set(key, value, exclusive)

    def set_sync(self, key: str, value: Buffer) -> None:
        self._ensure_open_sync()
        self._check_writable()
        self._contain_file(key)
        super().set_sync(key, value)

    async def delete(self, key: str) -> None:
        self._check_writable()
        await asyncio.to_thread(self._contain_file, key)
        await super().delete(key)

    def delete_sync(self, key: str) -> None:
        self._ensure_open_sync()
        self._check_writable()
        self._contain_file(key)
        super().delete_sync(key)

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        await asyncio.to_thread(self._contain, prefix)
        await super().delete_dir(prefix)

    async def list(self) -> AsyncIterator[str]:
        async for key in super().list():
            if not is_temporary(key.rpartition("/")[2]):
                yield key

    async def move(self, dest_root: Path | str) -> None:
        """Move the store to another path; it goes on from there."""
        await super().move(dest_root)
        self._directory = None

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        await asyncio.to_thread(self._contain, prefix)
        async for key in super().list_prefix(prefix):
            if not is_temporary(key.rpartition("/")[2]):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        await asyncio.to_thread(self._contain, prefix)
        async for name in super().list_dir(prefix):
            if not is_temporary(name):
                yield name

    def _contain_file(self, key: str) -> None:
        """`_contain`, for what names one file: to zarr-python nothing names the root, which it replaces or deletes."""
        if not key.strip("/") or "\0" in key:
            raise EscapesStoreError(f"the key {key!r} names no file of the store at '{self.root}'")
        self._contain(key)

    def _contain(self, key: str) -> None:
        """Raise unless `key`, and whatever is there of its path, is inside the root."""
        path = key.rstrip("/")
        if not path:
            return
        if path.startswith("/") or ".." in path.split("/"):
            raise EscapesStoreError(f"the key {key!r} leaves the store at '{self.root}'")
        if not self.root.is_dir():
            return
        root = self.directory
        root.refresh()
        # The deepest part of the path that exists: below it there cannot be a link yet.
        while path and root.stat(path) is None:
            path = path.rpartition("/")[0]


def _files(
    root: Root, keys: list[str], offsets: list[int], sizes: list[int], device: Device, reason: Reason | None
) -> list[Any]:
    """Bytes of each key; None where there is no file. For zarr a directory is no key, so it is none either."""
    try:
        return fetch(root, keys, offsets, sizes, device=device, reason=reason)
    except NotRegularFileError:
        if len(keys) == 1:
            status = root.stat(keys[0])
            if status is not None and stat.S_ISDIR(status.st_mode):
                return [None]
            raise
        return [
            _files(root, [key], [offset], [size], device, reason)[0]
            for key, offset, size in zip(keys, offsets, sizes, strict=True)
        ]
