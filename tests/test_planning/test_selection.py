"""Basic selections as numbers, against NumPy's own indexing."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuload.errors import DestinationError, SelectionError
from gpuload.planning.axis import AxisIndices, AxisRange
from gpuload.planning.selection import AnySelection, PointSelection, blocks, normalise, orthogonal, vectorised

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
ARRAYS = st.one_of(
    st.lists(st.integers(-7, 6), max_size=5),
    st.lists(st.integers(-7, 6), max_size=5).map(lambda index: np.array(index, np.int8)),
    st.lists(st.integers(0, 6), max_size=5).map(lambda index: np.array(index, np.uint64)),
    # NumPy takes an empty mask for any axis, it is refused here.
    st.lists(st.booleans(), min_size=1, max_size=6).map(lambda mask: np.array(mask, bool)),
    st.integers(1, 6).map(lambda size: np.arange(size) % 3 == 1),
)


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
    check(array, normalise(selection, shape), expected)


@given(SHAPES.filter(len), st.lists(KEYS, max_size=5), ARRAYS, st.data())
@example((3, 4, 5), [0, slice(None)], [2, 1, 2], None)
@example((3, 4, 5), [slice(None), 0, ...], [2, 1, 2], None)
@example((0, 3), [5], [], None)
def test_one_array_equals_numpy(shape: tuple[int, ...], keys: list[Any], indices: Any, data: Any) -> None:
    """NumPy moves the axis of an array to the front where an integer stands apart from it."""
    at = len(keys) if data is None else data.draw(st.integers(0, len(keys)))
    selection = (*keys[:at], indices, *keys[at:])
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    try:
        expected = array[_clipped(selection)]
    except (IndexError, ValueError):
        with pytest.raises(SelectionError):
            normalise(selection, shape)
        return
    check(array, normalise(selection, shape), expected)


def together(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Several arrays of few shapes, which fit each other more often than not, among whatever else."""
    forms = st.sampled_from([(), (1,), (3,), (2, 1), (2, 3), (0,)])
    least = min((size for size in shape if size), default=1)
    integers = forms.map(lambda form: np.resize(np.array([0, -least, least - 1, 0, 2 % least]), form))
    places = {shape[at : at + n] for n in (1, 2, 3) for at in range(max(1, len(shape) - n + 1))}
    # A mask of no dimensions is refused here, and an empty one for another axis; NumPy takes both.
    forms_of_masks = sorted(form for form in places if form and 0 not in form)
    masks = st.nothing() if not forms_of_masks else st.sampled_from(forms_of_masks)
    masks = masks.map(lambda form: np.arange(int(np.prod(form, dtype=int))).reshape(form) % 3 == 1)
    return st.lists(st.one_of(integers, integers, masks, KEYS), min_size=1, max_size=5).map(tuple)


@settings(max_examples=3 * settings().max_examples)
@given(SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), together(shape))))
@example(((3, 4, 5), ([[0, 1]], slice(None), 2)))
@example(((3, 4, 5), (None, np.ones((3, 4), bool), ...)))
@example(((3, 0, 5), (np.ones((3, 0), bool), 0)))
def test_arrays_together_equal_numpy(case: tuple[tuple[int, ...], Any]) -> None:
    shape, selection = case
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    try:
        expected = array[_clipped(selection)]
    except (IndexError, ValueError):
        with pytest.raises(SelectionError):
            normalise(selection, shape)
        return
    normalised = normalise(selection, shape)
    if any(np.ndim(key) for key in selection if not isinstance(key, slice)):
        points = vectorised(selection, shape)
        assert sorted(points.shape) == sorted(normalised.shape)
    check(array, normalised, expected)


@pytest.mark.parametrize(
    ("selection", "shape"),
    [((1, 2), (1,)), (([1], 2), (1,)), (([[1, 2]], 0), (1, 2)), ((slice(None), [1, 2]), (2, 4)), (0, (1, 5))],
)
def test_shapes_of_points(selection: Any, shape: tuple[int, ...]) -> None:
    assert vectorised(selection, (4, 5)).shape == shape


@pytest.mark.parametrize("selection", [..., slice(None), (), (None, ...)])
def test_no_points(selection: Any) -> None:
    with pytest.raises(SelectionError, match="no points"):
        vectorised(selection, (4, 5))


def test_blocks() -> None:
    edges: tuple[Any, ...] = (4, (1, 6))
    assert blocks((0, -1), (9, 7), edges).axes == (AxisRange(0, 1, 4), AxisRange(1, 1, 6))
    assert blocks((slice(1, None), 0), (9, 7), edges).shape == (5, 1)
    assert blocks(..., (9, 7), edges).shape == (9, 7)
    assert blocks(2, (9, 7), edges).shape == (1, 7)
    assert blocks(slice(3, 9), (9, 7), edges).shape == (0, 7)
    assert blocks((), (), ()).shape == ()
    assert blocks(slice(None), (0,), (4,)).shape == (0,)
    for selection, message in [
        (3, "index 3 is out of bounds for axis 0 with size 3"),
        ((0, -3), "index -3 is out of bounds for axis 1 with size 2"),
        (slice(None, None, 2), "step 1"),
        (slice(None, None, -1), "step 1"),
        (None, "no axes"),
        ([0], "is no index"),
        (True, "is no index"),
        ((0, 0, 0), "too many"),
    ]:
        with pytest.raises(SelectionError, match=message):
            blocks(selection, (9, 7), edges)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple), st.data())
def test_orthogonal_indexes_each_axis_for_itself(shape: tuple[int, ...], data: st.DataObject) -> None:
    keys: list[Any] = []
    expected = array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    for size in shape:
        key = data.draw(KEYS.filter(lambda key: key is not None and key is not ...) | ARRAYS | ARRAYS)
        axis = len(keys)
        keys.append(key)
        try:  # the axes of integers are kept until the end
            along = np.arange(size)[_clipped(key)]
        except (IndexError, ValueError):
            with pytest.raises(SelectionError):
                orthogonal((*keys, ...), shape)
            return
        expected = np.take(expected, np.atleast_1d(along), axis)
    dropped = tuple(0 if np.ndim(key) == 0 and not isinstance(key, slice) else slice(None) for key in keys)
    check(array, orthogonal(tuple(keys), shape), expected[dropped])


def check(array: np.ndarray, normalised: AnySelection, expected: np.ndarray) -> None:
    """Whether `normalised` says how to get `expected` from `array`, through a box."""
    assert normalised.shape == expected.shape
    if isinstance(normalised, PointSelection):
        assert sorted((*normalised.dims, *normalised.others)) == list(range(array.ndim))
        lists = array.transpose((*normalised.dims, *normalised.others))[normalised.index]
        along = (np.arange(len(lists)), *(_coordinates(axis) for axis in normalised.axes))
        box = lists[np.ix_(*along)].reshape(normalised.box)
    else:
        assert len(normalised.axes) == array.ndim
        box = array[np.ix_(*(_coordinates(axis) for axis in normalised.axes))].reshape(normalised.box)
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


def _coordinates(axis: AxisRange | AxisIndices) -> np.ndarray:
    if isinstance(axis, AxisIndices):
        return axis.index
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
        (np.array(True), "is no index"),
        (([0, 1], [1, 2, 3]), r"shapes \(2,\), \(3,\) cannot be broadcast"),
        (np.zeros((4, 4), bool), r"a mask of shape \(4, 4\) does not fit axes 0... of shape \(4, 5\)"),
        (([[0, 4]], 0), "index 4 is out of bounds for axis 0 with size 4"),
        ((np.zeros((4, 5), bool), 0), "too many"),
        (np.zeros((4, 5, 1), bool), "too many"),
        ([[0], [1, 2]], r"\[\[0\], \[1, 2\]\] \(list\) cannot select along axis 0"),
        ((0, np.array([True] * 4)), "a mask of 4 elements does not fit axis 1 with size 5"),
        (np.array([], bool), "a mask of 0 elements does not fit axis 0 with size 4"),
        ((..., [0, -6, 7]), "index -6 is out of bounds for axis 1 with size 5"),
        ([0, 4], "index 4 is out of bounds for axis 0 with size 4"),
        (np.array([2**64 - 1], np.uint64), f"index {2**64 - 1} is out of bounds for axis 0"),
        ([2**70], "object cannot select along axis 0"),
        (np.array([]), "float64 cannot select along axis 0"),
        ([0.0], "float64"),
        (["a"], "cannot select"),
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


def test_what_a_list_may_not_be() -> None:
    with pytest.raises(SelectionError, match="index 5 is out of bounds for axis 1 with size 5"):
        orthogonal(([0], [0, 5]), (4, 5))
    with pytest.raises(SelectionError, match="64 bits"):
        orthogonal([0, 0], (2**63,))
    with pytest.raises(SelectionError, match="too many"):
        orthogonal(([0], [0], [0]), (4, 5))
    assert orthogonal([0, 0, -1], (2**63 - 1,)).axes[0].index.tolist() == [0, 0, 2**63 - 2]


def test_a_list_that_is_a_range() -> None:
    """Cheaper to plan and to copy."""
    mask = np.arange(9) % 4 == 1
    assert orthogonal(([3, 2, 1], mask, [-1], [], [False] * 3), (4, 9, 5, 2, 3)).axes == (
        AxisRange(3, -1, 3),
        AxisRange(1, 4, 2),
        AxisRange(4, 1, 1),
        AxisRange(0, 1, 0),
        AxisRange(0, 1, 0),
    )


def test_a_list_is_copied() -> None:
    """What was checked must not change before it is used."""
    index = np.array([0, 3, 1])
    selection = normalise(index, (4,))
    index[:] = 10**9
    assert selection.axes[0].index.tolist() == [0, 3, 1]


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
