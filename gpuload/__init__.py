"""Reads zarr chunks and plain files into GPU arrays, and says who served each request and why.

What needs another package is loaded when it is first used: ``import gpuload`` loads neither cupy, zarr nor a display
library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# `gpuload.config` is the configuration itself. Bound here, once its module is loaded, so that no later import of the
# module can put the module in its place.
from gpuload.config import config

# The record listens from the start, or `report()` would miss what was read before somebody asked for it.
from gpuload.record import report, trace

if TYPE_CHECKING:
    from gpuload import dask, errors, widgets, zarr
    from gpuload.checks import doctor
    from gpuload.data import DataLoader
    from gpuload.engine.plain import RegisteredFile
    from gpuload.widgets.progress import progress
    from gpuload.zarr import Array, Dataset
    from gpuload.zarr.open import open  # noqa: A004 - zarr and h5py call it so
    from gpuload.zarr.save import save

__version__ = "0.1.0"

__all__ = [
    "Array",
    "DataLoader",
    "Dataset",
    "RegisteredFile",
    "__version__",
    "config",
    "dask",
    "doctor",
    "errors",
    "open",
    "progress",
    "report",
    "save",
    "trace",
    "widgets",
    "zarr",
]

# Public name -> the module that has it; a name mapped to itself is a module.
_LAZY = {
    "Array": "gpuload.zarr",
    "DataLoader": "gpuload.data",
    "Dataset": "gpuload.zarr",
    "RegisteredFile": "gpuload.engine.plain",
    "dask": "gpuload.dask",
    "doctor": "gpuload.checks",
    "errors": "gpuload.errors",
    "open": "gpuload.zarr",
    "progress": "gpuload.widgets.progress",
    "save": "gpuload.zarr",
    "widgets": "gpuload.widgets",
    "zarr": "gpuload.zarr",
}


def __getattr__(name: str) -> Any:
    module_name = _LAZY.get(name)
    if module_name is None:
        raise AttributeError(f"module 'gpuload' has no attribute {name!r}")
    module = importlib.import_module(module_name)
    value = module if module_name == f"gpuload.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
