"""``gpuload verify``: write device memory to a file, read it back into other device memory, compare on the device."""

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
from gpuload.cli.options import print_summary, reading_options
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
    if as_json:
        answer = {"device": where.name, "size": size, "equal": equal, "written": rows, "read": summary.to_dict()}
        click.echo(json.dumps(answer))
    else:
        _print(where.name, size, equal, rows, summary)
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


def _print(name: str, size: int, equal: bool, rows: list[dict[str, Any]], summary: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    verdict = "equal" if equal else "DIFFERENT"
    console.print(f"{size:,} bytes written from {name} and read back: {verdict}", markup=False)
    for row in rows:
        why = f" ({row['reason']})" if row["reason"] else ""
        console.print(f"written: {row['bytes']:,} bytes, {row['path']} by {row['backend']}{why}", markup=False)
    print_summary(console, summary)
