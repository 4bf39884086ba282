"""Reads straight into host arrays: tables tell the kernel where each row of a chunk belongs, so nobody copies twice.

A row is a run of bytes that is contiguous in the file and in the destination. What lies between the rows of a piece in
the file, and the byte that proves a file's size, are read into a scratch that nobody looks at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuload.bindings.vectors import IOV_MAX, IOVEC
from gpuload.config import one_of
from gpuload.planning.grid import Pieces
from gpuload.request import Int64

if TYPE_CHECKING:
    from gpuload.engine.plan import Plan

# Where a read into place is cheaper than one into a cached scratch and a copy from there. Measured on Zen 3: with rows
# of 1 KiB both cost about the same, with 2 KiB it is a third cheaper, with 512 bytes a third dearer; and the kernel's
# copy to what is not aligned to 32 bytes takes three times as long.
ROW_BYTES = 1024
ALIGN = 32
_LONGEST_GAP = 64 << 10
_ROOM = 64  # bytes of scratch, at least


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """The table of a piece of one shape, without its surplus: where each stretch goes, or that it is a gap."""

    offset: Int64
    length: Int64
    gap: npt.NDArray[np.bool_]


class Vectors:
    """Where the rows of a plan's live pieces go. Threads: the I/O thread's, once it is made."""

    def __init__(self, plan: Plan, base: int, entries: Int64, scratch_bytes: int) -> None:
        # Not the plan, which has this: a circle of the two would keep the result until garbage is collected.
        self._pieces, self._unit, self._base = plan.pieces, plan.unit, base
        self._ends = np.concatenate(([0], np.cumsum(entries)))
        self.scratch_bytes = max(_ROOM, scratch_bytes)
        self._forms: dict[tuple[int, ...], _Form] = {}

    def room(self, first: int, last: int, proofs: int) -> int:
        """Bytes of a block that the tables of these pieces take, with those of `proofs` more reads, and the scratch."""
        return (int(self._ends[last] - self._ends[first]) + proofs) * IOVEC.itemsize + self.scratch_bytes

    def write(
        self, first: int, last: int, surplus: Int64, memory: npt.NDArray[np.uint8], address: int
    ) -> tuple[Int64, Int64]:
        """Write the tables of pieces ``first:last``, each with the surplus it asks for and one for each read more.

        Parameters
        ----------
        surplus
            int64 (n,): bytes read into the scratch behind each piece; those beyond the pieces are tables of their own.
        memory, address
            The block.

        Returns
        -------
        tables, counts
            int64 (n,): address and entries of each.
        """
        pieces = self._pieces
        scratch = address + len(memory) - self.scratch_bytes
        count = pieces.count[first:last]
        place = pieces.place[first:last] + self._base
        shapes, which = count[:1], None
        if not bool((count == shapes).all()):
            shapes, which = np.unique(count, axis=0, return_inverse=True)
        forms = [self._form(tuple(shape)) for shape in shapes.tolist()]
        counts = np.ones(len(surplus), np.int64)
        sizes = np.array([len(form.offset) for form in forms], np.int64)
        counts[: last - first] += sizes[0] if which is None else sizes[which]
        ends = np.cumsum(counts)
        starts = ends - counts
        table = memory[: int(ends[-1]) * IOVEC.itemsize].view(IOVEC)
        for number, form in enumerate(forms):
            mine = slice(0, last - first) if which is None else np.flatnonzero(which == number)
            here = place[mine]
            to = np.where(form.gap, scratch, here[:, None] + form.offset)
            if which is None:
                rows = table[: len(here) * (len(form.offset) + 1)].reshape(len(here), -1)[:, :-1]
                rows["base"], rows["length"] = to, form.length
            else:
                at = starts[mine][:, None] + np.arange(len(form.offset))
                table["base"][at], table["length"][at] = to, np.broadcast_to(form.length, to.shape)
        table["base"][ends - 1], table["length"][ends - 1] = scratch, surplus
        return starts * IOVEC.itemsize + address, counts

    def _form(self, count: tuple[int, ...]) -> _Form:
        form = self._forms.get(count)
        if form is None:
            form = self._forms[count] = _form(self._pieces, self._unit, count)
        return form


def _form(pieces: Pieces, unit: int, count: tuple[int, ...]) -> _Form:
    source, place = (_outer(count[:-1], strides[:-1]) for strides in (pieces.source_strides, pieces.place_strides))
    row = count[-1] * unit
    gap = np.diff(source) - row
    if not gap.any():
        return _Form(place, np.full(len(place), row), np.zeros(len(place), bool))
    offset, length = np.zeros(2 * len(place) - 1, np.int64), np.full(2 * len(place) - 1, row)
    offset[::2], length[1::2] = place, gap
    gaps = np.arange(len(offset)) % 2 == 1
    kept = length > 0
    return _Form(offset[kept], length[kept], gaps[kept])


def _outer(count: tuple[int, ...], strides: tuple[int, ...]) -> Int64:
    """Byte offset of each row, the last axis fastest."""
    offset = np.zeros(1, np.int64)
    for n, stride in zip(count, strides, strict=True):
        offset = np.add.outer(offset, stride * np.arange(n)).ravel()
    return offset


def vectors_of(plan: Plan) -> Vectors | None:
    """How a plan is read straight into its NumPy array; None where it cannot be, or a copy is cheaper.

    Raises
    ------
    ConfigError
        ``direct.host`` is none of the ways there are.
    """
    way = one_of("direct.host", "auto", "always", "never")
    request, pieces, n = plan.request, plan.pieces, plan.live
    if way == "never" or not n or request.decoder is not None or request.swap or pieces.lists is not None:
        return None
    count, source, place = pieces.count[:n], pieces.source_strides, pieces.place_strides
    if not source[-1] == place[-1] == plan.unit or bool(pieces.source[:n].any()):
        return None
    row = count[:, -1] * plan.unit
    rows = count[:, :-1].prod(axis=1)
    last = row + sum((count[:, axis] - 1) * source[axis] for axis in range(len(source) - 1))
    gap = 0
    inner = row  # bytes of the file that an index of the axis before spans
    for axis in range(len(source) - 2, -1, -1):
        apart = np.where(count[:, axis] > 1, source[axis] - inner, 0)
        if int(apart.min()) < 0:
            return None
        gap = max(gap, int(apart.max()))
        inner = inner + (count[:, axis] - 1) * source[axis]
    if bool((last != plan.want).any()) or gap > _LONGEST_GAP:
        return None
    entries = rows * (2 if gap else 1) + 1
    base = request.out.__array_interface__["data"][0]
    bits = base | int(np.bitwise_or.reduce(pieces.place[:n]))
    for stride in place[:-1]:
        bits |= abs(stride)
    suits = int(plan.want.sum()) >= ROW_BYTES * int(rows.sum()) and not bits % ALIGN
    if int(entries.max()) > IOV_MAX or not (suits or way == "always"):
        return None
    return Vectors(plan, base, entries, gap)
