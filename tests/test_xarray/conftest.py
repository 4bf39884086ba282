"""What the tests of the xarray engine share: datasets on disk, and dask in the calling thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    import xarray


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """dask computes in the calling thread."""
    import dask

    with dask.config.set(scheduler="synchronous"):
        yield


def dataset() -> xarray.Dataset:
    import xarray

    rng = np.random.default_rng(3)
    temperature = rng.standard_normal((12, 9, 10)).astype("f4")
    temperature[3, 4, 5] = np.nan
    days = np.datetime64("2001-01-01", "ns") + np.arange(12) * np.timedelta64(1, "D")
    return xarray.Dataset(
        {
            "temperature": (("time", "lat", "lon"), temperature, {"units": "K", "grid_mapping": "grid"}),
            "packed": (("time", "lat"), rng.integers(0, 99, (12, 9)) * 0.5),
            "masked": (("time", "lat"), np.where(rng.random((12, 9)) < 0.3, np.nan, 7.0).astype("f4")),
            "big": (("lon",), np.arange(10, dtype="f4")),
            "land": (("lat",), np.arange(9) % 2 == 0),
            "seen": (("time",), days + np.timedelta64(3, "h")),
            "took": (("time",), np.arange(12) * np.timedelta64(90, "s").astype("m8[ns]")),
            "label": (("lat",), np.array([f"row {i}" for i in range(9)])),
            "grid": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
            "number": ((), 4.5),
        },
        {
            "time": days,
            "lat": np.linspace(-80, 80, 9),
            "height": (("lat", "lon"), rng.random((9, 10))),
            "origin": ((), 3),
        },
        {"title": "made up"},
    )


@pytest.fixture(params=["v2", "v3", "v3 consolidated", "v2 consolidated", "sharded"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    zarr_format = 2 if request.param.startswith("v2") else 3
    encoding: dict[str, dict[str, Any]] = {
        "temperature": {"chunks": (4, 3, 5)},
        "packed": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -1, "chunks": (6, 9)},
        "masked": {"_FillValue": -9.0, "missing_value": -9.0},
        "big": {"dtype": ">f4"} if zarr_format == 2 else {},
    }
    if request.param == "sharded":
        encoding["temperature"]["shards"] = (8, 9, 10)
    consolidated = "consolidated" in request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # of dtypes that v3 has no specification of
        dataset().to_zarr(tmp_path / "a.zarr", zarr_format=zarr_format, consolidated=consolidated, encoding=encoding)
    return str(tmp_path / "a.zarr")
