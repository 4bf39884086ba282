"""One a process: threads that ask at once get the same, a child its own."""

from __future__ import annotations

import os
import threading

import pytest

from gpuload.once import once


def test_threads_that_ask_at_once_get_the_same() -> None:
    calls: list[int] = []
    second = threading.Event()

    @once
    def made() -> object:
        """What there is one of."""
        calls.append(1)
        if len(calls) > 1:
            second.set()
        second.wait(0.3)  # time for another to begin, if nothing holds it back
        return object()

    together = threading.Barrier(8)
    got: list[object] = []

    def ask() -> None:
        together.wait()
        got.append(made())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(set(map(id, got))) == 1
    assert made.__doc__ == "What there is one of."


def test_an_error_is_not_kept() -> None:
    answers = [ValueError("not yet"), 7, 8]

    @once
    def made() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ValueError, match="not yet"):
        made()
    assert [made(), made()] == [7, 7]
    made.forget()
    assert made() == 8


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_makes_its_own() -> None:
    @once
    def made() -> int:
        return os.getpid()

    assert made() == os.getpid()
    child = os.fork()
    if not child:
        os._exit(0 if made() == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0
