"""Gathers what a job was served, in columns, and publishes it in blocks large enough to cost next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from gpuload import events
from gpuload.backends import registry
from gpuload.backends.base import Batch
from gpuload.engine.plan import Plan
from gpuload.request import Decode, Filled, Float64, Int64, ReadPath, Reason, Served, purpose

_PUBLISH_ROWS = 1024
_PUBLISH_SECONDS = 0.1


@dataclass(slots=True, eq=False)
class _Rows:
    """One batch's record: a row a piece that was read."""

    keys: Sequence[str]
    key: Int64
    file_offset: Int64
    size: Int64
    moved: Int64
    started: Float64
    ended: Float64


class Ledger:
    """The record of one job until it is published. Threads: the I/O thread's, until the job has ended."""

    def __init__(self, plan: Plan, choice: registry.Choice) -> None:
        self.plan, self.choice = plan, choice
        self.declined: dict[str, Reason] = {**plan.request.declined, **choice.declined}
        self._heard = events.heard()
        self._direct = False  # what is noted came past the page cache
        self.purpose = purpose()  # of the caller's thread: most of what follows is in the I/O thread
        self._noted: list[_Rows] = []
        self._count = 0
        self._last = monotonic()
        self._filled_chunks = 0
        self._filled_bytes = 0

    def note(self, batch: Batch) -> None:
        """A batch was read."""
        self.advance(*self.plan.batches.bounds[batch.index : batch.index + 2].tolist())
        if not self._heard:
            return
        direct = bool(batch.direct) and batch.refused is None
        if direct is not self._direct:
            self._publish()
            self._direct = direct
        if batch.refused is not None:
            self.declined["o_direct"] = batch.refused
        rows = _rows(batch)
        if batch.missing.any():
            present = ~batch.missing[rows.key]
            first = int(self.plan.batches.bounds[batch.index])
            self.fill(first + np.flatnonzero(~present))
            for name in ("key", "file_offset", "size", "moved", "started", "ended"):
                setattr(rows, name, getattr(rows, name)[present])
        if len(rows.key):
            self._noted.append(rows)
            self._count += len(rows.key)
            if self._count >= _PUBLISH_ROWS or monotonic() - self._last > _PUBLISH_SECONDS:
                self._publish()

    def advance(self, first: int, last: int) -> None:
        """These pieces of the plan need no more reading."""
        plan = self.plan
        if plan.request.task is not None:
            plan.request.task.add(int(plan.pieces.count[first:last].prod(axis=1).sum()) * plan.unit)

    def fill(self, pieces: Int64) -> None:
        """These pieces of the plan got the fill value."""
        if self._heard and len(pieces):
            plan = self.plan
            self._filled_chunks += len(np.unique(plan.pieces.chunk[pieces]))
            self._filled_bytes += int(plan.pieces.count[pieces].prod(axis=1).sum()) * plan.unit

    def close(self) -> None:
        """The job has ended: publish the rest."""
        self._publish()
        if self._filled_chunks:
            events.publish(Filled(self._filled_chunks, self._filled_bytes, self.purpose))

    def _publish(self) -> None:
        noted, self._noted, self._count, self._last = self._noted, [], 0, monotonic()
        if not noted:
            return
        keys: list[str] = []
        shifted = []
        for rows in noted:
            shifted.append(rows.key + len(keys))
            keys.extend(rows.keys)
        started = np.concatenate([rows.started for rows in noted])
        ended = np.concatenate([rows.ended for rows in noted])
        request = self.plan.request
        events.publish(
            Served(
                backend=f"{self.choice.name} (O_DIRECT)" if self._direct else self.choice.name,
                read_path=ReadPath.FALLBACK,
                reason=request.reason,
                decode=Decode.HOST if request.decoder or request.reason is Reason.HOST_CODEC else Decode.NONE,
                keys=keys,
                key_index=np.concatenate(shifted),
                file_offset=np.concatenate([rows.file_offset for rows in noted]),
                size=np.concatenate([rows.size for rows in noted]),
                moved=np.concatenate([rows.moved for rows in noted]),
                latency=ended - started,
                started=float(started.min()),
                ended=float(ended.max()),
                declined=self.declined,
                purpose=self.purpose,
            )
        )


def _rows(batch: Batch) -> _Rows:
    """A row a piece; the several reads of one piece (its parts, the proof of its file's size) are one row."""
    size = batch.got if batch.open_ended else batch.want
    piece = batch.piece
    n = int(piece[: batch.proofs_from].max()) + 1 if len(piece) else 0
    if n == len(piece):
        return _Rows(batch.keys, batch.file, batch.file_offset, size, batch.moved, batch.submitted, batch.completed)
    first = np.full(n, len(piece), np.int64)
    np.minimum.at(first, piece, np.arange(len(piece)))
    started, ended = np.full(n, np.inf), np.zeros(n)
    np.minimum.at(started, piece, batch.submitted)
    np.maximum.at(ended, piece, batch.completed)
    # The proof of a file's size is no wanted byte: it comes after the last piece's rows, and re-reads a byte.
    proof = np.arange(len(piece)) >= batch.proofs_from
    wanted = np.bincount(piece, np.where(proof, 0, size), n).astype(np.int64)
    moved = np.bincount(piece, batch.moved, n).astype(np.int64)
    return _Rows(batch.keys, batch.file[first], batch.file_offset[first], wanted, moved, started, ended)
