"""A selection that was divided among chunks, put together again: it takes the same elements to the same places."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.planning.axis import AxisIndices, AxisRange
from gpuload.planning.projection import gather, gather_points


def coordinates(axis: AxisRange | AxisIndices) -> np.ndarray[Any, Any]:
    if isinstance(axis, AxisIndices):
        return axis.index
    return axis.start + axis.step * np.arange(axis.count)


def divided(wanted: Any, extent: int, form: str) -> list[tuple[int, Any, Any]]:
    """Chunk number, what of it, and where that goes, for coordinates along one dimension; by this test's own hand."""
    if isinstance(wanted, int):
        return [(wanted // extent, wanted % extent, None)]
    parts = []
    for number in sorted(set((wanted // extent).tolist())):
        at = np.flatnonzero(wanted // extent == number)
        inside = wanted[at] - number * extent
        source: Any = inside
        place: Any = at
        if form == "slices":
            step = int(inside[1] - inside[0]) if len(inside) > 1 else 1
            source = slice(int(inside[0]), int(inside[-1]) + 1, step)
            place = slice(int(at[0]), int(at[-1]) + 1)
        elif form == "mask":
            source = np.zeros(extent, bool)
            source[inside] = True
            place = slice(int(at[0]), int(at[-1]) + 1)
        parts.append((number, source, place))
    return parts


@st.composite
def along(draw: st.DrawFn) -> tuple[Any, int, str]:
    extent = draw(st.integers(1, 5))
    form = draw(st.sampled_from(["integer", "slices", "mask", "lists"]))
    if form == "integer":
        return draw(st.integers(0, 20)), extent, form
    if form == "slices":
        start, step, count = draw(st.integers(0, 9)), draw(st.integers(1, 7)), draw(st.integers(1, 8))
        return start + step * np.arange(count), extent, form
    listed = draw(st.lists(st.integers(0, 20), min_size=1, max_size=8))
    wanted = np.array(sorted(set(listed)) if form == "mask" else listed)
    return wanted, extent, form


def rows(dims: list[tuple[Any, int, str]]) -> tuple[np.ndarray[Any, Any], list[Any], list[Any], tuple[int, ...]]:
    parts = [divided(wanted, extent, form) for wanted, extent, form in dims]
    product = list(itertools.product(*parts))
    chunks = np.array([[part[0] for part in row] for row in product], np.int64).reshape(len(product), len(dims))
    sources = [tuple(part[1] for part in row) for row in product]
    places = [tuple(part[2] for part in row if part[2] is not None) for row in product]
    return chunks, sources, places, tuple(len(wanted) for wanted, _, form in dims if form != "integer")


@given(st.lists(along(), max_size=3))
def test_together_again(dims: list[tuple[Any, int, str]]) -> None:
    chunks, sources, places, shape = rows(dims)
    got = gather(chunks, sources, places, extents=[extent for _, extent, _ in dims], dropped=(), shape=shape)
    assert got is not None
    assert got.shape == shape
    for axis, (wanted, _, form) in zip(got.axes, dims, strict=True):
        assert coordinates(axis).tolist() == ([wanted] if form == "integer" else wanted.tolist())


@given(st.lists(along(), min_size=1, max_size=3), st.data())
def test_what_is_no_product_is_not_guessed_at(dims: list[tuple[Any, int, str]], data: st.DataObject) -> None:
    chunks, sources, places, shape = rows(dims)
    extents = [extent for _, extent, _ in dims]
    row = data.draw(st.integers(0, len(chunks) - 1))
    dim = data.draw(st.integers(0, len(dims) - 1))

    def given_back(chunks: Any, sources: Any, places: Any) -> Any:
        return gather(chunks, sources, places, extents=extents, dropped=(), shape=shape)

    if len(chunks) > 1:
        rest = [i for i in range(len(chunks)) if i != row]
        fewer = given_back(chunks[rest], [sources[i] for i in rest], [places[i] for i in rest])
        assert fewer is None
        assert given_back(chunks[::-1], sources[::-1], places[::-1]) is None
        moved = chunks.copy()
        moved[row] = chunks[row - 1]
        assert given_back(moved, sources, places) is None
    if dims[dim][2] == "lists" and len(chunks) > len(np.unique(chunks[:, dim])):
        other = [*sources]
        part = sources[row][dim]
        other[row] = (*sources[row][:dim], (part + 1) % max(extents[dim], 2), *sources[row][dim + 1 :])
        assert given_back(chunks, other, places) is None


@pytest.mark.parametrize(
    ("sources", "places"),
    [
        ([slice(0, 2), slice(0, 2)], [slice(0, 2), slice(1, 3)]),  # one place twice, one never
        ([slice(0, 2), slice(0, 1)], [slice(0, 2), slice(2, 4)]),  # an element too few
        ([np.array([0, 1]), np.array([1, 0])], [np.array([0, 0]), np.array([2, 3])]),
        ([np.array([0, 1]), np.array([1, 0])], [np.array([0, 1]), np.array([2, 3, 3])]),
        ([0, 1], [slice(0, 1), slice(1, 2)]),
    ],
)
def test_what_does_not_fill_the_result_is_refused(sources: list[Any], places: list[Any]) -> None:
    chunks = np.array([[0], [1]])
    got = gather(chunks, [(s,) for s in sources], [(p,) for p in places], extents=(2,), dropped=(), shape=(4,))
    assert got is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=10), st.data())
def test_points_together_again(points: list[tuple[int, int]], data: st.DataObject) -> None:
    extents = (3, 5)
    index = np.array(points)
    number = index // extents
    chunks = np.unique(number, axis=0)
    places: list[Any] = [np.flatnonzero((number == chunk).all(axis=1)) for chunk in chunks]
    sources = [tuple((index[place] - chunk * extents).T) for place, chunk in zip(places, chunks, strict=True)]

    def again(sources: Any, places: Any) -> Any:
        return gather_points(chunks, sources, places, extents=extents, size=len(points))

    got = again(sources, places)
    assert got.shape == (len(points),)
    assert np.array_equal(np.stack(got.index, axis=1), index)
    row = data.draw(st.integers(0, len(chunks) - 1))
    twice = [*places]
    twice[row] = np.append(places[row], places[row][0])
    assert again(sources, twice) is None
    fewer = [*sources]
    fewer[row] = (sources[row][0][1:], sources[row][1])
    assert again(fewer, places) is None


def test_a_slice_may_go_backwards() -> None:
    sources, places = [(slice(1, None, -1),), (slice(0, 2),)], [(slice(0, 2),), (slice(2, 4),)]
    got = gather(np.array([[0], [1]]), sources, places, extents=(2,), dropped=(), shape=(4,))
    assert got is not None
    assert coordinates(got.axes[0]).tolist() == [1, 0, 2, 3]


def test_integers_that_became_lists_of_one_are_no_axes() -> None:
    chunks = np.array([[1, 0], [1, 1]])
    sources = [(np.array([[1]]), np.array([[0, 2]])), (np.array([[1]]), np.array([[1]]))]
    places = [(slice(0, 2),), (slice(2, 3),)]
    got = gather(chunks, sources, places, extents=(3, 3), dropped=(0,), shape=(3,))
    assert got is not None
    assert got.result == (1,)
    assert [coordinates(axis).tolist() for axis in got.axes] == [[4], [0, 2, 4]]


def test_the_arithmetic_is_on_all_chunks_at_once_and_exact_near_the_end_of_64_bits() -> None:
    extent = 2**40
    first = 2**62 // extent
    numbers = np.arange(first, first + 3)[:, None]
    sources = [(slice(0, extent),)] * 3
    places = [(slice(i * extent, (i + 1) * extent),) for i in range(3)]
    got = gather(numbers, sources, places, extents=(extent,), dropped=(), shape=(3 * extent,))
    assert got is not None
    assert got.axes == (AxisRange(first * extent, 1, 3 * extent),)
