"""The graph: one layer with one reader, small however many chunks there are; slices; names of file states."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr
from dask.array.core import PerformanceWarning
from dask.blockwise import Blockwise

import gpuload
from gpuload.dask import from_zarr
from gpuload.dask import reader as reader_module
from gpuload.dask.reader import BlockReader
from gpuload.errors import ChangedError, NotFoundError, UnsupportedArrayError

Same = Callable[[Any, Any], bool]


def served(action: Callable[[], Any]) -> dict[str, int]:
    """Wanted bytes by file, of one action."""
    with gpuload.trace() as trace:
        action()
    found: dict[str, int] = {}
    for row in trace.rows():
        found[row.key] = found.get(row.key, 0) + row.bytes
    return found


def reader_of(task: Any) -> BlockReader:
    (reader,) = [node.value for node in task.args if isinstance(node.value, BlockReader)]
    return reader


# ---------------------------------------------------------------------- what it is made of


def test_a_million_chunks_and_32_TiB(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    zarr.create_array(path, shape=(819200, 107520, 100), chunks=(8192, 1024, 1), dtype="f4")
    made: list[dask.array.Array] = []
    files = served(lambda: made.append(from_zarr(path, chunks=None, device="cpu")))
    (array,) = made
    assert set(files) == {"zarr.json"}
    assert array.nbytes >= 32 << 40
    assert array.npartitions == 1_050_000
    assert len(pickle.dumps(array.dask)) < 100_000
    (layer,) = array.dask.layers.values()
    assert isinstance(layer, Blockwise)
    assert not layer.is_materialized()


def test_all_tasks_have_the_same_reader_and_their_own_slices(stored: zarr.Array[Any]) -> None:
    array = from_zarr(stored, chunks=(8, 10, 7), device="cpu")
    tasks = dict(array.dask)
    assert len(tasks) == array.npartitions == 9
    assert len({id(reader_of(task)) for task in tasks.values()}) == 1
    rows = {(task.args[1].value[0].start, task.args[1].value[0].stop) for task in tasks.values()}
    assert rows == {(0, 8), (8, 16), (16, 20)}


# ---------------------------------------------------------------------- slices


@pytest.mark.parametrize(
    "selection",
    [(slice(3, 4),), 3, (slice(None), 29), (slice(2, 20, 3), slice(25, None)), (19, 29)],
)
def test_a_slice_of_a_block_reads_no_more_than_the_same_slice_of_the_array(
    tmp_path: Path, selection: Any, same: Same
) -> None:
    values = np.arange(4200, dtype="f4").reshape(20, 30, 7)
    zarr.create_array(str(tmp_path / "a"), data=values, chunks=(4, 5, 7), compressors=None)
    array = from_zarr(tmp_path / "a", chunks=-1, device="cpu")
    direct = gpuload.open(tmp_path / "a", device="cpu")
    results: list[Any] = []
    files = served(lambda: results.append(array[selection].compute()))
    files.pop("zarr.json", None)
    assert same(results[0], values[selection])
    assert files == served(lambda: direct[selection])
    assert sum(files.values()) < values.nbytes


def test_a_block_that_is_not_asked_for_is_not_read(stored: zarr.Array[Any], same: Same) -> None:
    array = from_zarr(stored, chunks=(8, 10, 7), device="cpu")
    results: list[Any] = []
    files = served(lambda: results.append(array[17:, 20:].mean(axis=0).compute()))
    assert same(results[0], np.asarray(stored[17:, 20:]).mean(axis=0))
    inner = {"c/4/4/0", "c/4/5/0"} | {"c/2/2/0"} | {"4.4.0", "4.5.0"}
    assert {key for key in files if key[0] in "c4"} <= inner


# ---------------------------------------------------------------------- chunks


def test_blocks_that_begin_inside_of_chunks_are_warned_of_and_right(stored: zarr.Array[Any], same: Same) -> None:
    with pytest.warns(PerformanceWarning, match=r"dimension 0, 1: .*multiples of \(4, 5, 7\)") as caught:
        array = from_zarr(stored, chunks=(3, 7, 7), device="cpu")
    assert caught[0].filename == __file__
    assert array.chunks == ((3,) * 6 + (2,), (7, 7, 7, 7, 2), (7,))
    assert same(array.compute(), stored[...])


def test_whole_shards_where_they_fit(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(64, 64), chunks=(2, 2), shards=(16, 16), dtype="u1")
    assert from_zarr(tmp_path / "a", chunks="256 B", device="cpu").chunksize == (16, 16)
    assert set(from_zarr(tmp_path / "a", chunks="600 B", device="cpu").chunks[1]) <= {16, 32}
    assert from_zarr(tmp_path / "a", chunks="16 B", device="cpu").chunksize == (4, 4)
    assert from_zarr(tmp_path / "a", chunks=None, device="cpu").chunksize == (2, 2)


# ---------------------------------------------------------------------- names and changes


def replace(path: Path) -> None:
    """As most writers do: a new file, renamed into the old one's place."""
    (path.parent / "new").write_bytes(path.read_bytes()[::-1])
    (path.parent / "new").rename(path)


def rewrite(path: Path) -> None:
    """Into the file that is there, its size and mtime kept."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def move_away(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")


CHANGES: dict[str, Callable[[Path], Any]] = {
    "replaced": lambda root: replace(root / "c/0/0"),
    "rewritten": lambda root: rewrite(root / "c/0/0"),
    "deleted": lambda root: (root / "c/0/0").unlink(),
    "its directory deleted": lambda root: shutil.rmtree(root / "c/0"),
    "there now": lambda root: (root / "c/1/1").write_bytes(bytes(16)),
    "attributes": lambda root: (root / "zarr.json").write_text((root / "zarr.json").read_text() + " "),
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Chunks 0/0, 0/1 and 1/0 of 2 × 2, of which each is read by a block of its own."""
    values = np.arange(16, dtype="f4").reshape(4, 4)
    values[2:, 2:] = 0
    zarr.create_array(str(tmp_path / "s"), data=values, chunks=(2, 2), compressors=None, fill_value=0)
    assert not (tmp_path / "s/c/1/1").exists()
    return tmp_path / "s"


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_another_name_and_is_not_read(small: Path, change: str) -> None:
    array = from_zarr(small, chunks=None, device="cpu")
    assert from_zarr(small, chunks=None, device="cpu").name == array.name
    before = array.compute()
    CHANGES[change](small)
    with pytest.raises(ChangedError, match="open it anew"):
        array.compute()
    again = from_zarr(small, chunks=None, device="cpu")
    assert again.name != array.name
    assert again.compute().shape == before.shape


@pytest.mark.parametrize("change", ["replaced", "rewritten", "deleted"])
def test_what_did_not_change_can_still_be_read(small: Path, change: str, same: Same) -> None:
    array = from_zarr(small, chunks=None, device="cpu")
    values = array.compute()
    CHANGES[change](small)
    assert same(array[2:, :2].compute(), values[2:, :2])


def test_another_array_in_its_place_is_not_read(small: Path) -> None:
    shutil.copytree(small, small.with_name("other"))
    array = from_zarr(small, device="cpu")
    small.rename(small.with_name("before"))
    with pytest.raises(NotFoundError):
        array.compute()
    small.with_name("other").rename(small)
    with pytest.raises(ChangedError):
        array.compute()


def test_another_shape_is_said_to_be_a_change(small: Path) -> None:
    array = from_zarr(small, device="cpu")[3:].compute
    zarr.open_array(str(small), mode="r+").resize((2, 4))
    with pytest.raises(ChangedError):
        array()


def test_an_array_travels_by_path_and_has_the_same_name_in_every_process(small: Path, same: Same) -> None:
    array = from_zarr(small, device="cpu")
    small.with_name("pickled").write_bytes(pickle.dumps(array))
    code = (
        "import pickle, sys, numpy, gpuload\n"
        "with open(sys.argv[1] + '/pickled', 'rb') as file: array = pickle.load(file)\n"
        "numpy.save(sys.argv[1] + '/result.npy', array.compute(scheduler='synchronous'))\n"
        "print(gpuload.dask.from_zarr(sys.argv[1] + '/s', device='cpu').name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, small.parent], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == array.name
    assert same(np.load(small.with_name("result.npy")), array.compute())


def test_a_name_tells_what_was_asked_for(small: Path) -> None:
    arrays = [from_zarr(small, device="cpu"), from_zarr(small, chunks=None, device="cpu")]
    arrays.append(from_zarr(small, device="cpu", strict=True))
    shutil.copytree(small, small.with_name("copy"))
    arrays.append(from_zarr(small.with_name("copy"), device="cpu"))
    assert len({array.name for array in arrays}) == 4


# ---------------------------------------------------------------------- what is given and what is got


def test_anything_that_can_be_opened(tmp_path: Path, same: Same) -> None:
    values = np.arange(12).reshape(3, 4)
    group = zarr.create_group(str(tmp_path / "g"))
    group.create_array("inner/a", data=values)
    opened = gpuload.open(tmp_path / "g", device="cpu")
    for source in (str(tmp_path / "g"), tmp_path / "g", group, group.store, opened):
        assert same(from_zarr(source, "inner/a").compute(), values)
    inner = opened["inner/a"]
    assert same(from_zarr(inner).compute(), values)
    assert inner.to_dask(chunks=(3, 4)).name == from_zarr(inner, chunks=(3, 4)).name
    assert same(from_zarr(group["inner/a"]).compute(), values)
    with pytest.raises(UnsupportedArrayError, match="'inner'"):
        from_zarr(tmp_path / "g")
    with pytest.raises(KeyError, match="nothing"):
        from_zarr(tmp_path / "g", "nothing")
    with pytest.raises(KeyError, match="holds no 'b'"):
        from_zarr(inner, "b")


@pytest.mark.parametrize("dtype", ["f4", ">i2", "b1"])
@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (7, 4)])
def test_meta_is_of_the_host(tmp_path: Path, dtype: str, shape: tuple[int, ...], same: Same) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    chunks = tuple(min(3, n) or 1 for n in shape)
    zarr.create_array(str(tmp_path / "a"), data=values, chunks=chunks, zarr_format=2 if dtype == ">i2" else 3)
    array = from_zarr(tmp_path / "a", device="cpu")
    assert type(array._meta) is np.ndarray
    assert array.dtype == array._meta.dtype == values.dtype
    assert same(array.compute(), values)


def test_blocks_and_meta_are_of_the_device(tmp_path: Path, fake_cupy: ModuleType, same: Same) -> None:
    values = np.arange(42, dtype=">i2").reshape(6, 7)
    zarr.create_array(str(tmp_path / "a"), data=values, chunks=(3, 4), compressors=None)
    array = from_zarr(tmp_path / "a", chunks=None, device="cuda:1")
    assert isinstance(array._meta, fake_cupy.ndarray)
    assert array.dtype == np.dtype("i2").newbyteorder("=")
    for index, part in np.ndenumerate(array.to_delayed()):
        block = part.compute()
        assert isinstance(block, fake_cupy.ndarray)
        assert block.device.id == 1
        rows, columns = (slice(i * n, (i + 1) * n) for i, n in zip(index, (3, 4), strict=True))
        assert same(block.get(), values[rows, columns].astype("=i2"))


def test_what_no_device_can_hold_is_of_the_host(tmp_path: Path, fake_cupy: ModuleType, same: Same) -> None:
    values = np.array([b"ab", b"c"])
    zarr.create_array(str(tmp_path / "a"), data=values, chunks=(1,))
    array = from_zarr(tmp_path / "a", device="cuda")
    assert type(array._meta) is np.ndarray
    assert same(array.compute(), values)


def test_auto_is_what_the_computing_process_is_configured_for(small: Path, fake_cupy: ModuleType) -> None:
    with gpuload.config.set(device="cuda:0"):
        reader = reader_of(next(iter(dict(from_zarr(small).dask).values())))
    travelled = pickle.dumps(reader)
    reader_module._open.cache_clear()
    with gpuload.config.set(device="cuda:1"):
        assert pickle.loads(travelled).array.device == "cuda:1"
    reader_module._open.cache_clear()
