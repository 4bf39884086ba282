"""No byte is lost from the picture, however long it lasts, and it stays small."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.record import Recorder
from gpuload.request import ReadPath, Served
from gpuload.widgets.timeline import BINS, Timeline

seconds = st.floats(0, 1e5)


@given(st.lists(st.tuples(st.sampled_from(ReadPath), st.integers(0, 10**12), seconds, seconds), max_size=30))
def test_all_bytes_are_in_the_bins(parts: list[tuple[ReadPath, int, float, float]]) -> None:
    line = Timeline(100.0)
    for path, nbytes, start, length in parts:
        line.add(path, nbytes, 100.0 + start, 100.0 + start + length)
    shown = line.to_dict()
    for path in ReadPath:
        wanted = sum(nbytes for p, nbytes, _, _ in parts if p is path)
        assert line.total[path] == pytest.approx(wanted, rel=1e-9, abs=1)
        assert sum(shown[path]) == pytest.approx(wanted, rel=1e-9, abs=BINS)
        assert len(shown[path]) <= BINS
        assert len(shown[path]) * shown["width"] >= shown["end"] - 1e-3


def test_bytes_are_spread_over_their_time() -> None:
    line = Timeline(0.0)
    line.add(ReadPath.FASTPATH, 1000, 1.0, 2.0)
    line.add(ReadPath.FALLBACK, 500, 3.0, 3.0)
    shown = line.to_dict()
    per_second = round(1 / shown["width"])
    fast = shown[ReadPath.FASTPATH]
    assert sum(fast[per_second : 2 * per_second]) == 1000
    assert set(fast[per_second : 2 * per_second]) == {1000 // per_second}
    assert sum(shown[ReadPath.FALLBACK][-1:]) == 500


def test_it_begins_with_what_was_kept(block: Callable[..., Served]) -> None:
    recorder = Recorder()
    recorder(block(4, size=100, started=50.0, ended=51.0))
    recorder(block(2, size=10, started=52.0, ended=300.0, read_path=ReadPath.FASTPATH, reason=None))
    line = Timeline.of(recorder.columns())
    assert line.begin == 50.0
    assert line.total == {ReadPath.FASTPATH: 20, ReadPath.FALLBACK: 400}
    shown = line.to_dict()
    assert shown["end"] == 250.0
    assert shown[ReadPath.FALLBACK][int(1.0 / shown["width"])] == 400
    assert shown[ReadPath.FASTPATH][-1] == 20
    assert Timeline.of(Recorder().columns()).to_dict()[ReadPath.FALLBACK] == []
