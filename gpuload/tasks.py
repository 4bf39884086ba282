"""Long work that somebody may want to watch: how much of it there is, and how much is done.

Nothing of it is counted while nobody watches. Work inside of other work is part of it, and is not told by itself.

Threads: safe; work belongs to the thread that began it, and is advanced from any. Fork: a child has no watchers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Task:
    """Work that is under way.

    Parameters
    ----------
    words
        What is done, for people: ``"reading air"``. Names from files are as they are.
    total
        How much there is of it, in `unit`.
    unit
        ``"bytes"``, or what else is counted.
    """

    def __init__(self, words: str, total: int, unit: str = "bytes") -> None:
        self.words, self.total, self.unit = words, total, unit
        self._done = 0
        self._lock = threading.Lock()

    @property
    def done(self) -> int:
        """How much is done, at most `total`."""
        return min(self._done, self.total)

    def add(self, amount: int) -> None:
        """So much more is done."""
        with self._lock:
            self._done += amount


class Watcher(Protocol):
    """Who wants to know; called from the thread that works."""

    def begun(self, task: Task) -> None: ...

    def ended(self, task: Task, error: BaseException | None) -> None: ...


_lock = threading.Lock()
_watchers: tuple[Watcher, ...] = ()
_here = threading.local()


def _leave_in_child() -> None:
    global _lock, _watchers, _here
    _lock, _watchers, _here = threading.Lock(), (), threading.local()


os.register_at_fork(after_in_child=_leave_in_child)


def watch(watcher: Watcher) -> None:
    """Tell `watcher` of all work that begins from now on."""
    global _watchers
    with _lock:
        _watchers = (*_watchers, watcher)


def unwatch(watcher: Watcher) -> None:
    """Tell `watcher` no more; idempotent."""
    global _watchers
    with _lock:
        _watchers = tuple(other for other in _watchers if other is not watcher)


def watched() -> bool:
    """Whether work that begins now is to be told."""
    return bool(_watchers) and current() is None


def current() -> Task | None:
    """The work that this thread is at, if it is watched."""
    task: Task | None = getattr(_here, "task", None)
    return task


@contextmanager
def work(words: str, total: int, unit: str = "bytes") -> Iterator[Task]:
    """Do the block's work as a task that watchers are told of."""
    task = Task(words, total, unit)
    told = _watchers
    for watcher in told:
        watcher.begun(task)
    error: BaseException | None = None
    try:
        with part_of(task):
            yield task
    except BaseException as caught:
        error = caught
        raise
    finally:
        for watcher in told:
            watcher.ended(task, error)


@contextmanager
def part_of(task: Task | None) -> Iterator[None]:
    """What the block does in this thread is a part of `task`, and no work by itself."""
    before = current()
    _here.task = task
    try:
        yield
    finally:
        _here.task = before
