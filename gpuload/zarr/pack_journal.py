"""What a pack has finished, one line a shard, so that it can go on after an interruption.

The journal is a file in the new store while that is being made. A shard counts as finished if its file still has the
inode, size and time that were noted after it had been written whole, and the files it was made of have the ones that
they had then. Whatever else is there is written again. Threads: safe. Fork: none, the lock would be shared. Pickle:
none.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, Self

from gpuload.errors import ExistsError

NAME = ".gpuload-pack.jsonl"

Stat = os.stat_result | None


class Journal:
    """The journal of the store at `path`, locked as long as it is open.

    Parameters
    ----------
    path
        The new store.
    what
        What is packed, and how: a journal of something else is an error.

    Raises
    ------
    ExistsError
        Another pack is running there, or one with other sources or options was interrupted.
    """

    def __init__(self, path: str, what: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()
        self._name = os.path.join(path, NAME)
        self._file = open(self._name, "a+", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        try:
            _lock(self._file, path)
            self._finished = self._read(path, json.loads(json.dumps(what)))
        except BaseException:
            self._file.close()
            raise

    def _read(self, path: str, what: Any) -> dict[str, list[Any]]:
        self._file.seek(0)
        try:
            lines = self._file.read().splitlines(keepends=True)
            begun = json.loads(lines[0]) if lines and lines[0].endswith("\n") else None
        except ValueError as error:  # as after a loss of power
            raise ExistsError(
                f"{self._name!r} is no journal of a pack: {error}; overwrite=True (--overwrite) begins again"
            ) from error
        if not lines or not lines[0].endswith("\n"):
            self._file.truncate(0)
            self._write(what)
            return {}
        if begun != what:
            raise ExistsError(
                f"{path!r} was begun with another source or other options; overwrite=True (--overwrite) begins again"
            )
        finished = {}
        whole = [line for line in lines[1:] if line.endswith("\n")]  # the last one may be cut off
        if len(whole) + 1 < len(lines):
            self._file.truncate(sum(len(line.encode()) for line in [lines[0], *whole]))
        for line in whole:
            with suppress(ValueError, TypeError):  # the shard of a damaged line is written again
                key, *rest = json.loads(line)
                finished[key] = rest
        return finished

    def has(self, key: str, file: Stat, made_of: Sequence[Stat]) -> bool:
        """Whether the shard `key` is finished, and neither it nor what it was made of has changed since."""
        return self._finished.get(key) == [_digest([file]), _digest(made_of)]

    def add(self, key: str, file: Stat, made_of: Sequence[Stat]) -> None:
        """Note that `key` is finished."""
        with self._lock:
            self._write([key, _digest([file]), _digest(made_of)])

    def remove(self) -> None:
        """Delete the journal: all is finished."""
        os.unlink(self._name)

    def close(self) -> None:
        """Let the lock go. Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def discard(path: str) -> None:
    """Delete an interrupted pack, all of it.

    Raises
    ------
    ExistsError
        It is still running.
    """
    with open(os.path.join(path, NAME), "a", encoding="utf-8") as file:
        _lock(file, path)
        shutil.rmtree(path)


def _lock(file: IO[str], path: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ExistsError(f"another pack is writing to {path!r}") from error


def _digest(files: Sequence[Stat]) -> str:
    """Which contents these files have; none where a file is missing."""
    known = [None if file is None else (file.st_ino, file.st_size, file.st_mtime_ns) for file in files]
    return hashlib.blake2b(repr(known).encode(), digest_size=16).hexdigest()
