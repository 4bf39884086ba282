"""``gpuload read``: read one array, or a part of it, and report who served it."""

from __future__ import annotations

import json
from typing import Any

import click

import gpuload
from gpuload.cli.digest import sha256
from gpuload.cli.options import print_summary, reading_options
from gpuload.cli.select import Index, selection_callback


@click.command("read", short_help="Read an array of a zarr store; say who served it, and why.")
@click.argument("path")
@click.option("--array", "name", metavar="NAME", help="The array of a group to read, as a path below PATH: E1/time.")
@click.option(
    "--select",
    "selection",
    callback=selection_callback,
    default="...",
    metavar="TEXT",
    help="What is read, as between brackets: '0:24,:,::2'.  [default: all]",
)
@reading_options
def command(path: str, name: str | None, selection: tuple[Index, ...], device: str, as_json: bool) -> None:
    """Read an array of the zarr store PATH and report who served each request and why.

    The hash is the sha256 of the values in C order and native byte order: the same on each device and backend.
    """
    array = _find(path, name, device)
    with gpuload.trace() as trace:
        result = array[selection]
    summary = trace.summary()
    digest = sha256(result)
    if as_json:
        answer = {
            "shape": list(result.shape),
            "dtype": str(result.dtype),
            "sha256": digest,
            "served": summary.to_dict(),
        }
        click.echo(json.dumps(answer))
        return
    from rich.console import Console

    console = Console(highlight=False)
    where = "in host memory" if not hasattr(result, "get") else f"on {result.device}"
    console.print(f"{result.dtype} {tuple(result.shape)} {where}", markup=False)
    console.print(f"sha256 {digest}", markup=False, soft_wrap=True)
    print_summary(console, summary)


def _find(path: str, name: str | None, device: str) -> Any:
    """Open the array at `path`, or the array `name` of the group there."""
    from gpuload.zarr.formatting import listed

    node = gpuload.open(path, device=device)
    if name is None:
        if isinstance(node, gpuload.Array):
            return node
        inside = listed(list(node))
        raise click.UsageError(f"{path!r} is a group; choose an array of it with --array. It holds: {inside}")
    if isinstance(node, gpuload.Array):
        raise click.UsageError(f"{path!r} is an array; --array is for groups")
    try:
        found = node[name]
    except KeyError as error:
        raise click.UsageError(error.args[0]) from error  # says what there is
    if isinstance(found, gpuload.Dataset):
        head = f"{name!r} in {path!r} is a group; choose an array of it with --array {name.strip('/')}/NAME"
        raise click.UsageError(f"{head}. It holds: {listed(list(found))}")
    return found
