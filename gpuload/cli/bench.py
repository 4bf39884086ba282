"""``gpuload bench``: gpuload beside what is installed of its peers, on this machine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from typing import Any

import click

from gpuload.bench.cases import CASES, MIB, Case
from gpuload.bench.contenders import CONTENDERS, Contender
from gpuload.cli.options import device_callback, errors_in_one_line
from gpuload.memory.device import resolve

_COLD = 0.01  # of a file's pages may be found in the page cache and it still counts as cold


@click.command("bench", short_help="Measure reads of one array, stored in several ways, beside the peers.")
@click.argument("path", required=False, type=click.Path(file_okay=False))
@click.option("--device", default="auto", show_default=True, callback=device_callback, help="auto, cpu or cuda:N.")
@click.option(
    "--size",
    default=1024,
    show_default=True,
    type=click.IntRange(1),
    metavar="MIB",
    help="Decoded size of the array: 1, 4, 16, 64, 256, 1024 or 4096; others are rounded to one of these.",
)
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Timed reads of each contender.")
@click.option("--case", "names", multiple=True, metavar="CASE", help=f"Only this: {', '.join(c.name for c in CASES)}.")
@click.option(
    "--contender", "only", multiple=True, metavar="NAME", help=f"Only this: {', '.join(c.name for c in CONTENDERS)}."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    path: str | None, device: str, size: int, repeats: int, names: tuple[str, ...], only: tuple[str, ...], as_json: bool
) -> None:
    """Measure whole reads of one array, stored in several ways.

    Files come from the page cache; of a case that ends in "cold", from the drive. "busy" reads in turn alone and beside
    a thread that runs pure Python, "record" with gpuload's record and without.

    The arrays are written to PATH and kept there, or to a temporary directory. Each contender runs in a process of its
    own, at the fastest of its settings, all in turn; the figures are those of the median read. Exit code 1 where
    gpuload itself failed or read wrong values.
    """
    _known("--case", names, [case.name for case in CASES])
    _known("--contender", only, [contender.name for contender in CONTENDERS])
    cases = [case for case in CASES if not names or case.name in names]
    with errors_in_one_line():
        target = resolve(device)
    contenders = _present(only, gpu=not target.is_host)
    with tempfile.TemporaryDirectory(prefix="gpuload-bench-") as scratch:
        report = _run(path or scratch, cases, contenders, not target.is_host, size * MIB, repeats, quiet=as_json)
    if as_json:
        click.echo(json.dumps(report))
    else:
        _show(report)
    failed = [
        f"{case['name']}: {row['error']}"
        for case in report["cases"]
        for row in case["results"]
        if row["error"] and row["contender"].startswith("gpuload")
    ]
    if failed:
        raise click.ClickException("gpuload failed: " + "; ".join(failed))


def _known(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    unknown = [repr(name) for name in given if name not in known]
    if unknown:
        what = option.removeprefix("--")
        raise click.BadParameter(
            f"no {what} named {', '.join(unknown)}: there are {', '.join(known)}", param_hint=option
        )


def _present(only: Sequence[str], *, gpu: bool) -> list[Contender]:
    from gpuload.bench.runner import present

    found = present(gpu=gpu, only=only)
    absent = [name for name in only if name not in [contender.name for contender in found]]
    if absent:
        where = "" if gpu else ", or reads to a GPU only"
        raise click.BadParameter(f"{', '.join(absent)} is not installed here{where}", param_hint="--contender")
    return found


def _run(
    folder: str,
    cases: Sequence[Case],
    contenders: Sequence[Contender],
    gpu: bool,
    nbytes: int,
    repeats: int,
    *,
    quiet: bool,
) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from gpuload.bench.runner import run, steps

    columns = (TextColumn("{task.description:40}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task("", total=steps(len(cases), len(contenders), repeats))
        started = False

        def step(name: str) -> None:
            nonlocal started
            bar.update(task, description=name, advance=1 if started else 0)
            started = True

        return run(folder, cases, contenders, gpu=gpu, nbytes=nbytes, repeats=repeats, progress=step)


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    machine = report["machine"]
    console.print(f"kernel {machine['kernel']}, {machine['architecture']}, {machine['cores']} cores", highlight=False)
    console.print(machine["ring"], highlight=False, markup=False)
    table = Table(title=f"{machine['bytes'] / MIB:.0f} MiB, medians of {machine['repeats']} reads")
    table.add_column("case")
    table.add_column("contender")
    for heading in ("GB/s", "gpuload is", "CPU s/GB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("how")
    for case in report["cases"]:
        label = _label(case)
        for row in case["results"]:
            table.add_row(label, row["contender"], *_figures(row), _how(row))
            label = ""
        if case["limit"] is not None:
            table.add_row("", f"limit: {case['limit']['what']}", f"{case['limit']['gb_per_s']:.2f}", "", "", "")
        table.add_section()
    console.print(table)
    for name, value in report["limits"].items():
        said = "not to be had" if value is None else f"{value:.1f} GB/s"
        console.print(f"limit {name.replace('_', ' ')}: {said}", highlight=False)
    for line in _conditions(report):
        console.print(line, highlight=False, markup=False)


def _label(case: dict[str, Any]) -> str:
    said = f" (×{1 / case['stored_ratio']:.1f})" if case["codec"] != "none" else ""
    if case["mode"] == "cold":
        cached = case["cached_share"]
        if cached is None or cached > _COLD:
            said += " (not cold" + ("" if cached is None else f": {cached:.0%} cached") + ")"
    return f"{case['name']}{said}"


def _figures(row: dict[str, Any]) -> list[str]:
    forms = (("gb_per_s", "{:.2f}"), ("gpuload_is_times", "× {:.2f}"), ("cpu_s_per_gb", "{:.2f}"))
    return ["–" if row[name] is None else form.format(row[name]) for name, form in forms]


def _how(row: dict[str, Any]) -> str:
    """Why there is no figure; else which way gpuload's bytes went, or a peer's setting."""
    from rich.markup import escape

    if row["error"]:
        return escape(row["error"])
    return "; ".join([*_compared(row), *filter(None, [_ways(row)])])


def _compared(row: dict[str, Any]) -> list[str]:
    """What a speed is of another one."""
    said = []
    if row["of_limit"] is not None:
        said.append(f"{row['of_limit']:.0%} of the limit")
    if row["kept"] is not None:
        between = row["kept_interval"]
        sure = "" if between is None else f" (95 %: {between[0]:.1%} to {between[1]:.1%})"
        said.append(f"{row['kept']:.1%} of {row['beside_gb_per_s']:.2f} GB/s{sure}")
    if row["cpu_us_a_chunk"] is not None:
        said.append(f"{row['cpu_us_a_chunk']:+.2f} µs of CPU a chunk")
    return said


def _ways(row: dict[str, Any]) -> str:
    from rich.markup import escape

    if row["served"]:
        ways = [
            f"{way['share']:.0%} {way['path']} by {way['backend']}"
            + (f" ({way['reason']})" if way["reason"] else "")
            + (f", decoded on the {way['decode']}" if way["decode"] != "none" else "")
            for way in row["served"]
            if way["share"] >= 0.005  # the rest is metadata; JSON has all
        ]
        return "; ".join(ways)
    return escape(str(row["setting"] or ""))


def _conditions(report: dict[str, Any]) -> list[str]:
    machine = report["machine"]
    warm = [case["cached_share"] for case in report["cases"] if case["mode"] != "cold"]
    shares = [share for share in warm if share is not None]
    seen = f": at least {min(shares):.0%} of each array found in it" if shares else ", as far as can be told"
    versions = ", ".join(f"{name} {version or '?'}" for name, version in machine["versions"].items())
    gpu = machine["gpu"]
    into = f"{gpu['name']}, driver {gpu['driver']}, CuPy {gpu['cupy']}" if gpu else "host memory"
    return [
        f"into {into}; files on {machine['file_system']}, page cache warm{seen}, where a case is not cold",
        f"Python {machine['python']}, {versions}",
    ]
