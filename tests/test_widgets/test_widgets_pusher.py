"""The page is told of every change, at a bounded cost, and whoever reads never waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpuload.record import Recorder
from gpuload.request import Served
from gpuload.widgets import pusher
from gpuload.widgets.pusher import Pusher

Make = Callable[..., Served]
LONG = 60.0  # seconds, until a test gives up


class Page:
    """Remembers what it was told, and can be waited for."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.pushed: list[int] = []
        self.rested: list[int] = []
        self.news = threading.Condition()

    def push(self) -> bool:
        look = self.recorder.look()
        with self.news:
            self.pushed.append(look.summary.requests)
            self.news.notify_all()
        return look.closed

    def rest(self) -> None:
        with self.news:
            self.rested.append(self.recorder.summary().requests)
            self.news.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.news:
            assert self.news.wait_for(condition, LONG)


def test_each_change_arrives_and_then_comes_to_rest(block: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pusher, "QUIET", 0.01)
    recorder = Recorder()
    page = Page(recorder)
    own = Pusher(recorder, page.push, page.rest)
    for n in (3, 4):
        recorder(block(n))
        total = recorder.summary().requests
        page.wait(lambda total=total: page.pushed[-1:] == [total] and page.rested[-1:] == [total])
    recorder.clear()
    page.wait(lambda: page.pushed[-1:] == [0])
    own.close()
    own.close()
    assert not own.alive
    recorder(block(5))
    assert 5 not in page.pushed
    assert recorder._watchers == ()


def test_it_ends_with_the_record_after_a_last_push(block: Make) -> None:
    recorder = Recorder()
    page = Page(recorder)
    own = Pusher(recorder, page.push, page.rest)
    recorder(block(3))
    recorder.close()
    own._thread.join(LONG)
    assert not own.alive
    assert (page.pushed[-1], page.rested[-1]) == (3, 3)
    assert recorder._watchers == ()


def test_settling_sends_at_once_and_may_be_the_last(block: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pusher, "PERIOD", 3600.0)  # the thread itself sends once, and then waits
    recorder = Recorder()
    page = Page(recorder)
    own = Pusher(recorder, page.push, page.rest)
    recorder(block(1))
    page.wait(lambda: page.pushed == [1])
    recorder(block(2))
    recorder.close()
    own.settle()
    assert (page.pushed, page.rested) == ([1, 3], [3])
    own._thread.join(LONG)
    assert not own.alive
    own.settle()
    assert (page.pushed, page.rested) == ([1, 3], [3])


def test_a_page_that_fails_ends_the_pushes_and_no_read(block: Make, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()

    def fail() -> bool:
        raise ZeroDivisionError

    own = Pusher(recorder, fail, lambda: None)
    recorder(block(1))
    own._thread.join(LONG)
    assert not own.alive
    assert "stands still" in caplog.text
    recorder(block(2))
    assert recorder.summary().requests == 3


def test_it_waits_as_long_as_its_work_was_dear(block: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(pusher.time, "thread_time", lambda: clock[0])
    recorder = Recorder()

    def push() -> bool:
        clock[0] += 0.004
        return False

    own = Pusher(recorder, push, lambda: None)
    own.close()
    own._closed.clear()
    own._changed.set()
    assert own._serve(True) == (pytest.approx(0.004 / pusher.SHARE), False)
    own._changed.set()
    clock[0] = 0.0
    monkeypatch.setattr(own, "_push", lambda: True)
    assert own._serve(True) == (pusher.PERIOD, True)
    assert pusher.SHARE < 0.02


def test_a_child_has_no_watchers() -> None:
    recorder = Recorder()
    recorder.watch(lambda: None)
    recorder.start_empty()
    assert recorder._watchers == ()
