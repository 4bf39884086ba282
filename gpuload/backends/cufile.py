"""cufile: NVIDIA's cuFile, from storage straight into device memory; what is its own beside `backends.vendor`.

cuFile's "compatible mode" is a detour through host memory that it takes by itself, where neither nvidia-fs nor the
kernel's P2PDMA serves a file, and says nothing. It is switched off before the driver is opened here, and cuFile is
asked again when it is open. A driver that does not open without it has no direct path: the backend is refused for this
process (`no-driver`), the switch is put back, so that others in the process find cuFile as it was, and the fallback
serves. What somebody else opened, or the user's CUFILE_ALLOW_COMPAT_MODE=true allows to take the detour, is
`unverified`, and never fastpath.

Which descriptor is whose: the handle's unbuffered one is handed over and stays the handle's; the handle deregisters
the file before it closes it.

Threads: safe. Fork: not to be used in the child.
"""

from __future__ import annotations

import os

from gpuload.backends.base import Availability
from gpuload.backends.vendor import INTERNAL, NOT_SUPPORTED, VendorBackend, switch
from gpuload.bindings import cufile
from gpuload.errors import BackendUnavailableError, HandleError, VendorError
from gpuload.files.handle import FileHandle
from gpuload.once import once
from gpuload.request import Reason

NAME = cufile.NAME
ALLOW = cufile.ALLOW
FORCE = "CUFILE_FORCE_COMPAT_MODE"

# A platform, a GPU or a file that direct reads do not go with; no O_DIRECT; a buffer that could not be pinned.
_DECLINED = (5007, NOT_SUPPORTED, 5009, 5020, INTERNAL, 5034, 5036, 5049)


def availability() -> Availability:
    """Whether cuFile can be used in this process, as far as can be told without opening its driver."""
    try:
        cufile.load()
    except BackendUnavailableError as error:
        return Availability(error.reason, error.detail)
    if switch(FORCE):
        return Availability(Reason.FORCED_OFF, f"{FORCE} sends all reads through host memory")
    return Availability()


class CufileBackend(VendorBackend):
    """cuFile in this process."""

    name = NAME
    register_call = "cuFileHandleRegister"
    declined = frozenset(_DECLINED)
    api: cufile.Library

    def descriptor(self, handle: FileHandle) -> int:
        fd = handle.unbuffered_fd
        if fd is None:
            raise HandleError(f"{handle.path!r} has no unbuffered descriptor: {handle.unbuffered_reason}")
        return fd

    def open_driver(self, *, used: bool) -> bool:
        off = not used and (ALLOW not in os.environ or switch(ALLOW) is False)
        certain = off and self.api.forbid_detour()
        try:
            self.api.open_driver()
        except VendorError as error:
            if off:
                self.api.allow_detour()
            raise BackendUnavailableError(NAME, Reason.NO_DRIVER, f"cuFile has no direct path here: {error}") from error
        return certain and not self.api.takes_detours()


@once
def backend() -> CufileBackend:
    """The process's; its driver is opened when a file is first read."""
    return CufileBackend(cufile.load())
