"""Pushes changes of a record to a page, from a thread of its own, at a bounded rate and a bounded cost.

While a cell runs, the kernel handles no message of the page, so nothing can be asked for: it is sent. Whoever reads
only raises a flag. Nobody waits for an answer, so a page that is busy, gone or absent changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from gpuload.record.recorder import Recorder

PERIOD = 0.085  # seconds between two pushes, at least
SHARE = 0.015  # of a CPU, at most
QUIET = 1.0  # seconds without news after which `rest` is called

_log = logging.getLogger(__name__)


class Pusher:
    """Calls `push` when a record has changed, and `rest` when it then stays as it is.

    After each call it waits for `PERIOD` seconds, or longer: so long that its own CPU time stays below `SHARE` of that.
    Between changes it sleeps. It ends with the record, after a last push, or with `close`.

    Threads: safe; `push` and `rest` are never called both at once. Fork: the child has none. Pickle: no.

    Parameters
    ----------
    recorder
        The record to watch.
    push
        Sends what is new; returns whether the record is closed.
    rest
        Sends what is dear.
    """

    def __init__(self, recorder: Recorder, push: Callable[[], bool], rest: Callable[[], None]) -> None:
        self._push, self._rest = push, rest
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._stale = False  # pushed, but not yet at rest
        self._work = threading.Lock()
        self._unwatch = recorder.watch(self._note)
        self._thread = threading.Thread(target=self._run, name="gpuload-monitor", daemon=True)
        self._thread.start()

    def _note(self) -> None:
        # Asking costs no lock, and this is called for every block.
        if not self._changed.is_set():
            self._changed.set()

    def settle(self) -> None:
        """Send all that is new from this thread, now."""
        with self._work:
            if self._changed.is_set() and not self._closed.is_set():
                self._changed.clear()
                self._stale = True
                if self._push():
                    self._closed.set()
                    self._changed.set()  # wakes the thread, to end
            if self._stale:
                self._stale = False
                self._rest()

    def close(self) -> None:
        """End the thread, after what it is at; idempotent."""
        self._unwatch()
        self._closed.set()
        self._changed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                pause, ended = self._serve(self._changed.wait(QUIET if self._stale else None))
                if ended:
                    break
                self._closed.wait(pause)
        except Exception:
            _log.exception("a monitor could not be brought up to date, and stands still now")
        finally:
            self._unwatch()

    def _serve(self, changed: bool) -> tuple[float, bool]:
        """Bring the page up to date; returns how long to wait then, and whether this was the last time."""
        ended = False
        with self._work:
            before = time.thread_time()
            if changed and self._changed.is_set() and not self._closed.is_set():
                self._changed.clear()
                ended = self._push()
                self._stale = True
            if self._stale and (ended or not changed):
                self._stale = False
                self._rest()
            return max(PERIOD, (time.thread_time() - before) / SHARE), ended
