"""Many readers at once: right values, and a fair share counted in batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuload import config
from gpuload.engine import transfer

KINDS = ["raw", "zlib", "shard", "zshard"]


def together(functions: list[Callable[[], None]]) -> None:
    """Run them at once; the first error is raised here."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], None]) -> None:
        start.wait()
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_sixteen_threads_read_different_arrays(stored: Any, backend: str, fresh: Any) -> None:
    random = np.random.default_rng(6)
    with config.set({"batch_bytes": 64 << 10, "slab.size": 4 << 20, "slab.limit": 8 << 20}):
        arrays = [
            stored(random.integers(0, 1 << 60, (7, 2000 + i), np.int64), (2, 900), kind=KINDS[i % 4], missing=(i % 5,))
            for i in range(16)
        ]

        def reader_of(array: Any) -> Callable[[], None]:
            def read() -> None:
                for selection in [np.s_[:], np.s_[::-1, 3::7], np.s_[1:3, 800:1000], np.s_[4]]:
                    array.check(selection)

            return read

        together([reader_of(array) for array in arrays])


def test_threads_that_read_one_array(stored: Any, backend: str) -> None:
    array = stored(np.arange(40_000, dtype="<i4").reshape(200, 200), (30, 30), kind="shard", missing=(7,))
    together([lambda i=i: array.check(np.s_[i::3, ::-1]) for i in range(8)])  # type: ignore[misc]


def test_backends_beside_each_other(stored: Any, fresh: Any) -> None:
    array = stored(np.arange(40_000, dtype="<i4").reshape(200, 200), (30, 30))

    def read(backend: str) -> None:
        with config.set(backend=backend):  # the setting is the process's: whichever is in force serves
            for _ in range(5):
                array.check()

    with config.set(backend=config.get("backend")):  # what the last thread puts back is what another one had set
        together([lambda b=b: read(b) for b in ("io_uring", "posix") * 3])  # type: ignore[misc]


def test_small_reads_need_not_wait_for_a_giant_one(
    stored: Any, backend: str, fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with config.set({"batch_bytes": 32 << 10, "piece_bytes": 4096}):
        giant = stored(np.arange(1 << 20, dtype="<i8"), (4096,))  # 256 batches
        small = [stored(np.arange(20_000, dtype="<i8"), (4096,)) for _ in range(15)]  # 5 batches each
        small[0].check()
        io = transfer.io_thread()
        serving = io._backends[backend]
        begun: list[Any] = []
        begin = serving.begin
        monkeypatch.setattr(serving, "begin", lambda batch: (begun.append(batch.owner), begin(batch)))
        queued = threading.Semaphore(0)
        submit = io.submit
        monkeypatch.setattr(io, "submit", lambda job: (submit(job), queued.release()))

        held, gate = threading.Event(), threading.Event()
        holding = threading.Thread(target=lambda: io.call(lambda: (held.set(), gate.wait())))
        threads = [threading.Thread(target=giant.check)] + [threading.Thread(target=one.check) for one in small]
        holding.start()
        held.wait()
        for thread in threads:  # the giant first, nothing moves until all are there
            thread.start()
            queued.acquire()
        gate.set()
        for thread in [*threads, holding]:
            thread.join()
        owner = begun[0]
        sizes = {id(job): len(job.plan) for job in begun}
        assert sorted(sizes.values()) == [5] * 15 + [256]
        assert len(owner.plan) == 256
        last_small = max(i for i, job in enumerate(begun) if job is not owner)
        before = sum(job is owner for job in begun[:last_small])
        assert before < 32  # one a round, of which there are 5
        for one in small:
            first = next(i for i, job in enumerate(begun) if job is not owner and job.plan.request.root is one.root)
            assert first < 40


def test_the_pool_keeps_its_limit_with_many_readers(stored: Any, backend: str, fresh: Any) -> None:
    with config.set({"batch_bytes": 1 << 20, "slab.size": 4 << 20, "slab.limit": 13 << 20}):
        arrays = [stored(np.arange(1 << 18, dtype="<i8"), (1 << 14,), kind=KINDS[i % 2]) for i in range(6)]
        together([array.check for array in arrays] * 2)
        io = transfer.io_thread()
        assert io.call(lambda: io.pool.nbytes) <= 13 << 20
        assert 1 <= len(io.pool.slabs) <= 3  # how many are wanted at a time is up to the scheduler


def test_blocks_larger_than_a_slab_have_a_limit_too(
    stored: Any, backend: str, fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with config.set({"slab.size": 4 << 20, "slab.limit": 12 << 20}):
        arrays = [stored(np.arange(6 << 18, dtype="<i8"), (3 << 18,), kind="zlib") for _ in range(3)]
        arrays[0].check(np.s_[:1])
        io = transfer.io_thread()
        most = []
        own = io.pool.own

        def watched(nbytes: int) -> Any:
            block = own(nbytes)
            most.append(io.pool._own)
            return block

        monkeypatch.setattr(io.pool, "own", watched)
        together([array.check for array in arrays])
        assert len(most) >= 6
        assert max(most) <= max(12 << 20, min(most))
