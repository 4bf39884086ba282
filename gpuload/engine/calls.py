"""Threads that make a vendor's blocking calls, several at once; the calls release the GIL.

A task is a share of the rows that are to be read together: the threads take row after row until none is left, so that
a long one holds up nobody, and the hand-over is paid once a thread, not once a row.

Threads: `Calls` is safe, a `Round` belongs to who started it. Fork: the child starts threads of its own.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Callable


class Round:
    """`n` rows on their way: `function(row)` is called once for each, unless it is cancelled.

    Parameters
    ----------
    function
        Reads a row; what it raises cancels the rest and is kept.
    n
        How many rows.
    """

    def __init__(self, function: Callable[[int], None], n: int) -> None:
        self.function, self.n = function, n
        self.shares = 0
        self.cancelled = False
        self.error: BaseException | None = None
        self._rows = itertools.count()  # next() is one step for all threads
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._changed = threading.Condition()

    def work(self, share: int, over: Callable[[], None]) -> None:
        """Take rows until none is left, none if that share was begun before; `over` is called before `wait` returns."""
        with self._changed:
            begun = share in self._begun
            self._begun.add(share)
        try:
            while not begun and not self.cancelled and (row := next(self._rows)) < self.n:
                self.function(row)
        except BaseException as error:  # it belongs to who waits
            self.error = self.error or error
            self.cancelled = True
        finally:
            over()
            if not begun:
                with self._changed:
                    self._ended.add(share)
                    self._changed.notify_all()

    def wait(self) -> None:
        """Until no thread is at work on it; may be interrupted, and called again."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ended) >= self.shares)


class Calls:
    """The threads of a process, started when they are needed.

    Parameters
    ----------
    threads
        How many there may be.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._tasks: queue.SimpleQueue[tuple[Round, int] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started: list[threading.Thread] = []
        self._shares = 0  # handed over, and not done

    def start(self, work: Round) -> None:
        """Begin a round; `work.wait` tells when it is over. Who was interrupted here just calls it again."""
        work.shares = work.shares or min(self.threads, work.n)
        for share in range(work.shares):
            if self._have_one():
                self._tasks.put((work, share))
            else:
                work.work(share, self._over)

    def _have_one(self) -> bool:
        """Count a share more, and start a thread if all are at work on others; whether there is any."""
        with self._lock:
            self._shares += 1
            if len(self._started) < min(self._shares, self.threads):
                # Daemons serve to the very end of the process; an executor's take no work once the main thread ended.
                thread = threading.Thread(target=self._run, name="gpuload-direct", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads are allowed here: those there are do it all
                    return bool(self._started)
                self._started.append(thread)
            return True

    def _over(self) -> None:
        with self._lock:
            self._shares -= 1

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, share = task
            work.work(share, self._over)
            del task, work  # what a round holds goes with its caller, not with the next round

    def close(self) -> None:
        """End the threads when they have done what is queued. Idempotent."""
        with self._lock:
            started, self._started = self._started, []
        for _ in started:
            self._tasks.put(None)
        for thread in started:
            thread.join()


_lock = threading.Lock()
_calls: Calls | None = None


def calls(threads: int) -> Calls:
    """The process's threads."""
    global _calls
    with _lock:
        if _calls is None or _calls.threads != threads:
            ending, _calls = _calls, Calls(threads)
            if ending is not None:
                ending.close()
        return _calls


def stop() -> None:
    """End the threads; the next round starts others."""
    global _calls
    with _lock:
        ending, _calls = _calls, None
    if ending is not None:
        ending.close()


def _after_fork_in_child() -> None:
    global _calls, _lock
    _lock, _calls = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork_in_child)
