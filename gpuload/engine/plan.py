"""From a request to batches: which rows are read into which bytes of a block, and what of it goes where.

All arrays of a plan are made at once; a batch is a slice of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpuload.backends.base import Batch
from gpuload.engine.vectors import vectors_of
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root
from gpuload.memory.slabs import Block
from gpuload.planning.batch import Batches, batch, parts
from gpuload.planning.grid import Pieces
from gpuload.planning.placement import collapse
from gpuload.request import Int64, Reason
from gpuload.tasks import Task

_ALIGN = 64


class Decoder(Protocol):
    """Turns the stored bytes of a chunk into its decoded bytes, on the host."""

    decoded_size: int
    capacity: int  # the most stored bytes to expect of a chunk; larger ones are read, but slower

    def decode(self, encoded: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
        """Decode all of `encoded` into exactly all of `out`; called from several threads at once."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """One selection of one array, planned: what to read from which files, and where it goes.

    Parameters
    ----------
    root, keys
        The files, by key below `root`.
    file
        int64 (m,): the entry of `keys` each touched chunk is in; -1 where it is known to be missing.
    offset, size
        int64 (m,): where the chunk's stored bytes start in that file, and how many they are; -1: the whole file.
    whole
        Each chunk is a file of its own, of just `size` bytes.
    pieces
        What `planning.cut` made of the selection.
    itemsize
        Bytes of an element.
    swap
        Width in bytes of the units to byte-swap on the way to a device; 0: none.
    decoder
        For encoded chunks; their pieces are whole chunks.
    fill
        One element, in the byte order of the stored data.
    out
        The destination, as the selection's box: a NumPy or CuPy array of any strides.
    handles
        Open handles of `keys`, leased by the caller, where it has them.
    reason
        Why the fastpath does not serve this request; of who plans it only where the machine makes no difference:
        `host-codec`, `host-dtype`.
    declined
        Fastpath backends that were passed over, each with its reason.
    strict
        Raise an error where the fastpath does not serve; None: as configured.
    task
        Whose progress this read is, in bytes of the result; None: nobody watches.
    """

    root: Root
    keys: Sequence[str]
    file: Int64
    offset: Int64
    size: Int64
    whole: bool
    pieces: Pieces
    itemsize: int
    swap: int
    decoder: Decoder | None
    fill: bytes
    out: Any
    handles: Sequence[FileHandle | None] | None = None
    reason: Reason | None = None
    declined: Mapping[str, Reason] = field(default_factory=dict)
    strict: bool | None = None
    task: Task | None = None

    def part(self, chunks: npt.NDArray[np.bool_]) -> ReadRequest:
        """The same request for some of its chunks (bool (m,)) only."""
        return replace(self, pieces=self.pieces.subset(chunks[self.pieces.chunk]))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What of a plan one batch carries: pieces ``first:last``, and where their bytes are in its block."""

    first: int
    last: int
    block_bytes: int
    data: tuple[int, int]  # the bytes of the block that pieces lie in when it is read and decoded
    open_ended: bool


class Plan:
    """Rows, batches and places of one request.

    Pieces of chunks that are known to be missing come last, in no batch: ``live`` pieces are read.

    With `direct`, the alignment that reads past the page cache need, the room of a piece is whole blocks of that many
    bytes, and the piece lies in it as it lies in the blocks of its file.
    """

    def __init__(
        self,
        request: ReadRequest,
        *,
        batch_bytes: int,
        piece_bytes: int,
        max_files: int,
        on_host: bool = False,
        direct: int = 0,
    ) -> None:
        self.request, self.direct = request, direct
        pieces = request.pieces
        file = request.file[pieces.chunk]
        order = order_pieces(file, request)
        if order is not None:
            pieces = pieces.subset(order)
            file = file[order]
        self.live = int(np.count_nonzero(file >= 0))
        self.file = file[: self.live]
        self.unit = request.swap or request.itemsize
        self.pieces = with_swap_axis(collapse(pieces, request.itemsize), request)
        self._stored(pieces)
        self.vectors = vectors_of(self) if on_host and not direct else None
        self._pack(batch_bytes, piece_bytes, max_files)

    def _stored(self, pieces: Pieces) -> None:
        """Where the bytes to be read lie in the files."""
        request, live = self.request, self.live
        chunk = pieces.chunk[:live]
        size = request.size[chunk]
        if request.decoder is None:
            self.file_offset = request.offset[chunk] + pieces.offset[:live]
            self.want = pieces.size[:live]
            self.open_ended = False
        else:
            self.file_offset = request.offset[chunk]
            self.open_ended = bool(len(size)) and int(size[0]) < 0
            # One byte more than is expected shows, by not being there, that a chunk of just that size has ended.
            self.want = np.full(live, request.decoder.capacity + 1, np.int64) if self.open_ended else size
        whole = request.whole and not self.open_ended
        at_end = (self.file_offset + self.want == size) if whole else np.zeros(live, bool)
        self.surplus = at_end.astype(np.int64)
        self.proving = whole and not bool(at_end.all())  # some file is read in part: its size is proved apart
        self.sizes = size if whole else np.full(live, -1, np.int64)

    def _pack(self, batch_bytes: int, piece_bytes: int, max_files: int) -> None:
        """Divide the live pieces into batches and lay each out in its block."""
        request, live = self.request, self.live
        self.piece_bytes, self.max_files = piece_bytes, max_files
        # The surplus byte that proves a file's size falls on the next piece, or behind the last: it comes only with
        # an error, when none of the block is used.
        align = self.align = max(_ALIGN, self.direct)
        skew = self.file_offset % self.direct if self.direct else np.zeros(live, np.int64)
        stored = -(-(skew + self.want) // align) * align
        # Elsewhere every piece starts at a multiple of 64.
        self.loose = request.decoder is None and bool((skew % (self.unit & -self.unit)).any())
        decoded = 0 if request.decoder is None else _round(request.decoder.decoded_size)
        self.batches: Batches = batch(
            stored + decoded, self.file, batch_bytes=batch_bytes, max_groups=max_files, align=_ALIGN, slack=0
        )
        # In a block first come the stored bytes of all pieces, then the decoded ones: one copy moves them.
        ends = np.cumsum(stored)
        starts = ends - stored
        first = np.repeat(self.batches.bounds[:-1], np.diff(self.batches.bounds))
        self.stored_offset = (starts - starts[first] if live else starts) + skew
        self.stored_bytes = np.add.reduceat(stored, self.batches.bounds[:-1]) if live else starts
        if request.decoder is None:
            self.data_offset = self.stored_offset
        else:
            self.data_offset = (np.arange(live) - first) * decoded
            if live:
                self.data_offset = self.data_offset + np.repeat(self.stored_bytes, np.diff(self.batches.bounds))
        self.source = self.data_offset + self.pieces.source[:live]
        self.decoded_stride = decoded
        self._number_files(first)

    def _number_files(self, first: Int64) -> None:
        """Each live piece's file, counted from the first file of its batch; and the distinct files of each batch."""
        live = self.live
        self._count = np.arange(int(np.diff(self.batches.bounds).max(initial=0)), dtype=np.int64)
        new = np.ones(live, bool)
        new[1:] = self.file[1:] != self.file[:-1]
        new[self.batches.bounds[:-1]] = True
        number = np.cumsum(new) - 1
        self._local_file = number - number[first] if live else number
        self._distinct = self.file[new].tolist()
        self._file_bounds = [*(number[self.batches.bounds[:-1]].tolist() if live else []), len(self._distinct)]

    @property
    def needs_handles(self) -> bool:
        """Some chunk is read in more than one batch: its file must stay open between them."""
        return bool(self.batches.held.any())

    @property
    def largest_data(self) -> int:
        """The most bytes of a block that one batch's pieces lie in."""
        if not self.live:
            return 0
        if self.request.decoder is None:
            return int(self.stored_bytes.max())
        return int(np.diff(self.batches.bounds).max()) * self.decoded_stride

    def __len__(self) -> int:
        return len(self.batches)

    def part(self, index: int) -> Part:
        first, last = int(self.batches.bounds[index]), int(self.batches.bounds[index + 1])
        stored = int(self.stored_bytes[index])
        data = (0, stored)
        if self.request.decoder is not None:
            data = (stored, stored + (last - first) * self.decoded_stride)
        proofs = min(last - first, self.max_files) if self.proving else 0
        if self.vectors is not None:
            return Part(first, last, self.vectors.room(first, last, proofs), (0, 0), self.open_ended)
        return Part(first, last, data[1] + self.align + proofs * _ALIGN, data, self.open_ended)

    def batch(self, index: int, part: Part, block: Block) -> Batch:
        """The batch `index`, to be read into `block`."""
        request = self.request
        a, b = part.first, part.last
        file = self._local_file[a:b]
        files = self._distinct[self._file_bounds[index] : self._file_bounds[index + 1]]
        keys = [request.keys[i] for i in files]
        handles = None if request.handles is None else [request.handles[i] for i in files]
        want, offset = self.want[a:b], self.file_offset[a:b]
        address = block.address + self.stored_offset[a:b]
        piece = self._count[: b - a]
        ask, sizes = want + self.surplus[a:b], self.sizes[a:b]
        if request.decoder is not None and len(want) and int(want.max()) > self.piece_bytes:
            row, skip, length = parts(want, self.piece_bytes, least=1)
            last = skip + length == want[row]
            piece, sizes = row, sizes[row]
            ask, want = length + np.where(last, self.surplus[a:b][row], 0), length
            offset, address, file = offset[row] + skip, address[row] + skip, file[row]
        proofs_from = -1
        if self.proving and handles is None:
            # A file that is read in part: two bytes asked for at its last one must bring one.
            proved = np.zeros(len(keys), bool)
            proved[file[ask > want]] = True
            probe = np.flatnonzero(~proved)
            if len(probe):
                proofs_from = len(want)
                row = np.searchsorted(file, probe)
                total = sizes[row]
                one = np.ones(len(probe), np.int64)
                scratch = block.address + part.data[1] + _ALIGN * np.arange(1, len(probe) + 1)
                offset, want = np.concatenate((offset, total - 1)), np.concatenate((want, one))
                ask, address = np.concatenate((ask, 2 * one)), np.concatenate((address, scratch))
                piece, file = np.concatenate((piece, piece[row])), np.concatenate((file, probe))
                sizes = np.concatenate((sizes, total))
        vectors = None
        if self.vectors is not None:
            surplus = ask - want
            surplus[b - a :] = 2
            address, vectors = self.vectors.write(a, b, surplus, block.array, block.address)
        return Batch(
            root=request.root,
            keys=keys,
            handles=handles,
            block=block,
            file=file,
            file_offset=offset,
            want=want,
            ask=ask,
            address=address,
            piece=piece,
            sizes=sizes,
            vectors=vectors,
            open_ended=self.open_ended,
            proofs_from=proofs_from,
            direct=self.direct,
            index=index,
        )


def order_pieces(file: Int64, request: ReadRequest) -> Int64 | None:
    """Pieces by file and, in it, by offset, those without a file last; None: they are in that order already."""
    if len(file) == 0 or (int(file[0]) >= 0 and (np.diff(file) >= 0).all()):
        return None
    start = request.offset[request.pieces.chunk] + request.pieces.offset
    return np.lexsort((start, np.where(file < 0, np.iinfo(np.int64).max, file)))


def with_swap_axis(pieces: Pieces, request: ReadRequest) -> Pieces:
    """Elements of several swap units (complex numbers) get an axis for them, which a fill value steps along too."""
    if not request.swap or request.swap == request.itemsize:
        return pieces
    n = request.itemsize // request.swap
    lists = pieces.lists
    if lists is not None:
        lists = replace(lists, entry=np.pad(lists.entry, ((0, 0), (0, 1)), constant_values=-1))
    return replace(
        pieces,
        count=np.concatenate((pieces.count, np.full((len(pieces), 1), n, np.int64)), axis=1),
        source_strides=(*pieces.source_strides, request.swap),
        place_strides=(*pieces.place_strides, request.swap),
        lists=lists,
    )


def _round(size: Any) -> Any:
    return -(-size // _ALIGN) * _ALIGN
