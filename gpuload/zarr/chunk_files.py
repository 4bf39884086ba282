"""Which files of an array are its chunks or shards, and how large they are: by listing directories, not by asking for
each chunk that there could be.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuload.files.root import Root
from gpuload.files.writer import is_temporary
from gpuload.request import Int64
from gpuload.zarr._compat import Description
from gpuload.zarr.keys import DOCUMENTS


@dataclass(frozen=True, slots=True, eq=False)
class ChunkFiles:
    """The files of an array: keys below the root, and int64 (files,) sizes in bytes."""

    keys: list[str]
    size: Int64


def chunk_files(root: Root, prefix: str, description: Description) -> ChunkFiles:
    """List the chunk files of the array whose keys start with `prefix`; others, and unfinished ones, are left out."""
    is_chunk = _test(description)
    keys: list[str] = []
    sizes: list[int] = []
    directories = [prefix]
    while directories:
        at = directories.pop()
        try:
            fd = root.open(at or ".", os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
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
        finally:
            os.close(fd)
    return ChunkFiles(keys, np.array(sizes, np.int64))


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
