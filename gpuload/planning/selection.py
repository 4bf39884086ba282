"""A selection as numbers: what it takes along each array dimension, and which of them are axes of the result.

The ways to read what stands between brackets meet here. `normalise` is NumPy's indexing in full. `orthogonal` takes an
index array along any dimension, each for itself, as zarr's ``oindex`` does; `vectorised` takes them together, as zarr's
``vindex`` does; `blocks` counts in chunks. Everything after them is arithmetic on one `Axis` per array dimension or,
where several arrays are read together, on a list of points.

The transport knows nothing of dropped, inserted or moved axes. It fills a *box*; `as_box` of a selection shows any
destination of the result's shape as that box, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import DestinationError, SelectionError
from gpuload.planning.axis import (
    Axis,
    AxisRange,
    as_axis,
    as_values,
    describe,
    from_array,
    from_integer,
    from_integers,
    from_mask,
    from_slice,
    is_array,
)
from gpuload.request import Int64

MAX_NDIM = 64  # NumPy's own limit for the axes of a result


@dataclass(frozen=True, slots=True)
class Selection:
    """What a selection asks for along each dimension; its box has one axis per array dimension.

    Parameters
    ----------
    axes
        What is taken along each array dimension; an integer index is a range of count 1.
    result
        The axes of the result in order: the array dimension each runs along, or None for a newaxis. Dimensions
        indexed by an integer do not occur. They ascend, unless NumPy moves the axis of an index array to the front.
    """

    axes: tuple[Axis, ...]
    result: tuple[int | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return _shape(self.box, self.result)

    @property
    def box(self) -> tuple[int, ...]:
        """Elements selected along each array dimension."""
        return tuple(axis.count for axis in self.axes)

    def as_box(self, out: Any) -> Any:
        """View an array of shape `shape` as the box.

        Parameters
        ----------
        out
            NumPy or CuPy array of shape `shape`, with any strides.

        Returns
        -------
        view
            Of shape `box`, on the memory of `out`.

        Raises
        ------
        DestinationError
            `out` has another shape.
        """
        return _as_box(out, self.shape, self.result, len(self.axes))


@dataclass(frozen=True, slots=True, eq=False)
class PointSelection:
    """Index arrays that are read together: element i of all of them is one point.

    Its box has the axes that the arrays have in common, then one per dimension that has no array.

    Parameters
    ----------
    dims
        The array dimensions that have an array, ascending.
    index
        Per one of these int64 (n,): its coordinate of each point, in C order of `points`.
    points
        Shape that the arrays have in common.
    others
        The other array dimensions, ascending.
    axes
        What is taken along each of those.
    result
        The axes of the result in order: the axis of the box each is, or None for a newaxis.
    """

    dims: tuple[int, ...]
    index: tuple[Int64, ...]
    points: tuple[int, ...]
    others: tuple[int, ...]
    axes: tuple[AxisRange, ...]
    result: tuple[int | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return _shape(self.box, self.result)

    @property
    def box(self) -> tuple[int, ...]:
        """Shape of the points, and elements selected along each other dimension."""
        return self.points + tuple(axis.count for axis in self.axes)

    def as_box(self, out: Any) -> Any:
        """View an array of shape `shape` as the box; as `Selection.as_box`."""
        return _as_box(out, self.shape, self.result, len(self.points) + len(self.axes))


AnySelection = Selection | PointSelection


def _shape(box: tuple[int, ...], result: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(1 if axis is None else box[axis] for axis in result)


def _as_box(out: Any, shape: tuple[int, ...], result: tuple[int | None, ...], ndim: int) -> Any:
    if tuple(out.shape) != shape:
        raise DestinationError(f"out has shape {tuple(out.shape)}, but the selection gives {shape}")
    axes = [axis for axis in result if axis is not None]
    box = out[(*(0 if axis is None else slice(None) for axis in result), ...)]  # the ellipsis makes it a view
    if axes != sorted(axes):
        box = box.transpose(sorted(range(len(axes)), key=axes.__getitem__))
    present = set(axes)
    return box[(*(slice(None) if axis in present else None for axis in range(ndim)), ...)]


def normalise(selection: Any, shape: Sequence[int]) -> AnySelection:
    """Turn what stands between the brackets into numbers, as NumPy understands it.

    Parameters
    ----------
    selection
        An integer (anything with ``__index__`` that is no bool), a slice, ``...``, None, an array or list of integers
        of any dimensions, one of booleans, as many as there are elements along the dimensions it is for, or a tuple of
        these. Several arrays are broadcast to each other and read together. Where an integer or array stands beside an
        array, but not next to it, NumPy moves their common axes to the front.
    shape
        Of the array, in elements.

    Raises
    ------
    SelectionError
        An index out of bounds, too many indices, a zero step, a mask of another shape, arrays that do not fit each
        other, or anything else that is no index.
    """
    keys = _expand(selection, shape)
    if not any(is_array(key) for key in keys):
        return _along_axes(keys, shape)
    # To NumPy, integers beside an array are arrays too. Only where all of them are neighbours is it clear where the
    # axes they have in common belong; an ellipsis comes between, even if it stands for nothing.
    parts = selection if isinstance(selection, tuple) else (selection,)
    advanced = [i for i, key in enumerate(parts) if not (key is None or key is ... or isinstance(key, slice))]
    return _together(keys, shape, front=advanced[-1] - advanced[0] >= len(advanced))


def vectorised(selection: Any, shape: Sequence[int]) -> AnySelection:
    """Turn a selection of points into numbers, as zarr's ``vindex`` understands it.

    Parameters
    ----------
    selection
        As for `normalise`, with at least one integer or array. What the arrays have in common always comes first in
        the result, and with integers alone it is one axis of one point.
    shape
        Of the array, in elements.

    Raises
    ------
    SelectionError
        As for `normalise`, or no point at all.
    """
    keys = _expand(selection, shape)
    if all(key is None or isinstance(key, slice) for key in keys) and shape:
        raise SelectionError(f"{describe(selection)} selects no points: vindex[...] takes integers, arrays or a mask")
    if any(is_array(key) for key in keys):
        return _together(keys, shape, front=True)
    plain = _along_axes(keys, shape)
    return Selection(plain.axes, (None, *plain.result))


def orthogonal(selection: Any, shape: Sequence[int]) -> Selection:
    """Turn an orthogonal selection into numbers: every axis is indexed for itself, as zarr's ``oindex`` does.

    Parameters
    ----------
    selection
        As for `normalise`, but arrays have one dimension. The axes of the result keep the array's order.
    shape
        Of the array, in elements.

    Raises
    ------
    SelectionError
        As for `normalise`.
    """
    keys = _fill_ellipsis(selection if isinstance(selection, tuple) else (selection,), len(shape))
    return _along_axes(keys, shape)


def blocks(selection: Any, shape: Sequence[int], edges: Sequence[int | tuple[int, ...]]) -> Selection:
    """Turn a selection that counts in chunks into numbers, as zarr's ``blocks`` understands it.

    Parameters
    ----------
    selection
        An integer, a slice of step 1, ``...``, or a tuple of these. Every dimension stays an axis of the result.
    shape
        Of the array, in elements.
    edges
        Per dimension, the extent of every chunk, or of each one.

    Raises
    ------
    SelectionError
        No such chunk, too many indices, another step, or anything else that is no index.
    """
    keys = _fill_ellipsis(selection if isinstance(selection, tuple) else (selection,), len(shape))
    if len(keys) > len(shape):
        raise SelectionError("a selection of blocks adds no axes: None (newaxis) is not possible")
    axes = []
    for dim, (key, size, edge) in enumerate(zip(keys, shape, edges, strict=True)):
        n = len(edge) if isinstance(edge, tuple) else -(-size // max(edge, 1))
        if isinstance(key, slice):
            along = from_slice(key, n)
            if key.step not in (None, 1):
                raise SelectionError(f"{key!r}: a slice of blocks has step 1")
        else:
            along = from_integer(key, n, dim)
        begin, end = along.start, along.start + along.count
        bounds = [0, *np.cumsum(edge).tolist()] if isinstance(edge, tuple) else None
        first = begin * edge if bounds is None else bounds[begin]
        last = min(size, end * edge if bounds is None else bounds[end])
        axes.append(from_slice(slice(first, last), size))
    return Selection(tuple(axes), tuple(range(len(shape))))


def _along_axes(keys: Sequence[Any], shape: Sequence[int]) -> Selection:
    """Every axis for itself; `keys` have no ellipsis."""
    axes: list[Axis] = []
    result: list[int | None] = []
    for key in keys:
        if key is None:
            result.append(None)
            continue
        dim = len(axes)
        size = int(shape[dim])
        if isinstance(key, slice):
            result.append(dim)
            axes.append(from_slice(key, size))
        elif is_array(key):
            result.append(dim)
            axes.append(from_array(key, size, dim))
        else:
            axes.append(from_integer(key, size, dim))
    _check_ndim(result)
    return Selection(tuple(axes), tuple(result))


def _together(keys: Sequence[Any], shape: Sequence[int], *, front: bool) -> AnySelection:
    """All arrays as one; their common axes come first, or where the first of them or of the integers stands."""
    arrays: dict[int, Int64] = {}
    axes: dict[int, AxisRange] = {}
    kept: list[int | None] = []  # the axes of the result without those of the arrays
    at: int | None = 0 if front else None  # where in it these belong
    dim = 0
    for key in keys:
        if key is None:
            kept.append(None)
            continue
        if isinstance(key, slice):
            kept.append(dim)
            axes[dim] = from_slice(key, int(shape[dim]))
            dim += 1
            continue
        at = len(kept) if at is None else at
        if not is_array(key):
            axes[dim] = from_integer(key, int(shape[dim]), dim)
            dim += 1
            continue
        values = as_values(key, dim)
        if values.dtype.kind == "b":
            found = from_mask(values, shape[dim : dim + values.ndim], dim)
        else:
            found = (from_integers(values, int(shape[dim]), dim),)
        arrays.update(enumerate(found, dim))
        dim += len(found)
    assert at is not None
    if len(arrays) == 1 and next(iter(arrays.values())).ndim == 1:
        ((dim, index),) = arrays.items()
        kept.insert(at, dim)
        _check_ndim(kept)
        return Selection(tuple((axes | {dim: as_axis(index)})[i] for i in range(len(shape))), tuple(kept))
    return _points(arrays, axes, kept, at)


def _points(
    arrays: dict[int, Int64], axes: dict[int, AxisRange], kept: Sequence[int | None], at: int
) -> PointSelection:
    try:
        points = np.broadcast_shapes(*(index.shape for index in arrays.values()))
    except ValueError:
        shapes = ", ".join(str(index.shape) for index in arrays.values())
        raise SelectionError(f"index arrays of shapes {shapes} cannot be broadcast to each other") from None
    others = tuple(sorted(axes))
    number = {dim: len(points) + i for i, dim in enumerate(others)}
    result = [None if dim is None else number[dim] for dim in kept]
    result[at:at] = range(len(points))
    _check_ndim(result)
    return PointSelection(
        dims=tuple(arrays),
        index=tuple(np.broadcast_to(index, points).reshape(-1) for index in arrays.values()),
        points=points,
        others=others,
        axes=tuple(axes[dim] for dim in others),
        result=tuple(result),
    )


def _check_ndim(result: Sequence[int | None]) -> None:
    if len(result) > MAX_NDIM:
        raise SelectionError(f"the result would have {len(result)} axes, at most {MAX_NDIM} are possible")


def _expand(selection: Any, shape: Sequence[int]) -> tuple[Any, ...]:
    """The keys without an ellipsis; a mask stands for as many dimensions as it has."""
    keys = selection if isinstance(selection, tuple) else (selection,)
    more = 0
    for position, key in enumerate(keys):
        if is_array(key):
            values = as_values(key, position)
            more += values.ndim - 1 if values.dtype.kind == "b" else 0
    return _fill_ellipsis(keys, len(shape), more)


def _fill_ellipsis(keys: tuple[Any, ...], ndim: int, more: int = 0) -> tuple[Any, ...]:
    """Replace the ellipsis, or append what a missing one stands for: a full slice per dimension not mentioned.

    `more` dimensions are mentioned than there are keys.
    """
    ellipses = [position for position, key in enumerate(keys) if key is Ellipsis]
    if len(ellipses) > 1:
        raise SelectionError("an index can only have a single ellipsis ('...')")
    used = sum(key is not None and key is not Ellipsis for key in keys) + more
    if used > ndim:
        raise SelectionError(f"too many indices: the array has {ndim} dimensions, but {used} were indexed")
    full = (slice(None),) * (ndim - used)
    if not ellipses:
        return keys + full
    return keys[: ellipses[0]] + full + keys[ellipses[0] + 1 :]
