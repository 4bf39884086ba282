"""What this process may lock, open and use: memlock, descriptors, pinned memory, cores, and memory for slabs."""

from __future__ import annotations

import os
import resource

from gpuload.bindings.limits import memlock_limit
from gpuload.checks.child import Answers
from gpuload.checks.environment import setting
from gpuload.checks.report import Check, failed, passed, unknown
from gpuload.checks.view import View

MIB = 1 << 20


def checks(view: View, answers: Answers) -> tuple[Check, ...]:
    """Check each limit against what gpuload's configuration wants."""
    contained = in_container(view)
    return (_memlock(contained), _descriptors(contained), _pinned(answers), _cores(view), _slabs(view))


def in_container(view: View) -> bool:
    """Whether this looks like a container: then limits are set where it is started."""
    return any(view.exists(path) for path in ("/.dockerenv", "/run/.containerenv")) or any(
        name in os.environ for name in ("KUBERNETES_SERVICE_HOST", "container")
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / MIB:,.0f} MiB" if nbytes >= MIB else f"{nbytes // 1024} KiB"


def _memlock(contained: bool) -> Check:
    limit, wanted = memlock_limit(), setting("slab.limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit is None:
        held = (
            "no limit"
            if soft == resource.RLIM_INFINITY
            else f"{_size(soft)}, which does not bind this process (CAP_IPC_LOCK)"
        )
        return passed("memlock", held)
    said = f"{_size(limit)}; slabs of up to {_size(wanted)} (slab.limit) are registered with the ring"
    if limit >= wanted:
        return passed("memlock", said)
    said += ", and read into unregistered beyond"
    if contained:
        return failed("memlock", said, "docker run --ulimit memlock=-1 ...", root=True)
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return failed("memlock", said, f"ulimit -l {'unlimited' if hard == resource.RLIM_INFINITY else hard // 1024}")
    line = 'echo "$USER - memlock unlimited" | sudo tee /etc/security/limits.d/90-gpuload.conf  # then log in anew'
    return failed("memlock", said, line, root=True)


def _descriptors(contained: bool) -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = setting("uring.slots")
    said = f"{soft:,}; the ring has slots for {wanted:,} files (uring.slots)"
    if soft >= wanted:
        return passed("descriptors", said)
    said += ": fewer files are open at a time"
    if hard >= wanted:
        return failed("descriptors", said, f"ulimit -n {min(hard, 65536)}")
    if contained:
        return failed("descriptors", said, "docker run --ulimit nofile=65536 ...", root=True)
    line = 'echo "$USER - nofile 65536" | sudo tee /etc/security/limits.d/91-gpuload.conf  # then log in anew'
    return failed("descriptors", said, line, root=True)


def _pinned(answers: Answers) -> Check:
    said = answers.get("cupy")
    if said is None:
        return unknown("pinned-memory", answers.why("cupy"))
    if said.get("pinned") is None:
        return unknown("pinned-memory", "no GPU that memory could be pinned for")
    if said["pinned"]:
        return failed("pinned-memory", f"1 MiB cannot be pinned: {said['pinned']}", "ulimit -l unlimited", root=True)
    return passed("pinned-memory", "1 MiB was pinned for the GPU")


def _cores(view: View) -> Check:
    cores = len(os.sched_getaffinity(0))
    quota, _, period = (view.text("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    share = int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None
    if share is not None and share < cores:
        return passed("cores", f"{cores}, of which the container's quota allows {share:.1f}")
    return passed("cores", f"{cores}")


def _slabs(view: View) -> Check:
    limit, slab = setting("slab.limit"), setting("slab.size")
    memory = _memory(view)
    said = f"up to {_size(limit)} in slabs of {_size(slab)}"
    if memory is None:
        return unknown("slabs", f"{said}; how much memory there is cannot be read from /proc/meminfo")
    said += f"; {_size(memory)} of memory"
    if limit > memory // 2:
        return failed("slabs", said, f"export GPULOAD_SLAB__LIMIT={max(memory // 4, 2 * MIB)}")
    return passed("slabs", said)


def _memory(view: View) -> int | None:
    """Bytes of memory that this process may have: the machine's, or its container's."""
    lines = (view.text("/proc/meminfo") or "").splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = view.text(path) or ""
        if text.isdecimal():
            found.append(int(text))
    return min(found, default=None)
