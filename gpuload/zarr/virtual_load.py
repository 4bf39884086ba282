"""The references that a file holds, whatever it is: kerchunk's JSON, or the directory of a zip archive."""

from __future__ import annotations

import os
import weakref

from gpuload.config import config, integer
from gpuload.errors import ConfigError, NotFoundError, NotZarrError
from gpuload.files.geometry import Identity
from gpuload.files.root import OPEN_FLAGS, irregular
from gpuload.zarr.virtual_refs import References, parse
from gpuload.zarr.virtual_zip import directory_of

_LOOKED_AT = 1000  # bytes of a file, for what it begins with

_kept: weakref.WeakValueDictionary[tuple[str, Identity], References] = weakref.WeakValueDictionary()


def load(path: str) -> References:
    """The references in a file; parsed once, as long as a store of it lives.

    Raises
    ------
    NotFoundError, NotZarrError
        There is no such file, or it is neither; names what it is not, and leaves the path to the caller.
    StoreError
        As `parse` and `directory_of` do.
    """
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
        zipped = kind(path, os.pread(fd, _LOOKED_AT, 0)) == "zip"
        if not zipped and status.st_size > limit:
            raise NotZarrError(f"has {status.st_size} bytes, references may have {limit} at most (references.limit)")
        identity = Identity.of(status)
        known = _kept.get((path, identity))
        if known is None:
            with open(fd, "rb", closefd=False) as file:
                if zipped:
                    known = directory_of(file, os.path.realpath(path), limit)
                else:
                    known = parse(file.read(status.st_size))
            _kept[path, identity] = known
        return known
    finally:
        os.close(fd)


def kind(path: str, start: bytes | None) -> str | None:
    """What a file is that begins with `start`: ``"json"``, ``"zip"``, also by its name alone, or None for neither."""
    if start is None:
        return None
    if start.lstrip().startswith(b"{"):
        return "json"
    return "zip" if start.startswith(b"PK") or path.lower().endswith(".zip") else None


def configured_roots() -> list[str]:
    """Directories that references may lead to (`references.roots`).

    Raises
    ------
    ConfigError
        They are no list of paths.
    """
    roots = config.get("references.roots")
    if isinstance(roots, str):
        roots = [roots]
    if not isinstance(roots, list | tuple) or not all(isinstance(root, str | os.PathLike) for root in roots):
        raise ConfigError(f"references.roots = {roots!r} is no list of directories")
    return [os.fspath(root) for root in roots]
