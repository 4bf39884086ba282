"""Configuration as zarr and dask do it: `gpuload.config`, `GPULOAD_*` variables, YAML (donfig).

``GPULOAD_STRICT=1`` sets ``strict``; ``GPULOAD_SLAB__LIMIT=1073741824`` sets ``slab.limit``. Sizes are in bytes.
"""

from __future__ import annotations

import operator
from typing import Any

from donfig import Config

from gpuload.errors import ConfigError

DEFAULTS: dict[str, Any] = {
    "device": "auto",  # "auto" | "cpu" | "cuda:N"
    "backend": None,  # force one backend: "io_uring" | "posix" | "hipfile" | "cufile"
    "strict": False,  # every fallback becomes a StrictError
    "follow_links": False,  # let links below a store's root leave it
    "durable": False,  # what is written is on the drive before the call returns
    "slab": {
        "size": 64 << 20,  # one slab, at most; the first is half of it
        "limit": 512 << 20,  # all slabs of the process
    },
    "batch_bytes": 32 << 20,  # ranges that are read, copied and placed together, at most
    "piece_bytes": 1 << 20,  # the longest single read
    "direct": {
        "host": "auto",  # read rows straight into host arrays: "auto" | "always" where possible | "never"
        "cold": "auto",  # read past the page cache: "auto" | "always" where possible | "never"
    },
    "uring": {
        "entries": 2048,
        "slots": 8192,  # fixed files
        "mode": "auto",  # "window" | "chains" | "polled" | "auto": what suits the reads and the machine
        "pollers": None,  # rings with a kernel thread of their own; None: from the cores, 0: none
        "window": 32,  # reads in flight, of those that go through the window
    },
    "fastpath": {
        "threads": 4,  # direct reads at once
        "scratch": 64 << 20,  # of device memory that ranges are put in place from; at most 256 MiB
    },
    "posix": {"threads": None},  # None: twice the cores, at most 16
    "decode": {"threads": None},  # None: the cores
    "handles": {"budget": None},  # descriptors in the handle cache; None: from RLIMIT_NOFILE
    "references": {
        "roots": [],  # directories that they may lead to, besides the one they are in
        "limit": 256 << 20,  # bytes of a document of references
    },
    "poison": False,  # for tests: fill memory with 0xA5 before it is read into
    "record": {"rows": 100_000},  # rows kept; totals are always exact
}

config = Config("gpuload", defaults=[DEFAULTS])

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def flag(name: str) -> bool:
    """The switch `name`; words as YAML has them count, too, for a variable of the environment is text.

    Raises
    ------
    ConfigError
        Anything else: "false" taken for true would let links leave a store.
    """
    value = _value(name)
    known = _WORDS.get(str(value).strip().lower())
    if known is None:
        raise ConfigError(f"{name} = {value!r} is neither true nor false")
    return known


def one_of(name: str, *words: str) -> str:
    """The word `name`.

    Raises
    ------
    ConfigError
        It is none of `words`.
    """
    value = _value(name)
    if value not in words:
        raise ConfigError(f"{name} = {value!r} is none of {', '.join(words)}")
    return str(value)


def integer(name: str, *, least: int = 1) -> int:
    """The whole number `name`.

    Raises
    ------
    ConfigError
        It is none, or less than `least`.
    """
    value = _value(name)
    number = _whole(value)
    if number is None or number < least:
        raise ConfigError(f"{name} = {value!r} is no whole number of at least {least}")
    return number


def integer_or_none(name: str, *, least: int = 1) -> int | None:
    """`integer`, or None where the number is left to gpuload."""
    return None if _value(name) is None else integer(name, least=least)


def _value(name: str) -> Any:
    try:
        return config.get(name)
    except (KeyError, TypeError) as error:  # somebody put a value where the branch was, or took it away
        raise ConfigError(f"{name} is not configured, nor can be: {error}") from error


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():  # 1e6 in a variable of the environment
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        return None
