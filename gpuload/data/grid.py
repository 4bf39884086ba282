"""The samples of an array: windows at regular places along some dimensions, and the chunks that they start in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuload.errors import SampleError
from gpuload.request import Int64


@dataclass(frozen=True, eq=False)
class SampleAxis:
    """Windows along one dimension: the one with number i covers ``i * stride`` to ``i * stride + window``.

    Windows that would reach beyond the end are not samples.

    Parameters
    ----------
    name
        The dimension.
    length
        Its elements.
    window, stride
        Elements of a window, and from the start of one to that of the next.
    bounds
        int64 (chunks + 1,): where each chunk starts, ascending from 0, and `length`.

    Raises
    ------
    SampleError
        A window or a stride that is less than 1, or a window that is longer than the dimension.
    """

    name: str
    length: int
    window: int
    stride: int
    bounds: Int64

    def __post_init__(self) -> None:
        if self.window < 1 or self.stride < 1:
            raise SampleError(
                f"along {self.name!r}: window {self.window}, stride {self.stride}; both must be at least 1"
            )
        if self.window > self.length:
            raise SampleError(f"a window of {self.window} does not fit into {self.name!r}, which has {self.length}")

    @property
    def count(self) -> int:
        """How many windows."""
        return (self.length - self.window) // self.stride + 1

    @cached_property
    def cells(self) -> Int64:
        """int64 (c + 1,): the first window of each chunk that one starts in, and `count`."""
        first = np.minimum(-(-self.bounds[:-1] // self.stride), self.count)
        last = np.append(first[1:], self.count)
        return np.append(first[first < last], self.count)


class SampleGrid:
    """Samples along several dimensions: every combination of a window along each, numbered in C order.

    A *cell* is what starts in one chunk: one chunk along each of the dimensions. Cells without a sample are not
    counted. A value: threads, fork and pickle are safe.

    Parameters
    ----------
    axes
        At least one, each for another dimension.
    """

    def __init__(self, axes: Sequence[SampleAxis]) -> None:
        self.axes = tuple(axes)
        self.shape = tuple(axis.count for axis in self.axes)
        self.n = math.prod(self.shape)
        self.cells = math.prod(self._cell_shape)
        if self.n >= 1 << 62:
            raise SampleError(f"{self.n} samples are more than can be numbered")

    @cached_property
    def _cell_shape(self) -> tuple[int, ...]:
        return tuple(len(axis.cells) - 1 for axis in self.axes)

    def sizes(self, cells: Int64) -> Int64:
        """int64 (m,): how many samples each of the `cells`, int64 (m,), has."""
        sizes = np.ones(len(cells), np.int64)
        for axis, number in zip(self.axes, np.unravel_index(cells, self._cell_shape), strict=True):
            sizes *= axis.cells[number + 1] - axis.cells[number]
        return sizes

    def within(self, cells: Int64, numbers: Int64) -> Int64:
        """The samples with `numbers` in `cells`, both int64 (m,), where a cell numbers its own in C order.

        Returns
        -------
        windows
            int64 (m, axes): the number of the window along each dimension.
        """
        windows = np.empty((len(cells), len(self.axes)), np.int64)
        places = np.unravel_index(cells, self._cell_shape)
        for column in reversed(range(len(self.axes))):
            edges, place = self.axes[column].cells, places[column]
            first = edges[place]
            numbers, inner = np.divmod(numbers, edges[place + 1] - first)
            windows[:, column] = first + inner
        return windows

    def windows(self, samples: Int64) -> Int64:
        """int64 (m, axes): the window along each dimension of `samples`, int64 (m,), numbered in C order."""
        return np.stack(np.unravel_index(samples, self.shape), axis=1).astype(np.int64, copy=False)

    def numbers(self, windows: Int64) -> Int64:
        """int64 (m,): the numbers in C order of samples, given by their `windows`, int64 (m, axes)."""
        numbers: Int64 = np.ravel_multi_index(tuple(windows.T), self.shape).astype(np.int64, copy=False)
        return numbers

    def starts(self, windows: Int64) -> Int64:
        """int64 (m, axes): where `windows` start along each dimension, in elements."""
        return windows * np.array([axis.stride for axis in self.axes], np.int64)
