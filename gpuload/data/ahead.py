"""`Ahead`: takes from an iterator in a thread of its own, a bounded number of items before they are wanted.

Threads: `next`, `release` and `close` are for one consumer. Fork: the child has no such thread, `next` raises there.
Pickle: none.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from gpuload.errors import AfterForkError

T = TypeVar("T")


class Ahead(Generic[T]):
    """Items of `source` in their order, made by a thread while the consumer works with earlier ones.

    Parameters
    ----------
    source
        Used by the thread alone; its own ``finally`` blocks run there.
    depth
        Items that may be made, or being made, besides those the consumer has and has not released. 0: no thread, each
        is made when it is wanted.
    """

    def __init__(self, source: Iterator[T], depth: int) -> None:
        self._source = source
        self._depth = depth
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._made: deque[T] = deque()
        self._begun = 0  # items that were made or are being made
        self._released = 0
        self._stopped = False
        self._ended = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if depth:
            # A daemon: the interpreter must not wait for a consumer that will not come back. `_close_all` ends it.
            self._thread = threading.Thread(target=self._work, name="gpuload-ahead", daemon=True)
            _all.add(self)
            self._thread.start()

    def next(self) -> T | None:
        """The next item; None after the last. What the source raised is raised here, after the items before it."""
        if os.getpid() != self._pid:
            raise AfterForkError(
                "a loader was being iterated when this process was forked, and its reading did not come along: start "
                "workers with multiprocessing's 'spawn' method, or iterate in one process alone"
            )
        if self._thread is None:
            return next(self._source, None)
        with self._changed:
            self._changed.wait_for(lambda: self._made or self._ended)
            if self._made:
                return self._made.popleft()
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return None

    def release(self) -> None:
        """The consumer is done with one item: another may be made."""
        with self._changed:
            self._released += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Stop making items, wait for the one that is being made, and let go of all. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        thread = self._thread
        if thread is None:
            _close(self._source)
        elif os.getpid() == self._pid and thread is not threading.current_thread():
            thread.join()
        self._made.clear()

    def _work(self) -> None:
        try:
            while self._may_begin():
                item = next(self._source, None)
                if item is None:
                    break
                with self._changed:
                    if self._stopped:
                        break
                    self._made.append(item)
                    self._changed.notify_all()
                del item  # or this thread would keep what the consumer has long released
        except BaseException as error:  # noqa: BLE001 - it belongs to the consumer
            self._error = error
        try:
            _close(self._source)
        except BaseException as error:  # noqa: BLE001 - likewise
            self._error = self._error or error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _may_begin(self) -> bool:
        """Wait until one more item may be made; False: no more are wanted."""
        with self._changed:
            # One that the consumer works with, and `depth` before it.
            self._changed.wait_for(lambda: self._stopped or self._begun <= self._released + self._depth)
            self._begun += 1
            return not self._stopped


def _close(source: object) -> None:
    close = getattr(source, "close", None)
    if close is not None:
        close()


_all: weakref.WeakSet[Ahead[Any]] = weakref.WeakSet()


def _close_all() -> None:
    for ahead in list(_all):
        ahead.close()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_all.clear)
