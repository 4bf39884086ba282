"""Chunk keys, many at once, and the names that are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gpuload.request import Int64
from gpuload.zarr._compat import Description

DOCUMENTS = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})  # metadata, in any group or array


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


def parse_keys(paths: Sequence[str], description: Description) -> tuple[str, Int64] | None:
    """From the paths of an array's chunks, below the root of its store, back to where it and they are.

    Returns
    -------
    path
        Of the array.
    chunks
        int64 (m, ndim): coordinates. None in place of both where the paths are not those of chunks of one array, or
        only zarr-python can encode its keys.
    """
    separator, prefix = description.separator, description.key_prefix
    ndim = len(description.shape)
    if separator is None:
        return None
    head = _array_part(paths[0], ndim, separator, prefix)
    if not all(path.startswith(head) for path in paths):
        return None
    keys = [path[len(head) :] for path in paths] if head else list(paths)
    skip = len(prefix) + len(separator) if prefix else 0
    try:
        numbers = [int(number) for key in keys for number in key[skip:].split(separator)] if ndim else []
        chunks = np.array(numbers, np.int64).reshape(len(keys), ndim)
    except (ValueError, OverflowError):
        return None
    # As they were, so that nothing that only looks like a key is taken for one.
    return (head.rstrip("/"), chunks) if encode_keys(chunks, separator, prefix) == keys else None


def _array_part(path: str, ndim: int, separator: str, prefix: str) -> str:
    """What comes before the key of a chunk in its path: nothing, or the path of the array and a slash."""
    names = 1 if separator != "/" else max(ndim + bool(prefix), 1)
    return path.removesuffix("/".join(path.split("/")[-names:]))


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
