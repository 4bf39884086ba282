"""What is told of a read is exact: a row a piece, every byte wanted and moved, every chunk filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuload import config
from gpuload.errors import StrictError
from gpuload.request import Decode, Filled, ReadPath, Reason, Served


def rows_of(served: list[Any]) -> list[tuple[str, int, int, int]]:
    return sorted(
        (block.keys[key], offset, size, moved)
        for block in served
        if isinstance(block, Served)
        for key, offset, size, moved in zip(
            block.key_index.tolist(), block.file_offset.tolist(), block.size.tolist(), block.moved.tolist(), strict=True
        )
    )


def test_whole_chunks(stored: Any, backend: str, served: Any) -> None:
    array = stored(np.arange(40, dtype="<i4"), (10,), missing=(2,))
    array.check()
    assert rows_of(served) == [(f"c/{i}", 0, 40, 40) for i in (0, 1, 3)]
    assert [event for event in served if isinstance(event, Filled)] == [Filled(1, 40)]


def test_parts_of_chunks_and_the_byte_that_proves_the_size(stored: Any, backend: str, served: Any) -> None:
    array = stored(np.arange(40, dtype="<i4"), (10,), missing=(2,))
    array.check(np.s_[5:35:4])
    # Elements 5, 9 / 13, 17 / - / 33: wanted are the bytes from the first to the last of each chunk.
    assert [(key, offset, size) for key, offset, size, _ in rows_of(served)] == [
        ("c/0", 20, 20),
        ("c/1", 12, 20),
        ("c/3", 12, 4),
    ]
    # A part that does not reach the end of its file takes one byte more, to prove that the file is whole.
    assert [moved for *_, moved in rows_of(served)] == [20, 21, 5]
    assert [event for event in served if isinstance(event, Filled)] == [Filled(1, 12)]


def test_pieces_of_a_large_chunk(stored: Any, backend: str, served: Any, totals: Any) -> None:
    with config.set(piece_bytes=64):
        array = stored(np.arange(100, dtype="<i4"), (50,))
        array.check()
    assert [(offset, size) for key, offset, size, _ in rows_of(served) if key == "c/1"] == [
        (0, 64), (64, 64), (128, 64), (192, 8),
    ]  # fmt: skip
    assert totals(served) == {"rows": 8, "size": 400, "moved": 400, "filled": (0, 0), "backends": {backend}}


@pytest.mark.parametrize("kind", ["zlib", "zshard"])
def test_encoded_chunks(kind: str, stored: Any, backend: str, served: Any) -> None:
    array = stored(np.arange(4000, dtype="<i4"), (1000,), kind=kind, missing=(3,))
    sizes = [
        size if size >= 0 else (array.folder / array.keys[file]).stat().st_size
        for file, _, size in (array.where[at,] for at in range(3))
    ]
    with config.set(piece_bytes=500):  # a chunk is one row however many reads it takes
        array.check()
    assert [size for *_, size, _ in sorted(rows_of(served))] == sizes
    assert [moved for *_, moved in sorted(rows_of(served))] == sizes
    for block in served:
        if isinstance(block, Served):
            assert (block.decode, block.read_path) == (Decode.HOST, ReadPath.FALLBACK)
    assert [event for event in served if isinstance(event, Filled)] == [Filled(1, 4000)]


def test_shards(stored: Any, backend: str, served: Any, totals: Any) -> None:
    array = stored(np.arange(90, dtype="<i4"), (10,), kind="shard", missing=(4,))
    array.check()
    assert totals(served) == {"rows": 8, "size": 320, "moved": 320, "filled": (1, 40), "backends": {backend}}
    assert {key for key, *_ in rows_of(served)} == {"shard.0", "shard.1", "shard.2"}


def test_all_missing_and_all_empty(stored: Any, backend: str, served: Any, totals: Any) -> None:
    array = stored(np.arange(90, dtype="<c16"), (10,), missing=tuple(range(9)))
    array.check()
    array.check(np.s_[3:3])
    assert totals(served) == {"rows": 0, "size": 0, "moved": 0, "filled": (9, 90 * 16), "backends": set()}


def test_many_batches_and_readers(stored: Any, backend: str, served: Any, totals: Any, fresh: Any) -> None:
    import threading

    with config.set({"batch_bytes": 4096, "piece_bytes": 1000}):
        array = stored(np.arange(30_000, dtype="<i4"), (700,), missing=(11,))
        threads = [threading.Thread(target=array.check) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    chunks = -(-30_000 // 700) - 1
    in_last = 30_000 - 42 * 700
    # The last chunk is read as far as it is wanted, and one byte more.
    wanted = (chunks - 1) * 2800 + 4 * in_last
    sums = totals(served)
    assert sums["size"] == 5 * wanted
    assert sums["moved"] == 5 * (wanted + 1)
    assert sums["filled"] == (5, 5 * 2800)
    assert sums["rows"] == 5 * ((chunks - 1) * 3 + -(-4 * in_last // 1000))


def test_the_scalars_of_a_block(stored: Any, backend: str, served: Any) -> None:
    array = stored(np.arange(40, dtype="<i4"), (10,))
    array.check()
    for block in served:
        assert block.backend == backend
        assert (block.read_path, block.reason, block.decode) == (ReadPath.FALLBACK, Reason.NO_LIBRARY, Decode.NONE)
        assert dict(block.declined) == ({"io_uring": Reason.FORCED_OFF} if backend == "posix" else {})
        assert (block.latency >= 0).all()
        assert block.started <= block.ended


def test_strict_reads_fills_but_no_files(stored: Any, backend: str, served: Any) -> None:
    array = stored(np.arange(40, dtype="<i4"), (10,), kind="shard", missing=tuple(range(2, 4)))
    with config.set(strict=True):
        with pytest.raises(StrictError) as raised:
            array.read()
        assert raised.value.reason is Reason.NO_LIBRARY
        array.check(np.s_[25:35])
    assert rows_of(served) == []
