"""Appends to an array: the chunks first, then the document with the new shape, so that readers see whole appends only.

Whoever appends holds the array's lock (`gpuload.files.lock`) from the look at where it ends to the new shape. On one
machine, appends come one after the other; what does not know that lock, such as zarr-python, may still lose some.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuload.config import flag
from gpuload.errors import AssignmentError, UnsupportedArrayError
from gpuload.files.writer import Writer
from gpuload.planning.axis import AxisRange
from gpuload.planning.selection import Selection
from gpuload.zarr import _compat
from gpuload.zarr.consolidated import Change, tell_groups
from gpuload.zarr.layout import layout_of
from gpuload.zarr.source import Source
from gpuload.zarr.write import ArrayWriter


def append(
    source: Source, metadata: _compat.Metadata, shape: tuple[int, ...], values: Any, axis: int, durable: bool | None
) -> None:
    """Write `values` behind the end of an array, whose lock is held, then its new shape; see `Array.append`."""
    given = values if hasattr(values, "shape") else np.asarray(values)
    if not shape:
        raise AssignmentError("an array without dimensions has no end to append to")
    if not -len(shape) <= axis < len(shape):
        raise AssignmentError(f"axis {axis} of an array of {len(shape)} dimensions")
    axis %= len(shape)
    if given.ndim != len(shape) or any(
        n != m for dim, (n, m) in enumerate(zip(given.shape, shape, strict=True)) if dim != axis
    ):
        raise AssignmentError(f"values of shape {tuple(given.shape)} do not continue {shape} along axis {axis}")
    grown = tuple(n + (given.shape[dim] if dim == axis else 0) for dim, n in enumerate(shape))
    longer = _compat.resized(metadata, grown)
    description = _compat.describe(longer)
    if description.chunks is None:
        raise UnsupportedArrayError("an array whose chunks differ in shape cannot be appended to")
    writer = ArrayWriter(source, longer, layout_of(description), durable=durable)
    axes = tuple(AxisRange(n if dim == axis else 0, 1, given.shape[dim]) for dim, n in enumerate(shape))
    writer.assign(Selection(axes, tuple(range(len(shape)))), given)
    durable = flag("durable") if durable is None else durable
    with Writer(source.root, durable=durable) as files:
        for name, data in _compat.documents(longer).items():
            files.write(source.prefix + name, data)
    tell_groups(source, Change(shape=grown), durable=durable)
