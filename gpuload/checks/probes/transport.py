"""Makes a ring and asks each backend whether it serves here: what a filter kills or a driver hangs is this process."""

from __future__ import annotations

import contextlib
import functools
import resource
from collections.abc import Callable
from typing import Any

from gpuload.backends import registry
from gpuload.bindings.mapping import map_anonymous
from gpuload.bindings.uring import Ring, UringUnavailable
from gpuload.checks.environment import setting
from gpuload.config import config
from gpuload.errors import BackendError, DeviceError, RegistrationError
from gpuload.memory.device import GpuDevice, resolve
from gpuload.request import Reason

_PINNED = 1 << 20


def ring() -> dict[str, Any]:
    """What the ring is made of, and what can be registered with it."""
    try:
        made = Ring(8)
    except UringUnavailable as error:
        return {"made": False, "reason": str(error.reason), "why": error.detail}
    slots = min(setting("uring.slots"), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    with made:
        return {
            "made": True,
            "flags": [str(flag.name) for flag in made.setup_flags],
            "features": [str(feature.name) for feature in made.features],
            "ops": len(made.ops),
            "direct_open": made.direct_open,
            "files": _refusal(lambda: made.register_files(slots)),
            "buffers": _buffers(made),
        }


def _buffers(made: Ring) -> str:
    memory = map_anonymous(_PINNED, align=4096, huge=False)
    try:
        return _refusal(lambda: made.register_buffers([(memory.address, memory.nbytes)]))
    finally:
        with contextlib.suppress(BackendError):
            made.unregister_buffers()
        memory.close()


def _refusal(call: Callable[[], None]) -> str:
    try:
        call()
    except (RegistrationError, BackendError, OSError) as error:
        return str(error)
    return ""


def fallback(name: str) -> dict[str, Any]:
    """Whether a fallback backend can be used here."""
    state = registry.available(name)
    return _said(state.reason, state.detail)


def fastpath(name: str) -> dict[str, Any]:
    """Whether reads into a GPU are served by a vendor's library, as the first of them would find out.

    That the library loads says little: cuFile's driver does not open where there is no direct path, and what opens it
    may still be allowed a detour. So it is opened here by the very functions that reads call, in their order. Behind a
    device, as there: without NVIDIA's driver cuFile's open may never return. Where it hangs all the same, it is this
    process that does, and whoever asked gives it up.
    """
    state = registry.available(name)
    if state.reason is not None:
        return _said(state.reason, state.detail)
    try:
        device = resolve("cuda")
        device.empty((1,), "u1")
    except DeviceError as error:
        return _said(Reason.NO_DEVICE, str(error))
    assert isinstance(device, GpuDevice)
    if registry.fastpath_name(device) != name:
        return _said(Reason.NO_DEVICE, f"{device.name} is for {registry.fastpath_name(device)}")
    road = registry.fastpath(device, config.get("backend"))
    if road.backend is None:
        return _said(road.reason, road.detail)
    opened = registry.open_driver(road.backend)
    if opened.refusal is None:
        road.backend.close()
    return _said(opened.refusal or opened.doubt, opened.detail)


def _said(reason: Reason | None, detail: str) -> dict[str, Any]:
    return {"usable": reason is None, "reason": reason and str(reason), "detail": detail}


STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    "ring": ring,
    **{entry.name: functools.partial(fallback, entry.name) for entry in registry.ENTRIES},
    **{entry.name: functools.partial(fastpath, entry.name) for entry in registry.DIRECT.values()},
}
