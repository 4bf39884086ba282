"""What arrays and groups say of themselves, as text and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

SHOWN = 40  # lines of a group: more would be a wall
_NAMED = 12
_WIDEST = 40

# Colours come from the page, so that light and dark themes both work.
_STYLE = (
    ".gpuload-node{font-size:13px;line-height:1.45}"
    ".gpuload-node table{border-collapse:collapse;margin:4px 0 0;color:inherit}"
    ".gpuload-node th,.gpuload-node td{text-align:left;vertical-align:top;padding:2px 14px 2px 0;border:0;"
    "background:transparent;color:inherit}"
    ".gpuload-node th{font-weight:600;white-space:nowrap}"
)


@dataclass(frozen=True, slots=True)
class Part:
    """One array or group in the words of its line; `note` stands in place of the others where there are none."""

    name: str
    dims: str = ""
    dtype: str = ""
    chunks: str = ""
    note: str = ""


def printable(text: str) -> str:
    """`text` on one line, with all that cannot be shown written as an escape."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def dims(names: Sequence[str | None], shape: Sequence[int]) -> str:
    """``(time: 240, 37)``; ``(240,)`` for one dimension without a name, as of a shape."""
    words = [f"{printable(name)}: {n}" if name else str(n) for name, n in zip(names, shape, strict=True)]
    return f"({words[0]},)" if len(words) == 1 and not names[0] else f"({', '.join(words)})"


def listed(names: Sequence[str]) -> str:
    """The first of `names`, and how many more there are."""
    more = len(names) - _NAMED
    words = [printable(name) for name in names[:_NAMED]] + ([f"and {more:,} more"] if more > 0 else [])
    return ", ".join(words) or "nothing"


def text_lines(parts: Sequence[Part], total: int) -> list[str]:
    """A line for each part, in columns, and one for those of the group's `total` that are not shown."""
    names = [printable(part.name) for part in parts]
    columns = [names, [part.dtype for part in parts if part.dtype], [part.dims for part in parts if part.dims]]
    wide = [min(max(map(len, column), default=0), _WIDEST) for column in columns]
    lines = []
    for name, part in zip(names, parts, strict=True):
        head = f"  {name:{wide[0]}}  "
        rest = printable(part.note) if part.note else f"{part.dtype:{wide[1]}}  {part.dims:{wide[2]}}  {part.chunks}"
        lines.append(head + rest)
    return lines + ([f"  and {total - len(parts):,} more"] if total > len(parts) else [])


def group_page(title: str, parts: Sequence[Part], total: int) -> str:
    """A group as HTML; all text that comes from files is escaped."""
    rows = []
    for part in parts:
        cells = f"<td colspan=3>{_text(part.note)}</td>" if part.note else _cells(part.dtype, part.dims, part.chunks)
        rows.append(f"<tr><th scope=row>{_text(part.name)}</th>{cells}</tr>")
    more = f"<div>and {total - len(parts):,} more</div>" if total > len(parts) else ""
    return _page(title.strip("<>"), rows, more)


def array_page(part: Part, nbytes: int, device: str, attrs: Mapping[str, Any]) -> str:
    """An array as HTML, its attributes folded away; all text that comes from files is escaped."""
    lines = {"dimensions": part.dims, "dtype": part.dtype, "stored in": part.chunks, "decoded": f"{nbytes:,} bytes"}
    rows = [f"<tr><th scope=row>{head}</th>{_cells(words)}</tr>" for head, words in lines.items()]
    inside = "".join(f"<tr><th scope=row>{_text(k)}</th>{_cells(str(v))}</tr>" for k, v in attrs.items())
    folded = f"<details><summary>{len(attrs)} attributes</summary><table>{inside}</table></details>" if attrs else ""
    return _page(f"gpuload.Array{f' {part.name!r}' if part.name else ''} on {device}", rows, folded)


def _page(title: str, rows: Sequence[str], after: str) -> str:
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    return f'<style>{_STYLE}</style><div class="gpuload-node"><b>{_text(title)}</b>{table}{after}</div>'


def _cells(*words: str) -> str:
    return "".join(f"<td>{_text(word)}</td>" for word in words)


def _text(words: str) -> str:
    return escape(printable(words))
