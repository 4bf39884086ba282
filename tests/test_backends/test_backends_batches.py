"""Batches straight into a backend: every row gets its bytes, of one open file, or the batch has an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuload.errors import ChunkReadError, ChunkSizeError
from gpuload.files.handle import FileHandle

SIZES = [0, 1, 511, 4097, 40_000, 700_001, (1 << 20) + 3]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    random = np.random.default_rng(9)
    made = {f"d/{size}": random.bytes(size) for size in SIZES}
    (tmp_path / "d").mkdir()
    for key, content in made.items():
        (tmp_path / key).write_bytes(content)
    return made


def bytes_of(batch: Any, row: int) -> bytes:
    at = int(batch.address[row]) - batch.block.address
    return batch.block.array[at : at + int(batch.want[row])].tobytes()


def test_rows_of_all_sizes(serving: Any, pool: Any, files: Any, make_batch: Any, finish: Any) -> None:
    assert serving.adopt(pool.slabs[0])
    rows = [(key, at, len(content) - at, 1) for key, content in files.items() for at in (0, len(content) // 3)]
    rows = [row for row in rows if row[2]]
    block = pool.take(4 << 20)
    batch = make_batch(block, rows)
    serving.begin(batch)
    assert serving.active == 1
    assert finish(serving) == [batch]
    assert batch.error is None
    for i, (key, at, _, _) in enumerate(rows):
        assert bytes_of(batch, i) == files[key][at:]
    assert batch.got.tolist() == [row[2] for row in rows]
    assert (batch.completed >= batch.submitted).all()
    assert (batch.submitted > 0).all()


def test_many_batches_at_once(serving: Any, pool: Any, files: Any, make_batch: Any, finish: Any) -> None:
    assert serving.adopt(pool.slabs[0])
    batches = []
    for turn in range(60):
        rows = [(key, turn, 100 + turn, 0) for key in ("d/511", "d/4097", "d/40000")]
        while not serving.hungry:
            serving.advance(1.0)
        batch = make_batch(pool.take(4096), rows)
        serving.begin(batch)
        batches.append((batch, rows))
    finish(serving)
    assert serving.active == 0
    for batch, rows in batches:
        assert batch.error is None
        for i, (key, at, want, _) in enumerate(rows):
            assert bytes_of(batch, i) == files[key][at : at + want]


def test_missing_files_beside_others(serving: Any, pool: Any, files: Any, make_batch: Any, finish: Any) -> None:
    assert serving.adopt(pool.slabs[0])
    for _ in range(3):
        rows = [("none", 0, 50, 0), ("d/511", 0, 511, 1), ("d/x", 0, 50, 0), ("d/511/y", 0, 9, 0), ("d/1", 0, 1, 1)]
        batch = make_batch(pool.take(8192), rows)
        serving.begin(batch)
        finish(serving)
        assert batch.error is None
        assert batch.missing.tolist() == [True, False, True, True, False]
        assert bytes_of(batch, 1) == files["d/511"]
        assert bytes_of(batch, 0) == b"\xa5" * 50  # nothing was read there
        assert batch.got.tolist() == [0, 511, 0, 0, 1]


def test_a_file_too_long_and_one_too_short(serving: Any, pool: Any, files: Any, make_batch: Any, finish: Any) -> None:
    assert serving.adopt(pool.slabs[0])
    for rows, seen in [([("d/511", 0, 510, 1)], 511), ([("d/511", 0, 512, 1)], 511), ([("d/0", 0, 4, 1)], 0)]:
        batch = make_batch(pool.take(8192), [("d/1", 0, 1, 1), *rows])
        batch.sizes[1] = rows[0][2]
        serving.begin(batch)
        finish(serving)
        assert isinstance(batch.error, ChunkSizeError)
        assert (batch.error.expected, batch.error.actual) == (rows[0][2], seen)


def test_an_open_end(serving: Any, pool: Any, files: Any, make_batch: Any, finish: Any) -> None:
    assert serving.adopt(pool.slabs[0])
    batch = make_batch(pool.take(1 << 20), [("d/511", 0, 9000, 0), ("d/4097", 0, 100, 0)], open_ended=True)
    serving.begin(batch)
    finish(serving)
    assert batch.error is None
    assert batch.got.tolist() == [511, 100]


@pytest.mark.parametrize("large", [False, True])
def test_open_handles(
    large: bool, serving: Any, pool: Any, files: Any, root: Any, make_batch: Any, finish: Any
) -> None:
    assert serving.adopt(pool.slabs[0])
    key = "d/700001" if large else "d/4097"
    handles = [FileHandle.open(root, key), FileHandle.open(root, "d/511")]
    Path(root.path, key).unlink()  # what is open is read, whatever became of its name
    rows = [(key, 1000 * i, 1000, 0) for i in range(4)] + [("d/511", 0, 511, 1)]
    batch = make_batch(pool.take(1 << 20), rows, handles=handles)
    serving.begin(batch)
    finish(serving)
    assert batch.error is None
    assert b"".join(bytes_of(batch, i) for i in range(4)) == files[key][:4000]
    for handle in handles:
        handle.close()


def test_a_closed_handle_is_an_error_of_the_batch(
    serving: Any, pool: Any, files: Any, root: Any, make_batch: Any, finish: Any
) -> None:
    assert serving.adopt(pool.slabs[0])
    handle = FileHandle.open(root, "d/511")
    handle.close()
    batch = make_batch(pool.take(4096), [("d/511", 0, 511, 0)], handles=[handle])
    serving.begin(batch)
    assert finish(serving) == [batch]
    assert batch.error is not None
    again = make_batch(pool.take(4096), [("d/511", 0, 511, 0)])
    serving.begin(again)
    finish(serving)
    assert again.error is None


def test_a_name_that_is_too_long(serving: Any, pool: Any, files: Any, make_batch: Any, finish: Any) -> None:
    assert serving.adopt(pool.slabs[0])
    batch = make_batch(pool.take(4096), [("d/511", 0, 511, 0), ("x" * 300, 0, 5, 0)])
    serving.begin(batch)
    finish(serving)
    assert isinstance(batch.error, ChunkReadError)
    assert batch.error.errno == 36


def test_memory_that_no_slab_holds(serving: Any, pool: Any, files: Any, make_batch: Any, finish: Any) -> None:
    batch = make_batch(pool.own(2 << 20), [("d/700001", 0, 700_001, 1)])
    serving.begin(batch)
    finish(serving)
    assert batch.error is None
    assert bytes_of(batch, 0) == files["d/700001"]


def test_slabs_that_come_one_by_one(serving: Any, pool: Any, files: Any, make_batch: Any, finish: Any) -> None:
    """Other sizes and numbers of slabs, with reads before, between and after, and in flight when they come."""
    done = []
    for size in [4 << 20, 1 << 20, 3 << 20]:
        slab = pool.slabs[0] if not done else pool.grow(size)
        batch = make_batch(pool.take(1 << 20), [("d/700001", 5, 699_996, 1)])
        serving.begin(batch)
        assert serving.adopt(slab)
        done.append(batch)
    finish(serving)
    for batch in done:
        assert batch.error is None
        assert bytes_of(batch, 0) == files["d/700001"][5:]
    if serving.name == "io_uring":
        assert [slab.buffer for slab in pool.slabs] == [0, 1, 2]


def test_closing_waits_for_what_is_in_flight(serving: Any, pool: Any, files: Any, make_batch: Any) -> None:
    assert serving.adopt(pool.slabs[0])
    for _ in range(3):
        serving.begin(make_batch(pool.take(1 << 20), [("d/700001", 0, 700_001, 1)]))
    serving.close()
    serving.close()
