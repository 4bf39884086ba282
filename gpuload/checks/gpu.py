"""Which GPUs there are, whose they are, and whether this process may use them; asks no vendor's library."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuload.checks.report import Check, failed, passed, unknown
from gpuload.checks.view import View

_CLASSES = ("0x03", "0x12")  # display controllers and processing accelerators, as PCI has them


class Vendor(StrEnum):
    """Who made a GPU."""

    AMD = "AMD"
    NVIDIA = "NVIDIA"


_VENDORS = {"0x1002": Vendor.AMD, "0x10de": Vendor.NVIDIA}
_GIVE = {
    Vendor.AMD: "docker run --device=/dev/kfd --device=/dev/dri --group-add=video --group-add=render ...",
    Vendor.NVIDIA: "docker run --gpus=all ...",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU on the PCI bus."""

    vendor: Vendor
    address: str
    name: str
    virtual: bool


def find(view: View) -> tuple[Gpu, ...]:
    """The GPUs that the PCI bus shows, by address."""
    found = []
    for address in view.names("/sys/bus/pci/devices"):
        place = f"/sys/bus/pci/devices/{address}"
        vendor = _VENDORS.get(view.text(f"{place}/vendor") or "")
        if vendor is not None and (view.text(f"{place}/class") or "").startswith(_CLASSES):
            found.append(Gpu(vendor, address, _name(view, vendor, address), view.exists(f"{place}/physfn")))
    return tuple(found)


def checks(view: View, gpus: tuple[Gpu, ...], seen: str | None) -> tuple[Check, ...]:
    """Check that there is a GPU, that its device files are there, and that it is a whole one.

    Parameters
    ----------
    seen
        What CuPy says of the GPUs that it sees; None: it sees none.
    """
    return (_present(gpus, seen), _device_files(view, gpus), _whole(view, gpus))


def _name(view: View, vendor: Vendor, address: str) -> str:
    numbers = ":".join(
        (view.text(f"/sys/bus/pci/devices/{address}/{part}") or "?").removeprefix("0x") for part in ("vendor", "device")
    )
    name = view.text(f"/sys/bus/pci/devices/{address}/product_name")  # amdgpu's, on accelerators
    for line in (view.text(f"/proc/driver/nvidia/gpus/{address}/information") or "").splitlines():
        if line.startswith("Model:"):
            name = line.partition(":")[2].strip()
    return f"{name} ({numbers})" if name else f"{vendor} {numbers}"


def _present(gpus: tuple[Gpu, ...], seen: str | None) -> Check:
    if gpus:
        found = "; ".join(f"{gpu.name} at {gpu.address}" for gpu in gpus)
        return passed("gpu", f"{found}; {'CuPy sees ' + seen if seen else 'CuPy sees none'}")
    if seen:
        return passed("gpu", f"CuPy sees {seen}, though the PCI bus shows none")
    given = _GIVE[Vendor.AMD].removeprefix("docker run ").removesuffix(" ...")
    fix = f"{_GIVE[Vendor.NVIDIA]}  # AMD: {given}; on a machine that has one"
    return failed("gpu", "none on the PCI bus: arrays go to host memory, which needs nothing mended", fix)


def _device_files(view: View, gpus: tuple[Gpu, ...]) -> Check:
    name = "gpu-device-files"
    if not gpus:
        return unknown(name, "there is no GPU whose files could be looked at")
    wanted: list[str] = []
    if any(gpu.vendor is Vendor.AMD for gpu in gpus):
        wanted += ["/dev/kfd", *(f"/dev/dri/{node}" for node in view.names("/dev/dri") if node.startswith("renderD"))]
    if any(gpu.vendor is Vendor.NVIDIA for gpu in gpus):
        numbered = [f"/dev/{node}" for node in view.names("/dev") if node[6:].isdecimal() and node[:6] == "nvidia"]
        wanted += ["/dev/nvidiactl", *(numbered or ["/dev/nvidia0"])]
    missing = [path for path in wanted if not view.exists(path)]
    if missing:
        return failed(name, f"{', '.join(missing)}: not there", _GIVE[gpus[0].vendor])
    refused = [path for path in wanted if not view.allowed(path)]
    if refused:
        return failed(
            name,
            f"{', '.join(refused)}: no permission",
            'usermod -aG render,video "$USER"  # then log in anew',
            root=True,
        )
    return passed(name, ", ".join(wanted))


def _whole(view: View, gpus: tuple[Gpu, ...]) -> Check:
    name = "virtual-function"
    if not gpus:
        return unknown(name, "there is no GPU that could be one")
    shared = [gpu.address for gpu in gpus if gpu.virtual]
    if shared:
        return failed(
            name, f"{', '.join(shared)}: part of a shared GPU (SR-IOV)", "use a machine that has the whole GPU"
        )
    cpu = view.text("/proc/cpuinfo") or ""
    if " hypervisor" in cpu:
        return unknown(name, "a guest of a virtual machine is not told whether its GPU is a part of a shared one")
    return passed(name, "no: the whole GPU")
