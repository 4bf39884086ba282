"""`VirtualStore`: a zarr store for reading whose entries are ranges of other files: references, members of a zip."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from gpuload.errors import ReadOnlyError
from gpuload.memory.device import HOST, resolve
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
from gpuload.zarr.virtual_entries import Entries


class VirtualStore(Store):
    """A zarr store, for reading, whose entries are ranges of local files: kerchunk's JSON references, or a zip archive.

    Every read goes through registered file handles and is recorded. Deflated members of an archive are inflated on the
    host.

    Threads: safe. Fork: safe for the host. Pickle: by path and options.

    Parameters
    ----------
    path
        Of the references: JSON of version 0 or 1, as kerchunk and VirtualiZarr write it. Or of a zip archive; where it
        holds just one directory, that is the store.
    roots
        Directories that references may lead to, besides the one that `path` is in and those that are configured
        (`references.roots`).
    follow_links
        Let links below those directories leave them; None: as configured.

    Raises
    ------
    NotFoundError, NotZarrError
        There is no such file, or it holds no references and is no archive.
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
        self.entries = Entries(path, roots, follow_links)

    @property
    def path(self) -> str:
        """The absolute path of the references or the archive."""
        return self.entries.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._options == other._options

    __hash__ = None  # type: ignore[assignment] # as zarr's own stores

    def __repr__(self) -> str:
        return f"VirtualStore({self.path!r})"

    def __str__(self) -> str:
        return self.path

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, self._options

    @property
    def _options(self) -> tuple[str, tuple[str, ...], bool]:
        return self.entries.path, self.entries.roots, self.entries.follow_links

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
        found = self.entries.fetch(
            [key for key, _ in ranges], [offset for offset, _ in wanted], [size for _, size in wanted], device=device
        )
        return [None if data is None else buffer_of(prototype, data) for data in found]

    async def exists(self, key: str) -> bool:
        return self.entries.has(key)

    async def getsize(self, key: str) -> int:
        sizes = self.entries.sizes([key])[0]
        if sizes is None:
            raise FileNotFoundError(key)
        return sizes

    # Listing.

    @property
    def supports_listing(self) -> bool:
        return True

    async def list(self) -> AsyncIterator[str]:
        for key in self.entries.keys:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self.entries.below(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in self.entries.names_below(prefix):
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
        return ReadOnlyError(f"{self!r}: references and archives are for reading only")


def _unpickle(path: str, roots: tuple[str, ...], follow_links: bool) -> VirtualStore:
    return VirtualStore(path, roots=roots, follow_links=follow_links)
