"""The stores of the benchmark are what their names say."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from gpuload.bench.cases import CASES, KIB, MIB, Case, Mode, chunk_files, data, folder_of, side_of, write

SHARDED = Case("shard 256 KiB / 16 KiB", 16 * KIB, shard_bytes=256 * KIB)
SMALL = (Case("16 KiB", 16 * KIB), Case("16 KiB rows", 16 * KIB, rows=True), SHARDED, Case("z", 32 * KIB, codec="zstd"))


@pytest.mark.parametrize("case", [*CASES, *SMALL], ids=lambda case: case.name)
def test_zarr_reads_back_what_was_written(tmp_path: Path, values: np.ndarray[Any, Any], case: Case) -> None:
    path = folder_of(case, str(tmp_path / "made"))
    ratio = write(case, path, values)
    array = zarr.open_array(path, mode="r")
    assert np.array_equal(array[...], values)
    assert array.dtype == np.float32
    assert array.chunks == case.chunks(len(values))
    assert array.shards == case.shards(len(values))
    assert bool(array.compressors) == (case.codec == "zstd")
    assert (0.1 < ratio < 0.5) if case.codec == "zstd" else (1 <= ratio < 1.01)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_no_chunk_is_missing(tmp_path: Path, values: np.ndarray[Any, Any], case: Case) -> None:
    path = str(tmp_path / "a")
    write(case, path, values)
    parts = case.shards(len(values)) or case.chunks(len(values))
    grid = product(*(range(n // part) for n, part in zip(values.shape, parts, strict=True)))
    assert chunk_files(path) == sorted(f"{path}/c/{i}/{j}" for i, j in grid)
    edge = case.chunks(len(values))
    for i, j in product(range(0, len(values), edge[0]), range(0, len(values), edge[1])):
        assert values[i : i + edge[0], j : j + edge[1]].any()


def test_cases_have_the_chunks_of_their_names() -> None:
    side = side_of(1024 * MIB)
    assert side == 16384
    unit = {"KiB": KIB, "MiB": MIB}
    for case in CASES:
        words = case.name.removeprefix("shard ").split()
        chunk = words[words.index("/") + 1 :] if "/" in words else words
        assert np.prod(case.chunks(side)) * 4 == case.chunk_bytes == int(chunk[0]) * unit[chunk[1]]
        assert ("zstd" in words) == (case.codec == "zstd")
        assert (case.chunks(side)[1] == side) == ("rows" in words)
        shards = case.shards(side)
        assert (shards is not None) == ("/" in words)
        assert case.mode == next((mode for mode in Mode if mode in words), Mode.WARM)
        if shards:
            assert np.prod(shards) * 4 == case.shard_bytes == int(words[0]) * unit[words[1]]
            assert all(n % m == 0 for n, m in zip(shards, case.chunks(side), strict=True))


def test_ways_of_reading_share_a_store() -> None:
    by_store: dict[str, list[Case]] = {}
    for case in CASES:
        by_store.setdefault(folder_of(case, "x"), []).append(case)
    assert {case.mode for case in CASES} == set(Mode)
    for cases in by_store.values():
        assert len({(c.chunk_bytes, c.rows, c.shard_bytes, c.codec) for c in cases}) == 1
        assert Mode.WARM in [case.mode for case in cases]  # or a store would be there for one way alone


@pytest.mark.parametrize("mib", [1, 4, 16, 64, 256, 1024, 4096])
def test_sizes_that_are_squares_are_kept(mib: int) -> None:
    assert side_of(mib * MIB) ** 2 * 4 == mib * MIB


def test_the_data_are_the_same_in_every_process() -> None:
    values = data(64)
    assert np.array_equal(values, data(64))
    assert values.min() == 0
    assert values.max() == 39
    assert values.dtype == np.float32


def test_what_is_there_is_kept(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    path = str(tmp_path / "a")
    write(SMALL[0], path, values)
    before = Path(path, "c", "0", "0").stat().st_mtime_ns
    assert write(SMALL[0], path, values) == pytest.approx(1, abs=0.01)
    assert Path(path, "c", "0", "0").stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["chunks", "shards", "shape", "codec", "broken", "unstamped"])
def test_another_stamp_means_writing_anew(tmp_path: Path, values: np.ndarray[Any, Any], change: str) -> None:
    path, stamp = str(tmp_path / "a"), tmp_path / "a.written"
    first = Case("a", 16 * KIB, shard_bytes=256 * KIB)
    write(first, path, values)
    second = {
        "chunks": Case("a", 64 * KIB, shard_bytes=256 * KIB),
        "shards": Case("a", 16 * KIB, shard_bytes=64 * KIB),
        "codec": Case("a", 16 * KIB, shard_bytes=256 * KIB, codec="zstd"),
    }.get(change, first)
    if change == "shape":
        values = values[:256, :256]
    elif change == "broken":
        stamp.write_text("{")
    elif change == "unstamped":
        stamp.unlink()
    for name in chunk_files(path):
        Path(name).write_bytes(b"left from before")
    write(second, path, values)
    array = zarr.open_array(path, mode="r")
    assert np.array_equal(array[...], values)
    assert array.chunks == second.chunks(len(values))
    assert array.shards == second.shards(len(values))
    assert json.loads(stamp.read_text())["shape"] == list(values.shape)


def test_half_an_array_does_not_pass_for_a_whole_one(
    tmp_path: Path, values: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a")
    write(SMALL[0], path, values)

    class Torn:
        def __setitem__(self, where: Any, what: Any) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(zarr, "create_array", lambda *args, **kwargs: Torn())
        with pytest.raises(KeyboardInterrupt):
            write(SMALL[3], path, values)
    assert not (tmp_path / "a.written").exists()
    write(SMALL[0], path, values)
    assert np.array_equal(zarr.open_array(path, mode="r")[...], values)
