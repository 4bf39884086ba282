"""Totals are exact for ever, the newest rows are kept, and memory is bounded."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.errors import ConfigError
from gpuload.record import Recorder
from gpuload.record.columns import Columns
from gpuload.request import Decode, Filled, ReadPath, Reason, Served

Make = Callable[..., Served]


def numbered(block: Make, first: int, n: int, **changes: Any) -> Served:
    """A block whose ranges can be told apart: range i of all has key ``k/i``, size i + 1 and so on."""
    i = np.arange(first, first + n)
    return block(
        n,
        keys=[f"k/{j}" for j in i],
        file_offset=i * 10,
        size=i + 1,
        moved=i + 2,
        latency=(i + 1) * 1e-6,
        started=float(first),
        ended=float(first + n),
        **changes,
    )


def check_rows(columns: Columns, first: int, last: int) -> None:
    i = np.arange(first, last)
    assert columns.key == [f"k/{j}" for j in i]
    np.testing.assert_array_equal(columns.file_offset, i * 10)
    np.testing.assert_array_equal(columns.bytes, i + 1)
    np.testing.assert_array_equal(columns.moved, i + 2)
    np.testing.assert_allclose(columns.latency, (i + 1) * 1e-6)


@settings(max_examples=60, deadline=None)
@given(
    limit=st.integers(0, 700),
    lengths=st.lists(st.one_of(st.integers(0, 90), st.integers(0, 3000)), max_size=20),
    looks=st.sets(st.integers(0, 20)),
)
def test_totals_count_all_and_the_newest_rows_are_kept(
    block: Make, limit: int, lengths: list[int], looks: set[int]
) -> None:
    recorder, first = Recorder(limit), 0
    for number, n in enumerate(lengths):
        recorder(numbered(block, first, n))
        first += n
        if number in looks:
            check_rows(recorder.columns(), max(0, first - limit), first)
    summary = recorder.summary()
    assert summary.requests == first
    assert summary.bytes == first * (first + 1) // 2
    assert summary.moved == summary.bytes + first
    check_rows(recorder.columns(), max(0, first - limit), first)
    check_rows(recorder.columns(last=7), max(0, first - min(7, limit)), first)
    assert recorder.rows(last=0) == []


def test_rows_are_objects_with_everything_that_is_known(block: Make) -> None:
    recorder = Recorder()
    recorder(block(2, keys=["a", "b"], declined={"hipfile": Reason.TAIL}, decode=Decode.HOST, moved=4096))
    recorder(block(1, keys=["z"], backend="hipfile", read_path=ReadPath.FASTPATH, reason=None))
    first, second, third = recorder.rows()
    assert (first.key, second.key, third.key) == ("a", "b", "z")
    assert (second.file_offset, second.bytes, second.moved) == (1000, 100, 4096)
    assert second.read_path is ReadPath.FALLBACK
    assert second.reason is Reason.NO_LIBRARY
    assert second.declined == {"hipfile": Reason.TAIL}
    assert second.decode is Decode.HOST
    assert third.read_path is ReadPath.FASTPATH
    assert third.reason is None
    assert third.declined == {}
    assert (third.latency, third.started, third.ended) == (1e-3, 10.0, 11.0)
    assert type(second.file_offset) is int
    assert type(third.latency) is float


def test_each_way_has_a_row_of_its_own_most_bytes_first(block: Make) -> None:
    recorder = Recorder()
    ways: list[dict[str, Any]] = [
        {},
        {"backend": "posix"},
        {"reason": Reason.TAIL},
        {"decode": Decode.HOST},
        {"declined": {"io_uring": Reason.SECCOMP}},
        {"read_path": ReadPath.FASTPATH, "reason": None},
    ]
    for size, way in enumerate(ways, start=1):
        recorder(block(3, size=size, **way))
        recorder(block(1, size=size, **way))
    summary = recorder.summary()
    assert [row.bytes for row in summary.rows] == [4 * size for size in range(6, 0, -1)]
    assert all(row.requests == 4 for row in summary.rows)
    assert summary.rows[0].path is ReadPath.FASTPATH
    assert summary.rows[1].declined == {"io_uring": Reason.SECCOMP}
    assert summary.bytes == 4 * 21


def test_the_order_of_declined_makes_no_difference(block: Make) -> None:
    recorder = Recorder()
    recorder(block(declined={"a": Reason.TAIL, "b": Reason.SECCOMP}))
    recorder(block(declined={"b": Reason.SECCOMP, "a": Reason.TAIL}))
    assert len(recorder.summary().rows) == 1


def test_words_that_are_plain_strings_become_members_of_the_closed_lists(block: Make) -> None:
    recorder = Recorder()
    recorder(block(reason="tail", read_path="fallback", decode="none", declined={"posix": "seccomp"}))
    (row,) = recorder.summary().rows
    assert row.reason is Reason.TAIL
    assert row.path is ReadPath.FALLBACK
    assert row.declined["posix"] is Reason.SECCOMP


@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": "because"},
        {"latency": np.zeros(3)},
        {"moved": np.zeros(1, np.int64)},
        {"file_offset": np.zeros(5, np.int64)},
        {"key_index": np.zeros(2, np.int64)},
        {"key_index": np.full(4, 9)},
    ],
)
def test_a_block_that_is_wrong_is_refused_whole(block: Make, wrong: dict[str, Any]) -> None:
    recorder = Recorder()
    recorder(block())
    with pytest.raises((ValueError, IndexError)):
        recorder(dataclasses.replace(block(), **wrong))
    recorder(block())
    summary = recorder.summary()
    assert (summary.requests, summary.bytes, len(summary.rows), len(recorder.rows())) == (8, 800, 1, 8)


def test_filled_chunks_are_counted_and_are_no_rows() -> None:
    recorder = Recorder()
    recorder(Filled(3, 300))
    recorder(Filled(2, 200))
    summary = recorder.summary()
    assert summary.filled == Filled(5, 500)
    assert (summary.requests, summary.rows, recorder.rows()) == (0, (), [])


def test_what_is_kept_does_not_change_with_the_arrays_it_came_from(block: Make) -> None:
    recorder = Recorder()
    event = block(4)
    recorder(event)
    event.size[:] = 7
    event.latency[:] = 7
    event.keys[0] = "other"  # type: ignore[index]
    assert recorder.summary().bytes == 400
    assert recorder.rows()[0].latency == 1e-3
    assert recorder.rows()[0].key == "c/0"


def test_totals_beyond_64_bits_stay_exact(block: Make) -> None:
    recorder = Recorder()
    for _ in range(3):
        recorder(block(1, size=2**62))
    assert recorder.summary().bytes == 3 * 2**62


def test_clear_forgets_everything_and_counting_goes_on(block: Make) -> None:
    recorder = Recorder()
    recorder(block())
    recorder(Filled(1, 1))
    recorder.clear()
    assert recorder.summary() == Recorder().summary()
    recorder(block(2))
    assert (recorder.summary().requests, len(recorder.rows())) == (2, 2)


def test_the_number_of_rows_comes_from_the_configuration(block: Make) -> None:
    from gpuload.config import config

    with config.set({"record.rows": 3}):
        recorder = Recorder()
    recorder(block(5))
    assert [row.key for row in recorder.rows()] == ["c/2", "c/3", "c/4"]
    for wrong in (-1, "many", True, 1.5):
        with config.set({"record.rows": wrong}), pytest.raises(ConfigError, match=r"record\.rows"):
            Recorder()


class Keys(list[str]):
    """A list that can be watched with a weak reference."""


def test_the_list_of_keys_and_the_arrays_are_let_go_at_once(block: Make) -> None:
    recorder = Recorder()
    keys = Keys(f"c/{i}" for i in range(10_000))
    large = np.zeros(10_000, np.int64)
    watched: list[Callable[[], object]] = [weakref.ref(keys), weakref.ref(large)]
    recorder(block(2, keys=keys, key_index=np.array([17, 4711]), size=large[:2]))
    del keys, large
    gc.collect()
    assert [ref() for ref in watched] == [None, None]
    assert [row.key for row in recorder.rows()] == ["c/17", "c/4711"]


@pytest.mark.parametrize("n", [1, 64, 5000])
def test_memory_stays_bounded_however_much_is_served(block: Make, n: int) -> None:
    limit = 1000
    recorder = Recorder(limit)

    def serve(blocks: int) -> None:
        for _ in range(blocks):
            recorder(block(n, keys=[f"air_temperature/c/{i}" for i in range(n)]))

    serve(max(4, 6000 // n))  # past the limit, with everything that waits
    recorder.summary()
    gc.collect()
    tracemalloc.start()
    try:
        serve(max(10, 6000 // n))
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Rows are replaced, not added: what is new is at most what waits and the strings of the kept keys.
    assert grown < 1_500_000
    assert len(recorder.rows()) == limit
    assert recorder._ring.nbytes <= limit * 72


def test_eight_threads_lose_nothing(block: Make) -> None:
    recorder = Recorder(rows=500)
    start = threading.Barrier(9)
    failures: list[Exception] = []

    def serve(number: int) -> None:
        start.wait()
        for i in range(300):
            recorder(block(1 + i % 70, size=number + 1, backend=f"backend{number % 3}"))
            recorder(Filled(1, number))

    def look() -> None:
        start.wait()
        try:
            for _ in range(100):
                summary = recorder.summary()
                assert summary.requests == sum(row.requests for row in summary.rows)
                columns = recorder.columns()
                assert len(columns) == len(columns.way) <= 500
                assert columns.way.max(initial=-1) < len(columns.ways)
        except Exception as error:  # noqa: BLE001 - the test's own thread looks at it
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(8)] + [threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    each = sum(1 + i % 70 for i in range(300))
    summary = recorder.summary()
    assert summary.requests == 8 * each
    assert summary.bytes == summary.moved == each * sum(range(1, 9))
    assert summary.filled == Filled(8 * 300, 300 * sum(range(8)))
    assert {row.backend: row.requests for row in summary.rows} == {
        "backend0": 3 * each,
        "backend1": 3 * each,
        "backend2": 2 * each,
    }


def test_a_child_starts_empty_even_when_the_lock_was_held(block: Make) -> None:
    recorder = Recorder()
    recorder(block(5))
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with recorder._lock:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    pid = os.fork()
    if pid == 0:  # the child must leave by os._exit whatever happens
        code = 1
        try:
            if recorder._lock.acquire(timeout=60):
                recorder(block(2))
                code = 0 if recorder.summary().requests == 2 else 3
        finally:
            os._exit(code)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert recorder.summary().requests == 5


def test_a_report_from_within_an_event_does_not_hang(block: Make) -> None:
    recorder = Recorder()
    recorder(block(1))
    with recorder._lock:  # as a signal handler finds it that interrupts its own thread
        assert recorder.summary().requests == 1
