"""Bytes by path over time, in a bounded number of bins that grow wider as time goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.record.columns import Columns
from gpuload.request import Float64, ReadPath

BINS = 160
FIRST_WIDTH = 0.05  # seconds


class Timeline:
    """How many bytes were served by each path in each bin of time since `begin`.

    Threads: one at a time. Fork and pickle: a value.

    Parameters
    ----------
    begin
        `time.monotonic()` at the left edge.
    """

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.width = FIRST_WIDTH
        self._bytes: npt.NDArray[np.float64] = np.zeros((len(ReadPath), BINS))
        self._end = 0.0

    @classmethod
    def of(cls, columns: Columns) -> Timeline:
        """The timeline of requests that were kept, each counted at its block's end."""
        line = cls(float(columns.started.min()) if len(columns) else 0.0)
        if len(columns):
            line._widen(float(columns.ended.max()) - line.begin)
            paths = np.array([list(ReadPath).index(way.path) for way in columns.ways])[columns.way]
            np.add.at(line._bytes, (paths, line._bin(columns.ended - line.begin)), columns.bytes)
        return line

    def add(self, path: ReadPath, nbytes: int, start: float, end: float) -> None:
        """Spread `nbytes` evenly over [start, end], in `time.monotonic()`."""
        start, end = max(0.0, start - self.begin), max(0.0, end - self.begin)
        self._widen(end)
        if nbytes:
            self._bytes[list(ReadPath).index(path)] += nbytes * self._shares(start, end)

    @property
    def total(self) -> dict[ReadPath, int]:
        """All bytes by path."""
        return {path: round(float(row.sum())) for path, row in zip(ReadPath, self._bytes, strict=True)}

    def to_dict(self) -> dict[str, Any]:
        """Bin width and end in seconds, and bytes by path in each bin up to the end."""
        used = int(self._bin(self._end)) + 1 if self._end or self._bytes.any() else 0
        whole = np.rint(self._bytes[:, :used]).astype(int).tolist()
        paths = {str(path): row for path, row in zip(ReadPath, whole, strict=True)}
        return {"width": self.width, "end": round(self._end, 3), **paths}

    def _bin(self, time: Any) -> Any:
        """The bin that a time since the begin is in; a bin has its right edge, not its left."""
        return np.clip(np.ceil(np.asarray(time) / self.width).astype(np.int64) - 1, 0, BINS - 1)

    def _shares(self, start: float, end: float) -> Float64:
        """The part of [start, end] in each bin."""
        edges = np.arange(BINS + 1) * self.width
        if end - start <= 1e-9:
            shares = np.zeros(BINS)
            shares[self._bin(end)] = 1.0
            return shares
        return np.diff(np.clip((edges - start) / (end - start), 0.0, 1.0))

    def _widen(self, end: float) -> None:
        self._end = max(self._end, end)
        while self._end > BINS * self.width:
            self._bytes[:, : BINS // 2] = self._bytes[:, ::2] + self._bytes[:, 1::2]
            self._bytes[:, BINS // 2 :] = 0.0
            self.width *= 2
