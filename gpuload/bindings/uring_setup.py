"""Makes a ring by trying, and tells in the program's words why none can be made.

Features are found by trying flags until the kernel takes them, never by its version.
"""

from __future__ import annotations

import errno
import os
import sys

import numpy as np

from gpuload.bindings.libc import syscall
from gpuload.bindings.limits import memlock_limit, process_status
from gpuload.bindings.uring_abi import PARAMS, Feature, Rows, Setup
from gpuload.errors import BackendUnavailableError
from gpuload.request import Reason

SYS_SETUP, SYS_ENTER, SYS_REGISTER = 425, 426, 427

_SIZES = Setup.CQSIZE | Setup.CLAMP
SETUP_TRIES = (
    Setup.SINGLE_ISSUER | Setup.DEFER_TASKRUN | Setup.SUBMIT_ALL | _SIZES,  # 6.1
    Setup.SINGLE_ISSUER | Setup.COOP_TASKRUN | Setup.SUBMIT_ALL | _SIZES,  # 6.0
    Setup.COOP_TASKRUN | Setup.SUBMIT_ALL | _SIZES,  # 5.19
    Setup.SUBMIT_ALL | _SIZES,  # 5.18
    _SIZES,  # 5.6
)

# One mapping for both rings, no completion ever dropped, timeouts in enter: all there since 5.11.
_REQUIRED = Feature.SINGLE_MMAP | Feature.NODROP | Feature.SUBMIT_STABLE | Feature.EXT_ARG

# Python has no memory barriers. Where stores and loads stay in order none is needed; elsewhere only a ring whose
# completions are posted inside our own enter (DEFER_TASKRUN) is safe to read.
STRONGLY_ORDERED = os.uname().machine in ("x86_64", "i686")


class UringUnavailable(BackendUnavailableError):
    """io_uring cannot be used here; `reason` says why and `errno` is the kernel's answer (0: none)."""

    def __init__(self, reason: Reason, detail: str, code: int = 0) -> None:
        super().__init__("io_uring", reason, detail)
        self.errno = code

    def __reduce__(self) -> tuple[type[UringUnavailable], tuple[Reason, str, int]]:
        return type(self), (self.reason, self.detail, self.errno)


def set_up(entries: int, cq_entries: int | None, setup_flags: int | None, idle: int = 0) -> tuple[int, Rows]:
    """Make a ring with the best flags the kernel takes, or with just `setup_flags`.

    With SQPOLL the ring's thread goes to sleep when it found nothing to do for `idle` milliseconds.

    Returns
    -------
    tuple
        The descriptor, and the filled (1,) `PARAMS` record.

    Raises
    ------
    UringUnavailable
        With the reason.
    """
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 1 << 32:
        raise UringUnavailable(Reason.KERNEL_TOO_OLD, "needs 64-bit little-endian Linux")
    params: Rows = np.zeros(1, PARAMS)
    tries = SETUP_TRIES if setup_flags is None else (Setup(setup_flags),)
    for flags in tries:
        params[:] = np.zeros(1, PARAMS)
        params["flags"] = int(flags)
        if flags & Setup.CQSIZE:
            params["cq_entries"] = cq_entries or 2 * entries
        params["sq_thread_idle"] = idle
        try:
            fd = syscall(SYS_SETUP, entries, params.ctypes.data)
            break
        except OSError as error:
            if error.errno != errno.EINVAL or flags is tries[-1]:
                raise _unavailable(error) from error
    lacking = _refusal(int(params["features"][0]), bool(flags & Setup.DEFER_TASKRUN))
    if lacking:
        os.close(fd)
        raise UringUnavailable(Reason.KERNEL_TOO_OLD, lacking)
    return fd, params


def _refusal(features: int, deferred: bool) -> str | None:
    """Why a ring that the kernel made is not used, or None."""
    missing = _REQUIRED & ~features
    if missing:
        return f"the kernel lacks {missing!r}"
    if not (deferred or STRONGLY_ORDERED):
        return f"on {os.uname().machine} the ring needs DEFER_TASKRUN (Linux 6.1)"
    return None


def _unavailable(error: OSError) -> UringUnavailable:
    """The kernel's refusal of io_uring_setup, in our words."""
    code = error.errno or 0
    answer = f"io_uring_setup: {os.strerror(code)}"
    release = os.uname().release
    if code == errno.ENOSYS:
        # A kernel that knows io_uring does not answer so, but a seccomp filter may (Docker, Podman).
        if _filtered():
            reason, why = Reason.SECCOMP, "a seccomp filter hides it"
        else:
            reason, why = Reason.KERNEL_TOO_OLD, f"kernel {release} is older than 5.1 or built without io_uring"
    elif code in (errno.EPERM, errno.EACCES):
        disabled = _disabled()
        if disabled:
            reason, why = Reason.FORCED_OFF, f"switched off by the sysctl kernel.io_uring_disabled={disabled}"
        elif _filtered():
            reason, why = Reason.SECCOMP, "a seccomp filter forbids it"
        else:
            reason, why = Reason.SECCOMP, "a security policy forbids it"
    elif code == errno.ENOMEM:
        reason, why = Reason.MEMLOCK, f"RLIMIT_MEMLOCK is {memlock_limit()}: raise it with ulimit -l"
    elif code in (errno.EMFILE, errno.ENFILE):
        reason, why = Reason.FD_LIMIT, "no descriptor left: raise RLIMIT_NOFILE with ulimit -n"
    else:
        reason, why = Reason.KERNEL_TOO_OLD, f"kernel {release} takes none of the flag sets"
    return UringUnavailable(reason, f"{answer}; {why}", code)


def _filtered() -> bool:
    """Whether a seccomp filter is active for this process."""
    return process_status("Seccomp") == "2"


def _disabled() -> int:
    """The sysctl that switches io_uring off: 0 (or absent, before 6.6) no, 1 for some users, 2 for all."""
    try:
        with open("/proc/sys/kernel/io_uring_disabled") as value:
            return int(value.read())
    except (OSError, ValueError):
        return 0
