"""Block layers over made-up /sys trees, and what they and the mount's options mean for the fastpath."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuload.files import blocks
from gpuload.files.geometry import Geometry, geometry
from gpuload.request import Reason


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    blocks.forget()
    yield
    blocks.forget()


class Sys:
    """A sysfs of block devices, made as the kernel lays it out: links by number to directories by bus."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.minor = 0
        (root / "dev/block").mkdir(parents=True)

    def add(self, place: str, *slaves: Path, **files: str) -> Path:
        """A device at ``devices/PLACE``, with files such as ``dm__uuid="LVM-x"`` (dm/uuid)."""
        path = self.root / "devices" / place
        (path / "slaves").mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            file = path / name.replace("__", "/")
            file.parent.mkdir(exist_ok=True)
            file.write_text(text + "\n")
        for slave in slaves:
            (path / "slaves" / slave.name).symlink_to(os.path.relpath(slave, path / "slaves"))
        self.minor += 1
        link = self.root / "dev/block" / f"259:{self.minor}"
        link.symlink_to(os.path.relpath(path, link.parent))
        return path

    @property
    def last(self) -> tuple[int, int]:
        return 259, self.minor

    def nvme(self, number: int = 0, transport: str = "pcie") -> Path:
        bus = "pci0000:00/0000:00:04.0" if transport == "pcie" else "virtual/nvme-fabrics/ctl"
        disk = self.add(f"{bus}/nvme/nvme{number}/nvme{number}n1")
        (disk.parent / "transport").write_text(transport + "\n")
        return disk

    def part(self, disk: Path, number: int = 1) -> Path:
        place = str((disk / f"{disk.name}p{number}").relative_to(self.root / "devices"))
        return self.add(place, partition=str(number))

    def dm(self, number: int, uuid: str, *slaves: Path, name: str = "x") -> Path:
        return self.add(f"virtual/block/dm-{number}", *slaves, dm__uuid=uuid, dm__name=name)


@pytest.fixture
def sys(tmp_path: Path) -> Sys:
    return Sys(tmp_path / "sys")


def _raid(sys: Sys) -> None:
    disks = [sys.part(sys.nvme(number)) for number in range(2)]
    sys.add("virtual/block/md0", *disks, md__level="raid0")


def _raid_partition(sys: Sys) -> None:
    sys.part(sys.add("virtual/block/md0", sys.nvme(), md__level="raid1"))


def _lvm(sys: Sys) -> None:
    sys.dm(0, "LVM-abc", sys.part(sys.nvme(), 3))


def _striped(sys: Sys) -> None:
    sys.dm(0, "LVM-abc", sys.nvme(0), sys.nvme(1))


def _lvm_raid(sys: Sys) -> None:
    legs = [sys.dm(number, "LVM-leg", sys.nvme(number), name=f"vg-lv_rimage_{number}") for number in range(2)]
    sys.dm(2, "LVM-top", *legs, name="vg-lv")


def _lvm_on_crypt(sys: Sys) -> None:
    sys.dm(1, "LVM-abc", sys.dm(0, "CRYPT-LUKS2-abc-name", sys.part(sys.nvme())))


def _multipath_partition(sys: Sys) -> None:
    paths = [sys.add(f"pci0000:00/host{n}/target/block/sd{'ab'[n]}") for n in range(2)]
    sys.dm(1, "part1-mpath-3600", sys.dm(0, "mpath-3600", *paths))


def _native_multipath(sys: Sys) -> None:
    """The kernel's own multipath of NVMe is no layer: one drive with two controllers."""
    for number in range(2):
        sys.nvme(number)
    drive = sys.add("virtual/nvme-subsystem/nvme-subsys0/nvme0n1")
    for number in range(2):
        controller = sys.root / f"devices/pci0000:00/0000:00:04.0/nvme/nvme{number}"
        (drive.parent / f"nvme{number}").symlink_to(controller)


NVME = "nvme0n1 (NVMe)"
STACKS: list[tuple[Callable[[Sys], object], list[str], Reason | None]] = [
    (Sys.nvme, [NVME], None),
    (lambda sys: sys.part(sys.nvme(), 2), ["nvme0n1p2 (partition)", NVME], None),
    (_lvm, ["dm-0 (LVM)", "nvme0n1p3 (partition)", NVME], None),
    (_striped, ["dm-0 (LVM)", NVME, "nvme1n1 (NVMe)"], None),
    (_native_multipath, [NVME], None),
    (lambda sys: sys.add("pci0000:00/virtio1/block/vda"), ["vda (other drive)"], None),
    (lambda sys: sys.nvme(0, "tcp"), ["nvme0n1 (NVMe over a network)"], None),
    (
        _raid,
        ["md0 (software RAID)", "nvme0n1p1 (partition)", "nvme1n1p1 (partition)", NVME, "nvme1n1 (NVMe)"],
        Reason.BLOCK_LAYER,
    ),
    (_raid_partition, ["md0p1 (partition)", "md0 (software RAID)", NVME], Reason.BLOCK_LAYER),
    (
        _lvm_raid,
        ["dm-2 (LVM)", "dm-0 (software RAID)", "dm-1 (software RAID)", NVME, "nvme1n1 (NVMe)"],
        Reason.BLOCK_LAYER,
    ),
    (
        _lvm_on_crypt,
        ["dm-1 (LVM)", "dm-0 (encryption)", "nvme0n1p1 (partition)", NVME],
        Reason.BLOCK_LAYER,
    ),
    (
        _multipath_partition,
        ["dm-1 (partition)", "dm-0 (multipath)", "sda (other drive)", "sdb (other drive)"],
        Reason.BLOCK_LAYER,
    ),
    (lambda sys: sys.dm(0, "", sys.nvme()), ["dm-0 (device mapper)", NVME], Reason.BLOCK_LAYER),
    (
        lambda sys: sys.add("virtual/block/loop3", loop__backing_file="/x"),
        ["loop3 (loop device)"],
        Reason.BLOCK_LAYER,
    ),
    (lambda sys: sys.add("virtual/block/zram0"), ["zram0 (virtual device)"], Reason.BLOCK_LAYER),
]


def _geometry(device: tuple[int, int], file_system: str = "xfs", *options: str) -> Geometry:
    return Geometry(512, 512, file_system, "/data", ("rw", *options), device)


@pytest.mark.parametrize(("make", "expected", "reason"), STACKS)
def test_each_stack_of_devices_is_told_from_top_to_bottom(
    sys: Sys, make: Callable[[Sys], object], expected: list[str], reason: Reason | None
) -> None:
    make(sys)
    assert list(blocks.layers(sys.last, sys=str(sys.root))) == expected
    for file_system in ("xfs", "ext4"):
        assert blocks.direct_reason(_geometry(sys.last, file_system), sys=str(sys.root), proc=str(sys.root)) == reason


def test_two_ways_down_to_one_drive_name_it_once(sys: Sys) -> None:
    drive = sys.nvme()
    sys.dm(0, "LVM-abc", sys.part(drive, 1), sys.part(drive, 2))
    assert [layer.name for layer in blocks.stack(sys.last, sys=str(sys.root))] == [
        "dm-0",
        "nvme0n1p1",
        "nvme0n1p2",
        "nvme0n1",
    ]


def test_a_device_that_sys_does_not_show_has_no_layers(sys: Sys) -> None:
    assert blocks.layers((0, 41), sys=str(sys.root)) == ()
    assert blocks.layers((0, 41), sys="/nonexistent") == ()
    # Nothing that is published speaks against it, and the driver says if it cannot.
    assert blocks.direct_reason(_geometry((0, 41)), sys=str(sys.root), proc=str(sys.root)) is None


@pytest.mark.parametrize("file_system", ["tmpfs", "overlay", "btrfs", "nfs4", "ext3", "fuse.s3fs", ""])
def test_other_file_systems_are_refused_whatever_is_below(sys: Sys, file_system: str) -> None:
    sys.nvme()
    where = {"sys": str(sys.root), "proc": str(sys.root)}
    assert blocks.direct_reason(_geometry(sys.last, file_system), **where) == Reason.FILE_SYSTEM


@pytest.mark.parametrize(
    ("options", "listed", "reason"),
    [
        ((), None, None),
        (("data=ordered",), None, None),
        (("data=writeback",), None, Reason.EXT4_JOURNAL_MODE),
        (("data=journal",), None, Reason.EXT4_JOURNAL_MODE),
        ((), "rw\ndata=ordered\n", None),
        # the superblock's default, which the table of mounts leaves out
        ((), "rw\ndelalloc\ndata=writeback\n", Reason.EXT4_JOURNAL_MODE),
    ],
)
def test_only_an_ordered_journal_will_do_on_ext4(
    sys: Sys, tmp_path: Path, options: tuple[str, ...], listed: str | None, reason: Reason | None
) -> None:
    sys.part(sys.nvme())
    if listed is not None:
        place = tmp_path / "proc/fs/ext4/nvme0n1p1"
        place.mkdir(parents=True)
        (place / "options").write_text(listed)
    where = {"sys": str(sys.root), "proc": str(tmp_path / "proc")}
    assert blocks.direct_reason(_geometry(sys.last, "ext4", *options), **where) == reason
    assert blocks.direct_reason(_geometry(sys.last, "xfs", *options), **where) is None


def test_what_was_seen_is_kept_until_forgotten(sys: Sys) -> None:
    drive = sys.nvme()
    assert blocks.direct_reason(_geometry(sys.last), sys=str(sys.root), proc=str(sys.root)) is None
    link = sys.root / "dev/block/259:1"
    link.unlink()
    link.symlink_to(sys.add("virtual/block/md0", drive, md__level="raid0"))
    assert blocks.direct_reason(_geometry((259, 1)), sys=str(sys.root), proc=str(sys.root)) is None
    blocks.forget()
    assert blocks.direct_reason(_geometry((259, 1)), sys=str(sys.root), proc=str(sys.root)) == Reason.BLOCK_LAYER


def test_this_machine_is_told_as_its_own_tables_do(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        here = geometry(fd)
    finally:
        os.close(fd)
    found = blocks.stack(here.device)
    if os.path.exists(f"/sys/dev/block/{here.device[0]}:{here.device[1]}"):
        assert found[0].name == os.path.basename(os.path.realpath(f"/sys/dev/block/{here.device[0]}:{here.device[1]}"))
    else:
        assert found == ()
    if here.file_system not in blocks.FILE_SYSTEMS:
        assert blocks.direct_reason(here) == Reason.FILE_SYSTEM
