"""What the doctor found: values, and the forms to look at them in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuload.request import Reason


class Status(StrEnum):
    """What a check came to; `unknown` is never a pass."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    name
        A stable word for programs: ``"p2pdma"``.
    status
        How it stands.
    value
        What was found, in a few words.
    fix
        One command, or where there is none one step, that mends it; every failed check has one.
    needs_root
        Whether `fix` does.
    """

    name: str
    status: Status
    value: str
    fix: str | None = None
    needs_root: bool = False

    def __post_init__(self) -> None:
        if self.status is Status.FAIL and not self.fix:
            raise ValueError(f"the failed check {self.name!r} has no fix")


def passed(name: str, value: str) -> Check:
    """It is as it should be."""
    return Check(name, Status.PASS, value)


def failed(name: str, value: str, fix: str, *, root: bool = False) -> Check:
    """It is not, and `fix` mends it."""
    return Check(name, Status.FAIL, value, fix, root)


def unknown(name: str, value: str, fix: str | None = None, *, root: bool = False) -> Check:
    """It could not be found out; `fix` tells how it can be."""
    return Check(name, Status.UNKNOWN, value, fix, root)


@dataclass(frozen=True, slots=True)
class MountRow:
    """One mount, and whether files on it can be read straight into a GPU, as far as the mount goes.

    Parameters
    ----------
    mount_point, file_system, device
        As the kernel's table of mounts has them; `device` is ``"259:1"``.
    backing
        The block devices from the file system down to the drives; empty for file systems without any.
    o_direct
        Whether a file there takes O_DIRECT; None: no file to try it on.
    reason
        Why the fastpath cannot serve files there; None where the published conditions hold.
    nvme
        Whether all drives below are NVMe on PCIe; None: not known.
    """

    mount_point: str
    file_system: str
    device: str
    backing: tuple[str, ...]
    o_direct: bool | None
    reason: Reason | None
    nvme: bool | None

    @property
    def fastpath(self) -> str:
        """``"yes"``, or the reason that speaks against it, or ``"unknown"`` where something could not be seen."""
        if self.reason is not None:
            return str(self.reason)
        if self.o_direct is None or self.nvme is None:
            return Status.UNKNOWN.value
        return "yes"

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values, by the headings of the table."""
        return {
            "mountpoint": self.mount_point,
            "fstype": self.file_system,
            "device": self.device,
            "backing": list(self.backing),
            "o_direct": self.o_direct,
            "fastpath": self.fastpath,
        }


@dataclass(frozen=True, slots=True)
class BackendState:
    """Whether a backend can be used in this process; `reason` and `detail` say why not."""

    usable: bool
    reason: Reason | None
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The state as plain values."""
        return {
            "usable": self.usable,
            "reason": None if self.reason is None else str(self.reason),
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the fastpath could serve one store, judged by the largest of its files.

    Parameters
    ----------
    path
        The store, links followed.
    file_system, mount_point, backing
        Where it lies, down to the drives.
    o_direct
        Whether the file was read past the page cache; None: there is no file.
    memory_align, offset_align
        What direct I/O wants, in bytes; 0 where the kernel does not say.
    eligible
        None where something could not be seen.
    backend
        Who would serve.
    reasons
        Why not: those of the store first, then ``"hipfile: no-library"`` and the like.
    """

    path: str
    file_system: str = ""
    mount_point: str = ""
    backing: tuple[str, ...] = ()
    o_direct: bool | None = None
    memory_align: int = 0
    offset_align: int = 0
    eligible: bool | None = None
    backend: str | None = None
    reasons: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain values."""
        return {
            "path": self.path,
            "file_system": self.file_system,
            "mount_point": self.mount_point,
            "backing": list(self.backing),
            "o_direct": self.o_direct,
            "memory_align": self.memory_align,
            "offset_align": self.offset_align,
            "fastpath": {"eligible": self.eligible, "backend": self.backend, "reasons": list(self.reasons)},
        }


@dataclass(frozen=True, slots=True)
class Section:
    """Checks that belong together, under a heading."""

    title: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What works here, what does not, and what mends it. Printed it is a table, in a notebook it is HTML.

    Threads, fork and pickle: a value, safe everywhere.

    Parameters
    ----------
    sections
        The checks.
    backends
        What reads, best first.
    mounts
        Every mount that can hold a store.
    store
        The verdict on the store that was asked for, or None.
    """

    sections: tuple[Section, ...]
    backends: Mapping[str, BackendState]
    mounts: tuple[MountRow, ...] = ()
    store: Verdict | None = None

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks, in the order of the sections."""
        return tuple(check for section in self.sections for check in section.checks)

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    @property
    def headline(self) -> str:
        """One line: who reads here, and how many checks failed or are unknown."""
        serving = [name for name, state in self.backends.items() if state.usable]
        counts = [sum(check.status is status for check in self.checks) for status in Status]
        reads = f"reads go by {serving[0]}" if serving else "no backend can read here"
        return f"{reads} · {counts[0]} checks pass, {counts[1]} fail, {counts[2]} unknown"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, as ``gpuload doctor --json`` prints them."""
        return {
            "checks": [
                {
                    "name": check.name,
                    "status": str(check.status),
                    "value": check.value,
                    "fix": check.fix,
                    "needs_root": check.needs_root,
                }
                for check in self.checks
            ],
            "backends": {name: state.to_dict() for name, state in self.backends.items()},
            "mounts": [row.to_dict() for row in self.mounts],
            "path": None if self.store is None else self.store.to_dict(),
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    def to_text(self, width: int | None = None) -> str:
        """The report as plain text, without colours.

        Parameters
        ----------
        width
            Columns of text; None takes the terminal's, or 120.
        """
        from gpuload.checks.text import to_text

        return to_text(self, width)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return self.to_text()

    def __rich__(self) -> Any:
        from gpuload.checks.text import Printed

        return Printed(self)

    def _repr_html_(self) -> str:
        from gpuload.checks.page import to_html

        return to_html(self)
