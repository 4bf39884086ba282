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

from gpuload.files.root import Root, irregular
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

    Raises
    ------
    NotRegularFileError
        A directory, a FIFO or the like where a chunk should be.
    """
    is_chunk, any_name = chunk_test(description)
    level, rest = _lonely(description)
    keys: list[str] = []
    sizes: list[int] = []
    directories = [prefix]
    complete, most = True, sys.maxsize if most is None else most
    patience = _PATIENCE * most

    def take(key: str, status: os.stat_result) -> None:
        special = irregular(key, status)
        if special is not None:
            raise special
        keys.append(key)
        sizes.append(status.st_size)

    while directories:
        if len(keys) >= most or patience <= 0:
            complete = False
            break
        at = directories.pop()
        depth = at.count("/") - prefix.count("/")
        lonely: list[str] = []
        try:
            fd = root.open(at or ".", os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            with os.scandir(fd) as scanned:
                for entry in itertools.islice(scanned, most):
                    patience -= 1
                    key = at + entry.name
                    name = key[len(prefix) :]
                    if depth == level and is_chunk(name + rest):
                        lonely.append(key + rest)
                        continue
                    if entry.is_symlink():  # only the root knows whether it may be followed
                        status = root.stat(key)
                        if status is None:
                            continue
                        directory = stat.S_ISDIR(status.st_mode)
                    else:
                        directory, status = entry.is_dir(follow_symlinks=False), None
                    chunk = entry.name not in DOCUMENTS and not is_temporary(entry.name) and is_chunk(name)
                    if chunk and not (directory and any_name):
                        take(key, status or entry.stat(follow_symlinks=False))
                    # A key has a component for each dimension and its prefix: nothing of the array is deeper.
                    elif directory and depth < len(description.shape) + 1:
                        directories.append(f"{key}/")
                complete = complete and next(scanned, None) is None
        finally:
            os.close(fd)
        for key, found in zip(lonely, root.stats(lonely), strict=True):
            if found is not None:
                take(key, found)
    return ChunkFiles(keys, np.array(sizes, np.int64), complete)


def _lonely(description: Description) -> tuple[int, str]:
    """From which level of directories on each directory has one chunk at most, and the rest of the key of that chunk.

    Such chunks are asked for by their keys: to list a directory or two for each of them would take several times as
    long. Level -1: there is none.
    """
    counts = _counts(description)
    if description.separator != "/" or not counts:
        return -1, ""
    levels = [1, *counts] if description.key_prefix else counts
    last = max((level for level, count in enumerate(levels) if count > 1), default=0)
    return (last, "/0" * (len(levels) - 1 - last)) if last < len(levels) - 1 else (-1, "")


def _counts(description: Description) -> list[int]:
    """Chunks along each dimension."""
    return [
        -(-n // edge) if isinstance(edge, int) else len(edge)
        for n, edge in zip(description.shape, description.chunk_edges, strict=True)
    ]


def chunk_test(description: Description) -> tuple[Callable[[str], bool], bool]:
    """Whether a key, relative to the array, is that of a chunk inside its grid; and whether any name may be one."""
    separator, head = description.separator, description.key_prefix
    counts = _counts(description)
    if not counts:
        only = description.encode_key(())
        return lambda key: key == only, False
    if separator is None:
        return lambda key: True, True
    start = f"{head}{separator}" if head else ""

    def is_chunk(key: str) -> bool:
        if not key.startswith(start):
            return False
        parts = key[len(start) :].split(separator)
        return len(parts) == len(counts) and all(
            part.isascii() and part.isdigit() and int(part) < count for part, count in zip(parts, counts, strict=True)
        )

    return is_chunk, False
