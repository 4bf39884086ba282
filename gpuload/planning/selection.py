"""A selection as numbers: what it takes along each array dimension, and which of them are axes of the result.

Two ways to read what stands between brackets meet here. `normalise` is NumPy's indexing: basic indexing in full, with
one index array at most. `orthogonal` takes an index array along any dimension, each for itself, as zarr's ``oindex``
does. Everything after them is arithmetic on one `Axis` per array dimension.

The transport knows nothing of dropped, inserted or moved axes. It fills a *box* with exactly one axis per array
dimension; `Selection.as_box` shows any destination of the result's shape as that box, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuload.errors import DestinationError, SelectionError
from gpuload.planning.axis import Axis, from_array, from_integer, from_slice, is_array

MAX_NDIM = 64  # NumPy's own limit for the axes of a result


@dataclass(frozen=True, slots=True)
class Selection:
    """What a selection asks for.

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
        dims = [dim for dim in self.result if dim is not None]
        box = out[(*(0 if dim is None else slice(None) for dim in self.result), ...)]  # the ellipsis makes it a view
        if dims != sorted(dims):
            box = box.transpose(sorted(range(len(dims)), key=dims.__getitem__))
        present = set(dims)
        return box[(*(slice(None) if dim in present else None for dim in range(len(self.axes))), ...)]


def normalise(selection: Any, shape: Sequence[int]) -> Selection:
    """Turn what stands between the brackets into numbers, as NumPy understands it.

    Parameters
    ----------
    selection
        An integer (anything with ``__index__`` that is no bool), a slice, ``...``, None, or a tuple of these; at most
        one of them may be an array or list of one dimension, of integers or of as many booleans as there are elements.
        Where an integer stands beside it, but not next to it, NumPy moves the axis of the array to the front.
    shape
        Of the array, in elements.

    Raises
    ------
    SelectionError
        An index out of bounds, too many indices, a zero step, a mask of another length, more than one array, or
        anything else that is no index.
    """
    keys, axes, result = _along_axes(selection, shape)
    arrays = [position for position, key in enumerate(keys) if is_array(key)]
    if len(arrays) > 1:
        raise SelectionError(
            f"{len(arrays)} index arrays in one selection: only one is possible here, oindex[...] takes one each axis"
        )
    if arrays:
        # To NumPy, integers beside an array are arrays too. Only where all of them are neighbours is it clear where
        # the axis they have in common belongs; an ellipsis comes between, even if it stands for nothing.
        parts = selection if isinstance(selection, tuple) else (selection,)
        advanced = [i for i, key in enumerate(parts) if not (key is None or key is ... or isinstance(key, slice))]
        if advanced[-1] - advanced[0] >= len(advanced):
            dim = sum(key is not None for key in keys[: arrays[0]])
            result.remove(dim)
            result.insert(0, dim)
    return Selection(tuple(axes), tuple(result))


def orthogonal(selection: Any, shape: Sequence[int]) -> Selection:
    """Turn an orthogonal selection into numbers: every axis is indexed for itself, as zarr's ``oindex`` does.

    Parameters
    ----------
    selection
        As for `normalise`, but with any number of arrays. The axes of the result keep the array's order.
    shape
        Of the array, in elements.

    Raises
    ------
    SelectionError
        As for `normalise`.
    """
    _, axes, result = _along_axes(selection, shape)
    return Selection(tuple(axes), tuple(result))


def _along_axes(selection: Any, shape: Sequence[int]) -> tuple[tuple[Any, ...], list[Axis], list[int | None]]:
    """The keys without an ellipsis, what they take along each array dimension, and the axes of the result in order."""
    keys = _fill_ellipsis(selection if isinstance(selection, tuple) else (selection,), len(shape))
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
    if len(result) > MAX_NDIM:
        raise SelectionError(f"the result would have {len(result)} axes, at most {MAX_NDIM} are possible")
    return keys, axes, result


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
