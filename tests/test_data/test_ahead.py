"""Reading ahead: in order, bounded, and over when nobody wants more."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from gpuload.data.ahead import Ahead

WAIT = 60


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gpuload-ahead"]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_come_in_order_and_end(depth: int) -> None:
    ahead = Ahead(iter(range(1, 20)), depth)
    items = []
    while (item := ahead.next()) is not None:
        items.append(item)
        ahead.release()
    assert items == list(range(1, 20))
    assert ahead.next() is None
    ahead.close()
    ahead.close()
    assert names() == []


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_are_begun_than_may_be(depth: int) -> None:
    begun: list[int] = []
    reached = threading.Event()
    more = threading.Event()

    def source() -> Iterator[int]:
        for i in range(1, 50):
            begun.append(i)
            if i == depth + 1:
                reached.set()
            if i == depth + 2:
                more.set()
            yield i

    ahead = Ahead(source(), depth)
    assert reached.wait(WAIT)  # the first one and `depth` more
    assert ahead.next() == 1
    assert ahead.next() == 2 if depth > 1 else True
    # Taken, but not released: nothing else begins, however long one waits; asked once what is certain anyhow.
    assert len(begun) == depth + 1
    ahead.release()
    assert more.wait(WAIT)
    assert len(begun) == depth + 2
    ahead.close()
    assert names() == []


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_comes_after_what_was_before_it(depth: int) -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            yield 1
            yield 2
            raise OSError("lost")
        finally:
            closed.append(True)

    ahead = Ahead(source(), depth)
    assert [ahead.next(), ahead.next()] == [1, 2] if depth else True
    for _ in range(0 if depth else 2):
        ahead.next()
    ahead.release()
    with pytest.raises(OSError, match="lost"):
        ahead.next()
    ahead.close()
    assert closed == [True]
    assert names() == []


def test_closing_waits_for_the_item_that_is_being_made_and_drops_it() -> None:
    inside, go = threading.Event(), threading.Event()
    closed = []

    def source() -> Iterator[int]:
        try:
            inside.set()
            assert go.wait(WAIT)
            yield 1
        finally:
            closed.append(threading.current_thread().name)

    ahead = Ahead(source(), 1)
    assert inside.wait(WAIT)
    closer = threading.Thread(target=ahead.close)
    closer.start()
    assert closed == []
    go.set()
    closer.join(WAIT)
    assert closed == ["gpuload-ahead"]
    assert names() == []


def test_the_process_ends_although_nobody_closed() -> None:
    program = "from gpuload.data.ahead import Ahead\na = Ahead(iter(range(1, 100)), 3)\nprint(a.next())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)
