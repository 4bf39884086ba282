"""The threads of blocking calls: every row once, errors and interrupts leave nothing under way, nothing is kept."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuload.engine import calls as calls_module
from gpuload.engine.calls import Calls, Round

DEADLINE = 120  # seconds, of what cannot take long


@pytest.fixture
def two() -> Iterator[Calls]:
    made = Calls(2)
    yield made
    made.close()


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gpuload-direct"]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 4, 5, 300])
def test_every_row_once(threads: int, n: int) -> None:
    rows: list[int] = []
    before = len(alive())
    work, made = Round(rows.append, n), Calls(threads)
    made.start(work)
    work.wait()
    assert sorted(rows) == list(range(n))
    assert work.error is None
    assert len(alive()) - before <= min(threads, n)  # none that has nothing to do
    made.close()
    assert len(alive()) == before


def test_a_long_row_holds_up_nobody(two: Calls) -> None:
    others, rows = threading.Event(), []

    def row(i: int) -> None:
        if i == 0:
            assert others.wait(DEADLINE)
        else:
            rows.append(i)
            if len(rows) == 20:
                others.set()

    work = Round(row, 21)
    two.start(work)
    work.wait()
    assert (work.error, sorted(rows)) == (None, list(range(1, 21)))


def test_rounds_of_several_callers_are_done_beside_each_other(two: Calls) -> None:
    """A short one does not wait behind a long one while there may be another thread."""
    first_runs, second_done = threading.Event(), threading.Event()

    def first(i: int) -> None:
        first_runs.set()
        assert second_done.wait(DEADLINE)

    slow, quick = Round(first, 1), Round(lambda i: second_done.set(), 1)
    two.start(slow)
    assert first_runs.wait(DEADLINE)
    two.start(quick)
    quick.wait()
    slow.wait()
    assert slow.error is quick.error is None


def test_an_error_ends_the_round_and_is_the_callers() -> None:
    one, rows = Calls(1), []
    wrong = ValueError("row 3")

    def row(i: int) -> None:
        rows.append(i)
        if i == 3:
            raise wrong

    work = Round(row, 10)
    one.start(work)
    work.wait()
    assert work.error is wrong
    assert rows == [0, 1, 2, 3]
    # The thread goes on with the next round.
    following = Round(rows.append, 2)
    one.start(following)
    following.wait()
    assert rows[4:] == [0, 1]
    one.close()


def nothing() -> None:
    pass


def test_the_wait_is_for_those_under_way_when_another_failed() -> None:
    begun, failed, rows = threading.Event(), threading.Event(), []

    def row(i: int) -> None:
        rows.append(i)
        if i == 0:
            begun.set()
            assert failed.wait(DEADLINE)
        else:
            raise OSError("row 1")

    work = Round(row, 50)
    work.shares = 2
    slow = threading.Thread(target=work.work, args=(0, nothing))
    slow.start()
    assert begun.wait(DEADLINE)
    work.work(1, nothing)
    waited = work._changed.wait_for
    over: list[bool] = []
    work._changed.wait_for = lambda done: over.append(done())  # type: ignore[method-assign, assignment, return-value]
    work.wait()
    failed.set()
    work._changed.wait_for = waited  # type: ignore[method-assign]
    work.wait()
    slow.join()
    assert over == [False]  # row 0 would still be written to its place
    assert rows == [0, 1]  # and nothing is begun behind a failure
    assert isinstance(work.error, OSError)


def test_a_share_that_was_handed_over_twice_is_done_once() -> None:
    begun, go, rows = threading.Event(), threading.Event(), []

    def row(i: int) -> None:
        rows.append(i)
        begun.set()
        assert go.wait(DEADLINE)

    work = Round(row, 2)
    work.shares = 1
    first = threading.Thread(target=work.work, args=(0, nothing))
    first.start()
    assert begun.wait(DEADLINE)
    work.work(0, nothing)
    assert rows == [0]  # the second did nothing, and did not end the share of the first
    assert not work._ended
    go.set()
    work.wait()
    first.join()
    assert rows == [0, 1]


def test_rounds_one_after_the_other_need_no_more_threads() -> None:
    before, five = len(alive()), Calls(5)
    for _ in range(20):
        work = Round(lambda i: None, 1)
        five.start(work)
        work.wait()
        assert len(alive()) == before + 1
    five.close()


def test_what_is_cancelled_before_it_began_does_nothing(two: Calls) -> None:
    rows: list[int] = []
    work = Round(rows.append, 10)
    work.cancelled = True
    two.start(work)
    work.wait()
    assert (rows, work.error) == ([], None)


class Interrupted:
    """A queue whose n-th put is interrupted, before or after it was done."""

    def __init__(self, queue: Any, nth: int, done: bool) -> None:
        self.queue, self.nth, self.done = queue, nth, done

    def put(self, task: Any) -> None:
        self.nth -= 1
        if self.nth:
            self.queue.put(task)
            return
        if self.done:
            self.queue.put(task)
        raise KeyboardInterrupt

    def get(self) -> Any:
        return self.queue.get()


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_start_that_was_interrupted_is_just_repeated(nth: int, done: bool, cancelled: bool) -> None:
    rows: list[int] = []
    three = Calls(3)
    three._tasks = Interrupted(three._tasks, nth, done)  # type: ignore[assignment]
    work = Round(rows.append, 100)
    with pytest.raises(KeyboardInterrupt):
        three.start(work)
    work.cancelled = cancelled
    three.start(work)
    work.wait()
    told = sorted(rows)
    three.close()
    assert told == sorted(rows)  # nothing came after the wait
    assert len(set(rows)) == len(rows)
    assert cancelled or len(rows) == 100


@pytest.mark.parametrize("allowed", [0, 1])
def test_where_no_more_threads_are_allowed(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    start, left, places = threading.Thread.start, [allowed], set()

    def refuse(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    def row(i: int) -> None:
        rows.append(i)
        places.add(threading.current_thread().name)

    rows: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    made, work = Calls(4), Round(row, 50)
    made.start(work)
    work.wait()
    made.close()
    assert (work.error, sorted(rows)) == (None, list(range(50)))
    assert places == ({"gpuload-direct"} if allowed else {threading.current_thread().name})


class Thing:
    def __call__(self, i: int) -> None:
        pass


def test_a_thread_that_waits_for_work_keeps_nothing_of_the_last() -> None:
    one, thing, gone = Calls(1), Thing(), threading.Event()
    weakref.finalize(thing, gone.set)
    work = Round(thing, 3)
    one.start(work)
    work.wait()
    del thing, work
    assert gone.wait(DEADLINE)
    one.close()


def test_the_end_comes_after_what_is_queued() -> None:
    one, go, rows = Calls(1), threading.Event(), []
    first = Round(lambda i: rows.append(-1) if go.wait(DEADLINE) else None, 1)
    rounds = [Round(rows.append, 5) for _ in range(3)]
    one.start(first)
    for work in rounds:
        one.start(work)
    ending = threading.Thread(target=one.close)
    ending.start()
    go.set()
    ending.join()
    assert rows == [-1, *range(5), *range(5), *range(5)]
    one.close()
    # Afterwards there are others.
    again = Round(rows.append, 1)
    one.start(again)
    again.wait()
    assert rows[-1] == 0
    one.close()


def test_a_process_has_as_many_as_its_setting_says() -> None:
    calls_module.stop()
    before = len(alive())
    first = calls_module.calls(3)
    assert calls_module.calls(3) is first
    together = threading.Barrier(3)
    work = Round(lambda i: together.wait(DEADLINE) and None, 3)
    first.start(work)
    work.wait()
    assert work.error is None
    assert len(alive()) == before + 3
    second = calls_module.calls(1)
    assert second is not first
    assert len(alive()) == before  # those of the first have ended
    calls_module.stop()
    calls_module.stop()
    assert calls_module.calls(1) is not second
    calls_module.stop()


FORKED = """
import os, sys
from gpuload.engine.calls import Round, calls
def run():
    rows = []
    work = Round(rows.append, 10)
    calls(2).start(work)
    work.wait()
    return sorted(rows) == list(range(10))
assert run()
child = os.fork()
if child == 0:
    os._exit(0 if run() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_starts_threads_of_its_own() -> None:
    root = str(Path(__file__).parents[2])
    run = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(run, cwd=root, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
