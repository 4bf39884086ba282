"""A basic selection as numbers: one range per array dimension, and which of them are axes of the result.

Basic means NumPy's basic indexing in full: integers, slices with any step, ``...`` and ``None`` (newaxis), with
NumPy's rules and bounds. Everything after `normalise` is arithmetic on `AxisRange`: ``start + i * step`` for
``i < count``. Python integers hold the coordinates, so that an array of nearly 2**63 elements along an axis is no
special case.

The transport knows nothing of dropped or inserted axes. It fills a *box* with exactly one axis per array dimension;
`Selection.as_box` shows any destination of the result's shape as that box, without a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import DestinationError, SelectionError

MAX_NDIM = 64  # NumPy's own limit for the axes of a result


@dataclass(frozen=True, slots=True)
class AxisRange:
    """Coordinates ``start + i * step`` for ``0 <= i < count`` along one array dimension; `step` may be negative."""

    start: int
    step: int
    count: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What a basic selection asks for.

    Parameters
    ----------
    axes
        One range per array dimension; an integer index is a range of count 1.
    result
        The axes of the result in order: the array dimension each runs along, or None for a newaxis. Dimensions
        indexed by an integer do not occur.
    """

    axes: tuple[AxisRange, ...]
    result: tuple[int | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(1 if dim is None else self.axes[dim].count for dim in self.result)

    @property
    def box(self) -> tuple[int, ...]:
        """Elements selected along each array dimension."""
        return tuple(axis.count for axis in self.axes)

    def as_box(self, out: Any) -> Any:
        """View an array of shape `shape` with one axis per array dimension.

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
        if tuple(out.shape) != self.shape:
            raise DestinationError(f"out has shape {tuple(out.shape)}, but the selection gives {self.shape}")
        key: list[Any] = []
        seen = 0
        for dim in self.result:  # basic indexing keeps the dimensions in order
            if dim is None:
                key.append(0)
            else:
                key += [None] * (dim - seen) + [slice(None)]
                seen = dim + 1
        key += [None] * (len(self.axes) - seen)
        return out[(*key, ...)]  # the ellipsis makes it a view where all keys are integers, too


def normalise(selection: Any, shape: Sequence[int]) -> Selection:
    """Turn what stands between the brackets into numbers.

    Parameters
    ----------
    selection
        An integer (anything with ``__index__`` that is no bool), a slice, ``...``, None, or a tuple of these.
    shape
        Of the array, in elements.

    Raises
    ------
    SelectionError
        An index out of bounds, too many indices, a zero step, or anything that is not basic indexing.
    """
    keys = selection if isinstance(selection, tuple) else (selection,)
    keys = _fill_ellipsis(keys, len(shape))
    axes: list[AxisRange] = []
    result: list[int | None] = []
    for key in keys:
        if key is None:
            result.append(None)
            continue
        dim = len(axes)
        if isinstance(key, slice):
            result.append(dim)
            axes.append(_from_slice(key, int(shape[dim])))
        else:
            axes.append(_from_integer(key, int(shape[dim]), dim))
    if len(result) > MAX_NDIM:
        raise SelectionError(f"the result would have {len(result)} axes, at most {MAX_NDIM} are possible")
    return Selection(tuple(axes), tuple(result))


def _fill_ellipsis(keys: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Replace the ellipsis, or append what a missing one stands for: a full slice per dimension not mentioned."""
    ellipses = [position for position, key in enumerate(keys) if key is Ellipsis]
    if len(ellipses) > 1:
        raise SelectionError("an index can only have a single ellipsis ('...')")
    used = sum(key is not None and key is not Ellipsis for key in keys)
    if used > ndim:
        raise SelectionError(f"too many indices: the array has {ndim} dimensions, but {used} were indexed")
    full = (slice(None),) * (ndim - used)
    if not ellipses:
        return keys + full
    return keys[: ellipses[0]] + full + keys[ellipses[0] + 1 :]


def _from_slice(key: slice, size: int) -> AxisRange:
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


def _from_integer(key: Any, size: int, dim: int) -> AxisRange:
    try:
        if isinstance(key, bool | np.bool_):
            raise TypeError
        index = operator.index(key)
    except TypeError:
        raise SelectionError(
            f"{_name(key)} is not a basic index: only integers, slices, Ellipsis and None (newaxis) are"
        ) from None
    if not -size <= index < size:
        raise SelectionError(f"index {index} is out of bounds for axis {dim} with size {size}")
    return AxisRange(index % size, 1, 1)


def _name(key: Any) -> str:
    text = repr(key)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(key).__name__})"
