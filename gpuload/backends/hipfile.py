"""hipfile: AMD's hipFile, from storage straight into device memory; what is its own beside `backends.vendor`.

Its detour through host memory is switched off by HIPFILE_ALLOW_COMPAT_MODE=false, which hipFile reads at its first use.

Which descriptor is whose: the handle's buffered one is handed over and stays the handle's; hipFile reopens the file
with O_DIRECT, and closes that one when the file is deregistered, which the handle does before it closes its own.

Threads: safe. Fork: not to be used in the child.
"""

from __future__ import annotations

import os

from gpuload.backends.base import Availability
from gpuload.backends.vendor import INTERNAL, NOT_SUPPORTED, VendorBackend, switch
from gpuload.bindings import hipfile, runtime
from gpuload.errors import BackendUnavailableError
from gpuload.files.handle import FileHandle
from gpuload.once import once
from gpuload.request import Reason

NAME = hipfile.NAME
ALLOW = "HIPFILE_ALLOW_COMPAT_MODE"
FORCE = "HIPFILE_FORCE_COMPAT_MODE"
ANY_FILE_SYSTEM = "HIPFILE_UNSUPPORTED_FILE_SYSTEMS"

_RUNTIME_CALLS = ("hipAmdFileRead", "hipAmdFileWrite")


def availability() -> Availability:
    """Whether hipFile can be used in this process: library, switches, and the runtime's calls for direct reads."""
    try:
        hipfile.load()
    except BackendUnavailableError as error:
        return Availability(error.reason, error.detail)
    if switch(FORCE):
        return Availability(Reason.FORCED_OFF, f"{FORCE} sends all reads through host memory")
    missing = [name for name in _RUNTIME_CALLS if not runtime.has_call(name)]
    if missing:
        return Availability(Reason.NO_DRIVER, f"this HIP runtime has no {' and no '.join(missing)}")
    return Availability()


class HipfileBackend(VendorBackend):
    """hipFile in this process."""

    name = NAME
    register_call = "hipFileHandleRegister"
    declined = frozenset((NOT_SUPPORTED, INTERNAL))

    def descriptor(self, handle: FileHandle) -> int:
        return handle.buffered_fd

    def any_file_system(self) -> bool:
        return bool(switch(ANY_FILE_SYSTEM))

    def open_driver(self, *, used: bool) -> bool:
        allowed = switch(ALLOW)
        if not used and ALLOW not in os.environ:
            os.environ[ALLOW] = "false"
            allowed = False
        self.api.open_driver()
        return not used and allowed is False


@once
def backend() -> HipfileBackend:
    """The process's; its driver is opened when a file is first read."""
    return HipfileBackend(hipfile.load())
