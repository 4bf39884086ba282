"""A chunk of more than 2 GiB, which is more than one call of the kernel moves: a sparse file with a few marks in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import settings

import gpuload
from gpuload.zarr import Array

CALL = 0x7FFFF000  # bytes that one call moves at most
SIZE = (1 << 31) + (3 << 20)
MARKS = {0: 1, CALL - 1: 2, CALL: 3, CALL + 1: 4, (1 << 31) - 1: 5, 1 << 31: 6, SIZE - 1: 7}
DEEP = settings().max_examples > 100


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "a"
    zarr.create_array(str(path), shape=(SIZE,), chunks=(SIZE,), dtype="u1", compressors=None)
    (path / "c").mkdir()
    with open(path / "c" / "0", "wb") as file:
        file.truncate(SIZE)
        for at, mark in MARKS.items():
            file.seek(at)
            file.write(bytes([mark]))
    return path


def opened(path: Path) -> Any:
    array = gpuload.open(path, device="cpu")
    assert isinstance(array, Array)
    return array


@pytest.mark.parametrize("piece_bytes", [1 << 10, 1 << 20])
def test_parts_of_it(large: Path, backend: str, piece_bytes: int) -> None:
    array = opened(large)
    with gpuload.config.set(piece_bytes=piece_bytes):
        for at in MARKS:
            first = max(0, at - 2000)
            right = np.zeros(min(SIZE, at + 2000) - first, "u1")
            for mark, value in MARKS.items():
                if first <= mark < first + len(right):
                    right[mark - first] = value
            assert np.array_equal(array[first : first + len(right)], right)
        assert array[list(MARKS)].tolist() == list(MARKS.values())
        assert array[SIZE - 1 : CALL : -(1 << 19)][0] == 7


@pytest.mark.skipif(not DEEP, reason="takes 2 GiB of memory: make test-deep")
def test_all_of_it(large: Path, backend: str) -> None:
    got = opened(large)[...]
    assert got.shape == (SIZE,)
    blocks = got.reshape(-1, 1 << 20)
    marked = np.flatnonzero(blocks.view("u8").any(axis=1)).tolist()
    found = {block * (1 << 20) + at: int(blocks[block, at]) for block in marked for at in np.flatnonzero(blocks[block])}
    assert found == MARKS
