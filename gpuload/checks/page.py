"""A report as a self-contained piece of HTML, for light and dark pages; all text is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gpuload.checks.report import Status
from gpuload.checks.text import MARKS, MOUNT_HEADS, mount_cells, prompt
from gpuload.record.wording import printable

if TYPE_CHECKING:
    from gpuload.checks.report import Check, Report

# The page's own colours, and a sign for each status, so that themes and colour-blind eyes see the same. A class that is
# named twice outweighs what a notebook has for tables.
_STYLE = """
.gpuload-doctor{color:inherit;background:transparent;font-size:13px;line-height:1.45;max-width:100%}
.gpuload-doctor .head{font-weight:600;margin:0 0 6px}
.gpuload-doctor .scroll{overflow-x:auto}
.gpuload-doctor.gpuload-doctor table{border-collapse:collapse;margin:0 0 10px;font-size:inherit;color:inherit}
.gpuload-doctor.gpuload-doctor th,.gpuload-doctor.gpuload-doctor td{padding:2px 12px 2px 0;
 text-align:left;vertical-align:top;border:0;background:transparent;color:inherit}
.gpuload-doctor.gpuload-doctor caption,.gpuload-doctor.gpuload-doctor th{
 font-weight:600;text-align:left;border-bottom:1px solid currentColor}
.gpuload-doctor td.s{white-space:nowrap}
.gpuload-doctor .pass .s{color:#009e73}
.gpuload-doctor .fail .s{color:#d55e00;font-weight:600}
.gpuload-doctor .unknown .s{color:#b58900}
.gpuload-doctor code{background:transparent;color:inherit;border:1px solid currentColor;border-radius:3px;
 padding:0 .3em;white-space:pre-wrap;overflow-wrap:anywhere}
.gpuload-doctor .sign{user-select:none}
""".replace("\n", "")


def _text(words: str) -> str:
    return escape(printable(words))


def to_html(report: Report) -> str:
    """The headline, a table for each section with what mends it, the backends and the mounts."""
    parts = [f"<style>{_STYLE}</style>", f'<p class="head">{_text(report.headline)}</p>']
    parts += [_table(section.title, "".join(map(_row, section.checks))) for section in report.sections]
    states = "".join(
        _line(Status.PASS if state.usable else Status.FAIL, "usable" if state.usable else "not usable", name,
              _text("" if state.usable else f"{state.reason}: {state.detail}"))
        for name, state in report.backends.items()
    )  # fmt: skip
    parts.append(_table("backends, best first", states))
    if report.mounts:
        heads = "".join(f'<th scope="col">{head}</th>' for head in MOUNT_HEADS)
        lines = "".join(
            f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in mount_cells(row))}</tr>" for row in report.mounts
        )
        parts.append(f"<table><tr>{heads}</tr>{lines}</table>")
    return f'<div class="gpuload-doctor"><div class="scroll">{"".join(parts)}</div></div>'


def _table(title: str, rows: str) -> str:
    return f"<table><caption>{_text(title)}</caption>{rows}</table>"


def _row(check: Check) -> str:
    value = _text(check.value)
    if check.fix and check.status is not Status.PASS:
        # The sign is not copied with the command, be it by hand or by the button that a living page adds.
        command = f'<span class="gpuload-copy">{_text(check.fix)}</span>'
        value += f'<br><code><span class="sign">{prompt(check)} </span>{command}</code>'
    return _line(check.status, str(check.status), check.name, value)


def _line(status: Status, word: str, name: str, value: str) -> str:
    """One row; `value` is HTML already."""
    sign = f'<td class="s">{MARKS[status]} {_text(word)}</td>'
    return f'<tr class="{status}">{sign}<td class="s">{_text(name)}</td><td>{value}</td></tr>'
