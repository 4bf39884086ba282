"""Events reach who listens, on the publisher's thread, and no listener can break a read."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from gpuload import events
from gpuload.request import Filled


@pytest.fixture
def heard() -> Iterator[list[events.Event]]:
    heard: list[events.Event] = []
    stop = events.subscribe(heard.append)
    yield heard
    stop()


def test_a_subscriber_hears_each_event_in_order(heard: list[events.Event]) -> None:
    sent = [Filled(n, 8 * n) for n in range(5)]
    for event in sent:
        events.publish(event)
    assert heard == sent


def test_unsubscribing_ends_it_and_is_idempotent() -> None:
    heard: list[events.Event] = []
    stop = events.subscribe(heard.append)
    stop()
    stop()
    events.publish(Filled(1, 1))
    assert heard == []


def test_one_subscriber_twice_is_two_subscriptions() -> None:
    heard: list[events.Event] = []
    subscriber = heard.append
    first, second = events.subscribe(subscriber), events.subscribe(subscriber)
    events.publish(Filled(1, 1))
    assert len(heard) == 2
    first()
    first()
    events.publish(Filled(2, 2))
    assert len(heard) == 3
    second()
    events.publish(Filled(3, 3))
    assert len(heard) == 3


def test_a_subscriber_that_fails_is_logged_and_the_others_still_hear(
    heard: list[events.Event], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(event: events.Event) -> None:
        raise ZeroDivisionError("on purpose")

    stop = events.subscribe(fails)
    after: list[events.Event] = []
    stop_after = events.subscribe(after.append)
    try:
        with caplog.at_level(logging.ERROR, logger="gpuload.events"):
            events.publish(Filled(1, 1))
    finally:
        stop()
        stop_after()
    assert heard == after == [Filled(1, 1)]
    assert "on purpose" in caplog.text
    assert "fails" in caplog.text


def test_an_interrupt_in_a_subscriber_is_not_swallowed() -> None:
    def interrupted(event: events.Event) -> None:
        raise KeyboardInterrupt

    stop = events.subscribe(interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            events.publish(Filled(1, 1))
    finally:
        stop()


def test_a_subscriber_may_unsubscribe_while_it_is_called(heard: list[events.Event]) -> None:
    calls: list[events.Event] = []

    def once(event: events.Event) -> None:
        calls.append(event)
        stop()

    stop = events.subscribe(once)
    events.publish(Filled(1, 1))
    events.publish(Filled(2, 2))
    assert calls == [Filled(1, 1)]
    assert len(heard) == 2


def test_subscribers_are_called_on_the_publishing_thread() -> None:
    where: list[int] = []
    stop = events.subscribe(lambda event: where.append(threading.get_ident()))
    try:
        thread = threading.Thread(target=events.publish, args=(Filled(1, 1),))
        thread.start()
        thread.join()
        assert where == [thread.ident]
    finally:
        stop()


def test_subscribing_from_many_threads_loses_nobody() -> None:
    before = len(events._subscribers)
    start = threading.Barrier(8)
    heard: list[events.Event] = []

    def come_and_go() -> None:
        start.wait()
        for _ in range(200):
            events.subscribe(heard.append)()
        stops.append(events.subscribe(heard.append))

    stops: list[object] = []
    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events.publish(Filled(1, 1))
    assert len(heard) == 8
    for stop in stops:
        assert callable(stop)
        stop()
    assert len(events._subscribers) == before


def test_a_child_can_subscribe_after_a_fork_that_found_the_lock_held() -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with events._lock:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    pid = os.fork()
    if pid == 0:  # the child must leave by os._exit whatever happens
        code = 1
        try:
            free = events._lock.acquire(timeout=60)
            code = 0 if free else 2
        finally:
            os._exit(code)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
