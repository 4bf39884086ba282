"""GPU, kernel, drivers and udev's database, over systems made of a few files."""

from __future__ import annotations

import gzip
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpuload.checks import gpu, kernel, limits, mounts
from gpuload.checks.gpu import Vendor
from gpuload.checks.report import Check, Status
from gpuload.checks.view import View
from gpuload.files.geometry import Mount, parse_mounts

Make = Callable[..., View]
AMD = {
    "/sys/bus/pci/devices/0000:c1:00.0/vendor": "0x1002\n",
    "/sys/bus/pci/devices/0000:c1:00.0/device": "0x74a1\n",
    "/sys/bus/pci/devices/0000:c1:00.0/class": "0x120000\n",
    "/sys/bus/pci/devices/0000:c1:00.0/product_name": "AMD Instinct MI300X\n",
}
NVIDIA = {
    "/sys/bus/pci/devices/0000:0a:00.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:0a:00.0/device": "0x2335\n",
    "/sys/bus/pci/devices/0000:0a:00.0/class": "0x030200\n",
    "/proc/driver/nvidia/gpus/0000:0a:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: 1\n",
    # its audio function, and an Ethernet card of another vendor
    "/sys/bus/pci/devices/0000:0a:00.1/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:0a:00.1/class": "0x040300\n",
    "/sys/bus/pci/devices/0000:03:00.0/vendor": "0x8086\n",
    "/sys/bus/pci/devices/0000:03:00.0/class": "0x020000\n",
}


def named(checks: Sequence[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_gpus_are_found_on_the_bus_without_any_library(system: Make) -> None:
    assert gpu.find(system({})) == ()
    (amd,) = gpu.find(system(AMD))
    assert (amd.vendor, amd.address, amd.name, amd.virtual) == (
        Vendor.AMD,
        "0000:c1:00.0",
        "AMD Instinct MI300X (1002:74a1)",
        False,
    )
    both = gpu.find(system(NVIDIA))  # the same system has the other one too
    assert [(found.vendor, found.name) for found in both] == [
        (Vendor.NVIDIA, "NVIDIA H200 (10de:2335)"),
        (Vendor.AMD, "AMD Instinct MI300X (1002:74a1)"),
    ]


def test_no_gpu_is_a_failure_and_what_hangs_on_it_is_unknown_not_well(system: Make) -> None:
    view = system({})
    present, files, whole = gpu.checks(view, gpu.find(view), None)
    assert present.status is Status.FAIL
    assert "--gpus=all" in (present.fix or "")
    assert "--device=/dev/kfd" in (present.fix or "")
    assert (files.status, whole.status) == (Status.UNKNOWN, Status.UNKNOWN)
    # A simulated ROCm has no GPU on the bus.
    assert gpu.checks(view, (), "Simulated GPU")[0].status is Status.PASS


def test_device_files(system: Make) -> None:
    view = system(AMD)
    found = gpu.find(view)
    missing = named(gpu.checks(view, found, None), "gpu-device-files")
    assert (missing.status, missing.value) == (Status.FAIL, "/dev/kfd: not there")
    assert "--device=/dev/kfd" in (missing.fix or "")
    view = system({"/dev/kfd": "", "/dev/dri/renderD128": "", "/dev/dri/card0": ""})
    there = named(gpu.checks(view, found, None), "gpu-device-files")
    assert (there.status, there.value) == (Status.PASS, "/dev/kfd, /dev/dri/renderD128")


def test_device_files_without_permission(system: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    view = system({**AMD, "/dev/kfd": "", "/dev/dri/renderD128": ""})
    monkeypatch.setattr(os, "access", lambda path, mode: "renderD" not in path)
    refused = named(gpu.checks(view, gpu.find(view), None), "gpu-device-files")
    assert (refused.status, refused.value) == (Status.FAIL, "/dev/dri/renderD128: no permission")
    assert refused.needs_root
    assert "usermod -aG render,video" in (refused.fix or "")


def test_a_part_of_a_shared_gpu_is_told_from_a_whole_one(system: Make) -> None:
    view = system(AMD)
    assert named(gpu.checks(view, gpu.find(view), None), "virtual-function").status is Status.PASS
    view = system({"/proc/cpuinfo": "flags\t\t: fpu hypervisor sse\n"})
    guest = named(gpu.checks(view, gpu.find(view), None), "virtual-function")
    assert guest.status is Status.UNKNOWN  # the guest cannot know
    view = system({"/sys/bus/pci/devices/0000:c1:00.0/physfn": None})
    part = named(gpu.checks(view, gpu.find(view), None), "virtual-function")
    assert part.status is Status.FAIL
    assert "0000:c1:00.0" in part.value


BOTH = frozenset(Vendor)


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({}, Status.UNKNOWN),
        ({"/proc/config.gz": gzip.compress(b"CONFIG_A=y\nCONFIG_PCI_P2PDMA=y\nCONFIG_B=m\n")}, Status.PASS),
        ({"/proc/config.gz": gzip.compress(b"# CONFIG_PCI_P2PDMA is not set\n")}, Status.FAIL),
        ({"/proc/config.gz": gzip.compress(b"CONFIG_PCI_P2PDMA=y-is-not-this\nXCONFIG_PCI_P2PDMA=y\n")}, Status.FAIL),
        ({f"/boot/config-{platform.release()}": "CONFIG_PCI_P2PDMA=y\n"}, Status.PASS),
        ({f"/boot/config-{platform.release()}": "CONFIG_PCI=y\n"}, Status.FAIL),
        ({"/proc/config.gz": b"cut off", f"/boot/config-{platform.release()}": "CONFIG_PCI_P2PDMA=y\n"}, Status.PASS),
    ],
)
def test_peer_to_peer_dma_of_the_kernel(system: Make, files: dict[str, str | bytes | None], status: Status) -> None:
    check = named(kernel.checks(system(files), BOTH), "p2pdma")
    assert check.status is status
    assert check.fix is None if status is Status.PASS else check.fix


PADDING = "ffffffff81000000 t some_function\n" * 40_000  # more than one block of the reader


@pytest.mark.parametrize(
    ("symbols", "status"),
    [
        ("", Status.UNKNOWN),
        (PADDING + "0000000000000000 t kfd_ais_rw_file\t[amdgpu]\n" + PADDING, Status.PASS),
        ("0000000000000000 t kfd_ais_rw_file\n", Status.PASS),
        (PADDING + "0000000000000000 t kfd_ais_rw_file_old\t[amdgpu]\n0 t my_kfd_ais_rw_file\n", Status.FAIL),
    ],
)
def test_direct_reads_of_amdgpu(system: Make, symbols: str, status: Status) -> None:
    without = named(kernel.checks(system({"/proc/kallsyms": symbols}), BOTH), "amdgpu-direct-io")
    assert (without.status, without.fix) == (Status.FAIL, "modprobe amdgpu")
    loaded = system({"/sys/module/amdgpu/version": "6.14.5\n", "/proc/kallsyms": symbols})
    assert named(kernel.checks(loaded, BOTH), "amdgpu-direct-io").status is status
    assert named(kernel.checks(loaded, BOTH), "amdgpu-driver").value == "version 6.14.5"


def test_a_symbol_that_lies_across_two_blocks_is_seen(system: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    view = system(
        {"/sys/module/amdgpu/refcnt": "1", "/proc/kallsyms": PADDING[:990] + "0 t kfd_ais_rw_file\t[amdgpu]\n"}
    )
    for block in (16, 17, 100, 991, 1000):
        monkeypatch.setattr(kernel, "_BLOCK", block)
        assert named(kernel.checks(view, BOTH), "amdgpu-direct-io").status is Status.PASS


def test_direct_reads_of_nvidia(system: Make) -> None:
    def check(files: dict[str, str | bytes | None]) -> Check:
        return named(kernel.checks(system(files), BOTH), "nvidia-direct-io")

    assert check({}).status is Status.UNKNOWN
    assert check({"/proc/config.gz": gzip.compress(b"# nothing\n")}).status is Status.FAIL
    assert check({"/proc/config.gz": gzip.compress(b"CONFIG_PCI_P2PDMA=y\n")}).status is Status.UNKNOWN
    found = check({"/proc/driver/nvidia-fs/version": "version: 2.24.2\n"})
    assert (found.status, found.value) == (Status.PASS, "nvidia-fs 2.24.2")


def test_the_version_of_nvidia_s_driver(system: Make) -> None:
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12\n"
    view = system({"/proc/driver/nvidia/version": text})
    assert named(kernel.checks(view, BOTH), "nvidia-driver").value == "version 580.95.05"


def test_only_the_vendor_that_is_there_is_asked_for(system: Make) -> None:
    names = {check.name for check in kernel.checks(system({}), frozenset({Vendor.AMD}))}
    assert names == {"p2pdma", "amdgpu-driver", "amdgpu-direct-io"}


def test_udev_s_database(system: Make) -> None:
    def check(files: dict[str, str | bytes | None], contained: bool = False) -> Check:
        return mounts.udev(system(files), (259, 1), contained)

    assert check({}).status is Status.UNKNOWN
    assert mounts.udev(system({}), None, False).status is Status.UNKNOWN
    drive: dict[str, str | bytes | None] = {"/sys/dev/block/259:1": None}
    assert "docker run --volume /run/udev" in (check(drive).fix or "")
    host = check({"/run/udev/data": None})
    assert (host.status, host.fix) == (Status.FAIL, "udevadm trigger --subsystem-match=block")
    assert "docker" in (check({}, contained=True).fix or "")
    assert check({"/run/udev/data/b259:1": "E:ID_FS_TYPE=ext4\n"}).status is Status.FAIL
    assert check({"/run/udev/data/b259:1": "E:ID_FS_USAGE=filesystem\n"}).status is Status.PASS


TABLE = """1 0 259:1 / / rw - overlay overlay rw,lowerdir=/x
2 1 0:5 / /proc rw - proc proc rw
3 1 0:6 / /sys rw - sysfs sysfs rw
4 1 0:7 / /dev rw - tmpfs tmpfs rw
5 4 0:8 / /dev/shm rw - tmpfs shm rw
6 1 0:9 / /run rw - tmpfs tmpfs rw
7 1 0:10 / /tmp rw - tmpfs tmpfs rw
8 1 259:2 / /data rw - xfs /dev/nvme0n1p2 rw
9 1 0:11 / /home rw - nfs4 server:/home rw
10 1 0:12 / /s3 rw - fuse.s3fs s3fs rw
11 1 0:13 / /old rw - tmpfs tmpfs rw
12 11 259:3 / /old rw - ext4 /dev/nvme0n1p3 rw
13 1 0:14 / /auto rw - autofs systemd-1 rw
14 1 0:15 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
"""


def test_only_mounts_that_can_hold_a_store_are_listed_and_no_network_is_touched(system: Make) -> None:
    view = system({"/proc/filesystems": "nodev\tsysfs\nnodev\ttmpfs\n\text4\n\txfs\nnodev\toverlay\n"})
    found = mounts.listed(parse_mounts(TABLE), view)
    touched = {mount.mount_point: local for mount, local in found}
    assert touched == {
        "/": True,
        "/data": True,
        "/dev/shm": True,
        "/home": False,
        "/old": True,
        "/s3": False,
        "/tmp": True,
    }
    assert next(mount for mount, _ in found if mount.mount_point == "/old").file_system == "ext4"
    assert all(isinstance(mount, Mount) for mount, _ in found)


def test_memory_of_a_container_is_what_counts(system: Make) -> None:
    meminfo = "MemTotal:       8388608 kB\nMemFree: 1 kB\n"
    assert limits._memory(system({})) is None
    assert limits._slabs(system({})).status is Status.UNKNOWN
    view = system({"/proc/meminfo": meminfo})
    assert limits._memory(view) == 8 << 30
    assert limits._slabs(view).status is Status.PASS
    view = system({"/sys/fs/cgroup/memory.max": "max\n"})
    assert limits._memory(view) == 8 << 30
    view = system({"/sys/fs/cgroup/memory.max": f"{768 << 20}\n"})
    small = limits._slabs(view)
    assert (small.status, small.fix) == (Status.FAIL, f"export GPULOAD_SLAB__LIMIT={192 << 20}")


def test_cores_of_a_container(system: Make) -> None:
    cores = len(os.sched_getaffinity(0))
    assert limits._cores(system({})).value == f"{cores}"
    assert "quota allows 0.5" in limits._cores(system({"/sys/fs/cgroup/cpu.max": "50000 100000\n"})).value
    assert limits._cores(system({"/sys/fs/cgroup/cpu.max": "max 100000\n"})).value == f"{cores}"


def test_a_system_that_shows_nothing_is_no_error(tmp_path: Path) -> None:
    view = View(str(tmp_path / "nothing"))
    assert (view.text("/proc/x"), view.data("/proc/x.gz"), view.names("/sys"), view.exists("/")) == (
        None,
        None,
        [],
        False,
    )
