"""Stores with variables that share dimensions, in both generations of zarr, and what they hold in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

Variables = Mapping[str, tuple[Any, Sequence[str | None], Sequence[int]]]


def write(path: Path, variables: Variables, zarr_format: int = 3, **options: Any) -> Path:
    """A group of arrays: name -> values, names of the dimensions, chunks. NaN chunks are not stored."""
    group = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    for name, (values, dims, chunks) in variables.items():
        more: dict[str, Any] = dict(options)
        if zarr_format == 3:
            more["dimension_names"] = list(dims)
        if values.dtype.kind == "f":
            more["fill_value"] = np.nan
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=tuple(chunks), **more)
        if zarr_format == 2:
            array.attrs["_ARRAY_DIMENSIONS"] = list(dims)
        array[...] = values
    return path


def climate(n: int = 23, seed: int = 0) -> dict[str, tuple[Any, list[str], tuple[int, ...]]]:
    """Two fields, one profile with time inside, a static field, coordinates: chunks that share no border."""
    random = np.random.default_rng(seed)
    t2m = random.random((n, 5, 7), np.float32)
    t2m[3:6] = np.nan  # with chunks of 3 along time a chunk without a file
    return {
        "t2m": (t2m, ["time", "lat", "lon"], (3, 5, 4)),
        "sp": (random.integers(0, 99, (n, 5, 7), np.int16), ["time", "lat", "lon"], (4, 2, 7)),
        "profile": (random.random((2, n), np.float64), ["level", "time"], (1, 5)),
        "orography": (random.random((5, 7)), ["lat", "lon"], (5, 7)),
        "time": (np.arange(n) * 6.0, ["time"], (n,)),
        "lat": (np.linspace(60, 20, 5), ["lat"], (5,)),
    }


@pytest.fixture(params=[2, 3])
def zarr_format(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def store(tmp_path: Path, zarr_format: int) -> Path:
    return write(tmp_path / "climate.zarr", climate(), zarr_format)


@pytest.fixture
def values() -> dict[str, Any]:
    """What `store` holds."""
    return {name: variable[0] for name, variable in climate().items()}


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Path]:
    """Writes a store of the given name."""

    def make(name: str, variables: Variables, zarr_format: int = 3, **options: Any) -> Path:
        return write(tmp_path / name, variables, zarr_format, **options)

    return make
