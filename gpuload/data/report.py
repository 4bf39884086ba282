"""`LoaderReport`: how fast batches came, how long they were waited for, and who served them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any


@dataclass(frozen=True, slots=True, repr=False)
class LoaderReport:
    """What a loader did since its last iteration began. Printed it is text, in a notebook HTML.

    Parameters
    ----------
    epoch
        The epoch it is in.
    batches, samples
        That were handed out.
    skipped
        Samples that were left out because a chunk of theirs could not be read.
    errors
        What was said of those chunks, at most one line for each.
    seconds
        From the start of the iteration to the last batch.
    waited
        Of these, the seconds that the consumer waited for chunks.
    bytes, fastpath_bytes
        That were read for the batches, and those of them that the fastpath served.
    """

    epoch: int
    batches: int
    samples: int
    skipped: int
    errors: tuple[str, ...]
    seconds: float
    waited: float
    bytes: int
    fastpath_bytes: int

    @property
    def batches_per_second(self) -> float | None:
        """None where no time passed."""
        return self.batches / self.seconds if self.seconds else None

    @property
    def fastpath_share(self) -> float | None:
        """Part of the bytes that the fastpath served, 0 to 1; None where none were read."""
        return self.fastpath_bytes / self.bytes if self.bytes else None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            **asdict(self),
            "errors": list(self.errors),
            "batches_per_second": self.batches_per_second,
            "fastpath_share": self.fastpath_share,
        }

    def _lines(self) -> list[tuple[str, str]]:
        speed, share = self.batches_per_second, self.fastpath_share
        lines = [
            ("epoch", str(self.epoch)),
            ("batches", f"{self.batches:,} of {self.samples:,} samples"),
            ("speed", "-" if speed is None else f"{speed:,.1f} batches/s"),
            ("waited", f"{self.waited:.3f} of {self.seconds:.3f} s"),
            ("read", f"{self.bytes:,} bytes, {'-' if share is None else f'{100 * share:.0f} %'} by the fastpath"),
        ]
        if self.skipped:
            lines.append(("skipped", f"{self.skipped:,} samples"))
        return lines + [("error", error) for error in self.errors]

    def __str__(self) -> str:
        return "\n".join(f"{name:8} {value}" for name, value in self._lines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}"
                       "</td></tr>" for name, value in self._lines())  # fmt: skip
        return f"<table>{rows}</table>"
