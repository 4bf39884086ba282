"""A summary as a self-contained piece of HTML, for light and dark pages."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gpuload.record import wording
from gpuload.request import ReadPath

if TYPE_CHECKING:
    from gpuload.record.summary import Summary, SummaryRow

# Colours come from the page (currentColor, transparent grounds), so that light and dark themes both work. Fastpath is
# solid and fallback is striped, so that the two differ without colour; blue and orange differ to colour-blind eyes.
_STYLE = """
.gpuload-report{color:inherit;background:transparent;font-size:13px;line-height:1.45;max-width:100%}
.gpuload-report .head{font-weight:600;margin:0 0 6px}
.gpuload-report .bar{display:flex;height:10px;border:1px solid currentColor;border-radius:3px;overflow:hidden;
 max-width:60em;margin:0 0 8px}
.gpuload-report .bar span{display:block;height:100%}
.gpuload-report .fastpath.fill{background:#0072b2}
.gpuload-report .fallback.fill{background:repeating-linear-gradient(45deg,#d98200 0 4px,transparent 4px 8px)}
.gpuload-report .swatch{display:inline-block;width:.8em;height:.8em;border:1px solid currentColor;border-radius:2px;
 margin-right:.4em;vertical-align:-.05em}
.gpuload-report .scroll{overflow-x:auto}
.gpuload-report table{border-collapse:collapse;margin:0;font-size:inherit;color:inherit}
.gpuload-report th,.gpuload-report td{padding:2px 10px 2px 0;text-align:right;white-space:nowrap;
 background:transparent;color:inherit;border:0}
.gpuload-report th{border-bottom:1px solid currentColor;font-weight:600}
.gpuload-report .l{text-align:left}
.gpuload-report td.key{max-width:24em;overflow:hidden;text-overflow:ellipsis;font-family:monospace}
.gpuload-report p{margin:6px 0 0}
.gpuload-report dl{margin:8px 0 0;display:grid;grid-template-columns:max-content 1fr;gap:2px 1em;max-width:72em}
.gpuload-report dt{font-family:monospace;font-weight:600}
.gpuload-report dd{margin:0}
""".replace("\n", "")

_HEADS = (
    ("path", True),
    ("backend", True),
    ("reason", True),
    ("decode", True),
    ("requests", False),
    ("bytes", False),
    ("moved", False),
    ("time", False),
    ("GB/s", False),
    ("p50", False),
    ("p99", False),
    ("example key", True),
)


def _text(words: str) -> str:
    return escape(wording.printable(words))


def _cell(words: str, left: bool) -> str:
    return f'<td class="l">{_text(words)}</td>' if left else f"<td>{_text(words)}</td>"


def _line(row: SummaryRow) -> str:
    path = f'<td class="l"><span class="swatch fill {row.path}"></span>{_text(row.path)}</td>'
    key = f'<td class="l key" title="{_text(row.key)}">{_text(row.key)}</td>'
    left = "".join(_cell(words, True) for words in (row.backend, row.reason or wording.ABSENT, row.decode))
    figures = (
        f"{row.requests:,}",
        wording.size(row.bytes),
        wording.size(row.moved),
        wording.duration(row.seconds),
        wording.speed(row.bytes_per_second),
        wording.duration(row.p50),
        wording.duration(row.p99),
    )
    return f"<tr>{path}{left}{''.join(_cell(words, False) for words in figures)}{key}</tr>"


def _bar(summary: Summary) -> str:
    """One bar, as wide as all bytes, with the part of each path."""
    parts = []
    for path in ReadPath:
        part = sum(row.bytes for row in summary.rows if row.path is path)
        if part:
            width = f"{100 * part / summary.bytes:.3f}%"
            title = f"{path} {wording.percent(part, summary.bytes)} % of bytes"
            parts.append(f'<span class="fill {path}" style="width:{width}" title="{_text(title)}"></span>')
    return f'<div class="bar" role="img" aria-label="{_text(wording.headline(summary))}">{"".join(parts)}</div>'


def to_html(summary: Summary, cpu_seconds: float | None = None, picture: str = "") -> str:
    """The headline, a bar, the table, and an explanation of each reason. All text that comes from files is escaped.

    Parameters
    ----------
    cpu_seconds
        CPU time of the process meanwhile, where it is known.
    picture
        HTML to show between the bar and the table.
    """
    parts = [
        f"<style>{_STYLE}</style>",
        f'<p class="head">{_text(wording.headline(summary, cpu_seconds))}</p>',
    ]
    if summary.bytes:
        parts.append(_bar(summary))
    parts.append(picture)
    if summary.rows:
        heads = "".join(f'<th scope="col"{" class=l" if left else ""}>{head}</th>' for head, left in _HEADS)
        lines = "".join(_line(row) for row in summary.rows)
        parts.append(f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>')
    parts += [f"<p>{_text(note)}</p>" for note in wording.notes(summary)]
    explanations = wording.explanations(summary)
    if explanations:
        items = "".join(f"<dt>{_text(reason)}</dt><dd>{_text(text)}</dd>" for reason, text in explanations.items())
        parts.append(f"<dl>{items}</dl>")
    return f'<div class="gpuload-report">{"".join(parts)}</div>'
