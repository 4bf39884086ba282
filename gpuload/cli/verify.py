"""``gpuload verify``: write device memory to a file, read it back into other device memory, compare on the device.

The vendor's own count of what it moved, where it has one, is shown beside what the record claims for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from typing import Any

import click
import numpy as np

import gpuload
from gpuload import events
from gpuload.backends import registry
from gpuload.cli.options import print_summary, reading_options
from gpuload.config import config
from gpuload.memory.device import Device, GpuDevice, resolve
from gpuload.request import ReadPath, Written

_SIZE = (64 << 20) + 777  # not a whole number of blocks: the tail is tried, too


@click.command("verify", short_help="Write, read back and compare in a directory; say who served both ways.")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--size", type=click.IntRange(1), default=_SIZE, show_default=True, metavar="N", help="Bytes that are tried."
)
@reading_options
def command(directory: str, size: int, device: str, as_json: bool) -> None:
    """Try the way from device memory to a file in DIR and back, and report who served either way.

    The file is removed again. Exit code 1: what came back differs.
    """
    where = resolve(device)
    source = _pattern(where, size)
    back = where.empty((size,), np.uint8)
    back[...] = 0
    counter = _Counter(where)
    wrote: list[Written] = []
    unsubscribe = events.subscribe(lambda event: wrote.append(event) if isinstance(event, Written) else None)
    folder = tempfile.mkdtemp(prefix=".gpuload-verify-", dir=directory)
    path = os.path.join(folder, "x")
    try:
        with gpuload.RegisteredFile(path, "w") as file:
            file.write_from(source)
        with gpuload.trace() as trace, gpuload.RegisteredFile(path) as file:
            n = file.read_into(back)
    finally:
        unsubscribe()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.rmdir(folder)
    equal = n == size and bool((source == back).all())
    summary, rows = trace.summary(), _rows(wrote)
    counted = counter.beside(rows, summary)
    if as_json:
        answer = {"device": where.name, "size": size, "equal": equal, "written": rows, "read": summary.to_dict()}
        click.echo(json.dumps({**answer, "counted": counted}))
    else:
        _print(where.name, size, equal, rows, summary, counted)
    if not equal:
        raise click.exceptions.Exit(1)


def _pattern(where: Device, size: int) -> Any:
    """uint8 (size,): random bytes on the device; what is left of an earlier try differs from them."""
    host = np.random.default_rng().integers(0, 256, size, np.uint8)
    return where.xp.asarray(host) if isinstance(where, GpuDevice) else host


def _rows(wrote: list[Written]) -> list[dict[str, Any]]:
    """Totals by way, the fastpath first."""
    found: dict[tuple[str, str, str | None], dict[str, Any]] = {}
    for event in wrote:
        key = (str(event.read_path), event.backend, event.reason and str(event.reason))
        names = dict(zip(("path", "backend", "reason"), key, strict=True))
        row = found.setdefault(key, {**names, "requests": 0, "bytes": 0, "moved": 0, "seconds": 0.0})
        row["requests"] += 1
        row["bytes"] += event.size
        row["moved"] += event.moved
        row["seconds"] += event.seconds
    return sorted(found.values(), key=lambda row: row["path"] != ReadPath.FASTPATH)


class _Counter:
    """What the device's vendor library counts of what it moves, from now on.

    It goes on counting behind that: the process ends with the command.
    """

    def __init__(self, where: Device) -> None:
        self._backend = registry.fastpath(where, config.get("backend")).backend
        self._before = (0, 0)
        if self._backend is not None:
            self._backend.count()
            self._before = self._backend.counted() or (0, 0)

    def beside(self, rows: list[dict[str, Any]], summary: Any) -> dict[str, Any] | None:
        """Bytes the record claims for the library beside those it counted; None where it had no part in it."""
        if self._backend is None:
            return None
        name = self._backend.name
        claimed = {
            "read": sum(row.moved for row in summary.rows if row.backend == name),
            "written": sum(row["moved"] for row in rows if row["backend"] == name),
        }
        if not any(claimed.values()):
            return None
        now = self._backend.counted()
        if now is None:
            return {"backend": name, "claimed": claimed, "counted": None, "agrees": None}
        counted = {way: n - m for way, n, m in zip(("read", "written"), now, self._before, strict=True)}
        return {"backend": name, "claimed": claimed, "counted": counted, "agrees": counted == claimed}


def _words(counted: dict[str, Any]) -> str:
    """Claimed beside counted, in a line."""
    claimed, name = counted["claimed"], counted["backend"]
    said = f"claimed for {name}: {claimed['written']:,} bytes written, {claimed['read']:,} read"
    if counted["counted"] is None:
        return f"{said}; not verified: it tells no statistics of its own"
    own = counted["counted"]
    verdict = "agrees" if counted["agrees"] else "DIFFERENT"
    return f"{said}; counted by {name} itself: {own['written']:,} and {own['read']:,}: {verdict}"


def _print(
    name: str, size: int, equal: bool, rows: list[dict[str, Any]], summary: Any, counted: dict[str, Any] | None
) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    verdict = "equal" if equal else "DIFFERENT"
    console.print(f"{size:,} bytes written from {name} and read back: {verdict}", markup=False)
    for row in rows:
        why = f" ({row['reason']})" if row["reason"] else ""
        console.print(f"written: {row['bytes']:,} bytes, {row['path']} by {row['backend']}{why}", markup=False)
    print_summary(console, summary)
    if counted is not None:
        console.print(_words(counted), markup=False, soft_wrap=True)
