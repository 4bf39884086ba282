"""A report as text for the terminal: the checks by section with what mends them, the backends and the mounts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from gpuload.checks.report import Check, Status
from gpuload.record.text import as_plain
from gpuload.record.wording import printable

if TYPE_CHECKING:
    from gpuload.checks.report import Report

# Words and signs, so that nothing hangs on colour.
MARKS = {Status.PASS: "✓", Status.FAIL: "✗", Status.UNKNOWN: "?"}
_STYLES = {Status.PASS: "green", Status.FAIL: "bold red", Status.UNKNOWN: "yellow"}
MOUNT_HEADS = ("MOUNTPOINT", "FSTYPE", "DEVICE", "BACKING", "O_DIRECT", "FASTPATH")


class Printed:
    """A report as something rich can print, in the width it is given."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        # `Text` and not markup throughout: paths and messages may hold what rich would take for markup.
        yield Text(printable(self._report.headline), style="bold")
        for section in self._report.sections:
            yield Text()
            yield Text(printable(section.title), style="bold underline")
            yield _grid(section.checks)
        yield Text()
        yield Text("backends, best first", style="bold underline")
        yield _backends(self._report)
        if self._report.mounts:
            yield Text()
            yield _mounts(self._report)


def mount_cells(row: Any) -> tuple[str, ...]:
    """One line of the table of mounts."""
    tried = {True: "yes", False: "no", None: "unknown"}[row.o_direct]
    backing = " → ".join(row.backing) or "-"
    return tuple(
        printable(word) for word in (row.mount_point, row.file_system, row.device, backing, tried, row.fastpath)
    )


def prompt(check: Check) -> str:
    """The sign of the shell in which a fix is typed: root's or anybody's."""
    return "#" if check.needs_root else "$"


def _grid(checks: tuple[Check, ...]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for check in checks:
        mark = Text(f"{MARKS[check.status]} {check.status}", style=_STYLES[check.status])
        value = Text(printable(check.value))
        if check.fix and check.status is not Status.PASS:
            value.append(f"\n{prompt(check)} {printable(check.fix)}", style="dim")
        grid.add_row(mark, Text(check.name), value)
    return grid


def _backends(report: Report) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, state in report.backends.items():
        status = Status.PASS if state.usable else Status.FAIL
        words = f"{MARKS[status]} {'usable' if state.usable else 'not usable'}"
        why = "" if state.usable else f"{state.reason}: {state.detail}" if state.detail else str(state.reason)
        grid.add_row(Text(words, style=_STYLES[status]), Text(printable(name)), Text(printable(why)))
    return grid


def _mounts(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for head in MOUNT_HEADS:
        table.add_column(head, overflow="fold")
    for row in report.mounts:
        table.add_row(*(Text(cell) for cell in mount_cells(row)))
    return table


def to_text(report: Report, width: int | None) -> str:
    """The report as plain text, without colours, each line at most `width` columns."""
    return as_plain(Printed(report), width)
