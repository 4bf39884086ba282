"""The Monitor says what the record says, to the byte, wherever it is shown; and reading does not notice it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpuload
from gpuload.events import publish
from gpuload.record import Recorder, trace
from gpuload.request import Reason, Served
from gpuload.widgets import Monitor
from gpuload.widgets.monitor import page_state

Make = Callable[..., Served]
EVIL = "<img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_gets_the_totals_to_the_byte(block: Make) -> None:
    recorder = Recorder()
    recorder(block(3, size=2**40 + 1, moved=2**40 + 4096))
    recorder(block(2, backend="hipfile", read_path="fastpath", reason=None, declined={"cufile": Reason.NO_DRIVER}))
    state = json.loads(json.dumps(page_state(recorder.look(), 4)))
    summary = recorder.summary().to_dict()
    assert {name: state[name] for name in ("requests", "bytes", "moved", "filled")} == {
        name: summary[name] for name in ("requests", "bytes", "moved", "filled")
    }
    for row, wanted in zip(state["rows"], summary["rows"], strict=True):
        assert {name: row[name] for name in ("path", "backend", "reason", "requests", "bytes", "moved")} == {
            name: wanted[name] for name in ("path", "backend", "reason", "requests", "bytes", "moved")
        }
    newest = state["newest"]
    assert newest["first"] == 1
    assert newest["key"] == ["c/1", "c/2", "c/0", "c/1"]
    assert [newest["ways"][way][1] for way in newest["way"]] == ["io_uring", "io_uring", "hipfile", "hipfile"]
    assert "CPU" in state["headline"]


def test_a_live_monitor_ends_with_the_traces_numbers(block: Make, front_end: Any) -> None:
    with trace() as shown:
        monitor = shown.widget()
        monitor._ipython_display_()
        (model,) = front_end.models
        assert model.snapshot["requests"] == 0
        publish(block(3, size=1000))
        monitor._pusher.settle()
        assert model.messages[-1]["requests"] == 3
        assert sum(model.messages[-1]["bins"]["fallback"]) == 3000
        publish(block(2, size=1000))
    monitor._pusher._thread.join(60)
    assert not monitor._pusher.alive
    assert model.messages[-1]["done"]
    assert model.messages[-1]["bytes"] == shown.summary().bytes == 5000
    assert sum(model.messages[-1]["bins"]["fallback"]) == pytest.approx(5000, abs=160)
    assert model.snapshot["bytes"] == 5000
    numbers = [message["number"] for message in model.messages]
    assert numbers == sorted(numbers)
    assert "5.00 kB" in front_end.outputs[model.place]["text/html"]
    model.greeted()
    assert model.messages[-1]["newest"]["first"] == 0
    monitor.close()
    monitor.close()
    assert model.comm is None
    model.greeted()  # another page, late


def test_two_monitors_on_one_trace_and_one_shown_twice(block: Make, front_end: Any) -> None:
    with trace() as shown:
        first, second = shown.widget(), Monitor(shown)
        for monitor in (first, second, first):
            monitor._ipython_display_()
        assert len(front_end.models) == 2
        assert front_end.shown == [front_end.models[0].place, front_end.models[1].place, front_end.models[0].place]
        publish(block(3))
        first.close()  # while it is being read
        publish(block(4))
    second._pusher._thread.join(60)
    assert front_end.models[1].messages[-1]["requests"] == 7
    assert "7" in Tags(front_end.outputs[front_end.models[0].place]["text/html"]).text
    second.close()
    for model in front_end.models:
        assert (model.comm, model.closed) == ("open", True)
        model.greeted()  # a page that took its time: only now may its model go
        assert model.comm is None
    assert shown.recorder._watchers == ()


def test_a_record_that_is_emptied_begins_anew(block: Make, front_end: Any) -> None:
    recorder = Recorder()
    with Monitor(recorder) as monitor:
        monitor._ipython_display_()
        recorder(block(3))
        recorder.clear()
        recorder(block(2, size=7))
        monitor._pusher.settle()
        message = front_end.models[0].messages[-1]
        assert (message["requests"], message["bytes"], message["newest"]["first"]) == (2, 14, 0)
        assert sum(message["bins"]["fallback"]) == 14
    assert monitor.live is None


def test_a_thousand_reads_from_four_threads_lose_nothing(tmp_path: Path, front_end: Any) -> None:
    values = np.arange(64, dtype="f4").reshape(8, 8)
    zarr.create_array(tmp_path / "a.zarr", shape=(8, 8), chunks=(2, 8), dtype="f4", compressors=None)[:] = values
    array: Any = gpuload.open(tmp_path / "a.zarr", device="cpu")
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for i in range(250):
                assert (array[i % 8] == values[i % 8]).all()
        except BaseException as error:  # noqa: BLE001 - the test's own thread looks at it
            failures.append(error)

    with trace() as shown:
        monitor = shown.widget()
        monitor._ipython_display_()
        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    monitor._pusher._thread.join(60)
    assert failures == []
    last = front_end.models[0].messages[-1]
    assert (last["requests"], last["bytes"]) == (1000, 32_000)
    assert shown.summary().requests == 1000
    # What a page is sent is bounded, whatever was read.
    assert max(len(message["newest"]["key"]) for message in front_end.models[0].messages) <= 50
    monitor.close()


def test_names_from_files_are_text_everywhere(block: Make, front_end: Any) -> None:
    recorder = Recorder()
    recorder(block(2, keys=[f"{EVIL}\x1b[31m", f"{EVIL}/c/0"], backend=f"<b>{EVIL}"))
    monitor = Monitor(recorder)
    still = Tags(monitor._repr_html_())
    assert "img" not in still.tags
    assert "b" not in still.tags
    assert EVIL in still.text
    assert "\x1b" not in repr(monitor) + still.text + json.dumps(page_state(recorder.look(), 9), ensure_ascii=False)


def test_elsewhere_it_is_text(block: Make, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    recorder(block(2))
    monitor = Monitor(recorder)
    monitor._ipython_display_()
    assert capsys.readouterr().out.startswith("io_uring · fallback 100 % of bytes")
    assert monitor._pusher is None
    assert repr(monitor) == recorder.summary().to_text()


def test_no_display_library_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, gpuload\n"
        "m = gpuload.trace().widget()\n"
        "m._repr_html_(), repr(m), m.close()\n"
        "print({'ipywidgets', 'anywidget', 'IPython', 'zarr'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


WRITE = """
import gpuload, numpy, zarr
zarr.create_array('a.zarr', shape=(8, 8), chunks=(2, 8), dtype='f4', compressors=None)[:] = 1.0
array = gpuload.open('a.zarr', device='cpu')
"""
NOTEBOOK = (
    WRITE,
    "with gpuload.trace() as trace:\n    display(trace.widget())\n    array[...]",
    "print(trace.summary().requests, trace.summary().bytes)",
    "gpuload.widgets.Monitor()",
)


@pytest.mark.parametrize("without", ["", "anywidget"])
@pytest.mark.filterwarnings("default")  # of the notebook machinery
def test_a_notebook_that_no_page_looks_at_keeps_the_last_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    hide = f"import sys; sys.modules[{without!r}] = None\n" if without else ""
    import nbformat
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(cell) for cell in (hide + NOTEBOOK[0], *NOTEBOOK[1:])]
    content = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(content, timeout=500, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    shown = content.cells[1].outputs[0].data
    assert content.cells[2].outputs[0].text == "4 256\n"
    page = Tags(shown["text/html"])
    assert "256 B" in page.text
    assert "script" not in page.tags
    assert set(shown) == {"text/plain", "text/html"}
    assert "256 B" in shown["text/plain"]
    assert "zarr.json" in Tags(content.cells[3].outputs[0].data["text/html"]).text  # it is of the whole process
    assert os.environ["HOME"] == str(tmp_path)
