"""Totals of what was served: values, and the forms to look at them in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuload.request import Decode, Filled, ReadPath, Reason

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """All requests that were served in one way.

    Parameters
    ----------
    path, backend, reason, decode, declined
        The way, as in `gpuload.request.Served`.
    requests, bytes, moved
        Exact totals; `bytes` were wanted, `moved` were transferred, over-read included.
    seconds
        Wall time during which at least one block of these requests was in flight.
    p50, p99
        Latencies in seconds that half, and 99 % of the requests did not exceed, within 1 %.
    key
        One file of these requests, the first that was seen.
    """

    path: ReadPath
    backend: str
    reason: Reason | None
    decode: Decode
    declined: Mapping[str, Reason]
    requests: int
    bytes: int
    moved: int
    seconds: float
    p50: float
    p99: float
    key: str

    @property
    def bytes_per_second(self) -> float | None:
        """Wanted bytes by wall time; None where no time passed."""
        return self.bytes / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """Who served what, and why. Printed it is a table, in a notebook it is HTML.

    Threads, fork and pickle: a value, safe everywhere.

    Parameters
    ----------
    requests, bytes, moved
        Exact totals over all rows.
    seconds
        Wall time during which at least one block was in flight.
    filled
        Chunks without a file and their bytes in the results.
    rows
        One for each way, most bytes first.
    """

    requests: int
    bytes: int
    moved: int
    seconds: float
    filled: Filled
    rows: tuple[SummaryRow, ...]

    @property
    def bytes_per_second(self) -> float | None:
        """Wanted bytes by wall time; None where no time passed."""
        return self.bytes / self.seconds if self.seconds else None

    @property
    def headline(self) -> str:
        """One line: backend, share of each path and reason in the bytes, speed."""
        from gpuload.record.wording import headline

        return headline(self)

    def to_dict(self) -> dict[str, Any]:
        """The totals as plain values, as ``--json`` prints them; sizes in bytes, times in seconds."""
        return {
            "requests": self.requests,
            "bytes": self.bytes,
            "moved": self.moved,
            "filled": {"chunks": self.filled.chunks, "bytes": self.filled.bytes},
            "rows": [
                {
                    "path": str(row.path),
                    "backend": row.backend,
                    "reason": None if row.reason is None else str(row.reason),
                    "decode": str(row.decode),
                    "declined": {backend: str(reason) for backend, reason in row.declined.items()},
                    "requests": row.requests,
                    "bytes": row.bytes,
                    "moved": row.moved,
                    "seconds": row.seconds,
                }
                for row in self.rows
            ],
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a `pandas.DataFrame`, one line for each way; sizes in bytes, times in seconds."""
        from gpuload.record.export import summary_frame

        return summary_frame(self)

    def to_text(self, width: int | None = None) -> str:
        """The headline, a table and an explanation of each reason, as plain text.

        Parameters
        ----------
        width
            Columns of text; None takes the terminal's, or 120. A narrow table leaves out columns.
        """
        from gpuload.record.text import to_text

        return to_text(self, width)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return self.to_text()

    def __rich__(self) -> Any:
        from gpuload.record.text import Report

        return Report(self)

    def _repr_html_(self) -> str:
        from gpuload.record.page import to_html

        return to_html(self)
