"""The Monitor as HTML that needs neither a kernel nor scripts: what a saved notebook shows."""

from __future__ import annotations

from html import escape
from typing import Any

from gpuload.record import wording
from gpuload.record.columns import Columns
from gpuload.record.page import to_html
from gpuload.record.recorder import Look
from gpuload.request import ReadPath

NEWEST = 20

_WIDTH, _HEIGHT = 600, 100

# As in static/gpuload.css; a page that is opened from disk has no style sheet but this one.
_STYLE = """
.gpuload-picture{max-width:60em;margin:0 0 8px}
.gpuload-picture svg{display:block;width:100%;height:110px;border:1px solid currentColor;border-radius:3px}
.gpuload-picture .axis{display:flex;justify-content:space-between;gap:1em}
.gpuload-report details{margin:8px 0 0}
""".replace("\n", "")


def page(look: Look, bins: dict[str, Any]) -> str:
    """The headline, the picture, the table, the reasons and the newest requests; text from files is escaped."""
    report = to_html(look.summary, look.cpu_seconds, _picture(bins))
    return f"<style>{_STYLE}</style>{report}{_requests(look.newest)}"


def _picture(bins: dict[str, Any]) -> str:
    fast, slow, width = bins[ReadPath.FASTPATH], bins[ReadPath.FALLBACK], bins["width"]
    both = [a + b for a, b in zip(fast, slow, strict=True)]
    most = max(both, default=0)
    if not most:
        return ""
    hatch = f"gpuload-still-{id(bins):x}"
    lines = '<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6" stroke="#d98200" stroke-width="3.5"/>'
    tile = f'<pattern id="{hatch}" width="8" height="8" patternUnits="userSpaceOnUse">{lines}</pattern>'
    zeros = [0] * len(fast)
    top = wording.size(round(most / width))
    areas = (
        f'<path d="{_band(fast, zeros, most)}" fill="#0072b2"/>'
        f'<path d="{_band(both, fast, most)}" fill="url(#{hatch})" stroke="#d98200"/>'
    )
    label = f"bytes a second by path, at most {top}/s"
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f"<defs>{tile}</defs>{areas}</svg>"
    )
    axis = f"<span>0 s</span><span>at most {top}/s</span><span>{wording.three_digits(bins['end'])} s</span>"
    return f'<div class="gpuload-picture">{svg}<div class="axis">{axis}</div></div>'


def _band(upper: list[int], lower: list[int], most: int) -> str:
    """The area between two lines of steps, as an SVG path."""
    step = _WIDTH / len(upper)

    def y(value: int) -> str:
        return f"{_HEIGHT * (1 - value / most):.1f}"

    there = [f"L{i * step:.1f} {y(value)}H{(i + 1) * step:.1f}" for i, value in enumerate(upper)]
    back = [f"L{(i + 1) * step:.1f} {y(value)}H{i * step:.1f}" for i, value in enumerate(lower)]
    return f"M0 {y(lower[0])}{''.join(there)}{''.join(reversed(back))}Z"


def _requests(newest: Columns) -> str:
    rows = newest.rows()[-NEWEST:]
    if not rows:
        return ""
    heads = "".join(
        f'<th scope="col"{" class=l" if left else ""}>{head}</th>'
        for head, left in (
            ("path", True), ("backend", True), ("reason", True), ("bytes", False), ("offset", False),
            ("latency", False), ("key", True),
        )
    )  # fmt: skip
    lines = "".join(
        "<tr>"
        f'<td class="l"><span class="swatch fill {row.read_path}"></span>{row.read_path}</td>'
        f'<td class="l">{_text(row.backend)}</td><td class="l">{_text(row.reason or wording.ABSENT)}</td>'
        f"<td>{row.bytes:,}</td><td>{row.file_offset:,}</td><td>{wording.duration(row.latency)}</td>"
        f'<td class="l key" title="{_text(row.key)}">{_text(row.key)}</td></tr>'
        for row in reversed(rows)
    )
    table = f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
    name = f"the newest {wording.counted(len(rows), 'request')}"
    return f'<div class="gpuload-report"><details><summary>{name}</summary>{table}</details></div>'


def _text(words: str) -> str:
    return escape(wording.printable(words))
