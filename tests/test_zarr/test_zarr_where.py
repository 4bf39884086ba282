"""Each range of a record is the chunk that was asked for, whatever the keys look like, with shards and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpuload
from gpuload.zarr.where import chunks_of, edges_of, grid_of

KINDS: dict[str, dict[str, Any]] = {
    "v3": {"chunks": (2, 3)},
    "v3, dots": {"chunks": (2, 3), "chunk_key_encoding": {"name": "default", "separator": "."}},
    "v3, v2 keys": {"chunks": (2, 3), "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "v2": {"chunks": (2, 3), "zarr_format": 2},
    "zstd": {"chunks": (2, 3), "compressors": "auto"},
    "shards": {"chunks": (2, 3), "shards": (4, 6)},
    "shards, zstd": {"chunks": (2, 3), "shards": (4, 6), "compressors": "auto"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["", "deep/x1/y"])
@pytest.mark.parametrize("known", [True, False])
def test_every_chunk_that_is_read_is_found(tmp_path: Path, kind: str, name: str, known: bool) -> None:
    from gpuload.zarr.shards import cache

    options = {"compressors": None} | KINDS[kind]
    path = tmp_path / "7.zarr"
    stored = zarr.create_array(path, name=name or None, shape=(7, 11), dtype="i4", fill_value=-1, **options)
    stored[:] = np.arange(77).reshape(7, 11)
    opened: Any = gpuload.open(path, device="cpu")
    array = opened[name] if name else opened
    assert grid_of(array) == (4, 4)
    for row, column in [(0, 0), (1, 2), (3, 3)]:
        with gpuload.trace() as trace:
            array[row * 2 : row * 2 + 2, column * 3 : column * 3 + 3]
        columns = trace.columns()
        if not known:
            cache._entries.clear()
        before = gpuload.report().requests
        found = chunks_of(array, columns.key, columns.file_offset)
        assert gpuload.report().requests == before
        assert set(found[found >= 0].tolist()) == {row * 4 + column}
    strangers = [
        "zarr.json",
        f"{array.source.prefix}c/9/9",
        "c/1/x",
        "",
        "c/0/00",
        "c/99999999999999999999/0",
        "other/c/0/0",
    ]
    assert set(chunks_of(array, strangers, np.zeros(len(strangers), np.int64)).tolist()) == {-1}


def test_an_array_of_one_element_has_one_chunk(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", shape=(), dtype="f8")[...] = 1.0
    array: Any = gpuload.open(tmp_path / "a", device="cpu")
    assert grid_of(array) == ()
    assert chunks_of(array, ["c", "zarr.json"], np.zeros(2, np.int64)).tolist() == [0, -1]


def test_edges_are_where_chunks_begin(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", shape=(7, 4), chunks=(3, 2), shards=(6, 4), dtype="f8")
    array: Any = gpuload.open(tmp_path / "a", device="cpu")
    assert [list(edges) for edges in edges_of(array)] == [[0, 3, 6, 9], [0, 2, 4]]
