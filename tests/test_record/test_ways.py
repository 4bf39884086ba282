"""Busy time and quantiles agree with the obvious way of computing them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.record.ways import Busy, Latencies

ticks = st.integers(0, 60)


@given(st.lists(st.tuples(ticks, ticks)))
def test_busy_time_is_the_measure_of_the_union(intervals: list[tuple[int, int]]) -> None:
    busy, covered = Busy(), set()
    for start, end in intervals:
        busy.add(float(start), float(end))
        covered |= set(range(start, end))
    assert busy.seconds == len(covered)


def test_many_intervals_apart_take_bounded_room_and_none_is_lost() -> None:
    busy = Busy()
    for i in range(10_000):
        busy.add(2.0 * i, 2.0 * i + 1)
    assert busy.seconds == 10_000
    assert len(busy._starts) <= Busy.KEPT


def test_an_interval_over_folded_time_is_not_counted_twice() -> None:
    busy = Busy()
    for i in range(1000):
        busy.add(2.0 * i, 2.0 * i + 1)
    busy.add(0.0, 1999.0)
    assert 1000 < busy.seconds <= 1999
    again = busy.seconds
    busy.add(0.0, 1.0)
    assert busy.seconds == again


@pytest.mark.parametrize("interval", [(5.0, 5.0), (6.0, 5.0), (math.nan, 1.0), (1.0, math.nan)])
def test_an_interval_without_length_counts_nothing(interval: tuple[float, float]) -> None:
    busy = Busy()
    busy.add(*interval)
    assert busy.seconds == 0
    busy.add(1.0, 2.0)
    assert busy.seconds == 1


@given(
    st.lists(st.floats(2e-9, 3600.0), min_size=1, max_size=300),
    st.sampled_from([0.0, 0.01, 0.5, 0.9, 0.99, 1.0]),
)
def test_a_quantile_is_within_one_percent(values: list[float], q: float) -> None:
    latencies = Latencies()
    for part in np.array_split(np.array(values), 3):
        if len(part):
            latencies.add(np.full(len(part), 1), part)
    exact = float(np.quantile(values, q, method="inverted_cdf"))
    assert latencies.quantiles(1, q)[0] == pytest.approx(exact, rel=0.01)


def test_ways_do_not_mix_and_odd_latencies_do_no_harm() -> None:
    latencies = Latencies()
    latencies.add(np.array([0, 2, 0]), np.array([1e-3, 1.0, 1e-3]))
    latencies.add(np.array([1, 1, 1, 1]), np.array([0.0, -1.0, math.inf, math.nan]))
    assert latencies.quantiles(0, 0.99)[0] == pytest.approx(1e-3, rel=0.01)
    assert latencies.quantiles(2, 0.5)[0] == pytest.approx(1.0, rel=0.01)
    assert 0 <= latencies.quantiles(1, 0.5)[0] < 1e-8
    assert latencies.quantiles(1, 0.99)[0] > 3600
