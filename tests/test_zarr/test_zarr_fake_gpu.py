"""Selections and dtypes on a device that only pretends to be one: equal to NumPy's, and where they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, GzipCodec, TransposeCodec, ZstdCodec

import gpuload
from gpuload.zarr import Array

Same = Callable[[Any, Any], bool]
SHAPE, CHUNKS, SHARDS = (13, 11, 7), (4, 5, 3), (8, 10, 6)
KINDS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {},
    "shards": {"compressors": None, "shards": SHARDS},
    "big-endian complex": {"compressors": None, "dtype": "c8", "serializer": BytesCodec(endian="big")},
    "transposed": {"compressors": None, "filters": [TransposeCodec(order=(2, 0, 1))]},
    "foreign": {"compressors": [ZstdCodec(), GzipCodec()]},
}
SELECTIONS: list[Any] = [
    ...,
    (slice(None, None, -2), 3),
    [12, 0, 2, 0, -1],
    ([12, 0, 3, 0], [0, 10, 9, 0], [6, 0, 1, 6]),
    ([[12, 0], [3, 0]], slice(None, None, -3), [[6, 0], [1, 6]]),
    (slice(1, 9), [10, 3, 3], [1, 6, 0]),
    np.arange(13 * 11 * 7).reshape(SHAPE) % 9 == 4,
    (np.arange(13 * 11).reshape(SHAPE[:2]) % 9 == 4, slice(6, 1, -2)),
]


def opened(path: Path, device: str = "cuda") -> Array:
    array = gpuload.open(path, device=device)
    assert isinstance(array, Array)
    return array


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("piece_bytes", [40, 1 << 20])
def test_selections(tmp_path: Path, fake_cupy: ModuleType, same: Same, kind: str, piece_bytes: int) -> None:
    options = {"dtype": "i4", **KINDS[kind]}
    stored = zarr.create_array(str(tmp_path / "a"), shape=SHAPE, chunks=CHUNKS, fill_value=-9, **options)
    stored[:8, :10] = np.arange(8 * 10 * 7).reshape(8, 10, 7)
    right = np.asarray(stored[...]).astype(np.dtype(options["dtype"]))
    array = opened(tmp_path / "a")
    with gpuload.config.set(piece_bytes=piece_bytes):
        for selection in SELECTIONS:
            got = array[selection]
            assert isinstance(got, fake_cupy.ndarray)
            assert same(got.get(), right[selection])
        room = fake_cupy.asarray(np.zeros((6, 7, 3), right.dtype))
        out = room[::-2, :, :1].transpose((0, 2, 1))
        assert array.vindex.read(([[12], [0], [3]], [[0], [9], [1]]), out) is out
        assert same(room.get()[::-2, :, 0], right[[12, 0, 3], [0, 9, 1]])
        assert not room.get()[::2].any()
        assert not room.get()[..., 1:].any()
        assert same(array.blocks[-1, 0:1].get(), np.asarray(stored.blocks[-1, 0:1], right.dtype))
