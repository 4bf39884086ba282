"""io_uring: whether a ring can be made, with which flags and features, what can be registered, and why not."""

from __future__ import annotations

from gpuload.checks.child import Answers
from gpuload.checks.report import Check, failed, passed, unknown
from gpuload.request import Reason

PROFILE = "docker run --security-opt seccomp=PROFILE.json ...  # docs/how-to/io_uring_in_containers.md makes one"
_FIXES: dict[Reason, tuple[str, bool]] = {
    Reason.SECCOMP: (PROFILE, True),
    Reason.FORCED_OFF: ("sysctl -w kernel.io_uring_disabled=0", True),
    Reason.MEMLOCK: ("ulimit -l unlimited", True),
    Reason.FD_LIMIT: ("ulimit -n 65536", False),
    Reason.KERNEL_TOO_OLD: ("boot Linux 6.1 or newer, built with CONFIG_IO_URING=y", True),
}


def checks(answers: Answers) -> tuple[Check, ...]:
    """Check the ring, its features, and the files and buffers registered with it."""
    said = answers.get("ring")
    if said is None:
        made = unknown("io_uring", answers.why("ring"))
        if answers.killed("ring", "SIGSYS", "SIGKILL"):
            made = failed("io_uring", f"a seccomp filter kills who calls it: {answers.why('ring')}", PROFILE, root=True)
        return made, *_unseen("there is no ring")
    if not said["made"]:
        fix, root = _FIXES.get(Reason(said["reason"]), _FIXES[Reason.KERNEL_TOO_OLD])
        return failed("io_uring", said["why"], fix, root=root), *_unseen("there is no ring")
    return (
        passed("io_uring", f"a ring with {'|'.join(said['flags'])}; {said['ops']} operations"),
        passed("io_uring-features", ", ".join(feature.lower() for feature in said["features"])),
        passed("io_uring-direct-open", "files are opened straight into the ring's slots")
        if said["direct_open"]
        else failed(
            "io_uring-direct-open", "the kernel opens no files into slots", "boot Linux 5.15 or newer", root=True
        ),
        _registered("io_uring-files", said["files"], "files can be registered", "ulimit -n 65536"),
        _registered("io_uring-buffers", said["buffers"], "memory can be registered", "ulimit -l unlimited"),
    )


def _registered(name: str, refusal: str, well: str, fix: str) -> Check:
    return failed(name, refusal, fix, root="-l" in fix) if refusal else passed(name, well)


def _unseen(why: str) -> tuple[Check, ...]:
    names = ("io_uring-features", "io_uring-direct-open", "io_uring-files", "io_uring-buffers")
    return tuple(unknown(name, why) for name in names)
