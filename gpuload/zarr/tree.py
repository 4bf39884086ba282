"""All arrays and groups of a store, in the order of their paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import zarr

from gpuload.zarr import _compat
from gpuload.zarr.array import Array
from gpuload.zarr.layout import Layout
from gpuload.zarr.source import Source


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An array or a group of a store.

    Parameters
    ----------
    source
        Where it is.
    metadata
        As zarr-python has it.
    array
        To read from; None for a group.
    """

    source: Source
    metadata: _compat.Metadata
    array: Array | None

    @property
    def path(self) -> str:
        """Below the root of the store, ``""`` at the root."""
        return self.source.path

    @property
    def layout(self) -> Layout:
        """Of an array."""
        assert self.array is not None
        return self.array.layout


def walk(source: Source) -> Iterator[Node]:
    """The node of `source`, then all below it.

    Raises
    ------
    NotZarrError, UnsupportedArrayError
        As `Source.node` does, for the first node that cannot be opened.
    """
    node: zarr.Array[Any] | zarr.Group = source.node()
    if isinstance(node, zarr.Array):
        yield Node(source, node.metadata, Array(source, node.metadata))
        return
    yield Node(source, node.metadata, None)
    for name in _compat.child_names(node, source.path):
        yield from walk(source.child(name, node.metadata.zarr_format))
