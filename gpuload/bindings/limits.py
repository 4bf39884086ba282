"""What this process may lock and use, and what its memory is made of, read from its limits and from the system."""

from __future__ import annotations

import os
import resource

_CAP_IPC_LOCK = 14


def memlock_limit() -> int | None:
    """Bytes this process may lock (RLIMIT_MEMLOCK), or None where no limit holds (unlimited, or CAP_IPC_LOCK)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or int(process_status("CapEff") or "0", 16) >> _CAP_IPC_LOCK & 1:
        return None
    return soft


def usable_cores() -> int:
    """Cores this process may keep busy: those it may run on, or its container's quota where that is less."""
    cores = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as value:
            quota, period = map(int, value.read().split())
    except (OSError, ValueError):  # no such file; "max"
        return cores
    return max(1, min(cores, quota // period)) if period else cores


def process_status(field: str) -> str | None:
    """One field of ``/proc/self/status``, or None where it is absent."""
    try:
        with open("/proc/self/status") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name == field:
                    return value.strip()
    except OSError:
        pass
    return None


# Shared memory without a file on a disk: the kernel pins it like any other.
_SHARED_MEMORY = ("/dev/zero", "/dev/shm/", "/memfd:", "/SYSV", "/anon_hugepage")


def file_mappings() -> list[tuple[int, int, str]]:
    """(start, stop, path) of every shared mapping of a file of a disk.

    The kernel pins no such memory: it would be written back behind the owner's back.
    """
    found = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                fields = line.rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and fields[1][3] == "s" and fields[5].startswith("/"):
                    start, _, stop = fields[0].partition("-")
                    if not fields[5].startswith(_SHARED_MEMORY):
                        found.append((int(start, 16), int(stop, 16), fields[5]))
    except OSError:  # no /proc here: the kernel will say it
        pass
    return found
