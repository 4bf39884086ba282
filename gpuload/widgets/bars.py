"""Bars of work that is under way: in a page, in a terminal, and as lines of a log. Names from files are escaped."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from gpuload.record import wording
from gpuload.widgets.shown import Still

EVERY = 10.0  # seconds between two lines of a log

_STYLE = (
    ".gpuload-progress{font-size:13px;line-height:1.45;max-width:60em;margin:0 0 6px}"
    ".gpuload-progress .bar{height:8px;border:1px solid currentColor;border-radius:3px;overflow:hidden}"
    ".gpuload-progress .bar span{display:block;height:100%;background:#0072b2}"
    ".gpuload-progress .bar .failed,.gpuload-progress .bar .interrupted{background:repeating-linear-gradient("
    "45deg,#d98200 0 4px,transparent 4px 8px)}"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """How far one piece of work is.

    Parameters
    ----------
    words
        What is done; not escaped.
    done, total, unit
        So much of so much.
    seconds
        Since it began, or that it took.
    state
        ``""`` while it is under way, then ``"done"``, ``"interrupted"`` or ``"failed"``.
    """

    words: str
    done: int
    total: int
    unit: str
    seconds: float
    state: str

    @property
    def share(self) -> float:
        """Of the work, what is done; all of it once it has ended well."""
        return 1.0 if self.state == "done" or not self.total else self.done / self.total

    @property
    def name(self) -> str:
        """What is done, as can be printed."""
        return wording.printable(self.words)

    @property
    def figures(self) -> str:
        """``34 % of 1.20 GB · 3.10 GB/s · 0.3 s left``."""
        done = self.total if self.state == "done" else self.done
        parts = [f"{int(100 * self.share)} % of {self._much(self.total)}"]
        if self.seconds > 0 and done:
            parts.append(f"{self._much(round(done / self.seconds))}/s")
        if self.state:
            parts.append(f"{self.state} after {wording.duration(self.seconds)}")
        elif 0 < done < self.total:
            parts.append(f"{wording.duration(self.seconds * (self.total - done) / done)} left")
        return " · ".join(parts)

    def _much(self, amount: int) -> str:
        return wording.size(amount) if self.unit == "bytes" else f"{amount:,} {wording.printable(self.unit)}"


class Page(Still):
    """In the output of the cell that is running when this is made.

    Threads: one at a time. Fork: the child shows nothing. Pickle: no.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bars: Sequence[Bar] = ()
        self._number = 0
        self._ipython_display_()

    def draw(self, shown: Sequence[Bar]) -> None:
        """Show these bars."""
        self._bars = shown
        self._number += 1
        if self.live is None:
            self._place.renew()
        else:
            self._place.send(self._state(whole=True))

    def close(self, shown: Sequence[Bar] | None = None) -> None:
        """Leave these bars as HTML."""
        self._bars = self._bars if shown is None else shown
        super().close()

    def _state(self, *, whole: bool) -> dict[str, Any]:
        return {"number": self._number, "html": self._still()}

    def _still(self) -> str:
        return f"<style>{_STYLE}</style>" + "".join(map(_html, self._bars))

    def _text(self) -> str:
        return "\n".join(f"{bar.name}: {bar.figures}" for bar in self._bars)


def _html(bar: Bar) -> str:
    line = f'<span class="{bar.state}" style="width:{100 * bar.share:.2f}%"></span>'
    words = f"<div><b>{escape(bar.name)}</b> {escape(bar.figures)}</div>"
    state = bar.state or "running"
    return f'<div class="gpuload-progress" data-state="{state}">{words}<div class="bar">{line}</div></div>'


class Terminal:
    """On a terminal, below what is printed meanwhile. Threads: one at a time. Fork and pickle: no."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[figures]}"))
        self._bars = RichProgress(*columns, console=console, auto_refresh=False)
        self._tasks: list[TaskID] = []

    def draw(self, shown: Sequence[Bar]) -> None:
        """Show these bars."""
        if not self._tasks:
            self._bars.start()
        while len(self._tasks) < len(shown):
            self._tasks.append(self._bars.add_task("", total=1.0, figures=""))
        for task, bar in zip(self._tasks, shown, strict=False):
            self._bars.update(task, description=bar.name, completed=bar.share, figures=bar.figures)
        for task in self._tasks[len(shown) :]:
            self._bars.remove_task(task)
        del self._tasks[len(shown) :]
        self._bars.refresh()

    def close(self, shown: Sequence[Bar]) -> None:
        """Leave these bars."""
        if shown:
            self.draw(shown)
        self._bars.stop()


class Lines:
    """Where nothing can be drawn over: now and then a line. Threads: one at a time. Fork and pickle: no."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._last = -EVERY

    def draw(self, shown: Sequence[Bar]) -> None:
        """Write a line for each bar, if the last were written long ago."""
        now = time.monotonic()
        if now - self._last >= EVERY:
            self._last = now
            self._write([bar for bar in shown if not bar.state])

    def close(self, shown: Sequence[Bar]) -> None:
        """Write what came of each."""
        self._write(shown)

    def _write(self, shown: Sequence[Bar]) -> None:
        for bar in shown:
            self._stream.write(f"{bar.name}: {bar.figures}\n")
        self._stream.flush()
