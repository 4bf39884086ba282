"""From a path to the store that is there: a directory, or a file whose entries are ranges of others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from gpuload.errors import ReadOnlyError
from gpuload.zarr.store import DeviceStore
from gpuload.zarr.virtual_load import kind
from gpuload.zarr.virtual_store import VirtualStore

DOCUMENTS = ("zarr.json", ".zarray", ".zgroup")  # of a node
_LOOKED_AT = 1000  # bytes of a file, for what it begins with


def store_at(
    path: str,
    *,
    roots: Sequence[str | os.PathLike[str]] = (),
    follow_links: bool | None = None,
    read_only: bool = True,
) -> DeviceStore | VirtualStore:
    """The store at `path`.

    Parameters
    ----------
    roots
        As `VirtualStore` has them.
    follow_links, read_only
        As `DeviceStore` has them.

    Raises
    ------
    ReadOnlyError
        References or an archive, and not `read_only`.
    StoreError
        As `VirtualStore` does. Directories are not looked at yet.
    """
    if os.path.basename(path) in DOCUMENTS or kind(path, _start(path)) is None:
        return DeviceStore(path, read_only=read_only, follow_links=follow_links)
    return for_reading(VirtualStore(path, roots=roots, follow_links=follow_links), read_only)


def for_reading(store: VirtualStore, read_only: bool) -> VirtualStore:
    """`store`, if it is to be read only."""
    if not read_only:
        raise ReadOnlyError(f"{store!r} is for reading only: mode 'r+' would write to it")
    return store


def begins(path: str, start: bytes) -> bool:
    """Whether there is a regular file at `path` that begins with `start`, behind white space."""
    return (_start(path) or b"").lstrip().startswith(start)


def _start(path: str) -> bytes | None:
    """What the regular file at `path` begins with; None where there is none that can be read."""
    if os.path.isfile(path):
        with suppress(OSError), open(path, "rb") as file:
            return file.read(_LOOKED_AT)
    return None
