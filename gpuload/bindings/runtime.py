"""Whose GPUs CuPy drives here, and what its ROCm wheel lacks: registering host memory, and what kind memory is.

CuPy's wheel for ROCm answers `hostRegister` with an unknown error and calls pinned host memory "device"; `hip-python`
has the real calls. Its libraries are found when they are first asked for, and that is not safe from several threads at
once: `hip` and `bindings.hipfile.load` ask, one thread at a time, before anything is called.

Threads: safe. Fork: no GPU runtime works in the child.
"""

from __future__ import annotations

import os
import threading
from enum import StrEnum
from types import ModuleType
from typing import Any

from gpuload.errors import DeviceError


class Vendor(StrEnum):
    """Who made the GPUs."""

    AMD = "AMD"
    NVIDIA = "NVIDIA"


first_use = threading.Lock()  # of libraries that hip-python finds and opens
_hip: list[ModuleType | None] = []


def vendor(cupy: ModuleType) -> Vendor:
    """Whose GPUs this CuPy was built for.

    The only sure sign: `hip-python-interop` installs a `cuda.bindings` on AMD's machines, too.
    """
    return Vendor.AMD if cupy.cuda.runtime.is_hip else Vendor.NVIDIA


def hip() -> ModuleType | None:
    """`rocm.bindings.hip` with its library open; None where either is missing."""
    if not _hip:
        with first_use:
            if not _hip:
                _hip.append(_open_hip())
    return _hip[0]


def _open_hip() -> ModuleType | None:
    try:
        from rocm.bindings import hip as module
    except Exception:  # noqa: BLE001 - its loader raises what it meets, not only ImportError
        return None
    # A call to a symbol that is not there goes through a null pointer.
    return module if module.has_symbol("hipHostRegister") else None


def host_register(cupy: ModuleType, address: int, nbytes: int) -> None:
    """Page-lock host memory for copies to every device.

    Raises
    ------
    DeviceError
        The runtime refuses, or nothing that is installed has the call.
    """
    if vendor(cupy) is Vendor.NVIDIA:
        cupy.cuda.runtime.hostRegister(address, nbytes, 1)  # 1: portable, every context sees it as pinned
        return
    _check("hipHostRegister", _call("hipHostRegister")(address, nbytes, 1))


def host_unregister(cupy: ModuleType, address: int) -> None:
    """Undo `host_register`."""
    if vendor(cupy) is Vendor.NVIDIA:
        cupy.cuda.runtime.hostUnregister(address)
        return
    _check("hipHostUnregister", _call("hipHostUnregister")(address))


def is_plain_device_memory(cupy: ModuleType, pointer: int) -> bool:
    """Whether `pointer` is in memory of a device, and neither managed nor the host's."""
    if vendor(cupy) is Vendor.NVIDIA:
        attributes = cupy.cuda.runtime.pointerGetAttributes(pointer)
        return int(attributes.type) == 2  # cudaMemoryTypeDevice; managed memory is 3
    error, attributes = _call("hipPointerGetAttributes")(pointer)
    if int(error):
        return False
    return int(attributes.type) == 2 and not int(attributes.isManaged)  # hipMemoryTypeDevice


def has_call(name: str) -> bool:
    """Whether the HIP runtime has a call that newer ones have, as hipFile looks it up."""
    module = hip()
    if module is None or not module.has_symbol("hipGetProcAddress"):
        return False
    version = 100 * int(module.HIP_VERSION_MAJOR) + int(module.HIP_VERSION_MINOR)
    error, pointer, _ = module.hipGetProcAddress(name.encode(), version, 0)
    return not int(error) and pointer is not None and bool(int(pointer))


def _call(name: str) -> Any:
    module = hip()
    if module is None:
        raise DeviceError(f"{name} is not to be had: hip-python (gpuload[rocm]) or its libamdhip64 is missing")
    return getattr(module, name)


def _check(name: str, answer: tuple[Any, ...]) -> None:
    if int(answer[0]):
        raise DeviceError(f"{name} failed: {getattr(answer[0], 'name', answer[0])}")


def _after_fork_in_child() -> None:
    global first_use
    first_use = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
