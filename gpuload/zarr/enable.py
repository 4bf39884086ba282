"""`enable`: have zarr-python, and what stands on it, read through gpuload."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import zarr

from gpuload.config import config
from gpuload.errors import DeviceError
from gpuload.memory.device import Device, GpuDevice, resolve

PIPELINE = "gpuload.zarr.DevicePipeline"


def enable(device: str | Device = "auto") -> AbstractContextManager[Any]:
    """Have zarr-python read arrays that are opened from now on through gpuload, into buffers of `device`.

    Sets ``codec_pipeline.path``, ``buffer`` and ``ndbuffer`` in ``zarr.config``, for all threads. It holds from the
    call on; as the context of a with-block, until the end of the block, when what was set before is set again.
    Arrays keep the pipeline they were opened with. `zarr.config.reset` undoes it, too.

    Parameters
    ----------
    device
        ``"cpu"``: NumPy arrays. ``"cuda:0"``: CuPy arrays. ``"auto"``: as configured, else the GPU if there is one.

    Raises
    ------
    DeviceError
        No such device, or another GPU than the first: zarr-python makes its buffers there.

    Examples
    --------
    >>> with gpuload.zarr.enable(device="cpu"):  # doctest: +SKIP
    ...     mean = xarray.open_zarr("air.zarr")["air_temperature"].mean()
    """
    where = resolve(config.get("device") if device == "auto" else device)
    if isinstance(where, GpuDevice) and where.index != 0:
        raise DeviceError(
            f"zarr-python makes its buffers on cuda:0, not on {where.name}: use gpuload.open(..., "
            f"device={where.name!r}), or start the process with CUDA_VISIBLE_DEVICES={where.index}"
        )
    kind = "cpu" if where.is_host else "gpu"
    setting: AbstractContextManager[Any] = zarr.config.set(
        {
            "codec_pipeline.path": PIPELINE,
            "buffer": f"zarr.buffer.{kind}.Buffer",
            "ndbuffer": f"zarr.buffer.{kind}.NDBuffer",
        }
    )
    return setting
