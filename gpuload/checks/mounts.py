"""The mounts that can hold a store, and udev's database of the drives below them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuload.checks.child import Answers
from gpuload.checks.report import Check, MountRow, failed, passed, unknown
from gpuload.checks.view import View
from gpuload.files.geometry import Mount
from gpuload.request import Reason

# Without a block device, yet people keep stores there; a network's may hang, so nothing on them is touched.
_MEMORY = ("tmpfs", "ramfs", "overlay", "aufs")
_REMOTE = re.compile(
    r"9p|afs|beegfs|ceph|cifs|fuse(blk|\..*)?|glusterfs|gpfs|lustre|nfs4?|orangefs|panfs|smb3|vboxsf|virtiofs|wekafs"
)
_OTHER = ("zfs", "bcachefs")
_SYSTEM = ("/proc", "/sys", "/dev", "/run")


def listed(mounts: Iterable[Mount], view: View) -> list[tuple[Mount, bool]]:
    """Those that can hold a store, and whether their files may be touched without fear of waiting for a network."""
    on_blocks = {
        line.strip() for line in (view.text("/proc/filesystems") or "").splitlines() if not line.startswith("nodev")
    }
    found: dict[str, tuple[Mount, bool]] = {}
    for mount in mounts:
        found.pop(mount.mount_point, None)  # what is mounted over another hides it
        remote = _REMOTE.fullmatch(mount.file_system) is not None
        if mount.file_system in _MEMORY or mount.file_system in _OTHER:
            wanted = mount.mount_point == "/dev/shm" or not _below(mount.mount_point, _SYSTEM)  # noqa: S108
        else:
            wanted = remote or mount.file_system in on_blocks
        if wanted:
            found[mount.mount_point] = (mount, not remote)
    return sorted(found.values(), key=lambda entry: entry[0].mount_point)


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def rows(answers: Answers) -> tuple[MountRow, ...]:
    """The table of mounts, as the script found it."""
    return tuple(
        MountRow(
            row["mount_point"],
            row["file_system"],
            row["device"],
            tuple(row["backing"]),
            row["o_direct"],
            Reason.P2P_ROUTE if not row["reason"] and row["nvme"] is False else row["reason"] and Reason(row["reason"]),
            row["nvme"],
        )
        for row in answers.get("mounts") or ()
    )


def check(answers: Answers, found: tuple[MountRow, ...]) -> Check:
    """Check that there is a mount whose files the fastpath could serve."""
    if answers.get("mounts") is None:
        return unknown("mounts", answers.why("mounts"), "findmnt --real")
    good = [row.mount_point for row in found if row.fastpath == "yes"]
    perhaps = [row.mount_point for row in found if row.fastpath == "unknown"]
    if good:
        return passed("mounts", f"the fastpath can serve files on {', '.join(good)}")
    if perhaps:
        return unknown("mounts", f"whether the fastpath can serve files on {', '.join(perhaps)} could not be seen")
    fix = "mount -t xfs /dev/nvme0n1p1 /data  # or ext4; a partition or LVM volume of a local NVMe drive (see lsblk)"
    return failed("mounts", "no mount is xfs or ext4 on local NVMe, which the fastpath wants", fix, root=True)


def udev(view: View, device: tuple[int, int] | None, contained: bool) -> Check:
    """Check what cuFile asks udev's database of a drive before it registers a file on it."""
    name = "udev-database"
    if device is None or not view.exists(f"/sys/dev/block/{device[0]}:{device[1]}"):
        return unknown(name, "the file system has no block device that could be in it")
    entry = f"/run/udev/data/b{device[0]}:{device[1]}"
    text = view.text(entry)
    if text is not None and "E:ID_FS_USAGE=" in text:
        return passed(name, f"{entry} has ID_FS_USAGE")
    said = f"{entry} {'is not there' if text is None else 'has no ID_FS_USAGE'}: cuFile registers no file (5027)"
    if contained or not view.exists("/run/udev"):
        return failed(name, said, "docker run --volume /run/udev:/run/udev:ro ...", root=True)
    return failed(name, said, "udevadm trigger --subsystem-match=block", root=True)
