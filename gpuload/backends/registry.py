"""Which backends there are, which can be used in this process, and which one serves: by the fastpath, by the fallback.

Availability is asked once a process, by trying, and again in a forked child.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from glob import escape as glob_escape
from glob import glob

from gpuload.backends import cufile, hipfile, posix, rings, uring
from gpuload.backends.base import Availability, Backend, DirectBackend
from gpuload.bindings.runtime import Vendor, vendor
from gpuload.config import config, integer, integer_or_none
from gpuload.errors import BackendUnavailableError, ConfigError, RegistrationError, VendorError
from gpuload.memory.device import Device, GpuDevice, gpus_seen
from gpuload.request import Reason


@dataclass(frozen=True, slots=True)
class Entry:
    """One fallback backend; the higher score serves."""

    name: str
    score: int
    availability: Callable[[], Availability]
    make: Callable[[], Backend]


@dataclass(frozen=True, slots=True)
class DirectEntry:
    """The fastpath backend of one vendor."""

    name: str
    availability: Callable[[], Availability]
    backend: Callable[[], DirectBackend]  # the process's, made when it is first asked for


def _make_uring() -> Backend:
    return uring.UringBackend(
        integer("uring.entries"),
        integer("uring.slots"),
        integer_or_none("uring.window"),
        config.get("uring.mode"),
        integer_or_none("uring.pollers"),
    )


def _make_posix() -> Backend:
    return posix.PosixBackend(integer_or_none("posix.threads"))


ENTRIES = (
    Entry("io_uring", 2, rings.availability, _make_uring),
    Entry("posix", 1, posix.availability, _make_posix),
)


DIRECT = {
    Vendor.AMD: DirectEntry("hipfile", hipfile.availability, hipfile.backend),
    Vendor.NVIDIA: DirectEntry("cufile", cufile.availability, cufile.backend),
}


@dataclass(frozen=True, slots=True)
class Fastpath:
    """Whether reads to a device can go by the fastpath at all.

    Attributes
    ----------
    backend
        What serves them; None: nothing does.
    name
        The backend of that device's vendor, also where it cannot be used; None where there is none.
    reason, detail
        Why nothing does.
    """

    backend: DirectBackend | None
    name: str | None
    reason: Reason | None
    detail: str = ""

    def refusal(self, reason: Reason | None = None) -> tuple[Reason, dict[str, Reason]]:
        """What the record says of a fallback: why, and which backend was passed over; `reason` of this very request."""
        why = reason or self.reason
        assert why is not None
        return why, {} if self.name is None else {self.name: why}


@dataclass(frozen=True, slots=True)
class Opened:
    """What came of opening a fastpath backend's driver.

    Attributes
    ----------
    refusal, detail
        Why it does not serve; None: it does.
    doubt
        Why what it serves cannot be called direct.
    """

    refusal: Reason | None = None
    doubt: Reason | None = None
    detail: str = ""


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


def refuse(error: BackendUnavailableError) -> None:
    """Note that a backend which looked usable is not, for this process."""
    _refused[error.backend] = Availability(error.reason, error.detail)


def forget() -> None:
    """Ask again, the next time."""
    _refused.clear()
    _asked.cache_clear()
    _vendor_package.cache_clear()


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
        return _fallback(name).make()
    except BackendUnavailableError as error:
        refuse(error)
        raise
    except RegistrationError as error:
        _refused[name] = Availability(error.reason or Reason.DRIVER_ERROR, str(error))
        raise BackendUnavailableError(name, error.reason or Reason.DRIVER_ERROR, str(error)) from error


def fastpath(device: Device, forced: str | None = None) -> Fastpath:
    """Whether reads to `device` can go by the fastpath, as far as that does not depend on the files.

    Parameters
    ----------
    device
        Where the bytes are to go.
    forced
        The one backend that was asked for.
    """
    if not isinstance(device, GpuDevice):
        return _host_fastpath()
    entry = DIRECT[vendor(device.xp)]
    if forced is not None and forced != entry.name:
        return Fastpath(None, entry.name, Reason.FORCED_OFF, f"the backend {forced!r} was asked for")
    state = available(entry.name)
    if state.reason is not None:
        return Fastpath(None, entry.name, state.reason, state.detail)
    return Fastpath(entry.backend(), entry.name, None)


def open_driver(backend: DirectBackend) -> Opened:
    """Open a fastpath backend's driver, if it is not: the one way that reads, writes and the doctor take.

    What will not open the next time either is refused for this process.
    """
    try:
        doubt = backend.open()
    except BackendUnavailableError as error:
        refuse(error)
        return Opened(error.reason, detail=error.detail)
    except VendorError as error:
        return Opened(Reason.DRIVER_ERROR, detail=str(error))
    if doubt is None:
        return Opened()
    return Opened(doubt=doubt, detail=f"{backend.name} was opened by somebody else, or may take a detour")


def fastpath_name(device: Device) -> str | None:
    """The fastpath backend of a device's vendor, usable or not; None on the host."""
    return DIRECT[vendor(device.xp)].name if isinstance(device, GpuDevice) else None


def _host_fastpath() -> Fastpath:
    """Why bytes that go to the host do not go by the fastpath; loads no library to tell."""
    if not _vendor_package():
        detail = "nothing that reads into GPU memory is installed: gpuload[rocm] brings it for AMD, [cuda13] for NVIDIA"
        return Fastpath(None, None, Reason.NO_LIBRARY, detail)
    if gpus_seen() == 0:
        return Fastpath(None, None, Reason.NO_DEVICE, "CuPy sees no GPU")
    return Fastpath(None, None, Reason.NOT_DEVICE_MEMORY, "the destination is host memory")


@cache
def _vendor_package() -> bool:
    """Whether a vendor's bindings are installed; none is imported to tell."""
    if importlib.util.find_spec("rocm") is not None:
        return True
    spec = importlib.util.find_spec("cuda")  # a name that many packages share
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return any(glob(os.path.join(glob_escape(folder), "bindings", "cufile.*")) for folder in folders)


def choose(forced: str | None = None) -> Choice:
    """The fallback backend that serves.

    Parameters
    ----------
    forced
        Serve with this one, whatever the scores; None: the best that can be used. With a fastpath backend, which must
        be usable then, it is the best, too: for the bytes that one leaves.

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
        if all(entry.name != forced for entry in ENTRIES):
            forced = None
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


def _fallback(name: str) -> Entry:
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise _unknown(name)


def _entry(name: str) -> Entry | DirectEntry:
    for entry in _all():
        if entry.name == name:
            return entry
    raise _unknown(name)


def names() -> list[str]:
    """All backends there are."""
    return [entry.name for entry in _all()]


def _all() -> list[Entry | DirectEntry]:
    return [*ENTRIES, *DIRECT.values()]


def _unknown(name: str) -> ConfigError:
    return ConfigError(f"no backend named {name!r}: there are {', '.join(map(repr, names()))}")
