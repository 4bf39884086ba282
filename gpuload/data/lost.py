"""`Watch`: notices while an epoch is read that a chunk was lost, or that the metadata of an array changed.

zarr takes a chunk without a file for one that holds the fill value. Where such a chunk is met for the first time, the
directory it should be in tells whether something was removed there, or added, since the epoch began.

Threads: of the one that reads. Fork and pickle: none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from gpuload import events
from gpuload.errors import ChangedError, ChunkLostError
from gpuload.files.root import Root
from gpuload.request import Filled, Int64, purpose
from gpuload.zarr.array import Array
from gpuload.zarr.variable import Variable

_DOCUMENTS = ("zarr.json", ".zarray")


_KNOWN = 1 << 16  # chunks that are kept in mind as never written


class Watch:
    """Watches the arrays of `variables` from now on until it is closed.

    Parameters
    ----------
    variables
        What will be read.
    absent
        Chunks, by root and key, that were found to have no file before anything changed: these were not lost. More are
        added to it, up to a limit.
    """

    def __init__(self, variables: Iterable[Variable], absent: set[tuple[str, str]]) -> None:
        self._absent = absent
        self._began = time.time_ns()
        self._arrays = {repr(part.source): part for v in variables for part in v.parts}
        self._documents = {place: _state(array) for place, array in self._arrays.items()}
        self._filled = False
        self._mine = ""
        self._unsubscribe = events.subscribe(self._note)

    def fill(self, variable: Variable, places: Sequence[range | Int64], out: Any) -> None:
        """`Variable.fill`, with a look at what turns out to have no file.

        Raises
        ------
        ChunkLostError
            A chunk is missing from a directory that was changed since; names it.
        """
        self._mine = purpose()
        self._filled = False
        variable.fill(places, out)
        if not self._filled:
            return
        for array, key in variable.absent(places):
            if array.source.references is not None:
                continue  # what there is, these say: nothing of it is lost by a file that goes
            root = array.source.root
            if (root.path, key) in self._absent:
                continue
            directory, changed = _directory(root, key)
            if changed <= self._began:
                if len(self._absent) < _KNOWN:
                    self._absent.add((root.path, key))
            else:
                where = f"the directory {directory or '.'!r} of {root.path!r}"
                raise ChunkLostError(
                    key,
                    f"it has no file, and {where} was changed since the epoch began: it was lost, or is being written",
                )

    def check(self) -> None:
        """Look whether the metadata are those of the beginning.

        Raises
        ------
        ChangedError
            They are not; names the document.
        """
        for place, array in self._arrays.items():
            if _state(array) != self._documents[place]:
                source = array.source
                raise ChangedError(
                    f"the metadata of {source!r} changed since the epoch began: open the store again when it is no "
                    "longer being written"
                )

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._unsubscribe()

    def _note(self, event: events.Event) -> None:
        if isinstance(event, Filled) and event.purpose == self._mine:
            self._filled = True


def _state(array: Array) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes when one of an array's documents is written."""
    source = array.source
    found = source.stats([source.prefix + name for name in _DOCUMENTS])
    return tuple(None if s is None else (s.st_ino, s.st_size, s.st_mtime_ns) for s in found)


def _directory(root: Root, key: str) -> tuple[str, int]:
    """The innermost directory on the way to `key` that is there, and when it was changed, in ns."""
    directory = key
    while directory:
        directory = directory.rpartition("/")[0]
        status = root.stat(directory or ".")
        if status is not None:
            return directory, status.st_mtime_ns
    return "", 0
