"""How a command ends whose output cannot be written: in one line on stderr, or none where nobody reads it."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Any

import click

from gpuload.cli.lazy import LazyGroup


class EndingGroup(LazyGroup):
    """A group whose commands end with exit code 1 on a full device or a closed pipe, without a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("standalone_mode", True):  # whoever called it from Python gets the error
            return super().main(*args, **kwargs)
        code: Any = 0
        trouble: OSError | None = None
        try:
            super().main(*args, **kwargs)
        except SystemExit as ended:
            code = ended.code
        except OSError as error:
            trouble = error
        try:
            # What is only now found to have no room: at the end of the process nobody could say it in one line.
            sys.stdout.flush()
        except (OSError, ValueError) as error:  # ValueError: it was closed
            trouble = trouble or (error if isinstance(error, OSError) else None)
            _forget(1)
        if trouble is not None and not code:
            code = 1
            if trouble.errno != errno.EPIPE:  # whoever was to read it has gone, and needs no word
                _complain(f"Error: the output cannot be written: {trouble.strerror}")
        sys.exit(code)


def _complain(words: str) -> None:
    try:
        click.echo(words, err=True)
    except OSError:
        _forget(2)


def _forget(fd: int) -> None:
    """Let what is still in a standard stream's buffer go nowhere."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, fd)
        os.close(nowhere)
