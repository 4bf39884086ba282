"""Blocks are whole chunks or shards, no larger than wanted where that can be, and cover the array."""

from __future__ import annotations

import math
from itertools import accumulate

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.dask.blocks import divide, misaligned

F4 = np.dtype("f4")


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]:
    ndim = draw(st.integers(0, 4))
    dims = st.lists(st.integers(0, 5000), min_size=ndim, max_size=ndim)
    edges = st.lists(st.integers(1, 300), min_size=ndim, max_size=ndim)
    inner = tuple(draw(edges))
    factors = draw(st.none() | st.lists(st.integers(1, 8), min_size=ndim, max_size=ndim))
    shards = None if factors is None else tuple(a * b for a, b in zip(inner, factors, strict=True))
    return tuple(draw(dims)), inner, shards


@given(grids(), st.sampled_from([4, 1000, 1 << 20, 128 << 20]))
def test_auto(grid: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None], limit: int) -> None:
    shape, inner, shards = grid
    with dask.config.set({"array.chunk-size": limit}):
        extents = divide("auto", shape, F4, inner, shards)
        assert divide(f"{limit} B", shape, F4, inner, shards) == extents
    assert tuple(map(sum, extents)) == shape
    assert misaligned(extents, inner) == []
    if shards is not None and math.prod(shards) * 4 <= limit:
        assert misaligned(extents, shards) == []
    largest = tuple(max(along) for along in extents)
    one = all(extent <= edge for extent, edge in zip(largest, inner, strict=True))
    # dask itself goes over the limit by a fifth or so, to have fewer small blocks at the end.
    assert one or math.prod(largest) * 4 <= limit * 1.3 or 0 in shape


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (None, ((4, 4, 2), (5, 5))),
        (-1, ((10,), (10,))),
        ((8, -1), ((8, 2), (10,))),
        ({0: 8}, ((8, 2), (5, 5))),
        ({1: -1, -2: 4}, ((4, 4, 2), (10,))),
        (((3, 7), 5), ((3, 7), (5, 5))),
        (("auto", 5), ((8, 2), (5, 5))),
        (("160 B", 5), ((8, 2), (5, 5))),
    ],
)
def test_as_asked(chunks: object, expected: object) -> None:
    with dask.config.set({"array.chunk-size": 160}):
        assert divide(chunks, (10, 10), F4, (4, 5), None) == expected


def test_one_dimension_takes_the_extents_of_all_blocks() -> None:
    assert divide((3, 3, 4), (10,), F4, (2,), None) == ((3, 3, 4),)
    assert divide((4,), (10,), F4, (2,), None) == ((4, 4, 2),)


def test_chunks_that_differ() -> None:
    assert divide("auto", (10, 6), F4, ((3, 3, 8), 4), None) == ((3, 3, 4), (6,))
    assert misaligned(((3, 7), (6,)), ((3, 3, 8), 4)) == []
    assert misaligned(((4, 6), (6,)), ((3, 3, 8), 4)) == [0]


def test_objects_have_no_size() -> None:
    assert divide("auto", (10, 6), np.dtype("O"), (3, 4), None) == ((3, 3, 3, 1), (4, 2))


@pytest.mark.parametrize("chunks", [(1, 2, 3), ("1 MiB", "2 MiB")])
def test_what_makes_no_sense_is_refused(chunks: object) -> None:
    with pytest.raises(ValueError, match="chunks"):
        divide(chunks, (10, 10), F4, (4, 5), None)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 9))
def test_misaligned_is_a_block_that_begins_inside_of_a_chunk(along: list[int], edge: int) -> None:
    inside = any(begin % edge for begin in accumulate(along[:-1]))
    assert misaligned((tuple(along),), (edge,)) == ([0] if inside else [])
