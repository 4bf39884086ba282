"""Basic selections as numbers, against NumPy's own indexing."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuload.errors import DestinationError, SelectionError
from gpuload.planning.selection import AxisRange, normalise

SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)
BOUNDS = st.none() | st.integers(-9, 9) | st.sampled_from([2**63, -(2**63), 10**30, np.int64(3), np.int8(-2)])
STEPS = st.none() | st.integers(-7, 7) | st.sampled_from([2**64, -(2**64)])
KEYS = st.one_of(
    st.builds(slice, BOUNDS, BOUNDS, STEPS),
    st.integers(-7, 7),
    st.integers(-7, 7).map(np.int16),
    st.integers(0, 6).map(np.uint64),
    st.integers(-7, 7).map(np.array),
    st.none(),
    st.just(Ellipsis),
)
SELECTIONS = st.lists(KEYS, max_size=6).map(tuple) | KEYS


@given(SHAPES, SELECTIONS)
@example((), ())
@example((), ...)
@example((), (None, ..., None))
@example((3,), 0)
@example((3, 4), (..., None, 1, None))
@example((5,), slice(None, None, -(2**70)))
@example((0, 3), (slice(None, None, -1), -3))
def test_equals_numpy(shape: tuple[int, ...], selection: Any) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    try:
        # NumPy wants Python integers inside the range of intp for its slices; their meaning is the same beyond it.
        expected = array[_clipped(selection)]
    except (IndexError, ValueError):
        with pytest.raises(SelectionError):
            normalise(selection, shape)
        return
    normalised = normalise(selection, shape)
    assert normalised.shape == expected.shape
    assert len(normalised.axes) == array.ndim

    grid = np.ix_(*(_coordinates(axis) for axis in normalised.axes))
    box = array[grid].reshape(normalised.box)
    out = np.full(expected.shape, -1)
    view = normalised.as_box(out)
    assert view.shape == normalised.box
    view[...] = box
    np.testing.assert_array_equal(out, expected)


@given(SHAPES, SELECTIONS, st.data())
def test_as_box_is_a_view_of_any_strides(shape: tuple[int, ...], selection: Any, data: st.DataObject) -> None:
    try:
        normalised = normalise(selection, shape)
    except SelectionError:
        return
    padded = np.zeros([2 * n + 1 for n in normalised.shape])
    key = tuple(
        slice(2 * n, None, -2) if n and data.draw(st.booleans()) else slice(1, None, 2) for n in normalised.shape
    )
    out = padded[(*key, ...)]
    out = out[(*map(slice, normalised.shape), ...)]
    view = normalised.as_box(out)
    assert view.shape == normalised.box
    assert view.base is not None
    view[...] = 7
    assert (out == 7).all()
    assert (padded == 7).sum() == out.size


def _coordinates(axis: AxisRange) -> np.ndarray:
    return np.array([axis.start + i * axis.step for i in range(axis.count)], dtype=int)


def _clipped(selection: Any) -> Any:
    def clip(value: Any) -> Any:
        return None if value is None else max(-(2**62), min(2**62, operator.index(value)))

    def clip_key(key: Any) -> Any:
        return slice(clip(key.start), clip(key.stop), clip(key.step)) if isinstance(key, slice) else key

    return tuple(map(clip_key, selection)) if isinstance(selection, tuple) else clip_key(selection)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (True, "True"),
        (np.True_, "True"),
        (np.array(True), "not a basic index"),
        ([0, 1], r"\[0, 1\] \(list\)"),
        (np.array([0]), "ndarray"),
        ("name", "'name'"),
        (1.0, "1.0"),
        (((0,),), "tuple"),
        (slice(0.5), "parts of a slice"),
        (slice(None, None, 0), "zero"),
        ((0, 0, 0), "too many"),
        ((..., ...), "ellipsis"),
        (4, "index 4 is out of bounds for axis 0 with size 4"),
        ((0, -6), "index -6 is out of bounds for axis 1 with size 5"),
        (2**63, "out of bounds"),
        ((None,) * 65, "67 axes"),
    ],
)
def test_refused_by_name(selection: Any, message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        normalise(selection, (4, 5))


def test_longest_axes() -> None:
    size = 2**63 - 1
    assert normalise(slice(None, None, -1), (size,)).axes == (AxisRange(size - 1, -1, size),)
    assert normalise(-1, (2**63,)).axes == (AxisRange(2**63 - 1, 1, 1),)
    assert normalise(slice(5, None, 2**62), (size,)).axes == (AxisRange(5, 2**62, 2),)


def test_steps_never_taken_are_one() -> None:
    assert normalise((slice(2, 3, 10**9), slice(3, 2, -(10**9)), 1), (4, 4, 4)).axes == (
        AxisRange(2, 1, 1),
        AxisRange(3, 1, 1),
        AxisRange(1, 1, 1),
    )


@pytest.mark.parametrize("shape", [(), (2, 3), (1, 2, 3)])
def test_wrong_destination(shape: tuple[int, ...]) -> None:
    with pytest.raises(DestinationError, match="shape"):
        normalise((slice(None), None, 0), (3, 4)).as_box(np.empty(shape))
