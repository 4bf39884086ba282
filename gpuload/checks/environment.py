"""The Python that runs gpuload, and the packages that decide what it can do."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

from gpuload.checks.libraries import version
from gpuload.checks.report import Check, failed, passed, unknown
from gpuload.config import DEFAULTS, config, flag, integer, integer_or_none
from gpuload.errors import ConfigError

_OLDEST_ZARR = (3, 1, 6)


def checks() -> tuple[Check, ...]:
    """Check Python, zarr-python and gpuload's configuration."""
    return (_python(), _zarr(), _configuration())


def setting(name: str) -> int:
    """The whole number `name`; gpuload's own default where it is set to something that is none."""
    try:
        return integer(name)
    except ConfigError:
        return int(_default(name))


def _default(name: str) -> Any:
    value: Any = DEFAULTS
    for part in name.split("."):
        value = value[part]
    return value


def _python() -> Check:
    return passed("python", f"{platform.python_implementation()} {platform.python_version()}")


def _zarr() -> Check:
    found = version("zarr")
    wanted = ".".join(map(str, _OLDEST_ZARR))
    fix = f"python -m pip install 'zarr>={wanted},<4'"
    if found is None:
        return failed("zarr", "not installed", fix)
    numbers = re.match(r"([0-9]+)\.([0-9]+)(?:\.([0-9]+))?", found)
    if numbers is None:
        return unknown("zarr", f"a version called {found!r}", fix)
    parts = tuple(int(number or 0) for number in numbers.groups())
    if not _OLDEST_ZARR <= parts < (4,):
        return failed("zarr", f"{found}: gpuload is made for {wanted} and newer, below 4", fix)
    return passed("zarr", found)


_NUMBERS = ("slab.size", "slab.limit", "batch_bytes", "piece_bytes", "uring.entries", "uring.slots", "record.rows")
_OPTIONAL_NUMBERS = ("uring.window", "uring.pollers", "posix.threads", "decode.threads", "handles.budget")
_FLAGS = ("strict", "follow_links", "poison")


def _configuration() -> Check:
    name = "configuration"
    for names, read in ((_NUMBERS, integer), (_OPTIONAL_NUMBERS, integer_or_none), (_FLAGS, flag)):
        for key in names:
            try:
                read(key)
            except ConfigError as error:
                variable = f"GPULOAD_{key.upper().replace('.', '__')}"
                fix = (
                    f"unset {variable}"
                    if variable in os.environ
                    else f"python -c 'import gpuload; gpuload.config.pprint()'  # {key}"
                )
                return failed(name, str(error), fix)
    changed = [
        key for key in (*_NUMBERS, *_OPTIONAL_NUMBERS, *_FLAGS, "backend", "device") if config.get(key) != _default(key)
    ]
    return passed(
        name, f"changed: {', '.join(f'{key}={config.get(key)}' for key in changed)}" if changed else "the defaults"
    )
