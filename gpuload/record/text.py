"""A summary as text for the terminal, as a rich table that leaves out columns where it is narrow."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from gpuload.record import wording
from gpuload.request import ReadPath

if TYPE_CHECKING:
    from gpuload.record.summary import Summary, SummaryRow

# Signs that tell the paths apart without colour.
MARKS = {ReadPath.FASTPATH: "█", ReadPath.FALLBACK: "▒"}
_STYLES = {ReadPath.FASTPATH: "bold cyan", ReadPath.FALLBACK: "yellow"}
_LEFT = ("path", "backend", "reason", "decode", "example key")
_HEADS = (*_LEFT[:4], "requests", "bytes", "moved", "time", "GB/s", "p50", "p99", _LEFT[4])
# What a narrow terminal can do without, first to go first.
_SPARE = ("decode", "moved", "example key", "time", "p50", "p99", "backend")
_KEY = "example key"
_SHORTEST_KEY = 14
_GAP = 2


def cells(row: SummaryRow) -> dict[str, str]:
    """The words of one line of the table, by head of column."""
    return {
        "path": f"{MARKS[row.path]} {row.path}",
        "backend": wording.printable(row.backend),
        "reason": row.reason or wording.ABSENT,
        "decode": row.decode,
        "requests": f"{row.requests:,}",
        "bytes": wording.size(row.bytes),
        "moved": wording.size(row.moved),
        "time": wording.duration(row.seconds),
        "GB/s": wording.speed(row.bytes_per_second),
        "p50": wording.duration(row.p50),
        "p99": wording.duration(row.p99),
        "example key": wording.printable(row.key),
    }


class Report:
    """A summary as something rich can print, in the width it is given."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        # `Text` and not markup throughout: names from files may hold what rich would take for markup.
        yield Text(wording.headline(self._summary), style="bold")
        if self._summary.rows:
            yield _fitting_table(self._summary.rows, options.max_width)
        for note in wording.notes(self._summary):
            yield Text(note)
        explanations = wording.explanations(self._summary)
        if explanations:
            yield Text()
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(no_wrap=True)
            grid.add_column()
            for reason, text in explanations.items():
                grid.add_row(Text(reason, style="yellow"), Text(text))
            yield grid


def _fitting_table(rows: Sequence[SummaryRow], width: int) -> Table:
    words = [cells(row) for row in rows]
    widths = {head: max(cell_len(head), *(cell_len(line[head]) for line in words)) for head in _HEADS}
    longest_key, widths[_KEY] = widths[_KEY], min(widths[_KEY], _SHORTEST_KEY)
    spare = list(_SPARE)
    while (room := width - sum(widths.values()) - _GAP * (len(widths) - 1)) < 0 and spare:
        del widths[spare.pop(0)]
    if _KEY in widths:
        widths[_KEY] = min(longest_key, widths[_KEY] + room)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for head, wide in widths.items():
        justify: JustifyMethod = "left" if head in _LEFT else "right"
        table.add_column(head, justify=justify, overflow="ellipsis", no_wrap=True, width=wide)
    for row, line in zip(rows, words, strict=True):
        if _KEY in widths and cell_len(line[_KEY]) > widths[_KEY]:
            # Of a key its end says most: the chunk's place in the grid.
            line[_KEY] = "…" + line[_KEY][1 - widths[_KEY] :]
        table.add_row(*(Text(line[head], style=_STYLES[row.path] if head == "path" else "") for head in widths))
    return table


def to_text(summary: Summary, width: int | None) -> str:
    """The report as plain text, without colours, each line at most `width` columns."""
    return as_plain(Report(summary), width)


def as_plain(printed: Any, width: int | None) -> str:
    """What rich can print, as plain text without colours; None takes the terminal's width, or 120 columns."""
    if width is None:
        width = shutil.get_terminal_size((120, 24)).columns
    options: dict[str, Any] = {"force_terminal": False, "force_jupyter": False, "legacy_windows": False}
    console = Console(file=io.StringIO(), width=width, color_system=None, **options)
    with console.capture() as capture:
        console.print(printed)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
