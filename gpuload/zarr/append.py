"""Appends to an array: the chunks first, then the document with the new shape, so that readers see whole appends only.

Two who append to one array at a time overwrite each other, as any two writers of one chunk do.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from gpuload.config import flag
from gpuload.errors import AssignmentError, UnsupportedArrayError
from gpuload.files.writer import Writer
from gpuload.planning.axis import AxisRange
from gpuload.planning.selection import Selection
from gpuload.zarr import _compat
from gpuload.zarr.layout import layout_of
from gpuload.zarr.source import Source
from gpuload.zarr.write import ArrayWriter


def append(
    source: Source, metadata: _compat.Metadata, shape: tuple[int, ...], values: Any, axis: int, durable: bool | None
) -> None:
    """Write `values` behind the end of an array, then its new shape; see `Array.append`."""
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
    with Writer(source.root, durable=flag("durable") if durable is None else durable) as files:
        for name, data in _compat.documents(longer).items():
            files.write(source.prefix + name, data)
        _tell_groups(source, files, grown)


def _tell_groups(source: Source, files: Writer, shape: tuple[int, ...]) -> None:
    """Correct the shape in the consolidated metadata of the groups above, for readers that look nowhere else."""
    parts = source.path.split("/") if source.path else []
    for depth in range(len(parts)):
        prefix = "".join(f"{part}/" for part in parts[:depth])
        below = "/".join(parts[depth:])
        for name, entry in (("zarr.json", below), (".zmetadata", f"{below}/.zarray")):
            document = _json(source, prefix + name)
            held = (document.get("consolidated_metadata") or {}) if name == "zarr.json" else document
            known = held.get("metadata", {}).get(entry)
            if known is not None:
                known["shape"] = list(shape)
                files.write(prefix + name, json.dumps(document, indent=2).encode())


def _json(source: Source, key: str) -> dict[str, Any]:
    try:
        fd = source.root.open(key)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    with os.fdopen(fd, "rb") as file:
        found = json.load(file)
    return found if isinstance(found, dict) else {}
