"""Copies pieces whose elements follow no stride along some axes: between views of memory, by NumPy's own indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.planning.grid import Pieces

_COPIED = 4 << 20  # bytes NumPy gathers at once before it puts them in place


class Gather:
    """Places the listed pieces of one plan, one by one. Threads: safe.

    Parameters
    ----------
    pieces
        As planned and collapsed, with `lists`.
    kind
        The type that units are copied as.
    out, base
        The destination's memory as bytes, and the byte of it that places count from.
    """

    def __init__(self, pieces: Pieces, kind: np.dtype[Any], out: npt.NDArray[np.uint8], base: int) -> None:
        assert pieces.lists is not None
        self._pieces, self._lists = pieces, pieces.lists
        self._kind, self._out, self._base = kind, out, base
        # Listed axes first: NumPy then leaves them there, however many there are.
        self._listed = pieces.lists.axes
        self._axes = sorted(range(pieces.count.shape[1]), key=lambda axis: axis not in self._listed)

    def place(self, piece: int, memory: npt.NDArray[np.uint8], at: int) -> None:
        """Copy a piece whose first element is at byte `at` of `memory`."""
        take, put = self._entries(piece, self._lists.take), self._entries(piece, self._lists.put)
        source = self._view(piece, memory, at, self._pieces.source_strides, take)
        target = self._target(piece, put)
        each = int(self._pieces.count[piece, self._axes[1:]].prod()) * self._kind.itemsize
        step = max(1, _COPIED // each)
        for first in range(0, len(take[0]), step):
            part = slice(first, first + step)
            target[np.ix_(put[0][part], *put[1:])] = source[np.ix_(take[0][part], *take[1:])]

    def fill(self, piece: int, value: Any) -> None:
        """Give all elements of a piece one value."""
        put = self._entries(piece, self._lists.put)
        self._target(piece, put)[np.ix_(*put)] = value

    def _entries(self, piece: int, values: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """What a piece has of a list along each listed axis."""
        entry, count = self._lists.entry[piece].tolist(), self._pieces.count[piece].tolist()
        return [values[entry[axis] : entry[axis] + count[axis]] for axis in self._listed]

    def _target(self, piece: int, put: list[npt.NDArray[np.int64]]) -> npt.NDArray[Any]:
        place = int(self._pieces.place[piece]) + self._base
        return self._view(piece, self._out, place, self._pieces.place_strides, put)

    def _view(
        self,
        piece: int,
        memory: npt.NDArray[np.uint8],
        at: int,
        strides: tuple[int, ...],
        entries: list[npt.NDArray[np.int64]],
    ) -> npt.NDArray[Any]:
        """The memory around a piece, as far as its lists reach, with the listed axes first."""
        shape = self._pieces.count[piece].tolist()
        for axis, values in zip(self._listed, entries, strict=True):
            shape[axis] = int(values.max()) + 1
        view: npt.NDArray[Any] = np.ndarray(shape, self._kind, memory, at, strides)
        return view.transpose(self._axes)
