"""Each chunk has the colour of who served it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpuload
from gpuload.events import publish, subscribe
from gpuload.record import Recorder
from gpuload.request import Served
from gpuload.widgets import ChunkMap

Make = Callable[..., Served]
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def array(tmp_path: Path) -> Any:
    """A grid of 3 × 4 chunks, the last of which has no file."""
    stored = zarr.create_array(tmp_path / "a.zarr", shape=(6, 8), chunks=(2, 2), dtype="f4", compressors=None)
    stored[:] = 1.0
    (tmp_path / "a.zarr/c/2/3").unlink()
    return gpuload.open(tmp_path / "a.zarr", device="cpu")


def fastpath(block: Make, *keys: str) -> Served:
    return block(len(keys), keys=list(keys), backend="hipfile", read_path="fastpath", reason=None, size=16)


def test_counts_are_those_of_what_was_read(array: Any, block: Make) -> None:
    with gpuload.trace() as trace:
        chunks = ChunkMap(array, trace)
        assert chunks.counts == {"fastpath": 0, "fallback": 0, "both": 0, "missing": 1, "never read": 11}
        array[0:2]
        assert chunks.counts == {"fastpath": 0, "fallback": 4, "both": 0, "missing": 1, "never read": 7}
        publish(fastpath(block, "c/0/0", "c/1/0", "c/1/1", "elsewhere/c/0/1"))
        array[4:6]
    assert chunks.counts == {"fastpath": 2, "fallback": 6, "both": 1, "missing": 1, "never read": 2}
    assert "3 × 4 chunks" in repr(chunks)
    assert "2 fastpath · 6 fallback · 1 both · 1 missing · 2 never read" in repr(chunks)


def test_the_page_gets_what_changed_and_can_begin_at_any_time(array: Any, front_end: Any, block: Make) -> None:
    with gpuload.trace() as trace:
        chunks = ChunkMap(array, trace)
        chunks._ipython_display_()
        (model,) = front_end.models
        begin = json.loads(json.dumps(model.snapshot))
        assert (begin["grid"], begin["missing"]) == ([3, 4], [11])
        assert begin["edges"] == [{"step": 2, "extent": 6}, {"step": 2, "extent": 8}]
        array[0:2, 0:2]
        chunks._pusher.settle()
        first = model.messages[-1]
        assert first["tallies"]["chunk"] == [0]
        publish(fastpath(block, "c/1/3"))
        array[0:2, 0:2]
        chunks._pusher.settle()
        told = [message["tallies"] for message in model.messages]
        known = {chunk: n for part in told for chunk, n in zip(part["chunk"], part["requests"], strict=True)}
        assert known == {0: 2, 7: 1}
    chunks._pusher._thread.join(60)
    final = model.snapshot
    assert final["done"]
    assert final["whole"]
    rows = zip(final["tallies"]["chunk"], final["tallies"]["way"], strict=True)
    assert {(chunk, final["ways"][way][0]) for chunk, way in rows} == {(0, "fallback"), (7, "fastpath")}
    assert sum(final["tallies"]["requests"]) == trace.summary().requests
    assert sum(final["tallies"]["bytes"]) == trace.summary().bytes
    html = front_end.outputs[model.place]["text/html"]
    assert html.count("<rect") == 12
    assert html.count('class="fastpath"') == html.count('class="fallback"') == html.count('class="missing"') == 1
    chunks.close()


def test_a_record_that_is_emptied_empties_the_map(array: Any) -> None:
    recorder = Recorder()
    stop = subscribe(recorder)
    try:
        chunks = ChunkMap(array, recorder)
        array[0:2]
        assert chunks.counts["fallback"] == 4
        recorder.clear()
        assert chunks.counts["fallback"] == 0
        array[0:2, 0:2]
        assert chunks.counts["fallback"] == 1
    finally:
        stop()


def test_names_are_text(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr")
    group.create_array(EVIL, shape=(4,), chunks=(2,), dtype="f4", dimension_names=[EVIL])[:] = 1.0
    chunks = ChunkMap(gpuload.open(tmp_path / "g.zarr", device="cpu")[EVIL])
    assert "<img" not in chunks._repr_html_()
    assert EVIL in repr(chunks)


def test_a_huge_grid_is_drawn_small(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "h.zarr", shape=(10**6, 10**6, 10**6), chunks=(10, 10, 10), dtype="f4")
    array: Any = gpuload.open(tmp_path / "h.zarr", device="cpu")
    with gpuload.trace() as trace:
        array[0, 0, 999_999]
    chunks = ChunkMap(array, trace)
    assert len(chunks._repr_html_()) < 1_000_000
    assert chunks.counts["never read"] == 10**15
    assert np.prod(chunks._state(whole=True)["grid"]) == 10**15
