"""``gpuload demo``: the main job on real data, every value checked."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

import gpuload
from gpuload.cli import climate
from gpuload.cli.digest import to_host
from gpuload.cli.options import print_summary, reading_options
from gpuload.cli.warming import Warming, yearly_means


@click.command("demo", short_help="Read real climate projections and check every value.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the stores here and keep them.  [default: a temporary directory]",
)
@reading_options
def command(folder: Path | None, device: str, as_json: bool) -> None:
    """Read real climate projections through gpuload and check every value.

    Writes two projections of North America's air temperature (E1 and A1B, 1860 to 2099) as zarr stores, uncompressed in
    shards and with zstd; reads them into device arrays; compares every value with zarr-python's own read; computes on
    the device how much warmer it gets; and reports who served each request and why. Exit code 1 on any difference.
    """
    from gpuload.memory.device import resolve

    target = resolve(device)
    with _folder(folder) as place:
        stores = climate.write_stores(place)
        with gpuload.trace() as trace:
            reads = {form: _read(path, target.name) for form, path in stores.items()}
        comparison = compare(stores, reads)
    scenarios = reads["uncompressed"]
    warming = {
        name: yearly_means(arrays[climate.VARIABLE], arrays["latitude"], to_host(arrays["time"]))
        for name, arrays in scenarios.items()
    }
    if as_json:
        answer = {
            "equal": comparison.equal,
            "device": target.name,
            "served": trace.summary().to_dict(),
            "warming": {name: course.to_dict() for name, course in warming.items()},
        }
        click.echo(json.dumps(answer))
    else:
        _print(target.name, comparison, warming, trace.summary())
        if folder is not None:
            click.echo("\nkept: " + ", ".join(str(path) for path in stores.values()))
    if not comparison.equal:
        raise click.ClickException("these differ from zarr-python's read: " + "; ".join(comparison.differences))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared with zarr-python's own read, and what differed, each with its number of differing values."""

    arrays: int
    values: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Nothing differed."""
        return not self.differences


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.ClickException(f"cannot make {folder}: {error.strerror}") from error
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="gpuload-demo-") as temporary:
        yield Path(temporary)


def _read(path: Path, device: str) -> dict[str, dict[str, Any]]:
    """Read all arrays of a store through gpuload: scenario -> name -> values on the device."""
    dataset = gpuload.open(path, device=device)
    assert isinstance(dataset, gpuload.Dataset)
    values: dict[str, dict[str, Any]] = {}
    for scenario in climate.SCENARIOS:
        group = dataset[scenario]
        assert isinstance(group, gpuload.Dataset)
        values[scenario] = {name: node[...] for name, node in group.items() if isinstance(node, gpuload.Array)}
    return values


def compare(stores: dict[str, Path], reads: dict[str, dict[str, dict[str, Any]]]) -> Comparison:
    """Hold every value of `reads` against what zarr-python itself reads from `stores`, bit for bit.

    An array that gpuload did not hand out is a difference as well.
    """
    import zarr

    arrays = values = 0
    differences = []
    for form, path in stores.items():
        for scenario in climate.SCENARIOS:
            group = zarr.open_group(str(path), path=scenario, mode="r")
            for name, array in group.arrays():
                expected = np.asarray(array[...])
                arrays += 1
                values += expected.size
                found = reads[form][scenario].get(name)
                wrong = expected.size if found is None else _differing(expected, to_host(found))
                if wrong:
                    differences.append(f"{form}.zarr/{scenario}/{name}: {wrong} of {expected.size} values")
    return Comparison(arrays, values, tuple(differences))


def _differing(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> int:
    """Count values whose bits differ, after the byte order that a device wants; all of them for another form."""
    native = expected.dtype.newbyteorder("=")
    if expected.shape != found.shape or native != found.dtype.newbyteorder("="):
        return max(expected.size, 1)
    bits = [
        np.frombuffer(np.ascontiguousarray(a, native).tobytes(), np.uint8).reshape(-1, native.itemsize)
        for a in (expected, found)
    ]
    return int((bits[0] != bits[1]).any(axis=1).sum())


def _print(device: str, comparison: Comparison, warming: dict[str, Warming], summary: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    some = next(iter(warming.values()))
    first = f"{some.years[0]}-{some.years[9]}"
    last = f"{some.years[-10]}-{some.years[-1]}"
    table = Table(title="Air temperature near the ground, North America", caption="weighted by cos(latitude)")
    table.add_column("scenario")
    for title in (first, last, "warming"):
        table.add_column(title, justify="right")
    for name, course in warming.items():
        table.add_row(name, f"{course.first_decade:.2f} K", f"{course.last_decade:.2f} K", f"{course.warming:+.2f} K")
    console.print(table)
    verdict = "equal, bit for bit," if comparison.equal else "NOT equal"
    count = f"{comparison.values:,} values of {comparison.arrays} arrays"
    console.print(f"{count} on {device}: {verdict} to zarr-python's read", soft_wrap=True)
    print_summary(console, summary)
