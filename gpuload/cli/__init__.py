"""The command line: ``gpuload bench``, ``demo``, ``doctor``, ``inspect``, ``pack``, ``read``, ``verify``.

Exit codes: 0 done, 1 an error or a difference (one line on stderr), 2 wrong usage.
"""

from __future__ import annotations

import click

import gpuload
from gpuload.cli.ending import EndingGroup

__all__ = ["main"]


@click.group(
    cls=EndingGroup,
    modules={
        "bench": "gpuload.cli.bench",
        "demo": "gpuload.cli.demo",
        "doctor": "gpuload.cli.doctor",
        "inspect": "gpuload.cli.inspect",
        "pack": "gpuload.cli.pack",
        "read": "gpuload.cli.read",
        "verify": "gpuload.cli.verify",
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(gpuload.__version__, prog_name="gpuload")
def main() -> None:
    """Read zarr chunks and plain files into GPU arrays, and see who served each request and why."""
