"""The xarray engine ``"gpuload"``: data variables on the device, coordinates and indexes on the host.

xarray imports this package to list its engines, so it loads no more than xarray has loaded already.
"""

from __future__ import annotations

from gpuload.xarray.backend import GpuloadBackend, to_xarray

__all__ = ["GpuloadBackend", "to_xarray"]

for _public in (GpuloadBackend, to_xarray):
    _public.__module__ = __name__
del _public
