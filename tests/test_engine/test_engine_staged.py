"""The staged path on the real kernel: registered files and buffers alone, and slabs that may change under way."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpuload import config
from gpuload.backends import registry
from gpuload.bindings import uring_abi as abi
from gpuload.engine import reader, transfer

pytestmark = pytest.mark.skipif(not registry.available("io_uring").usable, reason="io_uring is not available here")


@pytest.fixture(autouse=True)
def by_way_of_slabs() -> Iterator[None]:
    with config.set({"direct.host": "never"}):
        yield


def ring() -> Any:
    return transfer.io_thread()._backends["io_uring"].ring


def reads_of(function: Any) -> dict[tuple[str, bool], int]:
    """(opcode, fixed file) of the reads submitted by `function`."""
    io = transfer.io_thread()
    before = io.call(lambda: ring().counts)
    function()
    after = io.call(lambda: ring().counts)
    reads: dict[tuple[str, bool], int] = {}
    names = {abi.OP_READ: "READ", abi.OP_READ_FIXED: "READ_FIXED", 1: "READV", 51: "READ_MULTISHOT"}
    for (opcode, flags), total in after.items():
        n = total - before.get((opcode, flags), 0)
        if n and opcode in names:
            key = names[opcode], bool(flags & abi.IOSQE_FIXED_FILE)
            reads[key] = reads.get(key, 0) + n
    return reads


@pytest.mark.parametrize("kind", ["raw", "zlib", "shard", "zshard"])
@pytest.mark.parametrize("extent", [10, 20_000, 400_000])
def test_every_read_is_of_a_registered_file_into_a_registered_buffer(
    kind: str, extent: int, stored: Any, fresh: Any
) -> None:
    with config.set(backend="io_uring"):
        array = stored(np.arange(3 * extent, dtype="<i8"), (extent,), kind=kind, missing=(1,))
        array.check(np.s_[:1])
        for selection in [np.s_[:], np.s_[::-2], np.s_[5:7]]:
            counted = reads_of(lambda s=selection: array.check(s))
            assert set(counted) == {("READ_FIXED", True)}
            assert sum(counted.values()) >= 1
        counted = reads_of(lambda: reader.fetch(array.root, array.keys))
        assert set(counted) == {("READ_FIXED", True)}


def test_reads_into_memory_that_is_not_registered_are_counted_as_such(stored: Any, fresh: Any) -> None:
    # The proof that the test above can fail: a chunk that is larger than any slab.
    with config.set({"backend": "io_uring", "slab.size": 4 << 20, "slab.limit": 4 << 20}):
        array = stored(np.arange(1 << 20, dtype="<i8"), (1 << 20,), kind="zlib")
        array.check(np.s_[:1])
        assert ("READ", True) in reads_of(array.check)


def test_slabs_that_come_while_reads_are_under_way(stored: Any, fresh: Any) -> None:
    """Each new slab is a drain, an unregistration and a registration of a longer table."""
    with config.set({"backend": "io_uring", "slab.size": 4 << 20, "slab.limit": 30 << 20, "batch_bytes": 1 << 20}):
        array = stored(np.arange(1 << 20, dtype="<i8"), (1 << 14,), missing=(5,))
        array.check(np.s_[:1])
        io = transfer.io_thread()
        assert len(io.pool.slabs) == 1
        threads = [threading.Thread(target=array.check) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            io.call(io._grow)
            array.check(np.s_[100_000:300_000])
        for thread in threads:
            thread.join()
        array.check()
        assert len(io.pool.slabs) >= 4
        assert len(io.call(lambda: ring().buffers)) == len(io.pool.slabs)
        assert [slab.buffer for slab in io.pool.slabs] == list(range(len(io.pool.slabs)))
        assert set(reads_of(array.check)) == {("READ_FIXED", True)}


def test_a_small_read_touches_one_slab_at_most(stored: Any, backend: str, fresh: Any) -> None:
    array = stored(np.arange(1 << 17, dtype="<i8"), (1 << 15,))
    with config.set({"slab.size": 4 << 20}):
        for _ in range(5):
            array.check()
        pool = transfer.io_thread().pool
        assert len(pool.slabs) == 1
        assert pool.nbytes < 5 << 20


def test_files_replaced_while_they_are_read(stored: Any, backend: str) -> None:
    """Whatever is renamed over them meanwhile: each chunk is wholly old or wholly new."""
    one_of_each_size = [("raw", 200), ("raw", 30_000), ("shard", 200), ("zlib", 200)]
    for kind, extent in one_of_each_size:
        _replaced(stored, kind, extent)


def test_files_larger_than_a_batch_replaced_while_they_are_read(stored: Any, backend: str, fresh: Any) -> None:
    with config.set({"batch_bytes": 64 << 10, "piece_bytes": 16 << 10}):
        for kind in ("raw", "shard"):
            _replaced(stored, kind, 50_000)


def _replaced(stored: Any, kind: str, extent: int) -> None:
    chunks = 4
    versions = [stored(np.full(chunks * extent, v, "<i8"), (extent,), kind=kind, per_shard=1) for v in (1, 2)]
    array = versions[0]
    stop = threading.Event()
    content = [[(v.folder / key).read_bytes() for key in v.keys] for v in versions]

    def replace() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            for key, new in zip(array.keys, content[turn % 2], strict=True):
                path = array.folder / key
                fresh_file = path.with_suffix(".new")
                fresh_file.write_bytes(new)
                os.replace(fresh_file, path)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        seen = set()
        for turn in range(40):
            got = array.read().reshape(chunks, extent)
            assert (got == got[:, :1]).all(), "a chunk of two files"
            assert set(got[:, 0]) <= {1, 2}
            seen |= set(got[:, 0])
            if turn > 10 and len(seen) == 2:
                break
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("kind", ["raw", "shard"])
def test_a_file_replaced_by_a_shorter_one_between_two_reads(kind: str, stored: Any, backend: str) -> None:
    from gpuload.errors import ChunkSizeError

    array = stored(np.arange(4000, dtype="<i8"), (1000,), kind=kind, per_shard=1)
    array.check()
    path = array.path(2)
    whole = path.read_bytes()
    path.with_suffix(".new").write_bytes(whole[:-9])
    os.replace(path.with_suffix(".new"), path)
    with pytest.raises(ChunkSizeError, match=str(len(whole) - 9 if kind == "raw" else 4)):
        array.read()
    path.write_bytes(whole)
    array.check()


def test_a_file_that_shrinks_while_it_is_read_is_right_or_refused(stored: Any, backend: str, fresh: Any) -> None:
    from gpuload.errors import ChunkError

    with config.set({"batch_bytes": 64 << 10, "piece_bytes": 16 << 10}):
        array = stored(np.arange(200_000, dtype="<i8"), (100_000,))
        whole = array.path(1).read_bytes()
        stop = threading.Event()

        def change() -> None:
            while not stop.is_set():
                os.truncate(array.path(1), 12_345)
                array.path(1).write_bytes(whole)

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(30):
                with contextlib.suppress(ChunkError):
                    array.read()  # what is rewritten in place has no version: only errors and lengths are told
        finally:
            stop.set()
            thread.join()
        array.check()
