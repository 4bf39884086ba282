"""What a notebook shows of reads: live where ipywidgets and anywidget are installed, as HTML or text elsewhere.

Nothing here is imported before it is asked for, and no front end has to answer for a read to go on.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuload.widgets.chunkmap import ChunkMap
    from gpuload.widgets.doctor import Doctor
    from gpuload.widgets.monitor import Monitor
    from gpuload.widgets.storeview import StoreView

__all__ = ["ChunkMap", "Doctor", "Monitor", "StoreView"]

# The Monitor of a record needs no zarr; what knows arrays does.
_MODULES = {"ChunkMap": "chunkmap", "Doctor": "doctor", "Monitor": "monitor", "StoreView": "storeview"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
