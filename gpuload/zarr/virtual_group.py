"""`Group`: entries of a virtual store in files that may be open at one time, checked against these as they are."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuload.engine.reader import lease
from gpuload.errors import ChunkReadError, ChunkSizeError
from gpuload.files.geometry import Identity
from gpuload.files.handle import FileHandle
from gpuload.files.memory import memory_file
from gpuload.files.root import Root
from gpuload.request import Int64
from gpuload.zarr.virtual_refs import WHOLE

Bools = npt.NDArray[np.bool_]

INLINE_KEY = "inline"  # in place of a file's key: what the document itself holds


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
    identity
        Of the only file, if it must be the one that was looked at before.
    """

    root: Root
    keys: list[str]
    names: Sequence[str]
    chosen: Bools
    file: Int64
    offset: Int64
    size: Int64
    inline: memoryview | None = None
    identity: Identity | None = None

    @contextmanager
    def open(self) -> Iterator[list[FileHandle]]:
        """Handles of the files, for the time of a block.

        Raises
        ------
        ChunkReadError
            A file is not there: what refers to it is not simply missing. Or it is not what `identity` says, before the
            block or behind it.
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
            self._check(found)
            yield found
            self._check(found, os.fstat)

    def _check(self, handles: Sequence[FileHandle], look: Callable[[int], os.stat_result] | None = None) -> None:
        """Refuse another content than the one that was looked at before; `look` is to look at the open file again."""
        if self.identity is None:
            return
        (handle,) = handles
        seen = handle.identity if look is None else Identity.of(look(handle.buffered_fd))
        if not _same_content(seen, self.identity):
            raise ChunkReadError(
                self.keys[0], errno.ESTALE, "was replaced or written to since it was opened: open it again"
            )

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


def _same_content(one: Identity, other: Identity) -> bool:
    """Whether two looks at a file saw the same; its ctime, which links and names change as well, does not matter."""
    return (one.device, one.inode, one.size, one.mtime_ns) == (other.device, other.inode, other.size, other.mtime_ns)
