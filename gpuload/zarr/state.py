"""`FileState`: an array's files at one moment, and whether what is read later is still that.

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
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuload.errors import ChangedError
from gpuload.files.root import Root
from gpuload.files.writer import is_temporary
from gpuload.planning.selection import AnySelection, Selection
from gpuload.planning.touch import touch
from gpuload.request import Int64
from gpuload.zarr.array import Array
from gpuload.zarr.foreign import touched_chunks
from gpuload.zarr.layout import Layout
from gpuload.zarr.source import Source

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

    def check(self, array: Array, selection: AnySelection | None) -> None:
        """Raise unless what was just read of `array` was the array of this state.

        Parameters
        ----------
        array
            Opened at the place of this state.
        selection
            What was read; None: only the metadata.

        Raises
        ------
        ChangedError
            One of its chunks or shards, or the metadata, changed since; a chunk may also be gone, or be there where
            none was.
        """
        source = array.source
        if _documents(source) != self.documents:
            raise ChangedError(f"'{source.place}': the metadata of {source.path or 'the array'!r} {_CHANGED}")
        keys = [] if selection is None or 0 in selection.box else _keys(array, selection)
        missing: dict[str, str] = {}
        for key, status in zip(keys, source.stats(keys), strict=True):
            if status is None:
                missing.setdefault(key.rpartition("/")[0], key)
            elif status.st_ctime_ns > self.youngest:
                raise ChangedError(f"'{source.place}': the chunk {key!r} {_CHANGED}")
        if source.references is not None:  # the document tells what is not there
            return
        root = source.root
        # Of a chunk without a file the directory tells whether there was one, or of a missing directory the next one.
        for directory, key in missing.items():
            found = _nearest(root, directory)
            if found is not None and found.st_ctime_ns > self.youngest:
                raise ChangedError(f"'{root.path}': the chunk {key!r}, which is not there, {_CHANGED}")


_CHANGED = "changed, or may have, since the array was opened for dask: open it anew"


def look(source: Source) -> FileState:
    """The state of the array of `source`, as of the end of this call."""
    for _ in range(_LOOKS):
        started = time.time_ns()
        documents = _documents(source)
        rows, youngest = _walk(source)
        if youngest < started - int(_TICK * 1e9):
            break
        time.sleep(_TICK)
    return FileState(_digest(rows), youngest, documents)


def _documents(source: Source) -> tuple[Document, ...]:
    if source.references is not None:
        status = source.references.status()
        return ((status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns),)
    root, prefix = source.root, source.prefix
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


def _walk(source: Source) -> tuple[list[tuple[int, int, int, int]], int]:
    """Inode, size, mtime and ctime of every file of the array, and the latest ctime of files and directories."""
    rows: list[tuple[int, int, int, int]] = []
    youngest = 0
    if source.references is not None:
        found = source.references.files_below(source.prefix)
        rows = [(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) for status in found]
        return rows, max(row[3] for row in rows)
    root, prefix = source.root, source.prefix
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


def _keys(array: Array, selection: AnySelection) -> list[str]:
    """The keys of all chunks or shards that a selection touches."""
    layout, prefix = array.layout, array.source.prefix
    return [prefix + key for key in layout.keys(_coordinates(layout, selection))]


def _coordinates(layout: Layout, selection: AnySelection) -> Int64:
    edges = [edge for edge in layout.chunk_edges if isinstance(edge, int)]
    if not isinstance(selection, Selection) or len(edges) < len(layout.chunk_edges):
        return np.concatenate(list(touched_chunks(layout, selection)))
    along = [np.unique(touch(axis, edge).chunk) for axis, edge in zip(selection.axes, edges, strict=True)]
    grid = np.meshgrid(*along, indexing="ij") if along else []
    return np.stack([part.ravel() for part in grid], axis=1) if along else np.zeros((1, 0), np.int64)
