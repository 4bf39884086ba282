"""A trace records one block of code, from all threads, and leaves nothing behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest

from gpuload import events
from gpuload.events import publish
from gpuload.record import report, trace
from gpuload.record.recorder import process
from gpuload.request import Filled, Reason, Served

Make = Callable[..., Served]


@pytest.fixture(autouse=True)
def nobody_is_left_listening() -> Iterator[None]:
    before = events._subscribers
    yield
    assert events._subscribers == before


def test_a_trace_sees_its_own_block_only(block: Make) -> None:
    publish(block(1))
    with trace() as first:
        publish(block(2))
        assert first.summary().requests == 2
        publish(Filled(3, 30))
    publish(block(4))
    with trace() as second:
        publish(block(8))
    assert first.summary().requests == 2
    assert first.summary().filled == Filled(3, 30)
    assert second.summary().requests == 8


def test_traces_nest_and_overlap(block: Make) -> None:
    outer, inner = trace(), trace()
    with outer:
        publish(block(1))
        with inner:
            publish(block(2))
        publish(block(4))
    assert (outer.summary().requests, inner.summary().requests) == (7, 2)
    early, late = trace(), trace()
    early.__enter__()
    publish(block(1))
    late.__enter__()
    publish(block(2))
    early.__exit__(None, None, None)
    publish(block(4))
    late.__exit__(None, None, None)
    assert (early.summary().requests, late.summary().requests) == (3, 6)


def test_an_exception_ends_the_trace_and_passes_through(block: Make) -> None:
    broken = trace()

    def fail() -> None:
        with broken:
            publish(block(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    publish(block(2))
    assert broken.summary().requests == 1


def test_an_event_on_its_way_when_the_block_ends_is_not_counted(block: Make) -> None:
    with trace() as ended:
        publish(block(1))
    ended.recorder(block(2))
    ended.recorder(Filled(1, 1))
    assert ended.summary().requests == 1
    assert ended.summary().filled.chunks == 0


def test_a_trace_serves_one_block(block: Make) -> None:
    with trace() as once:
        with pytest.raises(RuntimeError, match="another"):
            once.__enter__()
        publish(block(1))
    with pytest.raises(RuntimeError, match="another"):
        once.__enter__()
    assert once.summary().requests == 1


def test_eight_threads_publish_and_the_totals_are_exact(block: Make) -> None:
    start = threading.Barrier(8)

    def read(number: int) -> None:
        start.wait()
        for i in range(100):
            publish(block(1 + i % 7, size=number + 1))
            with trace() as own:
                publish(Filled(1, 1))
            seen.append(own.summary().filled.chunks)

    seen: list[int] = []
    with trace(rows=50) as everything:
        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    each = sum(1 + i % 7 for i in range(100))
    assert everything.summary().requests == 8 * each
    assert everything.summary().bytes == each * 36
    assert everything.summary().filled == Filled(800, 800)
    assert len(everything.rows()) == 50
    assert min(seen) >= 1
    assert len(seen) == 800


def test_report_counts_for_the_whole_process(block: Make) -> None:
    before = report()
    publish(block(3, size=7))
    thread = threading.Thread(target=publish, args=(block(2, size=7),))
    thread.start()
    thread.join()
    after = report()
    assert after.requests - before.requests == 5
    assert after.bytes - before.bytes == 35
    process.clear()
    assert report().requests == 0


def test_a_trace_shows_itself_as_its_summary_does(block: Make) -> None:
    from rich.console import Console

    with trace() as shown:
        publish(block(4, declined={"hipfile": Reason.TAIL}))
    summary = shown.summary()
    assert str(shown) == repr(shown) == str(summary)
    assert shown._repr_html_() == summary._repr_html_()
    assert shown._repr_mimebundle_() == {"text/plain": str(summary), "text/html": summary._repr_html_()}
    assert json.loads(shown.to_json()) == summary.to_dict()
    console = Console(width=100)
    with console.capture() as capture:
        console.print(shown)
    assert summary.headline in capture.get()


def test_pandas_has_one_line_for_each_request(block: Make) -> None:
    pytest.importorskip("pandas")
    with trace() as shown:
        publish(block(2, keys=["a", "b"], declined={"hipfile": Reason.TAIL}))
        publish(block(1, keys=["z"], backend="posix", reason=None, read_path="fastpath"))
    frame = shown.to_pandas()
    assert list(frame["key"]) == ["a", "b", "z"]
    assert list(frame["declined"]) == ["hipfile: tail", "hipfile: tail", ""]
    assert list(frame["reason"].isna()) == [False, False, True]
    assert frame.groupby("backend", observed=True)["bytes"].sum().to_dict() == {"io_uring": 200, "posix": 100}
    with trace() as empty:
        pass
    assert len(empty.to_pandas()) == 0
    assert list(empty.to_pandas().columns) == list(frame.columns)
