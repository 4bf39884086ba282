"""What arrays and groups say of themselves, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 40  # lines of a group: more would be a wall
_NAMED = 12
_WIDEST = 40


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


def percent(share: float) -> str:
    """``97.2``; never 100 where something is missing."""
    return "100" if share == 1 else f"{min(share * 100, 99.9):.1f}"
