"""What the running kernel and its drivers offer for transfers between drive and GPU."""

from __future__ import annotations

import os
import platform
import re

from gpuload.checks.gpu import Vendor
from gpuload.checks.report import Check, failed, passed, unknown
from gpuload.checks.view import View

P2PDMA = "CONFIG_PCI_P2PDMA"
_BLOCK = 1 << 20


def checks(view: View, vendors: frozenset[Vendor]) -> tuple[Check, ...]:
    """Check the kernel's peer-to-peer DMA, and each vendor's driver and its direct I/O."""
    config, source = _kernel_config(view)
    found = [_p2pdma(config, source)]
    if Vendor.AMD in vendors:
        found += [_amdgpu(view), _amd_direct(view)]
    if Vendor.NVIDIA in vendors:
        found += [_nvidia(view), _nvidia_direct(view, config)]
    return tuple(found)


def _kernel_config(view: View) -> tuple[bytes | None, str]:
    release = platform.release()
    for path in (
        "/proc/config.gz",
        f"/boot/config-{release}",
        f"/lib/modules/{release}/config",
        f"/usr/lib/modules/{release}/config",
    ):
        config = view.data(path)
        if config:
            return config, path
    return None, ""


def _p2pdma(config: bytes | None, source: str) -> Check:
    name = "p2pdma"
    if config is None:
        return unknown(
            name,
            f"no /proc/config.gz and no /boot/config-{platform.release()}: how the kernel was built is not told",
            "grep PCI_P2PDMA /boot/config-$(uname -r)  # on the host of a container",
        )
    if re.search(rf"^{P2PDMA}=y$".encode(), config, re.MULTILINE):
        return passed(name, f"{P2PDMA}=y ({source})")
    return failed(
        name,
        f"{P2PDMA} is not set ({source}): kernel {platform.release()} moves nothing between drive and GPU",
        f"boot a kernel with {P2PDMA}=y (on Ubuntu 22.04: apt-get install linux-generic-hwe-22.04)",
        root=True,
    )


def _amdgpu(view: View) -> Check:
    if not view.exists("/sys/module/amdgpu"):
        return failed("amdgpu-driver", "the module amdgpu is not loaded", "modprobe amdgpu", root=True)
    version = view.text("/sys/module/amdgpu/version")
    return passed("amdgpu-driver", f"version {version}" if version else f"loaded, as of kernel {platform.release()}")


def _amd_direct(view: View) -> Check:
    name = "amdgpu-direct-io"
    if not view.exists("/sys/module/amdgpu"):
        return failed(name, "the module amdgpu is not loaded", "modprobe amdgpu", root=True)
    has = _kernel_symbol(view, b"kfd_ais_rw_file")
    if has is None:
        return unknown(name, "/proc/kallsyms cannot be read", "grep kfd_ais_rw_file /proc/kallsyms", root=True)
    if has:
        return passed(name, "kfd_ais_rw_file is in /proc/kallsyms")
    return failed(
        name,
        "kfd_ais_rw_file is not in /proc/kallsyms: this amdgpu driver reads no files",
        "install the amdgpu-dkms of a ROCm release that has hipFile, and reboot",
        root=True,
    )


def _kernel_symbol(view: View, symbol: bytes) -> bool | None:
    """Whether the kernel, or a module of it, has the symbol; its table is some ten megabytes, so read by pieces."""
    wanted, kept = re.compile(rb"[ \t]" + re.escape(symbol) + rb"\s"), b""
    seen = False
    try:
        with open(f"{view.proc}/kallsyms", "rb") as table:
            while block := table.read(_BLOCK):
                seen = True
                if wanted.search(kept + block):
                    return True
                kept = block[-256:]
    except OSError:
        return None
    return False if seen else None


def _nvidia(view: View) -> Check:
    text = view.text("/proc/driver/nvidia/version")
    if text is None:
        return failed("nvidia-driver", "the module nvidia is not loaded", "modprobe nvidia", root=True)
    version = re.search(r"\b[0-9]{3,}\.[0-9.]+\b", text)
    return passed("nvidia-driver", f"version {version[0]}" if version else text.splitlines()[0])


def _nvidia_direct(view: View, config: bytes | None) -> Check:
    name = "nvidia-direct-io"
    version = view.text("/proc/driver/nvidia-fs/version")
    if version is not None or view.exists("/sys/module/nvidia_fs"):
        return passed(name, f"nvidia-fs {version.removeprefix('version:').strip() if version else 'is loaded'}")
    if config is None or f"{P2PDMA}=y".encode() in config:
        return unknown(
            name,
            "nvidia-fs is not loaded; whether the driver can use the kernel's own P2PDMA is seen when cuFile is opened",
            "apt-get install nvidia-gds && modprobe nvidia-fs",
            root=True,
        )
    return failed(
        name,
        "neither nvidia-fs nor the kernel's P2PDMA is there",
        "apt-get install nvidia-gds && modprobe nvidia-fs",
        root=True,
    )


def release() -> str:
    """The kernel's name and the machine's architecture."""
    return f"{os.uname().sysname} {platform.release()} {platform.machine()}"
