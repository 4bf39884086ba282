"""What is selected along one array dimension: a range or a list of coordinates, made from one key by NumPy's rules.

Python integers hold the parts of a range, so that an array of nearly 2**63 elements along an axis is no special case.
A list that turns out to be a range (a mask without holes, sorted neighbours, a single element) becomes one: the
arithmetic on ranges is cheaper, and its pieces are copied in longer rows.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.errors import SelectionError
from gpuload.request import Int64

INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AxisRange:
    """Coordinates ``start + i * step`` for ``0 <= i < count`` along one array dimension; `step` may be negative."""

    start: int
    step: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class AxisIndices:
    """Coordinates ``index[i]`` along one array dimension, int64 (count,): in any order, with repeats, not negative."""

    index: Int64

    @property
    def count(self) -> int:
        """Number of coordinates, repeats included."""
        return len(self.index)


Axis = AxisRange | AxisIndices


def lowest(axis: Axis) -> int:
    """Lowest selected coordinate; the axis must not be empty."""
    if isinstance(axis, AxisIndices):
        return int(axis.index.min())
    return min(axis.start, axis.start + (axis.count - 1) * axis.step)


def highest(axis: Axis) -> int:
    """Highest selected coordinate; the axis must not be empty."""
    if isinstance(axis, AxisIndices):
        return int(axis.index.max())
    return max(axis.start, axis.start + (axis.count - 1) * axis.step)


def is_array(key: Any) -> bool:
    """Whether `key` is what NumPy calls an index array: a list, or an array of one dimension or more."""
    return isinstance(key, list) or (hasattr(key, "__array__") and getattr(key, "ndim", 0) > 0)


def from_array(key: Any, size: int, dim: int) -> Axis:
    """What an integer array or a mask selects along dimension `dim` of `size` elements.

    Raises
    ------
    SelectionError
        More than one dimension, neither integers nor booleans, an index out of bounds, or a mask of another length.
    """
    values = as_values(key, dim)
    if values.ndim != 1:
        raise SelectionError(
            f"an array of {values.ndim} dimensions cannot select along axis {dim}: it must have just one"
        )
    if values.dtype.kind == "b":
        return as_axis(from_mask(values, (size,), dim)[0])
    return as_axis(from_integers(values, size, dim))


def as_values(key: Any, dim: int) -> npt.NDArray[Any]:
    """An index array or list, for dimension `dim` and perhaps some after it, as a NumPy array; [] has integers."""
    try:
        values = np.asarray(key)
    except (TypeError, ValueError) as error:
        raise SelectionError(f"{describe(key)} cannot select along axis {dim}: {error}") from error
    return values.astype(np.int64) if isinstance(key, list) and values.size == 0 else values


def from_mask(mask: npt.NDArray[np.bool_], shape: Sequence[int], dim: int) -> tuple[Int64, ...]:
    """Coordinates of the elements a mask selects of dimension `dim` and as many after it as it has, of `shape`."""
    if mask.shape != tuple(shape):
        if mask.ndim == 1:
            raise SelectionError(f"a mask of {len(mask)} elements does not fit axis {dim} with size {shape[0]}")
        raise SelectionError(f"a mask of shape {mask.shape} does not fit axes {dim}... of shape {tuple(shape)}")
    return tuple(index.astype(np.int64, copy=False) for index in np.nonzero(mask))


def from_integers(values: npt.NDArray[Any], size: int, dim: int) -> Int64:
    """Coordinates an integer array of any shape lists along dimension `dim` of `size` elements, none negative."""
    if values.dtype.kind not in "iu":
        raise SelectionError(f"an array of {values.dtype} cannot select along axis {dim}: integers and booleans do")
    if size > INT64_MAX:
        raise SelectionError(f"indices of axis {dim} with size {size} do not fit into 64 bits")
    outside = (values < -size) | (values >= size)
    if outside.any():
        wrong = int(values.flat[np.argmax(outside)])
        raise SelectionError(f"index {wrong} is out of bounds for axis {dim} with size {size}")
    index = values.astype(np.int64)  # a copy: what is checked here must not change until it is used
    index[index < 0] += size
    return index


def as_axis(index: Int64) -> Axis:
    """The range that lists just these coordinates, or else the list."""
    if len(index) == 0:
        return AxisRange(0, 1, 0)
    if len(index) == 1:
        return AxisRange(int(index[0]), 1, 1)
    step = int(index[1]) - int(index[0])
    if step and bool((np.diff(index) == step).all()):
        return AxisRange(int(index[0]), step, len(index))
    return AxisIndices(index)


def from_slice(key: slice, size: int) -> AxisRange:
    """What a slice selects of `size` elements; a zero step or a part that is no integer is a SelectionError."""
    try:
        covered = range(*key.indices(size))
    except ValueError:
        raise SelectionError(f"{key!r}: the step of a slice cannot be zero") from None
    except TypeError:
        raise SelectionError(f"{key!r}: the parts of a slice must be integers or None") from None
    # Not len(): it is limited to sys.maxsize. A step that is never taken is 1, so that no huge one is carried along.
    count = max(0, (covered.stop - covered.start + covered.step - (1 if covered.step > 0 else -1)) // covered.step)
    if count == 0:
        return AxisRange(0, 1, 0)
    return AxisRange(covered.start, covered.step if count > 1 else 1, count)


def from_integer(key: Any, size: int, dim: int) -> AxisRange:
    """The one element an integer selects along dimension `dim` of `size` elements, or a SelectionError."""
    try:
        if isinstance(key, bool | np.bool_):
            raise TypeError
        index = operator.index(key)
    except TypeError:
        raise SelectionError(
            f"{describe(key)} is no index: integers, slices, Ellipsis, None (newaxis) and arrays are"
        ) from None
    if not -size <= index < size:
        raise SelectionError(f"index {index} is out of bounds for axis {dim} with size {size}")
    return AxisRange(index % size, 1, 1)


def describe(key: Any) -> str:
    """A key and its type, short enough for an error."""
    text = repr(key)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(key).__name__})"
