"""What the commands have in common: where to read to, with which backend, how to say what went wrong."""

from __future__ import annotations

import errno
import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from gpuload.config import config
from gpuload.errors import GpuloadError

if TYPE_CHECKING:
    from rich.console import Console

    from gpuload.record import Summary

_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?", re.ASCII)


def device_callback(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Let ``auto``, ``cpu`` and ``cuda:N`` pass; whether the device is there is found out when it is used."""
    if text is not None and not _DEVICE.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not 'auto', 'cpu' or 'cuda:N'", ctx, param)
    return text


def reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` the options of every command that reads, and end its errors as one line on stderr, exit code 1."""

    @click.option(
        "--device",
        callback=device_callback,
        metavar="DEVICE",
        help="Where the result goes: auto, cpu or cuda:N.  [default: the configuration's, which is auto]",
    )
    @click.option("--backend", metavar="NAME", help="Read with this backend only: io_uring, posix, hipfile or cufile.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @functools.wraps(command)
    def wrapper(*args: Any, device: str | None, backend: str | None, **kwargs: Any) -> None:
        with errors_in_one_line(), forced_backend(backend):
            command(*args, device=device or config.get("device"), **kwargs)

    return wrapper


@contextmanager
def forced_backend(name: str | None) -> Iterator[None]:
    """Read with the backend `name` inside the block; with None the configuration stays as it is."""
    if name is None:
        yield
        return
    with config.set(backend=name):
        yield


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn what gpuload refuses, and memory or room on a disk that is not there, into one line and exit code 1."""
    try:
        yield
    except (GpuloadError, MemoryError, OSError) as error:
        if getattr(error, "errno", None) == errno.EPIPE:  # whoever was to read the output has gone: nothing to say
            raise
        text = str(error)
        if isinstance(error, FileNotFoundError) and error.strerror and error.filename:
            text = f"{error.strerror}: {error.filename!r}"  # without the number that Python puts in front
        raise click.ClickException(" ".join(text.split()) or type(error).__name__) from error


def print_summary(console: Console, summary: Summary) -> None:
    """Print who served what; into a file or a pipe as plain text, without the blanks that fill a terminal's lines."""
    if console.is_terminal:
        console.print(summary)
    else:
        click.echo(summary.to_text(console.width))
