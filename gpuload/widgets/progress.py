"""`progress`: how far long reads and packs are, in a notebook, a terminal or a log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from gpuload import tasks
from gpuload.tasks import Task
from gpuload.widgets import bars, live
from gpuload.widgets.bars import Bar

PERIOD = 0.2  # seconds between two pictures, at least
KEPT = 5  # bars of work that has ended

_log = logging.getLogger(__name__)


class View(Protocol):
    """Where bars are drawn; called from one thread at a time."""

    def draw(self, shown: Sequence[Bar]) -> None: ...

    def close(self, shown: Sequence[Bar]) -> None: ...


@dataclass(slots=True, eq=False)
class _Row:
    """One task; `ended` is when, and how."""

    task: Task
    begun: float
    ended: tuple[float, str] | None = None
    shown: bool = False

    def bar(self, now: float) -> Bar:
        end, state = self.ended or (now, "")
        return Bar(self.task.words, self.task.done, self.task.total, self.task.unit, end - self.begun, state)


class Progress:
    """Shows the progress of all long work of this process while its block runs; made by `progress`.

    Threads: safe. Fork: the child shows nothing. Pickle: no.
    """

    def __init__(self, after: float = 0.5, view: View | None = None) -> None:
        self._after, self._view = after, view
        self._rows: list[_Row] = []
        self._lock = threading.Lock()  # of the rows
        self._drawing = threading.Lock()
        self._awake, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("this shows the progress of one block: make another with gpuload.progress()")
        if self._view is None:
            self._view = bars.Page() if live.in_kernel() else bars.Terminal() if sys.stderr.isatty() else bars.Lines()
        self._thread = threading.Thread(target=self._run, name="gpuload-progress", daemon=True)
        self._thread.start()
        tasks.watch(self)
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Show no more, and leave the last state; idempotent."""
        tasks.unwatch(self)
        if self._closed.is_set() or self._thread is None:
            return
        self._closed.set()
        self._awake.set()
        self._thread.join()
        assert self._view is not None
        try:
            with self._drawing:
                self._view.close(self._bars())
        except Exception:
            _log.exception("the last state of progress could not be shown")

    def begun(self, task: Task) -> None:
        """Work begins."""
        with self._lock:
            self._rows.append(_Row(task, time.monotonic()))
            self._awake.set()

    def ended(self, task: Task, error: BaseException | None) -> None:
        """Work has ended; what did not take long is forgotten."""
        now = time.monotonic()
        how = "done" if error is None else "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with self._lock:
            for row in self._rows:
                if row.task is task:
                    row.ended = now, how
            self._rows = [row for row in self._rows if row.ended is None or self._is_long(row, now)]
            ended = sorted(row.ended for row in self._rows if row.ended is not None)
            self._rows = [row for row in self._rows if row.ended is None or row.ended in ended[-KEPT:]]

    def _is_long(self, row: _Row, now: float) -> bool:
        return row.shown or (row.ended[0] if row.ended else now) - row.begun >= self._after

    def _bars(self) -> list[Bar]:
        now = time.monotonic()
        with self._lock:
            rows = [row for row in self._rows if self._is_long(row, now)]
            for row in rows:
                row.shown = True
            return [row.bar(now) for row in rows]

    def draw(self) -> None:
        """Bring the picture up to date, now."""
        assert self._view is not None
        with self._drawing:
            shown = self._bars()
            if shown and not self._closed.is_set():
                self._view.draw(shown)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._awake.wait()
                with self._lock:
                    if all(row.ended is not None for row in self._rows):
                        self._awake.clear()  # sleeps until something begins
                self.draw()
                self._closed.wait(PERIOD)
        except Exception:
            _log.exception("progress could not be shown, and stands still now")


def progress(after: float = 0.5) -> Progress:
    """Show how far reads and packs are while a block runs.

    In a notebook as HTML, with ipywidgets and anywidget or without; in a terminal as bars on stderr; elsewhere as a
    line on stderr every ten seconds. Interrupting the kernel, or Ctrl-C, stops the work as always, and the bar says so.
    Outside of such a block nothing is counted.

    Parameters
    ----------
    after
        Seconds that work takes before it is shown.

    Examples
    --------
    >>> with gpuload.progress():  # doctest: +SKIP
    ...     x = array[...]
    ...     gpuload.zarr.pack("air.zarr", "packed.zarr")
    """
    return Progress(after)
