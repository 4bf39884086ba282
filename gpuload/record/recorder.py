"""Listens to what is served and keeps exact totals for ever and the last requests in columns."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from gpuload.config import config
from gpuload.errors import ConfigError
from gpuload.events import Event, subscribe
from gpuload.record.columns import Batch, Block, Columns, Ring, Row
from gpuload.record.summary import Summary, SummaryRow
from gpuload.record.ways import Busy, Latencies, Total, Way
from gpuload.request import Filled, Served

_WAITING = 2048  # rows that wait to be counted together


def _rows_limit(rows: int | None) -> int:
    limit = config.get("record.rows") if rows is None else rows
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ConfigError(f"record.rows must be a number of rows, 0 or more, not {limit!r}")
    return limit


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A record at one moment; all parts are of the same moment.

    Parameters
    ----------
    summary
        The totals.
    newest
        The newest requests, oldest first.
    first
        How many requests came before the first of `newest`.
    generation
        How often the record was emptied.
    closed
        Nothing will be counted any more.
    cpu_seconds
        CPU time the process has used since the record began.
    """

    summary: Summary
    newest: Columns
    first: int
    generation: int
    closed: bool
    cpu_seconds: float


class Recorder:
    """Counts every event it is called with.

    Threads: safe, also while a summary is taken. Fork: the child starts empty. Pickle: no; its summaries can be.

    Parameters
    ----------
    rows
        How many of the newest requests to keep; None takes ``record.rows`` of the configuration. The totals count
        all requests, whatever is kept.
    """

    def __init__(self, rows: int | None = None) -> None:
        self._limit = _rows_limit(rows)
        self._closed = False
        self._generation = 0
        self.start_empty()
        _recorders.add(self)

    def start_empty(self) -> None:
        """Begin anew with a lock of its own, as a forked child must."""
        # Reentrant, because a signal handler may ask for a report while its own thread is counting.
        self._lock = threading.RLock()
        self._watchers: tuple[Callable[[], None], ...] = ()  # whoever watches in the parent has no thread here
        self._empty()

    def _empty(self) -> None:
        self._generation += 1
        self._cpu = time.process_time()
        self._cpu_used: float | None = None
        self._ring = Ring(self._limit)
        self._latencies = Latencies()
        self._busy = Busy()
        self._totals: dict[tuple[object, ...], Total] = {}  # in the order of their numbers
        self._waiting: list[Block] = []
        self._waiting_rows = 0
        self._filled_chunks = 0
        self._filled_bytes = 0

    def __call__(self, event: Event) -> None:
        """Count `event`. What is kept of it is copied, so neither its arrays nor its list of keys stay alive."""
        if isinstance(event, Filled):
            with self._lock:
                if not self._closed:
                    self._filled_chunks += event.chunks
                    self._filled_bytes += event.bytes
        elif isinstance(event, Served):
            if len(event):
                self._count(event)
        else:  # what is written is no read
            return
        self._tell()

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher()

    def _count(self, served: Served) -> None:
        # Nothing is changed before all that may fail has been done, so that totals and rows always agree.
        n = len(served)
        declined = served.declined
        alike = (
            served.read_path,
            served.backend,
            served.reason,
            served.decode,
            tuple(sorted(declined.items())) if declined else (),
        )
        with self._lock:
            if self._closed:
                return
            total = self._totals.get(alike) or self._new_total(served)
            block = Block.of(served, total.number, min(n, self._limit))
            self._totals[alike] = total
            total.requests += n
            total.busy.add(block.started, block.ended)
            self._busy.add(block.started, block.ended)
            self._waiting.append(block)
            self._waiting_rows += n
            if self._waiting_rows >= _WAITING:
                self._put_together()

    def _new_total(self, served: Served) -> Total:
        return Total(len(self._totals), Way.of(served), served.keys[int(served.key_index[0])])

    def _put_together(self) -> None:
        # Counting many short blocks at once is what makes each of them cheap.
        if not self._waiting:
            return
        blocks, self._waiting, self._waiting_rows = self._waiting, [], 0
        batch = Batch.of(blocks)
        totals = list(self._totals.values())
        for block, wanted, moved in zip(blocks, batch.bytes, batch.moved, strict=True):
            totals[block.way].bytes += wanted
            totals[block.way].moved += moved
        self._latencies.add(batch.columns["way"], batch.columns["latency"])
        self._ring.append(batch)

    def summary(self) -> Summary:
        """The totals up to now."""
        with self._lock:
            self._put_together()
            latencies = [self._latencies.quantiles(total.number, 0.5, 0.99) for total in self._totals.values()]
            rows = [
                SummaryRow(
                    path=total.way.path,
                    backend=total.way.backend,
                    reason=total.way.reason,
                    decode=total.way.decode,
                    declined=total.way.declined_by,
                    requests=total.requests,
                    bytes=total.bytes,
                    moved=total.moved,
                    seconds=total.busy.seconds,
                    p50=p50,
                    p99=p99,
                    key=total.key,
                )
                for total, (p50, p99) in zip(self._totals.values(), latencies, strict=True)
            ]
            filled = Filled(self._filled_chunks, self._filled_bytes)
            seconds = self._busy.seconds
        rows.sort(key=lambda row: (-row.bytes, -row.requests, row.path, row.backend, row.reason or ""))
        return Summary(
            requests=sum(row.requests for row in rows),
            bytes=sum(row.bytes for row in rows),
            moved=sum(row.moved for row in rows),
            seconds=seconds,
            filled=filled,
            rows=tuple(rows),
        )

    def look(self, after: int = 0, most: int | None = None) -> Look:
        """The totals, and the newest requests that came after the first `after`, at most `most` of them."""
        with self._lock:
            summary = self.summary()
            new = max(0, summary.requests - after)
            newest = self.columns(new if most is None else min(new, most))
            used = time.process_time() - self._cpu if self._cpu_used is None else self._cpu_used
            return Look(summary, newest, summary.requests - len(newest), self._generation, self._closed, used)

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` after every change, on the thread that made it; returns the function that ends this.

        It is called for every block, so it must be quick, and it must not raise.
        """
        own = lambda: watcher()  # noqa: E731, PLW0108 - an object of its own: one may watch twice
        with self._lock:
            self._watchers = (*self._watchers, own)

        def end() -> None:
            with self._lock:
                self._watchers = tuple(known for known in self._watchers if known is not own)

        return end

    def columns(self, last: int | None = None) -> Columns:
        """A copy of the newest `last` requests, or of all that are kept, as columns."""
        with self._lock:
            self._put_together()
            return self._ring.columns(last, tuple(total.way for total in self._totals.values()))

    def rows(self, last: int | None = None) -> list[Row]:
        """The newest `last` requests, or all that are kept, oldest first, as objects."""
        return self.columns(last).rows()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._empty()
        self._tell()

    @property
    def closed(self) -> bool:
        """Whether nothing will be counted any more."""
        return self._closed

    def close(self) -> None:
        """Count nothing from now on; what was counted stays. Idempotent."""
        with self._lock:
            if self._cpu_used is None:
                self._cpu_used = time.process_time() - self._cpu
            self._closed = True
        self._tell()


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _start_empty_in_child() -> None:
    # Another thread may have held a lock, with half of a block counted, at the moment of the fork.
    for recorder in list(_recorders):
        recorder.start_empty()


os.register_at_fork(after_in_child=_start_empty_in_child)

process = Recorder()
subscribe(process)


def report() -> Summary:
    """Who served what, and why, in this process so far; `trace` tells it of one block.

    ``gpuload.record.recorder.process.clear()`` starts anew.
    """
    return process.summary()
