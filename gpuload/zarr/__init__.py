"""zarr arrays in local files, read into device or host arrays; and a store for zarr-python itself."""

from __future__ import annotations

from gpuload.zarr.array import Array
from gpuload.zarr.dataset import Dataset
from gpuload.zarr.open import open  # noqa: A004 - zarr and h5py call it so
from gpuload.zarr.save import save
from gpuload.zarr.store import DeviceStore

__all__ = ["Array", "Dataset", "DeviceStore", "open", "save"]

for _public in (Array, Dataset, open, save, DeviceStore):
    _public.__module__ = __name__
del _public
