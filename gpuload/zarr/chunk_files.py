"""Which files of an array are its chunks or shards, and how large they are: by listing directories, not by asking for
each chunk that there could be.
"""

from __future__ import annotations

import itertools
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuload.files.root import Root
from gpuload.files.writer import is_temporary
from gpuload.request import Int64
from gpuload.zarr._compat import Description
from gpuload.zarr.keys import DOCUMENTS

_PATIENCE = 20  # entries that are looked at for each file that may be listed


@dataclass(frozen=True, slots=True, eq=False)
class ChunkFiles:
    """The files of an array: keys below the root, int64 (files,) sizes in bytes, and whether these are all."""

    keys: list[str]
    size: Int64
    complete: bool = True


def chunk_files(root: Root, prefix: str, description: Description, most: int | None = None) -> ChunkFiles:
    """List the chunk files of the array whose keys start with `prefix`; others, and unfinished ones, are left out.

    With `most` the listing ends when it has about so many, or has looked at `_PATIENCE` times as many entries; of no
    directory are there looked at more than that.
    """
    is_chunk = _test(description)
    keys: list[str] = []
    sizes: list[int] = []
    directories = [prefix]
    complete, most = True, sys.maxsize if most is None else most
    patience = _PATIENCE * most
    while directories:
        if len(keys) >= most or patience <= 0:
            complete = False
            break
        at = directories.pop()
        try:
            fd = root.open(at or ".", os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            with os.scandir(fd) as scanned:
                for entry in itertools.islice(scanned, most):
                    patience -= 1
                    key = at + entry.name
                    if entry.is_symlink():  # only the root knows whether it may be followed
                        status = root.stat(key)
                        if status is None:
                            continue
                        directory = stat.S_ISDIR(status.st_mode)
                    else:
                        directory, status = entry.is_dir(follow_symlinks=False), None
                    if directory:
                        # A key has a component for each dimension and its prefix: nothing of the array is deeper.
                        if key.count("/") - prefix.count("/") <= len(description.shape):
                            directories.append(f"{key}/")
                        continue
                    if entry.name in DOCUMENTS or is_temporary(entry.name) or not is_chunk(key[len(prefix) :]):
                        continue
                    keys.append(key)
                    sizes.append((status or entry.stat(follow_symlinks=False)).st_size)
                complete = complete and next(scanned, None) is None
        finally:
            os.close(fd)
    return ChunkFiles(keys, np.array(sizes, np.int64), complete)


def _test(description: Description) -> Callable[[str], bool]:
    """Whether a key, relative to the array, is that of a chunk inside its grid."""
    separator, head = description.separator, description.key_prefix
    counts = [
        -(-n // edge) if isinstance(edge, int) else len(edge)
        for n, edge in zip(description.shape, description.chunk_edges, strict=True)
    ]
    if separator is None or not counts:
        only = description.encode_key(()) if not counts else None
        return lambda key: only is None or key == only
    start = f"{head}{separator}" if head else ""

    def is_chunk(key: str) -> bool:
        if not key.startswith(start):
            return False
        parts = key[len(start) :].split(separator)
        return len(parts) == len(counts) and all(
            part.isascii() and part.isdigit() and int(part) < count for part, count in zip(parts, counts, strict=True)
        )

    return is_chunk
