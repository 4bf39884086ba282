"""Dask arrays whose blocks are read by gpuload: graphs without data or open files, larger than memory or a machine."""

from __future__ import annotations

from gpuload.dask.collection import from_zarr
from gpuload.dask.write import to_zarr

__all__ = ["from_zarr", "to_zarr"]

for _public in (from_zarr, to_zarr):
    _public.__module__ = __name__
del _public
