"""Blocks and variables on a GPU, real or simulated: dask's own arithmetic on them, and xarray's decoding."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest
import xarray
import zarr

from gpuload.dask import from_zarr
from gpuload.memory import device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device.gpu_count() == 0, reason="no GPU that CuPy sees"),
    pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated metadata"),
]


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("compressed", [False, True])
def test_blocks(tmp_path: Path, scheduler: str, compressed: bool) -> None:
    import cupy

    values = np.arange(20 * 30, dtype="f4").reshape(20, 30)
    options = {} if compressed else {"compressors": None}
    zarr.create_array(str(tmp_path / "a"), data=values, chunks=(4, 5), **options)
    array = from_zarr(tmp_path / "a", chunks=(8, 10), device="cuda")
    assert isinstance(array._meta, cupy.ndarray)
    with dask.config.set(scheduler=scheduler):
        whole = array.compute()
        part = array[3:11:2, 4].compute()
        total = (array + 1).sum().compute()
    assert isinstance(whole, cupy.ndarray)
    np.testing.assert_array_equal(whole.get(), values, strict=True)
    np.testing.assert_array_equal(part.get(), values[3:11:2, 4], strict=True)
    assert float(total) == (values + 1).sum()


@pytest.mark.parametrize("chunks", [None, {}])
def test_variables(tmp_path: Path, chunks: object) -> None:
    import cupy

    packed = np.array([[0.5, np.nan, 2.5], [1.0, 1.5, np.nan]])
    made = xarray.Dataset({"p": (("x", "y"), packed), "r": (("x",), np.array([1.5, 2.5], "f4"))}, {"x": [1, 2]})
    encoding = {"p": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -1, "chunks": (1, 2)}}
    made.to_zarr(tmp_path / "a.zarr", consolidated=False, encoding=encoding)
    ours = xarray.open_dataset(tmp_path / "a.zarr", engine="gpuload", device="cuda", chunks=chunks, consolidated=False)
    theirs = xarray.open_dataset(tmp_path / "a.zarr", engine="zarr", consolidated=False).load()
    assert isinstance(ours.x.variable.values, np.ndarray)
    if chunks is not None:
        assert isinstance(ours.p.data._meta, cupy.ndarray)
    loaded = ours.load()
    for name in ("p", "r"):
        assert isinstance(loaded[name].data, cupy.ndarray)
    xarray.testing.assert_identical(loaded.as_numpy(), theirs)
