"""Makes a ring and asks each backend whether it can be used here: where a filter kills, it kills this process."""

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
from gpuload.errors import BackendError, RegistrationError

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


def backend(name: str) -> dict[str, Any]:
    """Whether a backend can be used here."""
    state = registry.available(name)
    return {"usable": state.usable, "reason": state.reason and str(state.reason), "detail": state.detail}


STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    "ring": ring,
    **{name: functools.partial(backend, name) for name in registry.names()},
}
