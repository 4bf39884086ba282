"""Progress is shown wherever one looks, says how it ended, and nothing of it disturbs the work."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

import gpuload
from gpuload import tasks
from gpuload.widgets import bars
from gpuload.widgets import progress as module
from gpuload.widgets.bars import Bar, Lines, Page, Terminal
from gpuload.widgets.progress import Progress

EVIL = "<img src=x onerror=alert(1)>"


class Seen:
    """A view that remembers what it was told to draw."""

    def __init__(self) -> None:
        self.drawn: list[Sequence[Bar]] = []
        self.closed: Sequence[Bar] | None = None

    def draw(self, shown: Sequence[Bar]) -> None:
        self.drawn.append(shown)

    def close(self, shown: Sequence[Bar]) -> None:
        self.closed = shown


def stopped_after_one() -> None:
    with tasks.work("packing", 4, "shards") as task:
        task.add(1)
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread draws once, when it is woken; all else is drawn by the tests themselves."""
    monkeypatch.setattr(module, "PERIOD", 3600.0)


def test_bars_follow_the_work_and_say_how_it_ended() -> None:
    seen = Seen()
    with Progress(after=0, view=seen) as shown:
        with tasks.work("reading air", 1000) as task:
            task.add(340)
            shown.draw()
            (bar,) = seen.drawn[-1]
            assert (bar.words, bar.done, bar.total, bar.state) == ("reading air", 340, 1000, "")
            assert bar.figures.startswith("34 % of 1.00 kB · ")
            assert bar.figures.endswith(" left")
        with pytest.raises(KeyboardInterrupt):
            stopped_after_one()
        with pytest.raises(ZeroDivisionError), tasks.work("failing", 4):
            raise ZeroDivisionError
        shown.draw()
        assert [bar.state for bar in seen.drawn[-1]] == ["done", "interrupted", "failed"]
    assert seen.closed is not None
    assert [bar.state for bar in seen.closed] == ["done", "interrupted", "failed"]
    assert seen.closed[1].figures.startswith("25 % of 4 shards · ")
    assert "interrupted after " in seen.closed[1].figures
    assert not tasks.watched()
    shown.close()
    with pytest.raises(RuntimeError, match="one block"):
        shown.__enter__()


def test_what_does_not_take_long_is_not_shown() -> None:
    seen = Seen()
    with Progress(after=3600, view=seen) as shown:
        for _ in range(100):
            with tasks.work("short", 1):
                shown.draw()
        assert shown._rows == []
    assert (seen.drawn, seen.closed) == ([], [])


def test_of_many_the_last_are_kept() -> None:
    seen = Seen()
    with Progress(after=0, view=seen) as shown:
        for n in range(100):
            with tasks.work(f"read {n}", 1):
                pass
        shown.draw()
        assert [bar.words for bar in seen.drawn[-1]] == [f"read {n}" for n in range(95, 100)]
        with tasks.work("all", 1):
            for n in range(10):
                with tasks.part_of(None), tasks.work(f"part {n}", 1):
                    pass
        shown.draw()
        # In the order in which they began; it was the last to end.
        assert [bar.words for bar in seen.drawn[-1]] == ["all", *[f"part {n}" for n in range(6, 10)]]


def test_a_view_that_fails_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    tried = threading.Event()

    class Broken(Seen):
        def draw(self, shown: Sequence[Bar]) -> None:
            tried.set()
            raise BrokenPipeError

        def close(self, shown: Sequence[Bar]) -> None:
            raise BrokenPipeError

    with Progress(after=0, view=Broken()), tasks.work("reading", 1) as task:
        assert tried.wait(60)
        task.add(1)
    assert "stands still" in caplog.text


def test_a_page_without_widgets_is_html(front_end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.live, "possible", lambda: False)
    with gpuload.progress(after=0) as shown, tasks.work(f"reading {EVIL}\x1b[31m", 1000) as task:
        task.add(250)
        shown.draw()
        (output,) = front_end.outputs.values()
        assert "25 % of 1.00 kB" in output["text/html"]
        assert 'data-state="running"' in output["text/html"]
        assert "25 %" in output["text/plain"]
        assert "<img" not in output["text/html"]
        assert "\x1b" not in output["text/plain"] + output["text/html"]
    (output,) = front_end.outputs.values()
    assert 'data-state="done"' in output["text/html"]
    assert front_end.models == []


def test_a_page_with_widgets_is_told(front_end: Any) -> None:
    with gpuload.progress(after=0) as shown, tasks.work("reading", 1000) as task:
        task.add(250)
        shown.draw()
        (model,) = front_end.models
        assert "25 % of 1.00 kB" in model.messages[-1]["html"]
        numbers = [message["number"] for message in model.messages]
        assert numbers == sorted(set(numbers))
    assert 'data-state="done"' in front_end.outputs[model.place]["text/html"]
    model.greeted()  # a page that came late
    assert model.comm is None


def test_a_terminal_has_bars_without_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    with Progress(after=0, view=Terminal(console)) as shown, tasks.work("reading [red]air[/red]", 1000) as task:
        task.add(340)
        shown.draw()
        assert "reading [red]air[/red]" in stream.getvalue()
        assert "34 % of 1.00 kB" in stream.getvalue()
    assert "done after" in stream.getvalue()


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    view = Lines(stream)
    bar = Bar("reading a\nb", 1, 4, "bytes", 1.0, "")
    view.draw([bar])
    view.draw([bar])
    assert stream.getvalue() == "reading a\\nb: 25 % of 4 B · 1 B/s · 3.00 s left\n"
    monkeypatch.setattr(bars, "EVERY", 0.0)
    view.draw([bar])
    assert stream.getvalue().count("\n") == 2
    view.close([Bar("reading", 0, 0, "bytes", 2.0, "done")])
    assert stream.getvalue().endswith("reading: 100 % of 0 B · done after 2.00 s\n")


def test_elsewhere_it_is_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with gpuload.progress(after=0), tasks.work("reading", 4) as task:
        task.add(4)
    said = capsys.readouterr()
    assert said.out == ""
    assert "reading: 100 % of 4 B" in said.err
    with gpuload.progress(), tasks.work("reading", 4):
        pass
    assert capsys.readouterr().err == ""


def test_a_child_shows_nothing() -> None:
    code = (
        "import os, sys, gpuload\nfrom gpuload import tasks\n"
        "with gpuload.progress(after=0):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        os._exit(tasks.watched())\n"
        "    assert tasks.watched()\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_no_display_library_is_loaded() -> None:
    code = (
        "import sys, gpuload\nfrom gpuload import tasks\n"
        "with gpuload.progress():\n    pass\n"
        "print({'ipywidgets', 'anywidget', 'IPython', 'zarr'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_the_page_is_closed_twice_without_harm(front_end: Any) -> None:
    page = Page()
    page.draw([Bar("x", 1, 2, "bytes", 1.0, "")])
    page.close()
    page.close()
    assert "50 %" in front_end.outputs[front_end.shown[0]]["text/html"]
