"""What this process may lock, read from its limits and from ``/proc/self/status``."""

from __future__ import annotations

import resource

_CAP_IPC_LOCK = 14


def memlock_limit() -> int | None:
    """Bytes this process may lock (RLIMIT_MEMLOCK), or None where no limit holds (unlimited, or CAP_IPC_LOCK)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or int(process_status("CapEff") or "0", 16) >> _CAP_IPC_LOCK & 1:
        return None
    return soft


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
