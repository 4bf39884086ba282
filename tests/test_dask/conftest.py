"""What the tests of dask arrays share: arrays to read, and equality bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """dask computes in the calling thread, but where a test says otherwise."""
    import dask

    with dask.config.set(scheduler="synchronous"):
        yield


VALUES = np.random.default_rng(5).standard_normal((20, 30, 7)).astype("f4")


@pytest.fixture(params=["v2", "raw", "zstd", "shards"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> zarr.Array[Any]:
    """An array of `VALUES` in `tmp_path / "a"`."""
    options: dict[str, Any] = {
        "v2": {"zarr_format": 2},
        "raw": {"compressors": None},
        "zstd": {},
        "shards": {"shards": (8, 10, 7)},
    }[request.param]
    array = zarr.create_array(str(tmp_path / "a"), shape=VALUES.shape, chunks=(4, 5, 7), dtype="f4", **options)
    array[...] = VALUES
    return array
