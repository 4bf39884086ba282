"""The block layers between a file system and its drives, and whether files there can be read straight into a GPU.

Read from /sys and from the table of mounts: no device is opened. Values, kept for the process (`forget` drops them);
threads and fork: safe.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from gpuload.files.geometry import Geometry
from gpuload.request import Reason

__all__ = ["Kind", "Layer", "direct_reason", "direct_reason_of", "forget", "layers", "on_nvme", "stack"]

FILE_SYSTEMS = ("xfs", "ext4")  # that hipFile takes; cuFile's local ones too


class Kind(StrEnum):
    """What a block device is."""

    PARTITION = "partition"
    LVM = "LVM"
    RAID = "software RAID"
    CRYPT = "encryption"
    MULTIPATH = "multipath"
    MAPPER = "device mapper"
    LOOP = "loop device"
    VIRTUAL = "virtual device"
    NVME = "NVMe"
    FABRIC = "NVMe over a network"
    DRIVE = "other drive"


# What the published conditions refuse, and whatever else has its blocks from the processor rather than from a drive:
# a mapping whose kind is not known may do anything with them.
_REFUSED = frozenset({Kind.RAID, Kind.CRYPT, Kind.MULTIPATH, Kind.MAPPER, Kind.LOOP, Kind.VIRTUAL})

# How the tools that make a mapping begin its name for the kernel (dm/uuid).
_MAPPINGS = (("LVM-", Kind.LVM), ("CRYPT-", Kind.CRYPT), ("mpath-", Kind.MULTIPATH), ("DMRAID-", Kind.RAID))
_PART_OF_MAPPING = re.compile(r"part[0-9]+-")
_LVM_RAID = re.compile(r"_r(image|meta)_[0-9]+$")  # LVM's own RAID: its legs are volumes with such names


@dataclass(frozen=True, slots=True)
class Layer:
    """One block device of a stack."""

    name: str
    kind: Kind

    @property
    def direct(self) -> bool:
        """Whether direct transfers may pass through it."""
        return self.kind not in _REFUSED

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


def direct_reason(geometry: Geometry, *, sys: str = "/sys", proc: str = "/proc") -> Reason | None:
    """Why no file of this mount can be read by the fastpath, or None where hipFile's published conditions hold.

    They are: xfs, or ext4 that journals in ordered mode (an absent ``data=`` counts as ordered), with no software RAID,
    encryption, multipath or loop device below; LVM and partitions are fine. Whether the drive itself can reach the GPU
    is not among them: the driver tells when it is asked to read.

    Parameters
    ----------
    geometry
        Of any file of the mount.
    sys, proc
        Where those file systems are.

    Returns
    -------
    Reason or None
        ``file-system``, ``ext4-journal-mode``, ``block-layer``.
    """
    return direct_reason_of(geometry.device, geometry.file_system, geometry.mount_options, sys=sys, proc=proc)


def direct_reason_of(
    device: tuple[int, int], file_system: str, options: tuple[str, ...], *, sys: str = "/sys", proc: str = "/proc"
) -> Reason | None:
    """`direct_reason` of a mount rather than of a file of it."""
    return _direct_reason(device, file_system, options, sys, proc)


def layers(device: tuple[int, int], *, sys: str = "/sys") -> tuple[str, ...]:
    """The block devices from the file system down to its drives, as ``"dm-0 (LVM)"``; see `stack`."""
    return tuple(str(layer) for layer in stack(device, sys=sys))


def stack(device: tuple[int, int], *, sys: str = "/sys") -> tuple[Layer, ...]:
    """The block devices from the file system down to its drives, each once, those of one depth side by side.

    Parameters
    ----------
    device
        Major and minor number of the file system.
    sys
        Where sysfs is mounted.

    Returns
    -------
    tuple
        Empty where the number is no block device's (tmpfs, overlay, network) or /sys does not show it.
    """
    return _stack(device, sys)


def on_nvme(found: tuple[Layer, ...]) -> bool | None:
    """Whether all drives of a stack are NVMe on PCIe, which alone can reach a GPU; None: no drive is to be seen."""
    drives = [layer.kind for layer in found if layer.kind in (Kind.NVME, Kind.FABRIC, Kind.DRIVE)]
    return all(kind is Kind.NVME for kind in drives) if drives else None


def forget() -> None:
    """Look again, the next time."""
    _direct_reason.cache_clear()
    _stack.cache_clear()


@lru_cache(maxsize=256)
def _direct_reason(
    device: tuple[int, int], file_system: str, options: tuple[str, ...], sys: str, proc: str
) -> Reason | None:
    if file_system not in FILE_SYSTEMS:
        return Reason.FILE_SYSTEM
    found = stack(device, sys=sys)
    if file_system == "ext4" and _journal_mode(options, found, proc) != "ordered":
        return Reason.EXT4_JOURNAL_MODE
    if not all(layer.direct for layer in found):
        return Reason.BLOCK_LAYER
    return None


def _journal_mode(options: tuple[str, ...], found: tuple[Layer, ...], proc: str) -> str:
    # The table of mounts leaves out what the superblock makes the default (tune2fs -o journal_data_writeback), so an
    # absent option is looked up where ext4 lists them all.
    listed = _text(f"{proc}/fs/ext4/{found[0].name}/options") if found else ""
    for option in (*options, *listed.split()):
        if option.startswith("data="):
            return option.removeprefix("data=")
    return "ordered"


@lru_cache(maxsize=256)
def _stack(device: tuple[int, int], sys: str) -> tuple[Layer, ...]:
    found: dict[str, Layer] = {}
    depth = [f"{sys}/dev/block/{device[0]}:{device[1]}"]
    while depth:
        below: list[str] = []
        for link in depth:
            path = os.path.realpath(link)
            if path not in found and os.path.isdir(path):
                found[path] = Layer(os.path.basename(path), _kind(path))
                below += _below(path)
        depth = below
    return tuple(found.values())


def _below(path: str) -> list[str]:
    """The devices that this one has its blocks from."""
    if os.path.exists(f"{path}/partition"):
        return [os.path.dirname(path)]
    return [f"{path}/slaves/{name}" for name in _names(f"{path}/slaves")]


def _kind(path: str) -> Kind:
    name = os.path.basename(path)
    if os.path.exists(f"{path}/partition"):
        return Kind.PARTITION
    if os.path.isdir(f"{path}/dm"):
        return _mapping(_text(f"{path}/dm/uuid"), _text(f"{path}/dm/name"))
    if os.path.isdir(f"{path}/md"):
        return Kind.RAID
    if name.startswith("loop"):
        return Kind.LOOP
    if "/devices/virtual/block/" in path:
        return Kind.VIRTUAL
    if name.startswith("nvme"):
        return Kind.NVME if _on_pcie(path) else Kind.FABRIC
    return Kind.DRIVE


def _mapping(uuid: str, name: str) -> Kind:
    partition = _PART_OF_MAPPING.match(uuid)
    if partition:
        return Kind.PARTITION  # kpartx's, of a mapping that is listed below it
    kind = next((kind for prefix, kind in _MAPPINGS if uuid.startswith(prefix)), Kind.MAPPER)
    return Kind.RAID if kind is Kind.LVM and _LVM_RAID.search(name) else kind


def _on_pcie(path: str) -> bool:
    """Whether an NVMe drive hangs on this machine's PCIe; with several controllers its directory lists them."""
    above = os.path.dirname(path)
    controllers = [above, *(f"{above}/{name}" for name in _names(above) if re.fullmatch("nvme[0-9]+", name))]
    transports = {_text(f"{controller}/transport") for controller in controllers} - {""}
    return transports <= {"pcie"}


def _names(path: str) -> list[str]:
    """What a directory holds, or nothing where it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _text(path: str) -> str:
    """What a small file holds, or nothing where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
