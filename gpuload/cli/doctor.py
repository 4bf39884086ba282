"""``gpuload doctor``: what works on this machine and for a store, what does not, and what mends it."""

from __future__ import annotations

import click

from gpuload.cli.options import errors_in_one_line


@click.command("doctor", short_help="Say what works here, what does not, and the command that mends it.")
@click.argument("path", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--report", "as_report", is_flag=True, help="Print Markdown for a bug report, without private names.")
@click.option(
    "--timeout",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Until what hangs is given up.",
)
@click.option(
    "--require",
    "required",
    multiple=True,
    metavar="NAME",
    help="End with exit code 1 where this backend cannot be used, or this check does not pass.",
)
def command(path: str | None, as_json: bool, as_report: bool, timeout: float, required: tuple[str, ...]) -> None:
    """Look at GPU, libraries, kernel, mounts, io_uring and limits; with PATH, at that store or file.

    Changes nothing and needs no root; where root would see more, the check says "unknown" and how to look.

    Exit codes: 0 the examination was made, whatever it found; 1 PATH is not there, or something that --require names
    does not hold; 2 wrong usage.
    """
    if as_json and as_report:
        raise click.UsageError("--json and --report exclude each other")
    import gpuload

    with errors_in_one_line():
        report = gpuload.doctor(path, timeout=timeout)
    states = {check.name: check.status == "pass" for check in report.checks}
    states |= {name: state.usable for name, state in report.backends.items()}
    strange = [repr(name) for name in required if name not in states]
    if strange:
        known = ", ".join(sorted(states))
        raise click.BadParameter(
            f"no backend or check named {', '.join(strange)}: there are {known}", param_hint="--require"
        )
    if as_json:
        click.echo(report.to_json())
    elif as_report:
        from gpuload.checks.bug import bug_report

        click.echo(bug_report(report))
    else:
        from rich.console import Console

        console = Console(highlight=False)
        if console.is_terminal:
            console.print(report)
        else:
            click.echo(report.to_text(console.width))
    missing = [name for name in required if not states[name]]
    if missing:
        raise click.ClickException(f"required, and not so: {', '.join(missing)}")
