"""`Monitor`: who serves what and why, while it is being read."""

from __future__ import annotations

import math
import time
from typing import Any

from gpuload.record import wording
from gpuload.record.recorder import Look, Recorder
from gpuload.record.summary import Summary, SummaryRow
from gpuload.record.trace import Trace
from gpuload.request import ReadPath
from gpuload.widgets import still
from gpuload.widgets.panel import Panel
from gpuload.widgets.timeline import Timeline

_SCRIPTS = ("dom.js", "places.js", "frame.js", "chart.js", "requests.js", "monitor.js")
_SENT = 50  # of the newest requests, with each push: a page shows no more of them in a tenth of a second
_BEGUN = 1000  # of the newest requests, with the first
_BURST = 0.5  # seconds, at most, over which the bytes of a short burst are spread in the picture


class Monitor(Panel):
    """The record of a trace or of the process, live in a notebook.

    One line says who serves; below it are bytes a second by path, a table by path, backend and reason, and the newest
    requests. In the page one can pause, clear, filter and save, also while a cell runs. Shown as the last expression of
    a cell, or by `display`; as often as wanted. Where ipywidgets, anywidget or a notebook is missing, the same comes as
    HTML or text.

    Threads: safe. Fork: the child shows nothing. Pickle: no.

    Parameters
    ----------
    trace
        What to show; None: all that this process reads, as `gpuload.report` has it.

    Examples
    --------
    >>> with gpuload.trace() as trace:
    ...     display(trace.widget())
    ...     array[...]
    """

    def __init__(self, trace: Trace | Recorder | None = None) -> None:
        super().__init__(trace, _SCRIPTS)
        self._number = 0
        self._line: Timeline | None = None
        self._last: Look | None = None
        self._looked = 0.0

    def _text(self) -> str:
        return self._recorder.summary().to_text()

    def _still(self) -> str:
        with self._lock:
            look = self._recorder.look()
            line = self._line if self._line is not None and self._pusher is not None else Timeline.of(look.newest)
            return still.page(look, line.to_dict())

    def _state(self, *, whole: bool) -> dict[str, Any]:
        most = _BEGUN if whole else _SENT
        with self._lock:  # with each look the timeline goes on to now
            look, last = self._recorder.look(most=most), self._last
            if last is None or last.generation != look.generation or not last.summary.requests:
                look = self._recorder.look()  # the past, as far as it is kept
                self._line = Timeline.of(look.newest)
            else:
                self._advance(last.summary, look.summary)
            self._last, self._looked = look, time.monotonic()
            self._number += 1
            assert self._line is not None
            return {"number": self._number, "bins": self._line.to_dict(), **page_state(look, most)}

    def _advance(self, last: Summary, summary: Summary) -> None:
        # From the totals, which cost the reader nothing more. What is new was served since the last look; after a quiet
        # time, as long ago as anything was in flight.
        assert self._line is not None
        now = time.monotonic()
        start = max(self._looked, now - max(_BURST, summary.seconds - last.seconds))
        for path in ReadPath:
            self._line.add(path, _by_path(summary, path) - _by_path(last, path), start, now)


def _by_path(summary: Summary, path: ReadPath) -> int:
    return sum(row.bytes for row in summary.rows if row.path is path)


def page_state(look: Look, most: int) -> dict[str, Any]:
    """A look at a record in the values of JSON, with the newest `most` requests; sizes in bytes, times in seconds."""
    summary, newest = look.summary, look.newest
    since = max(0, len(newest) - most)
    return {
        "generation": look.generation,
        "done": look.closed,
        "headline": wording.headline(summary, look.cpu_seconds),
        "requests": summary.requests,
        "bytes": summary.bytes,
        "moved": summary.moved,
        "seconds": summary.seconds,
        "filled": {"chunks": summary.filled.chunks, "bytes": summary.filled.bytes},
        "rows": [_row(row) for row in summary.rows],
        "notes": wording.notes(summary),
        "explanations": {str(reason): text for reason, text in wording.explanations(summary).items()},
        "newest": {
            "first": look.first + since,
            "ways": [[way.path, wording.printable(way.backend), way.reason, way.decode] for way in newest.ways],
            "way": newest.way[since:].tolist(),
            "key": [wording.printable(key) for key in newest.key[since:]],
            "offset": newest.file_offset[since:].tolist(),
            "bytes": newest.bytes[since:].tolist(),
            "latency": newest.latency[since:].tolist(),
        },
    }


def _row(row: SummaryRow) -> dict[str, Any]:
    return {
        "path": row.path,
        "backend": wording.printable(row.backend),
        "reason": row.reason,
        "decode": row.decode,
        "declined": wording.printable(wording.declined(row.declined)),
        "requests": row.requests,
        "bytes": row.bytes,
        "moved": row.moved,
        "seconds": row.seconds,
        "p50": None if math.isnan(row.p50) else row.p50,
        "p99": None if math.isnan(row.p99) else row.p99,
        "key": wording.printable(row.key),
    }
