"""``gpuload bench``: gpuload beside what is installed of its peers, on this machine."""

from __future__ import annotations

import json
import tempfile
from typing import Any

import click

from gpuload.bench.cases import CASES, MIB
from gpuload.cli.options import errors_in_one_line
from gpuload.memory.device import resolve


@click.command("bench", short_help="Measure reads of one array, stored in several ways, beside the peers.")
@click.argument("path", required=False)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--size", default=1024, show_default=True, metavar="MIB", help="Decoded size of the array.")
@click.option("--repeats", default=5, show_default=True, help="Timed reads of each contender.")
@click.option("--case", "names", multiple=True, help=f"Only this case; one of {', '.join(c.name for c in CASES)}.")
@click.option("--contender", "only", multiple=True, help="Only this contender.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    path: str | None, device: str, size: int, repeats: int, names: tuple[str, ...], only: tuple[str, ...], as_json: bool
) -> None:
    """Measure whole reads of one array, stored in several ways, with the page cache warm.

    The stores are written to PATH and kept there, or to a temporary directory. Each contender runs in a process of its
    own, all in turn; the figures are GB/s of decoded data in the median read.
    """
    unknown = set(names) - {case.name for case in CASES}
    if unknown:
        raise click.BadParameter(f"no case named {', '.join(sorted(unknown))}", param_hint="--case")
    cases = [case for case in CASES if not names or case.name in names]
    with errors_in_one_line():
        gpu = not resolve(device).is_host
    with tempfile.TemporaryDirectory(prefix="gpuload-bench-") as scratch:
        report = _run(path or scratch, cases, gpu, size * MIB, repeats, only, quiet=as_json)
    if as_json:
        click.echo(json.dumps(report))
    else:
        _show(report)


def _run(folder: str, cases: Any, gpu: bool, nbytes: int, repeats: int, only: tuple[str, ...], *, quiet: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from gpuload.bench.runner import run

    columns = (TextColumn("{task.description:24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task("", total=len(cases) + 1)

        def step(name: str) -> None:
            bar.update(task, description=name, advance=1 if bar.tasks[0].description else 0)

        return run(folder, cases, gpu=gpu, nbytes=nbytes, repeats=repeats, only=only, progress=step)


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    names = [row["contender"] for row in report["cases"][0]["results"]] if report["cases"] else []
    table = Table(title="GB/s of decoded data, median; in brackets CPU seconds a GB")
    table.add_column("case")
    for name in names:
        table.add_column(name, justify="right")
    for case in report["cases"]:
        label = case["name"] + (f" (×{1 / case['stored_ratio']:.1f})" if case["codec"] != "none" else "")
        table.add_row(label, *(_cell(row) for row in case["results"]))
    console.print(table)
    for name, value in report["limits"].items():
        console.print(f"limit {name.replace('_', ' ')}: {'not to be had' if value is None else f'{value:.1f} GB/s'}")
    machine = report["machine"]
    console.print(
        f"kernel {machine['kernel']}, Python {machine['python']}, {machine['cores']} cores, io_uring "
        f"{machine['io_uring']}; {machine['bytes'] / MIB:.0f} MiB, page cache warm, {machine['repeats']} reads each"
    )
    for case in report["cases"]:
        for row in case["results"]:
            if row["error"] or not row["equal"]:
                console.print(f"{case['name']}, {row['contender']}: {row['error'] or 'WRONG VALUES'}")


def _cell(row: dict[str, Any]) -> str:
    if row["error"]:
        return "–"
    if not row["equal"]:
        return "wrong"
    return f"{row['gb_per_s']:.2f} ({row['cpu_s_per_gb']:.2f})"
