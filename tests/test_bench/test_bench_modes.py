"""Reads that are timed in other ways: from the drive, beside a busy thread, with and without the record."""

from __future__ import annotations

import mmap
import os
import statistics
import threading
from collections.abc import Callable
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload
from gpuload import events
from gpuload.bench import cache, pairs, worker
from gpuload.bench.cases import KIB, MIB, Case, Mode, write
from gpuload.engine import ledger


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray[Any, Any]) -> str:
    path = str(tmp_path_factory.mktemp("modes") / "a")
    write(Case("64 KiB", 64 * KIB), path, values)
    return path


def test_pages_are_counted_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "c"
    folder.mkdir(parents=True)
    assert cache.cached_share(str(tmp_path / "a")) is None
    (folder / "empty").touch()
    assert cache.cached_share(str(tmp_path / "a")) is None
    (folder / "0").write_bytes(os.urandom(MIB + 1))
    (folder / "1").write_bytes(os.urandom(mmap.PAGESIZE))
    (folder / "0").read_bytes()
    assert cache.cached_share(str(tmp_path / "a")) == 1
    cache.drop(str(tmp_path / "a"))
    share = cache.cached_share(str(tmp_path / "a"))
    assert share in (0, 1)  # 1 where the cache is all there is
    if share == 0:
        (folder / "1").read_bytes()
        pages = -(-(MIB + 1) // mmap.PAGESIZE) + 1
        assert cache.cached_share(str(tmp_path / "a")) == pytest.approx(1 / pages)


def test_asking_reads_nothing(store: str) -> None:
    cache.drop(store)
    assert cache.cached_share(store) == cache.cached_share(store)


def test_a_cold_read_follows_a_drop(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(cache, "drop", lambda path: done.append(f"drop {path}"))
    monkeypatch.setattr(cache, "cached_share", lambda path: done.append("look") or 0.25)
    times = worker.timed(Mode.COLD, lambda: done.append("read"), store, False)
    assert done == [f"drop {store}", "look", "read"]
    assert times["cached"] == 0.25
    assert len(times["seconds"]) == len(times["cpu"]) == 1


def test_settings_are_compared_cold_where_reads_are(
    store: str, values: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuload.bench.contenders import Contender

    dropped: list[str] = []
    monkeypatch.setattr(cache, "drop", dropped.append)
    settings: dict[str, Any] = dict.fromkeys("ab", lambda path, gpu: lambda: values)
    worker.choose(Contender("x", "numpy", settings), store, values, False, cold=True)
    assert dropped == [store, store]
    worker.choose(Contender("x", "numpy", settings), store, values, False)
    assert dropped == [store, store]


def test_the_other_thread_runs_during_half_of_the_reads(store: str) -> None:
    seen: list[bool] = []
    times = worker.timed(Mode.BUSY, lambda: seen.append(_busy_threads() == 1), store, False)
    assert seen == [False, True, True, False]  # whichever comes first helps neither
    assert len(times["seconds"]) == len(times["beside"]) == 2
    assert _busy_threads() == 0


def test_the_other_thread_ends_with_a_read_that_fails(store: str) -> None:
    def fail() -> None:
        if _busy_threads():
            raise OSError("no luck")

    with pytest.raises(OSError, match="no luck"):
        worker.timed(Mode.BUSY, fail, store, False)
    assert _busy_threads() == 0


def _busy_threads() -> int:
    return sum(thread.name == "busy" for thread in threading.enumerate())


def test_half_of_the_reads_are_not_recorded(store: str) -> None:
    array = gpuload.open(store, device="cpu")
    assert isinstance(array, gpuload.Array)
    counts: list[int] = []

    def read() -> None:
        with gpuload.trace() as trace:
            array[...]
        counts.append(trace.summary().requests)

    worker.timed(Mode.RECORD, read, store, False)
    chunks = 16
    order = [0, chunks, chunks, 0]
    assert counts == order * (worker.RECORD_PAIRS // 2)
    read()
    assert counts[-1] == chunks


def test_what_nobody_hears_is_not_gathered(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[Any] = []
    note = ledger._rows
    monkeypatch.setattr(ledger, "_rows", lambda batch: gathered.append(batch) or note(batch))
    array = gpuload.open(store, device="cpu")
    assert isinstance(array, gpuload.Array)
    gathered.clear()  # of its metadata
    with events.muted():
        array[...]
    assert gathered == []
    array[...]
    assert gathered


def test_nobody_is_told_while_muted(store: str) -> None:
    told: list[Any] = []
    end = events.subscribe(told.append)
    try:
        assert events.heard()
        with events.muted():
            assert not events.heard()
        with pytest.raises(OSError, match="inside"), events.muted():
            raise OSError("inside")
        assert events.heard()
        assert told == []
    finally:
        end()


@pytest.mark.parametrize("n", [6, 7, 20, 40])
def test_the_interval_holds_what_it_says(n: int) -> None:
    seconds, beside = [1.0] * n, list(range(1, n + 1))
    found = pairs.interval(seconds, beside)
    assert found is not None
    low, high = found
    cut = int(low) - 1  # how many lie below
    assert high == n - cut  # as many lie above
    covered: Callable[[int], float] = lambda k: 1 - 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n  # noqa: E731
    assert covered(cut) >= 0.95 > covered(cut + 1)
    assert pairs.kept(seconds, beside) == statistics.median(beside)


def test_few_pairs_have_no_interval() -> None:
    assert pairs.interval([1.0] * 5, [1.0] * 5) is None
    assert pairs.interval([], []) is None
    assert pairs.kept([], []) is None
    assert pairs.kept([2.0, 4.0], [1.0, 1.0]) == 0.375
