"""Which backends there are, which can be used in this process, and which one serves.

Availability is asked once a process, by trying, and again in a forked child.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from gpuload.backends import posix, uring
from gpuload.backends.base import Availability, Backend
from gpuload.config import config, integer, integer_or_none
from gpuload.errors import BackendUnavailableError, ConfigError, RegistrationError
from gpuload.request import Reason

# Why no fastpath serves: no vendor library is driven by this version, so the first of the fixed conditions fails.
FASTPATH_REASON = Reason.NO_LIBRARY
FASTPATH_DETAIL = "this version of gpuload drives no fastpath library (hipFile, cuFile) yet"


@dataclass(frozen=True, slots=True)
class Entry:
    """One fallback backend; the higher score serves."""

    name: str
    score: int
    availability: Callable[[], Availability]
    make: Callable[[], Backend]


def _make_uring() -> Backend:
    return uring.UringBackend(
        integer("uring.entries"), integer("uring.slots"), integer_or_none("uring.window"), config.get("uring.mode")
    )


def _make_posix() -> Backend:
    return posix.PosixBackend(integer_or_none("posix.threads"))


ENTRIES = (
    Entry("io_uring", 2, uring.availability, _make_uring),
    Entry("posix", 1, posix.availability, _make_posix),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend that serves, and each better one that was passed over with its reason."""

    name: str
    declined: dict[str, Reason] = field(default_factory=dict)


_refused: dict[str, Availability] = {}  # those that looked usable, until one was made


@cache
def _asked(name: str) -> Availability:
    return _entry(name).availability()


def available(name: str) -> Availability:
    """Whether the backend `name` can be used in this process."""
    return _refused.get(name) or _asked(name)


def forget() -> None:
    """Ask again, the next time."""
    _refused.clear()
    _asked.cache_clear()


os.register_at_fork(after_in_child=forget)


def make(name: str) -> Backend:
    """A new backend `name`, for the thread that calls.

    Raises
    ------
    BackendUnavailableError
        It cannot be used here, and `available` knows from now on.
    """
    state = available(name)
    if state.reason is not None:
        raise BackendUnavailableError(name, state.reason, state.detail)
    try:
        return _entry(name).make()
    except BackendUnavailableError as error:
        _refused[name] = Availability(error.reason, error.detail)
        raise
    except RegistrationError as error:
        _refused[name] = Availability(error.reason or Reason.DRIVER_ERROR, str(error))
        raise BackendUnavailableError(name, error.reason or Reason.DRIVER_ERROR, str(error)) from error


def choose(forced: str | None = None) -> Choice:
    """The fallback backend that serves.

    Parameters
    ----------
    forced
        Serve with this one, whatever the scores; None: the best that can be used.

    Raises
    ------
    ConfigError
        `forced` names no backend.
    BackendUnavailableError
        The forced one cannot be used here.
    """
    if forced is not None:
        state = available(_entry(forced).name)
        if state.reason is not None:
            raise BackendUnavailableError(forced, state.reason, state.detail)
    declined: dict[str, Reason] = {}
    for entry in ENTRIES:
        if forced is None or entry.name == forced:
            reason = available(entry.name).reason
            if reason is None:
                return Choice(entry.name, declined)
            declined[entry.name] = reason
        else:
            declined[entry.name] = Reason.FORCED_OFF
    raise BackendUnavailableError("posix", Reason.KERNEL_TOO_OLD, "no backend can read files here")


def _entry(name: str) -> Entry:
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise ConfigError(f"no backend named {name!r}: there are {', '.join(repr(e.name) for e in ENTRIES)}")
