"""Where a run took place: kernel, cores, ring, GPU, file system, versions. Figures from two machines do not compare."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from typing import Any

from gpuload.backends import registry
from gpuload.backends.rings import make_ring
from gpuload.bench.contenders import Contender
from gpuload.config import config
from gpuload.errors import BackendUnavailableError, RegistrationError
from gpuload.files.geometry import geometry


def describe(folder: str, contenders: Iterable[Contender], *, gpu: bool) -> dict[str, Any]:
    """What JSON can hold of the machine, of the file system of `folder` and of the contenders' versions."""
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "cores": os.cpu_count() or 1,
        "io_uring": registry.available("io_uring").detail or "usable",
        "ring": ring(),
        "file_system": _file_system(folder),
        "gpu": _gpu() if gpu else None,
        "versions": {c.package: c.version for c in contenders},
    }


def ring() -> str:
    """The set-up of a ring as gpuload makes it, or why there is none."""
    entries = int(config.get("uring.entries"))
    try:
        with make_ring(entries) as made:
            return made.describe()
    except (BackendUnavailableError, RegistrationError) as error:
        return f"no ring: {error}"


def _file_system(folder: str) -> str:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return geometry(fd).file_system
    finally:
        os.close(fd)


def _gpu() -> dict[str, Any]:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    name = properties["name"]
    return {
        "name": name.decode() if isinstance(name, bytes) else str(name),
        "cupy": cupy.__version__,
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "runtime": cupy.cuda.runtime.runtimeGetVersion(),
    }
