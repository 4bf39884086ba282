"""dask and xarray as they are, on gpuload's codec pipeline: equal to what they read on zarr-python's own."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import xarray
import zarr

import gpuload
from gpuload.zarr import pipeline_counts

Same = Callable[[Any, Any], bool]


@pytest.fixture
def expected() -> xarray.Dataset:
    rng = np.random.default_rng(3)
    temperature = rng.standard_normal((12, 9, 10)).astype("f4")
    temperature[3, 4, 5] = np.nan
    return xarray.Dataset(
        {
            "temperature": (("time", "lat", "lon"), temperature, {"units": "K"}),
            "flags": (("time", "lat"), rng.integers(0, 2, (12, 9)).astype(bool)),
        },
        {
            "time": np.datetime64("2001-01-01", "ns") + np.arange(12) * np.timedelta64(1, "D"),
            "lat": np.linspace(-80, 80, 9),
        },
    )


@pytest.fixture(params=[(2, False), (3, False), (3, True)], ids=["v2", "v3", "sharded"])
def path(request: pytest.FixtureRequest, tmp_path: Path, expected: xarray.Dataset) -> str:
    zarr_format, sharded = request.param
    encoding: dict[str, Any] = {"chunks": (4, 3, 5)}
    if sharded:
        encoding["shards"] = (8, 9, 5)
    expected.to_zarr(
        tmp_path / "a.zarr", zarr_format=zarr_format, consolidated=False, encoding={"temperature": encoding}
    )
    return str(tmp_path / "a.zarr")


@pytest.fixture
def all_by_gpuload() -> Iterator[None]:
    """Every chunk is read by gpuload, and some are."""
    before = pipeline_counts()
    with gpuload.zarr.enable(device="cpu"):
        yield
    after = pipeline_counts()
    assert {key for key in after if after[key] != before.get(key, 0)} == {("read", "gpuload")}


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_dask(path: str, expected: xarray.Dataset, scheduler: str, same: Same, all_by_gpuload: None) -> None:
    array = dask.array.from_zarr(path, component="temperature")
    values = expected["temperature"].values
    with dask.config.set(scheduler=scheduler):
        assert same(array.compute(), values)
        assert same(array[3:11:2, ::-1, 4].compute(), values[3:11:2, ::-1, 4])
        assert same(array.rechunk((12, 2, 3)).compute(), values)
        assert same(pickle.loads(pickle.dumps(array))[7].compute(), values[7])
        assert same(array.mean(axis=0).compute(), dask.array.from_array(values, array.chunks).mean(axis=0).compute())


@pytest.mark.parametrize("chunks", [None, {}])
def test_xarray(path: str, expected: xarray.Dataset, chunks: Any, all_by_gpuload: None) -> None:
    opened = xarray.open_zarr(path, chunks=chunks, consolidated=False)
    xarray.testing.assert_identical(opened.load(), expected)
    opened = xarray.open_zarr(path, chunks=chunks, consolidated=False)
    some = {"time": [5, 0, 5], "lat": slice(7, None, -2), "lon": 3}
    xarray.testing.assert_identical(opened.isel(some).load(), expected.isel(some))
    at = {"time": slice("2001-01-03", "2001-01-06"), "lat": [-80, 0]}
    xarray.testing.assert_identical(opened.sel(at).load(), expected.sel(at))


def test_xarray_writes_and_appends(tmp_path: Path, expected: xarray.Dataset) -> None:
    with gpuload.zarr.enable(device="cpu"):
        expected.isel(time=slice(0, 7)).to_zarr(tmp_path / "b.zarr", consolidated=False)
        expected.isel(time=slice(7, None)).to_zarr(tmp_path / "b.zarr", append_dim="time", consolidated=False)
        xarray.testing.assert_identical(xarray.open_zarr(tmp_path / "b.zarr", consolidated=False).load(), expected)


def test_dask_writes_what_it_reads(tmp_path: Path, expected: xarray.Dataset, same: Same) -> None:
    values = expected["temperature"].values
    with gpuload.zarr.enable(device="cpu"):
        dask.array.from_array(values, (4, 9, 5)).to_zarr(str(tmp_path / "c.zarr"))
        assert same(zarr.open_array(str(tmp_path / "c.zarr"))[...], values)
        assert same(dask.array.from_zarr(str(tmp_path / "c.zarr")).compute(), values)
