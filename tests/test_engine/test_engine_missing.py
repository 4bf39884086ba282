"""A missing chunk is the fill value: it never shows the file that had its slot before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuload import config
from gpuload.engine import transfer

pytestmark = pytest.mark.usefixtures("road")


def ring_of_the_io_thread() -> Any:
    return transfer.io_thread()._backends["io_uring"].ring


def test_missing_chunks_never_read_what_was_in_their_slot(stored: Any, fresh: Any) -> None:
    with config.set({"backend": "io_uring", "uring.slots": 32}):  # two files a lane: each slot is used often
        there = stored(np.full(64, 7, "<i4"), (1,))
        gone = stored(np.full(64, 9, "<i4"), (1,), missing=tuple(range(0, 64, 2)))
        nothing = stored(np.full(64, 9, "<i4"), (1,), missing=tuple(range(64)))
        for _ in range(5):
            there.check()
            gone.check()
            nothing.check()


@pytest.mark.parametrize("kind", ["raw", "zlib"])
def test_present_and_missing_interleaved(kind: str, stored: Any, backend: str, served: Any, totals: Any) -> None:
    data = np.random.default_rng(1).integers(0, 99, (50, 30), np.int32)
    missing = tuple(range(1, 50 * 3, 2))
    array = stored(data, (1, 10), kind=kind, missing=missing)
    array.check()
    sums = totals(served)
    assert sums["filled"] == (len(missing), len(missing) * 40)
    assert sums["rows"] == 150 - len(missing)


def test_slots_are_empty_after_reads_and_after_errors(stored: Any, fresh: Any) -> None:
    with config.set({"backend": "io_uring", "uring.slots": 64}):
        array = stored(np.arange(40), (1,), missing=(3, 4))
        array.check()
        array.path(9).write_bytes(b"short")
        with pytest.raises(Exception, match="expected 8 bytes, found 5"):
            array.read()
        assert taken_slots() == []


def taken_slots() -> list[int]:
    """Slots of the table that hold a file: a read from an empty one says EBADF."""
    from gpuload.bindings import uring_abi as abi

    io = transfer.io_thread()

    def look() -> list[int]:
        ring = ring_of_the_io_thread()
        memory = np.zeros(8, np.uint8)
        taken = []
        for slot in range(ring.n_files):
            ring.push(abi.read_rows(slot, 0, memory.ctypes.data, 1, [slot], fixed_file=True))
            ring.enter(1)
            while not len(done := ring.reap()):
                ring.enter(1)
            if int(done["res"][0]) != -9:
                taken.append(slot)
        return taken

    return list(io.call(look))


def test_the_look_at_slots_sees_a_file_left_behind(stored: Any, fresh: Any) -> None:
    # The proof that the test above can fail.
    import os

    with config.set({"backend": "io_uring", "uring.slots": 64}):
        array = stored(np.arange(4), (1,))
        array.check()
        fd = os.open(array.path(0), os.O_RDONLY)
        io = transfer.io_thread()
        io.call(lambda: ring_of_the_io_thread().update_files(5, [fd]))
        os.close(fd)
        assert taken_slots() == [5]
        io.call(lambda: ring_of_the_io_thread().update_files(5, [-1]))


def test_a_whole_missing_directory_is_fill(stored: Any, backend: str) -> None:
    import shutil

    array = stored(np.arange(40), (1,))
    shutil.rmtree(array.folder / "c")
    array.full[:] = array.fill
    array.check()


def test_a_missing_shard_is_fill(stored: Any, backend: str, served: Any, totals: Any) -> None:
    array = stored(np.arange(40), (4,), kind="shard", per_shard=2)
    (array.folder / "shard.1").unlink()
    array.full[8:16] = array.fill
    array.check()
    assert totals(served)["filled"] == (2, 64)
    assert totals(served)["rows"] == 8
