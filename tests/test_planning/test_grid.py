"""Pieces of chunks: really built chunks, copied byte by byte, must give what NumPy's indexing gives."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuload.errors import SelectionError
from gpuload.planning.axis import INT64_MAX, AxisIndices, AxisRange
from gpuload.planning.grid import MAX_PIECES, ChunkForm, Pieces, cut
from gpuload.planning.placement import collapse
from gpuload.planning.points import cut_points
from gpuload.planning.selection import AnySelection, PointSelection, Selection, normalise, orthogonal

DTYPES = ["u1", ">i2", "<u4", "f8", "V3", "c16"]


@st.composite
def basic_selections(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """A valid basic selection: in-range integers, slices of any step, newaxis, an ellipsis at times."""
    keys: list[Any] = []
    for size in shape:
        kind = draw(st.sampled_from(["slice", "slice", "step", "step", "all", "integer"]))
        if kind == "integer" and size:
            keys.append(draw(st.integers(-size, size - 1)))
        elif kind == "slice":
            bound = st.none() | st.integers(-size - 2, size + 2)
            step = draw(st.sampled_from([None, 1, 2, 3, 4, 5, -1, -2, -3]) | st.integers(6, size + 7))
            keys.append(slice(draw(bound), draw(bound), step))
        elif kind == "step":  # many elements, so that pieces have several of them, or one band many
            keys.append(slice(draw(st.none() | st.integers(0, 3)), None, draw(st.integers(2, 5))))
        else:
            keys.append(slice(None))
    if draw(st.integers(0, 3)) == 0:
        begin = draw(st.integers(0, len(keys)))
        keys[begin : draw(st.integers(begin, len(keys)))] = [...]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        keys.insert(draw(st.integers(0, len(keys))), None)
    return tuple(keys)


@st.composite
def orthogonal_selections(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Basic along some axes; along the others integers in any order, with repeats, or a mask."""
    keys: list[Any] = []
    for size in shape:
        index = st.integers(-size, size - 1) if size else st.nothing()
        match draw(st.sampled_from(["slice", "integers", "integers", "sorted", "mask"])):
            case "slice":
                bound = st.none() | st.integers(-size - 2, size + 2)
                keys.append(slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3, -1, -2]))))
            case "integers":
                keys.append(draw(st.lists(index, max_size=7 if size else 0)))
            case "sorted":
                keys.append(np.array(sorted(draw(st.sets(index, max_size=size))), np.int16))
            case "mask":
                keys.append(np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool))
    return tuple(keys)


@st.composite
def point_selections(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Integer arrays that are read together, or a mask of several dimensions, among slices and integers."""
    if not shape:
        return ()
    if draw(st.integers(0, 5)) == 0:
        seed, share = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0, 0.1, 0.5, 1]))
        return np.random.default_rng(seed).random(shape) < share
    points = draw(st.sampled_from([(5,), (9,), (3, 2), (2, 1, 2), (1,)]))
    keys: list[Any] = []
    for size in shape:
        index = st.integers(-size, size - 1)
        match draw(st.sampled_from(["slice", "points", "points", "points", "integer"])) if size else "slice":
            case "slice":
                bound = st.none() | st.integers(-size - 2, size + 2)
                keys.append(slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3, -1, -2]))))
            case "points":
                n = math.prod(points)
                keys.append(np.array(draw(st.lists(index, min_size=n, max_size=n)), np.int64).reshape(points))
                if draw(st.integers(0, 3)) == 0:
                    keys[-1] = keys[-1][..., :1]
            case _:
                keys.append(draw(index))
    return tuple(keys)


def outer(array: np.ndarray, keys: tuple[Any, ...]) -> np.ndarray:
    """What `keys` select of `array`, each along its own axis."""
    along = [np.arange(n)[np.array(k, int) if isinstance(k, list) else k] for k, n in zip(keys, array.shape)]
    return np.asarray(array[np.ix_(*along)]) if along else array


@st.composite
def cases(draw: st.DrawFn, selections: Any = basic_selections) -> tuple[np.ndarray, Any, ChunkForm, int | None]:
    ndim = draw(st.sampled_from([0, 1, 1, 2, 2, 2, 3, 3, 4]))
    longest = (1, 60, 15, 8, 5)[ndim]
    shape = tuple(draw(st.integers(0, longest)) for _ in range(ndim))
    extents = st.integers(1, longest + 2) | st.integers(longest // 2, longest)
    chunk = tuple(draw(extents.filter(bool)) for _ in range(ndim))
    order = tuple(draw(st.permutations(range(ndim))))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    form = ChunkForm(chunk, dtype.itemsize, order)
    nbytes = max(1, math.prod(shape)) * dtype.itemsize
    # Bytes that differ nearly everywhere, so that no misplaced one can hide.
    raw = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)[: math.prod(shape) * dtype.itemsize]
    array = raw.view(dtype).reshape(shape)
    selection = draw(selections(shape))
    # Mostly a few slabs of one axis, so that it is the banded one.
    slabs = st.tuples(st.sampled_from([form.itemsize, *form.strides]), st.integers(1, 6)).map(math.prod)
    piece_bytes = draw(st.none() | slabs | slabs | st.integers(1, form.nbytes + 1))
    return array, selection, form, piece_bytes


def stored_chunk(array: np.ndarray, form: ChunkForm, coordinates: np.ndarray) -> np.ndarray:
    """The bytes of a chunk as they are stored: full size, padded with 0xEE beyond the array's edge."""
    full = np.full(math.prod(form.shape) * form.itemsize, 0xEE, np.uint8).view(array.dtype).reshape(form.shape)
    inside = array[(*(slice(c * n, (c + 1) * n) for c, n in zip(coordinates, form.shape)), ...)]
    full[(*map(slice, inside.shape), ...)] = inside
    return np.frombuffer(full.transpose(form.order).tobytes(), np.uint8)


def element_offsets(count: np.ndarray, strides: tuple[int, ...], entry: Any = None, values: Any = None) -> list[int]:
    """Byte offsets of all elements of a piece, in order: the definition, spelt out."""
    steps = [range(n) for n in count.tolist()]
    if entry is not None:
        steps = [values[e : e + len(s)].tolist() if e >= 0 else s for s, e in zip(steps, entry.tolist())]
    return [sum(i * stride for i, stride in zip(index, strides)) for index in itertools.product(*steps)]


def source_offsets(pieces: Pieces, i: int) -> list[int]:
    lists = pieces.lists
    more = () if lists is None else (lists.entry[i], lists.take)
    return element_offsets(pieces.count[i], pieces.source_strides, *more)


def place_offsets(pieces: Pieces, i: int) -> list[int]:
    lists = pieces.lists
    more = () if lists is None else (lists.entry[i], lists.put)
    return element_offsets(pieces.count[i], pieces.place_strides, *more)


def execute(
    pieces: Pieces, array: np.ndarray, form: ChunkForm, memory: np.ndarray, origin: int, row: int
) -> np.ndarray:
    """Copy `row` bytes for every element of every piece into `memory`; return how often each byte was written."""
    written = np.zeros(len(memory), int)
    chunks = [stored_chunk(array, form, coordinates) for coordinates in pieces.chunks]
    for i in range(len(pieces)):
        assert 0 <= pieces.offset[i] < pieces.offset[i] + pieces.size[i] <= form.nbytes
        piece = chunks[pieces.chunk[i]][pieces.offset[i] : pieces.offset[i] + pieces.size[i]]
        for source, place in zip(source_offsets(pieces, i), place_offsets(pieces, i), strict=True):
            begin, end = pieces.source[i] + source, pieces.source[i] + source + row
            assert 0 <= begin < end <= pieces.size[i]
            to = origin + pieces.place[i] + place
            assert 0 <= to <= len(memory) - row
            memory[to : to + row] = piece[begin:end]
            written[to : to + row] += 1
    return written


def destination(data: st.DataObject, selection: AnySelection, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """An array for the result, of odd strides at times, and the flat bytes it lives in."""
    shape = selection.shape
    axes = data.draw(st.permutations(range(len(shape))), "memory order of the result")
    steps = [data.draw(st.sampled_from([1, 1, 1, 2, -1, -2])) for _ in shape]
    flat = np.full(math.prod(n * abs(s) for n, s in zip(shape, steps)) * dtype.itemsize, 0xA5, np.uint8)
    padded = flat.view(dtype).reshape([shape[a] * abs(steps[a]) for a in axes])
    padded = padded.transpose(np.argsort(axes)) if axes else padded
    return padded[(*(slice(None, None, step) for step in steps), ...)], flat


@given(cases(), st.data())
def test_pieces_give_the_selection(case: tuple[np.ndarray, Any, ChunkForm, int | None], data: st.DataObject) -> None:
    array, key, form, piece_bytes = case
    expected = np.asarray(array[key], array.dtype)  # a scalar would be of native byte order
    check_pieces(array, normalise(key, array.shape), expected, form, piece_bytes, data)


@given(cases(orthogonal_selections), st.data())
def test_pieces_give_the_orthogonal_selection(case: Any, data: st.DataObject) -> None:
    array, key, form, piece_bytes = case
    check_pieces(array, orthogonal(key, array.shape), outer(array, key), form, piece_bytes, data)


@given(cases(point_selections), st.data())
def test_pieces_give_the_points(case: tuple[np.ndarray, Any, ChunkForm, int | None], data: st.DataObject) -> None:
    array, key, form, piece_bytes = case
    expected = np.asarray(array[key], array.dtype)
    check_pieces(array, normalise(key, array.shape), expected, form, piece_bytes, data)


def planned(selection: AnySelection, *args: Any, **options: Any) -> Pieces:
    return (cut_points if isinstance(selection, PointSelection) else cut)(selection, *args, **options)  # type: ignore[operator]


def check_pieces(
    array: np.ndarray, selection: AnySelection, expected: np.ndarray, form: ChunkForm, piece_bytes: Any, data: Any
) -> None:
    out, memory = destination(data, selection, array.dtype)
    assert out.shape == expected.shape
    box = selection.as_box(out)
    pieces = planned(selection, array.shape, form, box.strides, piece_bytes=piece_bytes)
    origin = box.__array_interface__["data"][0] - memory.__array_interface__["data"][0] if box.size else 0

    assert pieces.elements == out.size
    for column in (pieces.chunks, pieces.chunk, pieces.offset, pieces.size, pieces.source, pieces.place, pieces.count):
        assert column.dtype == np.int64
    written = execute(pieces, array, form, memory, origin, form.itemsize)
    assert out.tobytes() == expected.tobytes()
    assert set(np.unique(written)) <= {0, 1}
    assert written.sum() == expected.nbytes

    merged = collapse(pieces, form.itemsize)
    assert merged.elements == pieces.elements
    row = form.itemsize
    memory[:] = 0xA5
    np.testing.assert_array_equal(execute(merged, array, form, memory, origin, row), written)
    assert out.tobytes() == expected.tobytes()

    shuffled = np.array(data.draw(st.permutations(range(len(pieces))), "order of the pieces"), np.int64)
    memory[:] = 0xA5
    execute(merged.subset(shuffled), array, form, memory, origin, row)
    assert out.tobytes() == expected.tobytes()


@given(cases())
def test_pieces_are_as_small_as_they_can_be(case: tuple[np.ndarray, Any, ChunkForm, int | None]) -> None:
    array, key, form, piece_bytes = case
    selection = normalise(key, array.shape)
    pieces = cut(selection, array.shape, form, (0,) * array.ndim, piece_bytes=piece_bytes)

    check_smallness(array, selection, form, piece_bytes, pieces)


@given(cases(orthogonal_selections))
def test_pieces_of_lists_are_as_small_as_they_can_be(case: Any) -> None:
    array, key, form, piece_bytes = case
    selection = orthogonal(key, array.shape)
    pieces = cut(selection, array.shape, form, (0,) * array.ndim, piece_bytes=piece_bytes)
    check_smallness(array, selection, form, piece_bytes, pieces)


@given(cases(point_selections))
def test_pieces_of_points_are_as_small_as_they_can_be(case: Any) -> None:
    array, key, form, piece_bytes = case
    selection = normalise(key, array.shape)
    pieces = planned(selection, array.shape, form, (0,) * len(selection.box), piece_bytes=piece_bytes)
    check_smallness(array, selection, form, piece_bytes, pieces)


def check_smallness(
    array: np.ndarray, selection: AnySelection, form: ChunkForm, piece_bytes: int | None, pieces: Pieces
) -> None:
    if isinstance(selection, PointSelection):
        every = np.moveaxis(np.indices(array.shape), 0, -1)
        every = every.transpose((*selection.dims, *selection.others, array.ndim))[selection.index]
        for axis, along in enumerate(selection.axes, 1):
            every = np.take(every, [along.start + i * along.step for i in range(along.count)], axis)
        touched = sorted(set(map(tuple, (every.reshape(-1, array.ndim) // form.shape).tolist())))
        assert sorted(map(tuple, pieces.chunks.tolist())) == touched
        check_sizes(form, piece_bytes, pieces, len(touched))
        return
    coordinates = [
        axis.index.tolist()
        if isinstance(axis, AxisIndices)
        else [axis.start + i * axis.step for i in range(axis.count)]
        for axis in selection.axes
    ]
    touched = sorted(set(itertools.product(*({c // n for c in cs} for cs, n in zip(coordinates, form.shape)))))
    if 0 in selection.box:
        touched = []
    assert list(map(tuple, pieces.chunks.tolist())) == touched
    check_sizes(form, piece_bytes, pieces, len(touched))


def check_sizes(form: ChunkForm, piece_bytes: int | None, pieces: Pieces, touched: int) -> None:
    assert sorted(set(pieces.chunk.tolist())) == list(range(touched))
    assert (np.diff(pieces.chunk) >= 0).all()
    if piece_bytes is None:
        assert len(pieces) == touched
        assert not pieces.offset.any()
        assert (pieces.size == form.nbytes).all()
        return
    assert (pieces.size <= max(piece_bytes, form.itemsize)).all()
    for i in range(len(pieces)):  # the first and the last byte are wanted
        offsets = source_offsets(pieces, i)
        assert pieces.source[i] + min(offsets) == 0
        assert pieces.source[i] + max(offsets) + form.itemsize == pieces.size[i]
    same = np.diff(pieces.chunk) == 0
    assert (pieces.offset[1:] >= (pieces.offset + pieces.size)[:-1])[same].all()


@given(cases())
def test_bands_are_as_long_as_they_can_be(case: tuple[np.ndarray, Any, ChunkForm, int | None]) -> None:
    """A whole chunk is cut into as few bands as its longest contiguous slabs allow."""
    _, _, form, piece_bytes = case
    assume(piece_bytes is not None)
    pieces = cut(normalise(..., form.shape), form.shape, form, (0,) * len(form.shape), piece_bytes=piece_bytes)
    assert pieces.size.sum() == form.nbytes
    np.testing.assert_array_equal(pieces.offset, np.cumsum(pieces.size) - pieces.size)
    fewest = 1 if form.nbytes <= piece_bytes else form.nbytes // form.itemsize
    for axis, stride in enumerate(form.strides):
        if form.nbytes > piece_bytes and stride <= piece_bytes:
            extents = [form.shape[dim] for dim in form.order]
            fewest = math.prod(extents[:axis]) * -(-extents[axis] // (piece_bytes // stride))
            break
    assert len(pieces) == fewest


def test_whole_rows_become_one_axis() -> None:
    pieces = cut(
        normalise(..., (8, 6, 4)), (8, 6, 4), ChunkForm((2, 6, 4), 4, (0, 1, 2)), (96, 16, 4), piece_bytes=None
    )
    merged = collapse(pieces, 4)
    assert merged.count.tolist() == [[48]] * 4
    assert merged.source_strides == merged.place_strides == (4,)


def test_an_axis_that_one_piece_steps_along_is_kept() -> None:
    pieces = cut(normalise(..., (3, 5)), (3, 5), ChunkForm((2, 3), 1, (0, 1)), (5, 1), piece_bytes=None)
    merged = collapse(pieces, 1)
    assert merged.count.tolist() == [[2, 3], [2, 2], [1, 3], [1, 2]]
    one_row = cut(normalise(slice(2, 3), (3, 5)), (3, 5), ChunkForm((2, 3), 1, (0, 1)), (5, 1), piece_bytes=None)
    assert collapse(one_row, 1).count.tolist() == [[3], [2]]


def test_opposite_directions_are_not_merged() -> None:
    backwards = normalise((slice(None), slice(None, None, -1)), (4, 4))
    pieces = cut(backwards, (4, 4), ChunkForm((4, 4), 2, (0, 1)), (8, 2), piece_bytes=None)
    merged = collapse(pieces, 2)
    assert (merged.source_strides, merged.place_strides) == ((8, 2), (8, -2))


def test_a_single_element_keeps_an_axis() -> None:
    pieces = cut(normalise((), ()), (), ChunkForm((), 8, ()), (), piece_bytes=4)
    assert (pieces.chunks.shape, pieces.size.tolist(), pieces.count.shape) == ((1, 0), [8], (1, 0))
    merged = collapse(pieces, 8)
    assert merged.count.tolist() == [[1]]
    assert merged.source_strides == merged.place_strides == (8,)


@given(st.data())
def test_few_elements_of_gigantic_arrays(data: st.DataObject) -> None:
    """Coordinates up to 2**63: right or refused, never garbage; and the cost is that of the touched chunks."""
    ndim = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(2**62, 2**63 + 2)) for _ in range(ndim))
    extents = st.integers(1, 6) | st.integers(2**61, 2**62)
    form = ChunkForm(
        tuple(data.draw(extents) for _ in range(ndim)), data.draw(st.sampled_from([1, 2, 8])), tuple(range(ndim))
    )
    axes = []
    for size in shape:
        count = data.draw(st.integers(1, 4))
        step = data.draw(st.integers(1, 7) | st.integers(2**59, 2**60)) * data.draw(st.sampled_from([1, -1]))
        reach = abs(step) * (count - 1)
        low = data.draw(st.integers(0, 3) | st.integers(size - 1 - reach - 3, size - 1 - reach))
        axes.append(AxisRange(low if step > 0 else low + reach, step, count))
    selection = Selection(tuple(axes), tuple(range(ndim)))
    strides = np.empty(selection.box, f"V{form.itemsize}").strides
    piece_bytes = data.draw(st.sampled_from([None, 8, 2**40]))
    highest = [max(axis.start, axis.start + (axis.count - 1) * axis.step) for axis in axes]
    if max(highest) > INT64_MAX or form.nbytes > INT64_MAX:
        with pytest.raises(SelectionError, match="64 bits"):
            cut(selection, shape, form, strides, piece_bytes=piece_bytes)
        return
    pieces = cut(selection, shape, form, strides, piece_bytes=piece_bytes)

    found = {}
    for i in range(len(pieces)):
        assert 0 <= pieces.offset[i] < pieces.offset[i] + pieces.size[i] <= form.nbytes
        sources = element_offsets(pieces.count[i], pieces.source_strides)
        places = element_offsets(pieces.count[i], pieces.place_strides)
        for source, place in zip(sources, places, strict=True):
            inside = int(pieces.offset[i]) + int(pieces.source[i]) + source
            found[int(pieces.place[i]) + place] = (tuple(pieces.chunks[pieces.chunk[i]].tolist()), inside)
    expected = {}
    for index in itertools.product(*map(range, selection.box)):
        coordinates = [axis.start + i * axis.step for axis, i in zip(axes, index)]
        chunk = tuple(c // n for c, n in zip(coordinates, form.shape))
        inside = sum(c % n * stride for c, n, stride in zip(coordinates, form.shape, form.strides))
        expected[sum(i * stride for i, stride in zip(index, strides))] = (chunk, inside)
    assert found == expected


def test_too_much_is_refused_before_it_is_planned() -> None:
    shape = (2**62, 2**62)
    form = ChunkForm((1, 1), 1, (0, 1))
    with pytest.raises(SelectionError, match="64 bits"):
        cut(normalise(..., shape), shape, form, (0, 0), piece_bytes=None)
    with pytest.raises(SelectionError, match=str(MAX_PIECES)):
        cut(normalise(0, shape), shape, form, (0, 0), piece_bytes=None)
    with pytest.raises(SelectionError, match=str(MAX_PIECES)):  # few chunks, but of too many bands
        cut(normalise(..., (2**40,)), (2**40,), ChunkForm((2**40,), 1, (0,)), (1,), piece_bytes=2)
    with pytest.raises(SelectionError, match="64 bits"):
        cut(normalise(slice(2), (4,)), (4,), ChunkForm((4,), 1, (0,)), (2**63,), piece_bytes=None)


@pytest.mark.parametrize("keys", [np.s_[:, [1, 3, 0, 2]], np.s_[[1, 2, 0], :]])
def test_a_list_is_merged_with_no_axis(keys: Any) -> None:
    """Even where strides would allow it: all of one chunk, in another order."""
    pieces = cut(orthogonal(keys, (3, 4)), (3, 4), ChunkForm((3, 4), 2, (0, 1)), (8, 2), piece_bytes=None)
    merged = collapse(pieces, 2)
    assert merged.count.tolist() == [[3, 4]]
    assert merged.lists is not None
    assert merged.lists.axes == [int(isinstance(keys[0], slice))]


def test_regular_axes_beside_a_list_are_merged() -> None:
    shape = (3, 4, 5, 6, 7)
    selection = orthogonal(np.s_[:, :, [3, 0, 4], :, :], shape)
    strides = np.empty(selection.box, "u1").strides
    merged = collapse(cut(selection, shape, ChunkForm(shape, 1, (0, 1, 2, 3, 4)), strides, piece_bytes=None), 1)
    assert merged.count.tolist() == [[12, 3, 42]]
    assert merged.lists is not None
    assert merged.lists.entry.tolist() == [[-1, 0, -1]]
    assert (merged.lists.take.tolist(), merged.lists.put.tolist()) == ([0, 3, 4], [1, 0, 2])


def test_a_list_costs_what_it_touches() -> None:
    """However far apart its elements are, and however many pieces share it."""
    shape, form = (2**62, 2**20), ChunkForm((1000, 2), 4, (0, 1))
    index = np.array([2**61, 5, 2**61 + 999, 5, 0])
    pieces = cut(orthogonal((index, slice(0, 2000)), shape), shape, form, (8000, 4), piece_bytes=None)
    assert len(pieces) == len(pieces.chunks) == 3 * 1000
    assert set(pieces.chunks[:, 0].tolist()) == {0, 2**61 // 1000, (2**61 + 999) // 1000}
    lists = pieces.lists
    assert lists is not None
    assert lists.put.tolist() == [4, 1, 3, 0, 2]
    with pytest.raises(SelectionError, match=str(MAX_PIECES)):
        cut(orthogonal((index, slice(None, None, 3)), (2**62, 2**40)), (2**62, 2**40), form, (0, 0), piece_bytes=None)
    with pytest.raises(SelectionError, match="out of bounds for axis 0"):
        cut(orthogonal(index, (2**62,)), (2**61,), ChunkForm((8,), 1, (0,)), (1,), piece_bytes=None)


def test_points_cost_what_they_touch() -> None:
    """However far apart they are, in more chunks a dimension than a product of them could number."""
    shape, form = (2**63 - 1,) * 3, ChunkForm((3, 5, 2), 4, (2, 0, 1))
    rng = np.random.default_rng(3)
    index = tuple(rng.integers(0, 2**63 - 1, 1000) for _ in shape)
    pieces = cut_points(normalise(index, shape), shape, form, (4,), piece_bytes=None)
    assert len(pieces) == len(pieces.chunks) == 1000
    found = np.empty((1000, 3), np.int64)
    assert pieces.lists is not None
    found[pieces.lists.put] = pieces.chunks
    np.testing.assert_array_equal(found, np.stack(index, axis=1) // form.shape)
    last = cut_points(normalise(([-1, 0], [-1, 0], 0), shape), shape, form, (4, 4), piece_bytes=8)
    assert last.chunks.tolist() == [[0, 0, 0], [(2**63 - 2) // 3, (2**63 - 2) // 5, 0]]


def test_a_million_points_in_a_thousand_chunks() -> None:
    shape, form = (10**4, 10**4), ChunkForm((320, 320), 4, (0, 1))
    rows, columns = np.random.default_rng(0).integers(0, 10**4, (2, 10**6))
    pieces = cut_points(normalise((rows, columns), shape), shape, form, (4,), piece_bytes=None)
    assert len(pieces) == len(pieces.chunks) == 1024
    assert pieces.elements == 10**6
    assert pieces.lists is not None
    flat = np.empty(10**6, np.int64)
    flat[pieces.lists.put] = np.repeat(np.arange(1024), pieces.count[:, 0])
    np.testing.assert_array_equal(pieces.chunks[flat], np.stack((rows, columns), axis=1) // 320)


def test_points_that_do_not_belong_together() -> None:
    form, points = ChunkForm((2, 2), 1, (0, 1)), normalise(([0, 3], [1, 2]), (4, 4))
    with pytest.raises(ValueError, match="dimensions differ"):
        cut_points(points, (4,), form, (1,), piece_bytes=None)
    with pytest.raises(ValueError, match="dimensions differ"):
        cut_points(points, (4, 4), form, (1, 1), piece_bytes=None)
    with pytest.raises(SelectionError, match="out of bounds"):
        cut_points(points, (3, 4), form, (1,), piece_bytes=None)
    with pytest.raises(SelectionError, match="no elements"):
        cut_points(points, (4, 4), ChunkForm((2, 0), 1, (0, 1)), (1,), piece_bytes=None)
    with pytest.raises(SelectionError, match="64 bits"):
        cut_points(points, (4, 4), form, (2**63,), piece_bytes=None)
    with pytest.raises(ValueError, match="piece_bytes"):
        cut_points(points, (4, 4), form, (1,), piece_bytes=0)
    wide = normalise(([0, 3], [1, 2], slice(None)), (4, 4, 2**40))
    with pytest.raises(SelectionError, match=str(MAX_PIECES)):
        cut_points(wide, (4, 4, 2**40), ChunkForm((4, 4, 1), 1, (0, 1, 2)), (0, 0), piece_bytes=None)


def test_what_does_not_belong_together() -> None:
    form = ChunkForm((2, 2), 1, (0, 1))
    whole = normalise(..., (4, 4))
    with pytest.raises(ValueError, match="dimensions differ"):
        cut(whole, (4,), form, (4, 1), piece_bytes=None)
    with pytest.raises(SelectionError, match="out of bounds"):
        cut(whole, (4, 3), form, (4, 1), piece_bytes=None)
    with pytest.raises(SelectionError, match="no elements"):
        cut(whole, (4, 4), ChunkForm((2, 0), 1, (0, 1)), (4, 1), piece_bytes=None)
    with pytest.raises(ValueError, match="piece_bytes"):
        cut(whole, (4, 4), form, (4, 1), piece_bytes=0)
    with pytest.raises(ValueError, match="permutation"):
        ChunkForm((2, 2), 1, (0, 0))
    with pytest.raises(ValueError, match="0 bytes"):
        ChunkForm((2, 2), 0, (0, 1))
