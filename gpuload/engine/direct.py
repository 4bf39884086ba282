"""From a request to direct reads: which blocks of which files go where in device memory, and what is left to others.

A range whose place in the result is contiguous and aligned, as it is itself, is read straight into the result. Of all
others the enclosing blocks are read into scratch, neighbours together and no block twice, and the device puts the
elements in place from there. What lies behind the last whole block of its file is its tail, for the fallback.

Values and arithmetic only, over all pieces at once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuload.engine.plan import ReadRequest, order_pieces, with_swap_axis
from gpuload.errors import ChunkSizeError
from gpuload.planning.aligned import enclose
from gpuload.planning.batch import batch
from gpuload.planning.coalesce import coalesce
from gpuload.planning.grid import Pieces
from gpuload.planning.placement import collapse
from gpuload.request import Int64

CALL_BYTES = 16 << 20  # of neighbours that are read in one call
_GAP = 16 << 10  # bytes between two ranges that are read along: less time than a call of their own


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ranges of files and their places in one piece of device memory.

    Parameters
    ----------
    file
        int64 (r,): the entry of the request's keys.
    offset, size
        int64 (r,): the whole blocks to be read; size 0 where there is only a tail.
    tail
        int64 (r,): wanted bytes behind these blocks, up to the end of the file.
    wanted
        int64 (r,): bytes of the blocks that were asked for; the rest is read along.
    place
        int64 (r,): the byte of the memory where the first block goes.
    """

    file: Int64
    offset: Int64
    size: Int64
    tail: Int64
    wanted: Int64
    place: Int64

    def __len__(self) -> int:
        return len(self.file)

    def part(self, first: int, last: int) -> Ranges:
        """The ranges ``first:last``."""
        cut = slice(first, last)
        columns = (self.file, self.offset, self.size, self.tail, self.wanted, self.place)
        return Ranges(*(column[cut] for column in columns))

    def moved_by(self, nbytes: int) -> Ranges:
        """The same ranges, `nbytes` further on in memory."""
        return replace(self, place=self.place + nbytes)


class Staged:
    """What a sink needs of the pieces that go through scratch: the like of a `Plan`, sources counted from a slot."""

    largest_data = 0  # nothing comes from the host

    def __init__(self, request: ReadRequest, pieces: Pieces, ranges: Ranges, range_of: Int64, inner: Int64) -> None:
        self.request = request
        self.live = len(pieces)
        self.unit = request.swap or request.itemsize
        self.pieces = with_swap_axis(collapse(pieces, request.itemsize), request)
        self.ranges = ranges
        self.source = ranges.place[range_of] + inner + pieces.source
        # In scratch they lie as in their file, where nothing keeps elements at multiples of their size.
        self.loose = bool(np.bitwise_or.reduce(self.source) & (self.unit & -self.unit) - 1)


class DirectPlan:
    """The direct reads of one request whose files are all there and eligible.

    Parameters
    ----------
    request
        With handles; without a decoder.
    align
        Bytes that file offsets and sizes, and addresses of device memory, must be multiples of.
    slot_bytes
        Bytes of one slot of scratch.

    Attributes
    ----------
    sizes
        int64 (keys,): bytes of each file.
    straight
        Ranges whose place is the byte of the result, counted from its first element.
    staged
        The pieces that go through scratch; None where none does.
    bounds, piece_bounds
        int64 (b + 1,): batch i of these has the ranges ``bounds[i]:bounds[i + 1]`` and the pieces likewise.
    largest
        The most bytes of a slot that one range takes.
    only_tail
        Some range has no whole block: all that is wanted of it lies behind the last one of its file.
    """

    def __init__(self, request: ReadRequest, *, align: int, slot_bytes: int) -> None:
        pieces = request.pieces
        order = order_pieces(request.file[pieces.chunk], request)
        if order is not None:
            pieces = pieces.subset(order)
        file = request.file[pieces.chunk]
        offset = request.offset[pieces.chunk] + pieces.offset
        self.sizes = file_sizes(request)
        self._check(request, file, offset + pieces.size)
        start, stop = enclose(offset, pieces.size, self.sizes[file], align)
        straight = _is_straight(request, pieces, offset, start, stop, align)
        self.straight = _join(file, offset, pieces.size, stop, pieces.place, straight)
        self.staged: Staged | None = None
        self.bounds = self.piece_bounds = np.zeros(1, np.int64)
        self.largest = 0
        self.only_tail = False
        if not straight.all():
            rest = np.flatnonzero(~straight)
            pieces = pieces.subset(rest)
            self._stage(request, pieces, file[rest], offset[rest], start[rest], stop[rest], align, slot_bytes)

    def _check(self, request: ReadRequest, file: Int64, end: Int64) -> None:
        """No piece reaches behind the end of its file."""
        behind = np.flatnonzero(end > self.sizes[file])
        if len(behind):
            i = int(behind[0])
            seen = int(self.sizes[file[i]])
            raise ChunkSizeError(request.keys[int(file[i])], int(end[i]), seen, "the file is shorter than its chunk")

    def _stage(
        self,
        request: ReadRequest,
        pieces: Pieces,
        file: Int64,
        offset: Int64,
        start: Int64,
        stop: Int64,
        align: int,
        slot_bytes: int,
    ) -> None:
        limit = min(CALL_BYTES, slot_bytes)
        range_file, range_offset, range_size, range_of, inner = coalesce(
            file, start, stop - start, gap=_GAP, limit=limit
        )
        end = offset + pieces.size
        behind = np.maximum(end - np.maximum(stop, offset), 0)
        tail = np.zeros(len(range_file), np.int64)
        np.maximum.at(tail, range_of, np.where(behind > 0, end - (range_offset + range_size)[range_of], 0))
        wanted = np.bincount(range_of, pieces.size - behind, len(range_file)).astype(np.int64)
        room = -(-(range_size + tail) // align) * align
        self.largest = int(room.max())
        self.only_tail = not range_size.all()
        each = np.arange(len(room), dtype=np.int64)
        slots = batch(room, each, batch_bytes=slot_bytes, max_groups=len(room), align=align, slack=0)
        self.bounds = slots.bounds
        self.piece_bounds = np.searchsorted(range_of, slots.bounds)
        ranges = Ranges(range_file, range_offset, range_size, tail, wanted, slots.slab_offset)
        self.staged = Staged(request, pieces, ranges, range_of, inner + offset - start)


def file_sizes(request: ReadRequest) -> Int64:
    """int64 (keys,): bytes of each file now."""
    assert request.handles is not None
    return np.array([0 if handle is None else os.fstat(handle.buffered_fd).st_size for handle in request.handles])


def _is_straight(
    request: ReadRequest, pieces: Pieces, offset: Int64, start: Int64, stop: Int64, align: int
) -> npt.NDArray[np.bool_]:
    """bool (n,): pieces that are one run of bytes in the result, where their blocks may go as they are."""
    whole = collapse(pieces, request.itemsize)
    one_run = whole.lists is None and whole.source_strides == whole.place_strides == (request.itemsize,)
    if not one_run or request.swap:
        return np.zeros(len(pieces), bool)
    aligned: npt.NDArray[np.bool_] = (request.out.data.ptr + pieces.place) % align == 0
    # The last enclosing block must not reach behind the piece, or it would overwrite what is there.
    aligned &= (start == offset) & (stop > start) & (stop <= offset + pieces.size)
    return aligned


def _join(file: Int64, offset: Int64, size: Int64, stop: Int64, place: Int64, chosen: npt.NDArray[np.bool_]) -> Ranges:
    """Runs of pieces that follow each other in their file and in the result, each up to about `CALL_BYTES`."""
    which = np.flatnonzero(chosen)
    file, offset, size, stop, place = file[which], offset[which], size[which], stop[which], place[which]
    if not len(which):
        return Ranges(file, offset, size, size, size, place)
    end = offset + size
    breaks = np.ones(len(which), bool)
    breaks[1:] = (file[1:] != file[:-1]) | (offset[1:] != end[:-1]) | (place[1:] - place[:-1] != size[:-1])
    run = np.cumsum(breaks) - 1
    # A run longer than one call is divided where its pieces are.
    share = (offset - offset[breaks][run]) // CALL_BYTES
    breaks[1:] |= share[1:] != share[:-1]
    first = np.flatnonzero(breaks)
    last = np.append(first[1:], len(which)) - 1
    body = stop[last] - offset[first]
    return Ranges(file[first], offset[first], body, end[last] - stop[last], body, place[first])
