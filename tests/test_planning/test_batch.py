"""Batches of pieces, against their rules and a greedy packer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.planning.batch import batch, parts

MANY = settings(max_examples=2 * settings().max_examples)  # of whatever profile is loaded
PIECES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=40)


def greedy(padded: list[int], group: list[int], batch_bytes: int, max_groups: int) -> list[int]:
    """Bounds by the obvious loop: take pieces while they fit, and never begin a group that could stay whole."""
    whole = {g: sum(p for p, h in zip(padded, group) if h == g) for g in group}
    bounds = [0]
    used, groups = 0, set()
    for i, (nbytes, g) in enumerate(zip(padded, group)):
        starts_group = i == 0 or group[i - 1] != g
        needed = whole[g] if starts_group and whole[g] <= batch_bytes else nbytes
        full = used + needed > batch_bytes or len(groups | {g}) > max_groups
        if i > bounds[-1] and full:
            bounds.append(i)
            used, groups = 0, set()
        used += nbytes
        groups.add(g)
    return [*bounds, len(padded)] if padded else [0]


@MANY
@given(PIECES, st.integers(1, 150), st.integers(1, 5), st.sampled_from([1, 8, 64]), st.integers(0, 2))
def test_equals_the_greedy_packer(
    drawn: list[tuple[int, int]], batch_bytes: int, max_groups: int, align: int, slack: int
) -> None:
    size = np.array([s for s, _ in drawn], np.int64)
    group = np.cumsum([g for _, g in drawn], dtype=np.int64)
    batches = batch(size, group, batch_bytes=batch_bytes, max_groups=max_groups, align=align, slack=slack)
    padded = (-(-(size + slack) // align) * align).tolist()

    assert batches.bounds.tolist() == greedy(padded, group.tolist(), batch_bytes, max_groups)
    assert len(batches) == len(batches.nbytes) == len(batches.bounds) - 1
    spread = dict.fromkeys(group.tolist(), 0)
    for nbytes, begin, end in zip(batches.nbytes, batches.bounds[:-1], batches.bounds[1:]):
        assert end > begin
        assert nbytes == sum(padded[begin:end])
        assert nbytes <= batch_bytes or end == begin + 1
        assert batches.slab_offset[begin:end].tolist() == np.cumsum([0, *padded[begin : end - 1]]).tolist()
        groups = set(group[begin:end].tolist())
        assert len(groups) <= max_groups
        for g in groups:
            spread[g] += 1
    assert len(batches.held) == (group[-1] + 1 if len(group) else 0)
    for g in range(len(batches.held)):
        assert batches.held[g] == (spread.get(g, 0) > 1)
        if batches.held[g]:
            assert sum(p for p, h in zip(padded, group) if h == g) > batch_bytes


def test_slack_and_alignment() -> None:
    batches = batch(np.array([64, 63, 1]), np.array([0, 1, 2]), batch_bytes=256, max_groups=9)
    assert batches.slab_offset.tolist() == [0, 128, 192]
    assert batches.nbytes.tolist() == [256]


@pytest.mark.parametrize(
    ("size", "group", "message"),
    [
        ([1, -1], [0, 0], "negative"),
        ([1, 1], [-1, 0], "negative"),
        ([1, 1], [1, 0], "ascend"),
        ([2**63 - 1], [0], "too large"),
        ([2**61, 2**61, 2**61], [0, 1, 2], "too large"),
    ],
)
def test_impossible_pieces(size: list[int], group: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch(np.array(size), np.array(group), batch_bytes=2**40, max_groups=4)


def test_impossible_limits() -> None:
    for limits in ({"batch_bytes": 0, "max_groups": 1}, {"batch_bytes": 1, "max_groups": 0}):
        with pytest.raises(ValueError, match="must be positive"):
            batch(np.array([1]), np.array([0]), **limits)


def test_one_large_piece_among_many_small_ones() -> None:
    """An upper bound over the limit alone does not refuse: the exact sum decides."""
    size = np.array([2**61, *[1] * 7])
    batches = batch(size, np.arange(8), batch_bytes=2**70, max_groups=2**70, align=1, slack=0)
    assert batches.bounds.tolist() == [0, 8]
    assert batches.nbytes.tolist() == [2**61 + 7]


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 9), st.integers(0, 1))
def test_parts_cover_each_range_in_order(sizes: list[int], limit: int, least: int) -> None:
    row, skip, length = parts(np.array(sizes, np.int64), limit, least=least)
    found = list(zip(row.tolist(), skip.tolist(), length.tolist(), strict=True))
    expected = [
        (i, start, min(limit, size - start))
        for i, size in enumerate(sizes)
        for start in (range(0, size, limit) if size else range(least))
    ]
    assert found == expected
