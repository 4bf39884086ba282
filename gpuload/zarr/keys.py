"""Chunk keys, many at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gpuload.request import Int64
from gpuload.zarr._compat import Description


def key_function(description: Description) -> Callable[[Int64], list[str]]:
    """From int64 (m, ndim) coordinates to the m chunk keys of an array, relative to it."""
    if description.separator is None:
        encode = description.encode_key
        return lambda chunks: [encode(tuple(row)) for row in chunks.tolist()]
    separator, prefix = description.separator, description.key_prefix
    return lambda chunks: encode_keys(chunks, separator, prefix)


def encode_keys(chunks: Int64, separator: str, prefix: str) -> list[str]:
    """Chunk keys of the default (`prefix` "c") and the v2 encoding (no prefix), many at once.

    Parameters
    ----------
    chunks
        int64 (m, ndim): coordinates.
    """
    m, ndim = chunks.shape
    if ndim == 0:
        return [prefix or "0"] * m
    # Coordinates repeat a great deal: each is turned into text once, and then only joined.
    columns = [_decimal(chunks[:, dim]).tolist() for dim in range(ndim)]
    if prefix:
        columns.insert(0, [prefix] * m)
    return columns[0] if len(columns) == 1 else list(map(separator.join, zip(*columns, strict=True)))


def _decimal(column: Int64) -> npt.NDArray[np.object_]:
    """`column` as text."""
    if len(column) == 0:
        return np.empty(0, object)
    low, high = int(column.min()), int(column.max())
    if high - low <= 2 * len(column):
        values, index = range(low, high + 1), column - low
    else:
        present, index = np.unique(column, return_inverse=True)
        values = present.tolist()
    return np.array(list(map(str, values)), object)[index]
