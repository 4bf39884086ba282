"""zarr arrays in local files, read into device or host arrays; and a store for zarr-python itself."""

from __future__ import annotations

from gpuload.zarr._compat import register_pipeline
from gpuload.zarr.array import Array
from gpuload.zarr.dataset import Dataset
from gpuload.zarr.enable import enable
from gpuload.zarr.inspect import inspect
from gpuload.zarr.open import open  # noqa: A004 - zarr and h5py call it so
from gpuload.zarr.pack import pack
from gpuload.zarr.pipeline import DevicePipeline, pipeline_counts
from gpuload.zarr.save import save
from gpuload.zarr.store import DeviceStore
from gpuload.zarr.virtual_store import VirtualStore

__all__ = [
    "Array",
    "Dataset",
    "DevicePipeline",
    "DeviceStore",
    "VirtualStore",
    "enable",
    "inspect",
    "open",
    "pack",
    "pipeline_counts",
    "save",
]

for _public in (
    Array,
    Dataset,
    inspect,
    open,
    pack,
    save,
    DeviceStore,
    VirtualStore,
    DevicePipeline,
    enable,
    pipeline_counts,
):
    _public.__module__ = __name__
del _public

# Under its public name, by which `enable` and ZARR_CODEC_PIPELINE__PATH choose it.
register_pipeline(DevicePipeline)
