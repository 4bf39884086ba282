"""The state of an array's files: what tells that it is still the array that a graph was made of.

The kernel stamps a file when its content, name or links change (ctime), and a directory when something in it appears or
goes; no call sets that stamp back. All stamps of an array are looked at once. What is read later must not be younger
than the youngest of them: that is one number, however many chunks there are. A change in the same tick of the kernel's
clock would have the same stamp, so where the youngest is only just made, the look is repeated when the tick is over.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.errors import ChangedError
from gpuload.files.root import Root
from gpuload.files.writer import is_temporary

_TICK = 0.05  # seconds; the kernel's clock ticks at least every 10 ms
_LOOKS = 3
_DOCUMENTS = ("zarr.json", ".zarray", ".zattrs")

Document = tuple[int, int, int, int] | None  # device, inode, size, ctime


@dataclass(frozen=True, slots=True)
class FileState:
    """An array's files at one moment. Threads, fork and pickle: a value, safe everywhere.

    Parameters
    ----------
    digest
        Of inode, size and both stamps of every file.
    youngest
        The latest ctime of all files and directories, in nanoseconds.
    documents
        The array's directory, then its metadata documents; None where there is none.
    """

    digest: str
    youngest: int
    documents: tuple[Document, ...]

    def check(self, root: Root, prefix: str, keys: Sequence[str]) -> None:
        """Raise unless what was just read from `keys` was the array of this state.

        Parameters
        ----------
        root, prefix
            The store, and what the keys of the array start with.
        keys
            Those of the chunks or shards that were read, below the root.

        Raises
        ------
        ChangedError
            One of them, or the metadata, changed since; a chunk may also be gone, or be there where none was.
        """
        if _documents(root, prefix) != self.documents:
            raise ChangedError(f"'{root.path}': the metadata of {prefix.strip('/') or 'the array'!r} {_CHANGED}")
        missing: dict[str, str] = {}
        for key, status in zip(keys, root.stats(keys), strict=True):
            if status is None:
                missing.setdefault(key.rpartition("/")[0], key)
            elif status.st_ctime_ns > self.youngest:
                raise ChangedError(f"'{root.path}': the chunk {key!r} {_CHANGED}")
        # Of a chunk without a file the directory tells whether there was one, or of a missing directory the next one.
        for directory, key in missing.items():
            found = _nearest(root, directory)
            if found is not None and found.st_ctime_ns > self.youngest:
                raise ChangedError(f"'{root.path}': the chunk {key!r}, which is not there, {_CHANGED}")


_CHANGED = "changed, or may have, since the dask array was made: make it anew with gpuload.dask.from_zarr"


def look(root: Root, prefix: str) -> FileState:
    """The state of the array whose keys start with `prefix`, as of the end of this call."""
    for _ in range(_LOOKS):
        started = time.time_ns()
        documents = _documents(root, prefix)
        rows, youngest = _walk(root, prefix)
        if youngest < started - int(_TICK * 1e9):
            break
        time.sleep(_TICK)
    return FileState(_digest(rows), youngest, documents)


def _documents(root: Root, prefix: str) -> tuple[Document, ...]:
    directory = root.stat(prefix.rstrip("/")) if prefix else os.fstat(root.fd)
    found = root.stats([prefix + name for name in _DOCUMENTS])
    # Of the directory only which one it is: its stamps change when a chunk is written that nobody asks for here.
    which = None if directory is None else (directory.st_dev, directory.st_ino, 0, 0)
    return (which, *(None if s is None else (s.st_dev, s.st_ino, s.st_size, s.st_ctime_ns) for s in found))


def _nearest(root: Root, directory: str) -> os.stat_result | None:
    while directory:
        status = root.stat(directory)
        if status is not None:
            return status
        directory = directory.rpartition("/")[0]
    return os.fstat(root.fd)


def _walk(root: Root, prefix: str) -> tuple[list[tuple[int, int, int, int]], int]:
    """Inode, size, mtime and ctime of every file below `prefix`, and the latest ctime of files and directories."""
    rows: list[tuple[int, int, int, int]] = []
    youngest = 0
    directories = [prefix]
    while directories:
        at = directories.pop()
        try:
            fd = root.open(at.rstrip("/") or ".", os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            youngest = max(youngest, os.fstat(fd).st_ctime_ns)
            with os.scandir(fd) as entries:
                for name, status in _members(root, at, entries):
                    if stat.S_ISDIR(status.st_mode):
                        directories.append(f"{at}{name}/")
                    elif not is_temporary(name):
                        rows.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        finally:
            os.close(fd)
    return rows, max([youngest, *(row[3] for row in rows)])


def _members(root: Root, at: str, entries: Iterator[os.DirEntry[str]]) -> Iterator[tuple[str, os.stat_result]]:
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # it went meanwhile, which its directory's stamp tells
            continue
        if stat.S_ISLNK(status.st_mode):  # only the root knows whether it may be followed
            followed = root.stat(at + entry.name)
            if followed is None:
                continue
            status = followed
        yield entry.name, status


def _digest(rows: list[tuple[int, int, int, int]]) -> str:
    # By inode: the order in which a directory lists its files is nobody's promise.
    table = np.array(rows, np.uint64).reshape(-1, 4)
    table = table[np.lexsort(table.T[::-1])]
    return hashlib.blake2b(table.tobytes(), digest_size=16).hexdigest()
