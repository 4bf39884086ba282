"""`to_zarr`: what is written is what was computed, and blocks that would write to one file are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpuload
from gpuload.dask import from_zarr, to_zarr
from gpuload.errors import AssignmentError, ExistsError, ReadOnlyError

Same = Callable[[Any, Any], bool]
VALUES = np.arange(20 * 30, dtype="i4").reshape(20, 30)


def of(blocks: Any, values: Any = VALUES) -> dask.array.Array:
    return dask.array.from_array(values, chunks=blocks)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("shards", [None, (8, 20)])
def test_a_new_store(tmp_path: Path, same: Same, scheduler: str, shards: Any) -> None:
    options: dict[str, Any] = {"chunks": (4, 10), "shards": shards, "codecs": "zstd"}
    with dask.config.set(scheduler=scheduler):
        made = to_zarr(of((8, 20)) * 2, tmp_path / "a", dims=("y", "x"), attrs={"of": "two"}, fill_value=-1, **options)
    stored = zarr.open_array(str(tmp_path / "a"), mode="r")
    assert same(stored[...], VALUES * 2)
    assert (stored.chunks, stored.shards, stored.fill_value) == ((4, 10), shards, -1)
    assert (made.dims, dict(made.attrs)) == (("y", "x"), {"of": "two"})
    made[0, 0] = 5
    assert stored[0, 0] == 5


def test_chunks_are_the_blocks_unless_told_otherwise(tmp_path: Path, same: Same) -> None:
    made = to_zarr(of((6, 30)), tmp_path / "a")
    assert made.chunks == (6, 30)
    assert same(from_zarr(tmp_path / "a", device="cpu").compute(), VALUES)


def test_nothing_is_left_of_what_failed_and_nothing_is_seen_before_it_is_whole(tmp_path: Path) -> None:
    seen: list[bool] = []

    def fail_at_the_end(block: Any, block_info: Any = None) -> Any:
        seen.append((tmp_path / "a/zarr.json").exists())
        if block_info[0]["chunk-location"] == (2, 0):
            raise RuntimeError("no more")
        return block

    with pytest.raises(RuntimeError, match="no more"):
        to_zarr(of((8, 30)).map_blocks(fail_at_the_end, meta=VALUES[:0, :0]), tmp_path / "a")
    assert seen
    assert not any(seen)
    assert not (tmp_path / "a").exists()


def test_a_store_that_is_there_is_kept_unless_told_otherwise(tmp_path: Path, same: Same) -> None:
    to_zarr(of(-1), tmp_path / "a")
    with pytest.raises(ExistsError):
        to_zarr(of(-1) + 1, tmp_path / "a")
    assert same(to_zarr(of(-1) + 1, tmp_path / "a", overwrite=True)[...], VALUES + 1)


@pytest.mark.parametrize(("blocks", "chunks", "shards"), [((3, 30), (4, 30), None), ((4, 10), (4, 10), (8, 10))])
def test_blocks_that_share_a_file_are_refused_before_anything_is_computed(
    tmp_path: Path, blocks: Any, chunks: Any, shards: Any
) -> None:
    computed: list[Any] = []
    array = of(blocks).map_blocks(lambda block: computed.append(block) or block, meta=VALUES[:0, :0])
    with pytest.raises(AssignmentError, match=r"dimension 0.*rechunk to multiples of"):
        to_zarr(array, tmp_path / "a", chunks=chunks, shards=shards)
    assert not computed
    assert not (tmp_path / "a").exists()


@given(st.data())
def test_regions(tmp_path_factory: pytest.TempPathFactory, same: Same, data: st.DataObject) -> None:
    """Whatever is accepted is written right, and it is accepted just where no two blocks share a chunk."""
    path = str(tmp_path_factory.getbasetemp() / "regions")
    chunks = (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)))
    zarr.create_array(path, data=np.zeros((9, 8), "i4"), chunks=chunks, overwrite=True)
    target = gpuload.open(path, mode="r+", device="cpu")
    assert isinstance(target, gpuload.Array)
    corners = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in (9, 8)]
    region = tuple(slice(*corner) for corner in corners)
    shape = tuple(stop - start for start, stop in corners)
    blocks = tuple(data.draw(st.integers(1, 5)) for _ in shape)
    values = np.arange(1, np.prod(shape, dtype=int) + 1, dtype="i4").reshape(shape)
    expected = np.zeros((9, 8), "i4")
    expected[region] = values
    files: dict[tuple[int, ...], set[tuple[int, int]]] = {}
    for index in np.ndindex(shape):
        file = tuple((start + i) // edge for (start, _), i, edge in zip(corners, index, chunks, strict=True))
        files.setdefault(file, set()).add((index[0] // blocks[0], index[1] // blocks[1]))
    shared = any(len(who) > 1 for who in files.values())
    try:
        to_zarr(of(blocks, values), target, region=region)
    except AssignmentError:
        assert shared or 0 in shape  # along one dimension blocks may share what the other has nothing of
        assert not zarr.open_array(path)[...].any()
    else:
        assert not shared, (corners, chunks, blocks)
        assert same(zarr.open_array(path)[...], expected)


@pytest.mark.parametrize(
    "region", [(slice(0, 20),), (slice(0, 20, 2), slice(None)), (slice(0, 10), slice(None)), (3, 4)]
)
def test_regions_that_do_not_fit(tmp_path: Path, region: Any) -> None:
    target = to_zarr(of(-1), tmp_path / "a")
    with pytest.raises(AssignmentError, match="region"):
        to_zarr(of(-1), target, region=region)
    with pytest.raises(AssignmentError, match="region"):
        to_zarr(of(-1), tmp_path / "b", region=region)


def test_what_was_opened_for_reading_is_refused(tmp_path: Path) -> None:
    to_zarr(of(-1), tmp_path / "a")
    with pytest.raises(ReadOnlyError):
        to_zarr(of(-1), gpuload.open(tmp_path / "a", device="cpu"))


def test_dask_s_own_store_writes_to_an_array(tmp_path: Path, same: Same) -> None:
    target = to_zarr(of((5, 30)) * 0, tmp_path / "a")
    dask.array.store(of((5, 30)), target, lock=False)
    assert same(target[...], VALUES)


def test_blocks_of_a_device(tmp_path: Path, fake_cupy: ModuleType, same: Same) -> None:
    zarr.create_array(str(tmp_path / "a"), data=VALUES, chunks=(5, 10))
    to_zarr(from_zarr(tmp_path / "a", chunks=(10, 10), device="cuda"), tmp_path / "b", chunks=(10, 5))
    assert same(zarr.open_array(str(tmp_path / "b"))[...], VALUES)
