"""``gpuload pack``: copy a store into one that suits the fastpath."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gpuload.cli.options import errors_in_one_line

if TYPE_CHECKING:
    from gpuload.zarr.pack import Progress


def extents_callback(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[int, ...] | str | None:
    """Extents along each dimension, ``100,64,64``, or a word that the option knows."""
    if text in (None, "auto", "none"):
        return text
    assert text is not None
    try:
        extents = tuple(int(part) for part in text.split(","))
    except ValueError:
        extents = ()
    if not extents or any(extent < 1 for extent in extents):
        raise click.BadParameter(f"{text!r} is no list of extents such as 100,64,64", ctx, param)
    return extents


@click.command("pack", short_help="Copy a store into one whose every byte can take the fastpath.")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option(
    "--chunks",
    callback=extents_callback,
    metavar="N,N,...",
    help="Elements of an inner chunk, for arrays of so many dimensions.  [default: as they are]",
)
@click.option(
    "--shards",
    callback=extents_callback,
    default="auto",
    metavar="N,N,...",
    help="Elements of a shard; auto: about 128 MiB; none: a file for each chunk.  [default: auto]",
)
@click.option("--codec", type=click.Choice(["none", "zstd", "blosc", "gzip"]), default="none", show_default=True)
@click.option("--align", type=int, default=4096, show_default=True, help="Bytes: where inner chunks may start.")
@click.option("--overwrite", is_flag=True, help="Delete what is at DST first: a store, or an interrupted pack.")
@click.option("--verify", is_flag=True, help="Read both stores at the end and compare every value.")
@click.option("--durable", is_flag=True, default=None, help="Have all of it on the drive at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    source: str,
    target: str,
    chunks: tuple[int, ...] | None,
    shards: tuple[int, ...] | str,
    codec: str,
    align: int,
    overwrite: bool,
    verify: bool,
    durable: bool | None,
    as_json: bool,
) -> None:
    """Copy the zarr store SRC, an array or a whole tree of v2 or v3, into the new v3 store DST.

    The chunks of DST lie in shards, each at a multiple of the alignment, and without a codec unless one is asked for:
    the fastpath can read every byte of them. An interrupted pack goes on when the same command is given again.
    """
    from gpuload.zarr import pack

    with errors_in_one_line(), _bar(shown=not as_json) as progress:
        done = pack(
            source,
            target,
            chunks=chunks,
            shards=None if shards == "none" else shards,
            codec=codec,
            align=align,
            overwrite=overwrite,
            verify=verify,
            durable=durable,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(asdict(done)))
        return
    click.echo(f"{done.arrays} arrays, {done.nbytes:,} bytes in {done.shards:,} shards or chunks, in {target!r}")
    if done.skipped:
        click.echo(f"{done.skipped:,} of them were finished before the interruption")
    if verify:
        click.echo(f"{done.verified:,} values read back: equal, bit for bit")


@contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A bar on a terminal's stderr, nothing elsewhere."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from gpuload.zarr.formatting import printable

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")

        def show(progress: Progress) -> None:
            doing = "verifying" if progress.verifying else "packing"
            words = escape(f"{doing} {printable(progress.array)}".rstrip())
            bar.update(task, description=words, completed=progress.done, total=progress.total)

        yield show
