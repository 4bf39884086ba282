"""Merged byte ranges, against their rules and a greedy merger."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.planning.coalesce import coalesce

MANY = settings(max_examples=2 * settings().max_examples)  # of whatever profile is loaded
RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 12)), max_size=30)


def columns(ranges: list[tuple[int, int, int]]) -> list[np.ndarray]:
    return list(np.array(ranges, np.int64).reshape(-1, 3).T)


def greedy(ranges: list[tuple[int, int, int]], gap: int, limit: int) -> list[tuple[int, int, int]]:
    """The obvious loop over disjoint, sorted ranges."""
    merged: list[tuple[int, int, int]] = []
    for file, offset, size in ranges:
        if merged:
            last_file, begin, length = merged[-1]
            if file == last_file and offset - (begin + length) <= gap and offset + size - begin <= limit:
                merged[-1] = (file, begin, offset + size - begin)
                continue
        merged.append((file, offset, size))
    return merged


@MANY
@given(RANGES, st.integers(0, 10) | st.just(2**70), st.integers(1, 40) | st.just(2**70))
def test_rules_hold_for_any_ranges(ranges: list[tuple[int, int, int]], gap: int, limit: int) -> None:
    file, offset, size = columns(ranges)
    range_file, range_offset, range_size, member, inner = coalesce(file, offset, size, gap=gap, limit=limit)
    assert len(member) == len(inner) == len(ranges)
    merged = list(zip(range_file.tolist(), range_offset.tolist(), range_size.tolist()))
    assert [m[:2] for m in merged] == sorted(m[:2] for m in merged)
    assert sorted(set(member.tolist())) == list(range(len(merged)))
    for row, (f, begin, length) in enumerate(merged):
        mine = sorted(r for r, m in zip(ranges, member.tolist()) if m == row)
        assert {r[0] for r in mine} == {f}
        assert begin == min(r[1] for r in mine)
        assert begin + length == max(r[1] + r[2] for r in mine)
        assert length <= limit or any(r[2] == length for r in mine)
        reach = begin
        for _, start, extent in mine:
            assert start - reach <= gap
            reach = max(reach, start + extent)
    for (f, start, extent), m, i in zip(ranges, member.tolist(), inner.tolist()):
        assert merged[m][0] == f
        assert merged[m][1] + i == start
        assert 0 <= i <= i + extent <= merged[m][2]


@MANY
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(1, 12)), max_size=30),
    st.integers(0, 6),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_disjoint_ranges_equal_the_greedy_merger(
    drawn: list[tuple[bool, int, int]], gap: int, limit: int, random: object
) -> None:
    ranges, file, end = [], 0, 0
    for new_file, hole, size in drawn:
        file, end = (file + 1, 0) if new_file else (file, end)
        ranges.append((file, end + hole, size))
        end += hole + size
    shuffled = list(ranges)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for given_ranges in (ranges, shuffled):
        found = coalesce(*columns(given_ranges), gap=gap, limit=limit)
        assert list(zip(*(column.tolist() for column in found[:3]))) == greedy(ranges, gap, limit)


def test_a_range_inside_another_is_read_with_it() -> None:
    _, offset, size, member, inner = coalesce(
        np.zeros(5, int), np.array([0, 0, 50, 60, 90]), np.array([10, 100, 1, 40, 20]), gap=0, limit=50
    )
    assert (offset.tolist(), size.tolist()) == ([0, 90], [100, 20])
    assert (member.tolist(), inner.tolist()) == ([0, 0, 0, 0, 1], [0, 0, 50, 60, 0])


@pytest.mark.parametrize(
    ("ranges", "gap", "limit", "message"),
    [
        ([(0, -1, 1)], 0, 1, "negative"),
        ([(0, 1, -1)], 0, 1, "negative"),
        ([(0, 2**63 - 1, 1)], 0, 1, "beyond"),
        ([(0, 0, 2**61), (1, 0, 2**61), (2, 0, 2**61)], 0, 1, "too large"),
        ([(0, 0, 1)], -1, 1, "gap"),
        ([(0, 0, 1)], 0, 0, "limit"),
    ],
)
def test_impossible(ranges: list[tuple[int, int, int]], gap: int, limit: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        coalesce(*columns(ranges), gap=gap, limit=limit)


def test_one_long_range_among_short_ones() -> None:
    ranges = [(0, 0, 2**61), *((f, 5, 1) for f in range(1, 8))]
    assert coalesce(*columns(ranges), gap=0, limit=1)[2].tolist() == [2**61, *[1] * 7]
