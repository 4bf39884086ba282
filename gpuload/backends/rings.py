"""Whether a ring is to be had here, and the kind of ring that the backend works with."""

from __future__ import annotations

import platform

from gpuload.backends.base import Availability
from gpuload.bindings import uring_abi as abi
from gpuload.bindings.uring import Ring
from gpuload.errors import BackendError, BackendUnavailableError
from gpuload.request import Reason


def availability() -> Availability:
    """Whether this process may make a ring that can do what the backend needs; asks the kernel, by trying."""
    try:
        with Ring(8) as ring:
            if not ring.direct_open or not {abi.OP_READ, abi.OP_READ_FIXED} <= ring.ops:
                return Availability(Reason.KERNEL_TOO_OLD, "this kernel's io_uring opens no files into slots (5.15)")
            ring.register_files(8)
    except BackendUnavailableError as error:
        return Availability(error.reason, error.detail)
    except BackendError as error:
        return Availability(Reason.DRIVER_ERROR, str(error))
    return Availability()


def make_ring(entries: int) -> Ring:
    """A ring to whose completions workers post themselves; through the thread that waits they take a third longer.

    Elsewhere than on x86 their order in memory would be in doubt then.
    """
    if platform.machine() == "x86_64":
        try:
            setup = abi.Setup.CQSIZE | abi.Setup.CLAMP | abi.Setup.SUBMIT_ALL | abi.Setup.COOP_TASKRUN
            return Ring(entries, 4 * entries, setup_flags=setup)
        except BackendUnavailableError:
            pass
    return Ring(entries, 4 * entries)
