"""``gpuload inspect``: what of a store can take the fastpath as it is stored."""

from __future__ import annotations

import json

import click

from gpuload.cli.options import errors_in_one_line


@click.command("inspect", short_help="Say how much of a store can take the fastpath, and what stops the rest.")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(path: str, as_json: bool) -> None:
    """Say of each array of the zarr store PATH how much of it can take the fastpath as it is stored.

    From metadata, shard indexes and file sizes alone: no chunk is read, no GPU is needed.
    """
    from gpuload.zarr import inspect

    with errors_in_one_line():
        arrays = inspect(path)
    if as_json:
        click.echo(json.dumps({"arrays": [array.to_dict() for array in arrays]}))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gpuload.zarr.formatting import percent, printable

    table = Table()
    for title in ("array", "shape", "chunks", "shards", "codecs"):
        table.add_column(title)
    table.add_column("bytes", justify="right")
    table.add_column("fastpath", justify="right")
    table.add_column("what stops the rest")
    for array in arrays:
        reasons = ", ".join(f"{reason}: {nbytes:,}" for reason, nbytes in array.reasons.items())
        words = (
            array.name or "/",
            _extents(array.shape),
            _extents(array.chunks),
            _extents(array.shards),
            " ".join(array.codecs),
            f"{array.fastpath_bytes + array.fallback_bytes:,}",
            f"{percent(array.share)} %",
            reasons,
        )
        table.add_row(*(Text(printable(word)) for word in words))
    Console(highlight=False).print(table)
    mended = next((array.pack for array in arrays if array.pack), None)
    if mended:
        click.echo(f"what codecs and tails stop is mended by: {mended}")


def _extents(extents: tuple[int, ...] | None) -> str:
    return "" if extents is None else ",".join(map(str, extents)) or "scalar"
