"""Numbers and sentences of a summary, the same in text and HTML."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuload.record.reasons import EXPLANATIONS
from gpuload.request import ReadPath, Reason

if TYPE_CHECKING:
    from gpuload.record.summary import Summary

ABSENT = "-"


def three_digits(value: float) -> str:
    """A number with three significant digits: ``1.00``, ``12.4``, ``0.00312``; in whole from 1000: ``1,234``."""
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".") if value else "0"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if float(f"{value:.3g}") < 1000:
            return f"{three_digits(value)} {unit}"
        value /= 1000
    return f"{three_digits(value)} {units[-1]}"


def size(nbytes: int) -> str:
    """``512 B``, ``1.05 MB``: decimal units."""
    return f"{nbytes} B" if nbytes < 1000 else _scaled(nbytes / 1000, ("kB", "MB", "GB", "TB", "PB"))


def duration(seconds: float) -> str:
    """``12.3 µs``, ``1.20 s``."""
    return ABSENT if math.isnan(seconds) else _scaled(seconds * 1e6, ("µs", "ms", "s"))


def speed(bytes_per_second: float | None) -> str:
    """The figure alone, in GB/s."""
    if bytes_per_second is None:
        return ABSENT
    return three_digits(bytes_per_second / 1e9)


def percent(part: int, whole: int) -> str:
    """``97.2``; a part is never rounded to nothing, nor to the whole."""
    if part == whole:
        return "100.0"
    share = 100 * part / whole
    return "<0.1" if 0 < share < 0.05 else ">99.9" if share >= 99.95 else f"{share:.1f}"


def counted(n: int, noun: str) -> str:
    """``1 chunk``, ``1,234 chunks``."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def printable(text: str) -> str:
    """A name from a file system with what a terminal or page would act on, or cannot show, written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def declined(by: Mapping[str, Reason]) -> str:
    """``io_uring: seccomp, hipfile: tail``."""
    return ", ".join(f"{backend}: {reason}" for backend, reason in by.items())


def headline(summary: Summary, cpu_seconds: float | None = None) -> str:
    """``hipfile · fastpath 97.2 % of bytes · fallback 2.8 % (tail 2.1, unaligned-offset 0.7) · 31.4 GB/s``.

    ``· CPU 0.03 s/GB`` follows where the CPU time is known.
    """
    if not summary.rows:
        return "nothing was read"
    # Ranges of no bytes have no share in bytes: then requests are what can be shared out.
    unit = "bytes" if summary.bytes else "requests"
    whole = summary.bytes or summary.requests
    backends: Counter[str] = Counter()
    paths: Counter[ReadPath] = Counter()
    reasons: Counter[str] = Counter()
    for row in summary.rows:
        part = row.bytes if summary.bytes else row.requests
        backends[row.backend] += part
        paths[row.path] += part
        if row.path is ReadPath.FALLBACK:
            reasons[row.reason or "no reason given"] += part
    parts = [printable(backends.most_common(1)[0][0])]
    for path in (path for path in ReadPath if path in paths):
        share = percent(paths[path], whole).replace("100.0", "100")
        words = f"{path} {share} %" + (f" of {unit}" if len(parts) == 1 else "")
        if path is ReadPath.FALLBACK:
            words += f" ({', '.join(f'{reason} {percent(n, whole)}' for reason, n in reasons.most_common())})"
        parts.append(words)
    if summary.bytes_per_second is not None and summary.bytes:
        parts.append(f"{size(round(summary.bytes_per_second))}/s")
    if cpu_seconds is not None and summary.bytes:
        parts.append(f"CPU {three_digits(cpu_seconds / summary.bytes * 1e9)} s/GB")
    return " · ".join(parts)


def notes(summary: Summary) -> list[str]:
    """A line for filled chunks, and one for each better backend that was passed over."""
    lines = []
    if summary.filled.chunks:
        chunks = counted(summary.filled.chunks, "chunk")
        lines.append(f"{chunks} without a file: {size(summary.filled.bytes)} of fill value, nothing read")
    passed: Counter[tuple[str, Reason]] = Counter()
    for row in summary.rows:
        for backend, reason in row.declined.items():
            passed[backend, reason] += row.requests
    for (backend, reason), requests in passed.most_common():
        lines.append(f"{printable(backend)} passed over: {reason} ({counted(requests, 'request')})")
    return lines


def explanations(summary: Summary) -> dict[Reason, str]:
    """What the reasons that occur mean, in the order of the closed list."""
    found = {row.reason for row in summary.rows}.union(*(row.declined.values() for row in summary.rows))
    return {reason: text for reason, text in EXPLANATIONS.items() if reason in found}
