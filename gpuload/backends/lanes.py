"""One batch on its way through the ring: its slots, its submissions, and what has come back of it.

User data of a submission: bits 0-31 the row or the file, bits 32-39 the lane, above them what it is.
"""

from __future__ import annotations

import errno
import os
from functools import lru_cache
from stat import S_ISREG
from time import monotonic

import numpy as np
import numpy.typing as npt

from gpuload.backends.base import Batch
from gpuload.backends.chains import Weave
from gpuload.bindings import uring_abi as abi
from gpuload.bindings.syscalls import OPEN_HOW, openat2
from gpuload.bindings.uring_abi import Rows
from gpuload.request import Int64

ROW = 0xFFFFFFFF
OPEN = 1 << 40  # an open
CHAIN = 1 << 41  # part of a chain
CHECK = 1 << 42  # a look at what was opened
CANCEL = 1 << 43  # a wish to cancel
RETRY = (errno.EAGAIN, errno.EINTR, errno.ECANCELED)
ASYNC_FROM = 32 << 10  # smaller reads are cheaper inline than the waking of a worker
_OPAQUE = np.dtype(f"V{abi.SQE.itemsize}")


class Lane:
    """One batch, and the run of file slots from `first` on that is its own.

    What comes back of chains is noted in arrays, what comes back through the window row by row in lists: for the few
    completions of one round that is cheaper.
    """

    __slots__ = (
        "batch", "completed", "descriptors", "first", "fixed", "goals", "got", "left", "names", "number", "opened",
        "opening", "retries", "rows", "slot", "stirred", "want",
    )  # fmt: skip

    def __init__(self, number: int, first: int, batch: Batch) -> None:
        self.number, self.first, self.batch = number, first, batch
        self.slot: Int64 = first + np.arange(len(batch.keys))  # of each file
        self.fixed = True  # those are slots, not descriptors
        self.descriptors: list[int] = []  # that are its own
        self.goals: list[int] = []  # of each poller, what it has worked off when all of this is done; empty: not polled
        self.rows: Int64 | None = None  # what is to be read; None: every row
        self.left = 0  # completions that are still to come
        self.opening = 0  # opens, of these
        self.retries = 0
        self.stirred = monotonic()  # the last time something of it came back
        self.names: Int64 | None = None  # addresses of the keys, where the files are to be opened
        self.want: list[int] = []
        self.got: list[int] = []
        self.completed: list[float] = []
        self.opened: Int64 | None = None  # of a chain: what each open answered

    @property
    def mark(self) -> int:
        """What the user data of its submissions has beside the row."""
        return self.number << 32 | (0 if self.opened is None else CHAIN)

    def open_files(self) -> bool:
        """Open the files as descriptors, so that several rings read the same ones; False where one is not to be had."""
        root = self.batch.root
        flags = root.open_flags | os.O_CLOEXEC
        try:
            for key in self.batch.keys:
                self.descriptors.append(openat2(root.fd, key, flags, root.resolve))
                if not S_ISREG(os.fstat(self.descriptors[-1]).st_mode):
                    raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))
        except OSError:  # who opens them next says what it is
            self.close_files()
            return False
        self.slot, self.fixed = np.array(self.descriptors, np.int64), False
        return True

    def close_files(self) -> None:
        """Close what `open_files` opened. Idempotent."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def list_rows(self) -> None:
        """From now on what comes back is noted row by row."""
        self.want = self.batch.want.tolist()
        self.got = self.batch.got.tolist()
        self.completed = self.batch.completed.tolist()
        self.opened = None

    def unlist_rows(self) -> None:
        """Give the batch what was noted."""
        if self.want:
            self.batch.got[:] = self.got
            self.batch.completed[:] = self.completed

    def pending(self) -> Int64:
        """The rows that were submitted and have not come back."""
        completed = np.array(self.completed) if self.want else self.batch.completed
        return np.flatnonzero((self.batch.submitted > 0) & (completed == 0))

    def open_rows(self, files: Int64) -> Rows:
        """Opens of these files, each into its slot."""
        assert self.names is not None
        root = self.batch.root
        how = _how(root.open_flags, int(root.resolve)).ctypes.data
        data = files + (OPEN | self.mark)
        return abi.openat2_rows(root.fd, self.names[files], how, self.slot[files], data)

    def check_rows(self, files: Int64) -> Rows:
        """Looks at what these files are, to follow their opens."""
        return abi.fadvise_rows(self.slot[files], files + (OPEN | CHECK | self.mark))

    def opening_rows(self, files: Int64, *, checked: bool) -> Rows:
        """Opens of these files, each with its check linked behind it."""
        opens = self.open_rows(files)
        if not checked:
            return opens
        opens["flags"] |= abi.IOSQE_IO_LINK
        rows: Rows = np.empty(2 * len(files), abi.SQE)
        whole = rows.view(_OPAQUE)
        whole[0::2], whole[1::2] = opens.view(_OPAQUE), self.check_rows(files).view(_OPAQUE)
        return rows

    def read_rows(self, flags: int) -> Rows:
        """Reads of all rows, from where they are."""
        batch = self.batch
        slot, offset = self.slot[batch.file], batch.file_offset + batch.got
        data = np.arange(len(batch), dtype=np.int64) + self.mark
        if batch.vectors is None:
            buffer = batch.block.buffer if batch.registered else None
            offset, address, size = self._blocks(offset, batch.address + batch.got, batch.ask - batch.got)
            return abi.read_rows(
                slot, offset, address, size, data, buf_index=buffer, fixed_file=self.fixed, flags=flags
            )
        table, count = batch.address, batch.vectors
        begun = np.flatnonzero((batch.got > 0) & (batch.got < batch.want)).tolist()
        if begun:
            table, count = table.copy(), count.copy()
            for row in begun:
                table[row], count[row] = batch.rest_of_table(row, int(batch.got[row]))
        return abi.readv_rows(slot, offset, table, count, data, flags=flags)

    def window_rows(self, rows: Int64 | None) -> Rows:
        """The reads that go through the window."""
        # Where only the end of each file is to be seen, the read is none.
        long = max(self.want) >= ASYNC_FROM and (rows is None or int(self.batch.got[rows].min()) == 0)
        # A drive is asked, and waited for, without a worker.
        reads = self.read_rows(abi.IOSQE_ASYNC if long and not self.batch.direct else 0)
        return reads if rows is None else reads.view(_OPAQUE)[rows].view(abi.SQE)

    def rest_of(self, row: int) -> Rows:
        """What is still to be read of one row; EAGAIN of a read that must not wait is for a worker, who may."""
        batch, got = self.batch, self.got[row]
        one = slice(row, row + 1)
        slot, offset, data = self.slot[batch.file[one]], batch.file_offset[one] + got, np.array([self.mark | row])
        if batch.vectors is not None:
            table, count = batch.rest_of_table(row, got)
            return abi.readv_rows(slot, offset, table, count, data, flags=abi.IOSQE_ASYNC)
        offset, address, size = self._blocks(offset, batch.address[one] + got, batch.ask[one] - got)
        buffer = batch.block.buffer if batch.registered else None
        return abi.read_rows(slot, offset, address, size, data, buf_index=buffer, flags=abi.IOSQE_ASYNC)

    def _blocks(self, offset: Int64, address: Int64, size: Int64) -> tuple[Int64, Int64, Int64]:
        """The reads themselves, or the whole blocks around them where they go past the page cache."""
        align = self.batch.direct
        if not align:
            return offset, address, size
        skew = offset % align
        return offset - skew, address - skew, -(-(size + skew) // align) * align

    def taken_of(self, row: int, result: int) -> int:
        """How many bytes that a row asked for came with `result` bytes of whole blocks."""
        batch = self.batch
        skew = int(batch.file_offset[row]) % batch.direct
        return max(0, min(result - skew, int(batch.ask[row])))

    def chain_rows(self, order: Weave, flags: int = abi.IOSQE_ASYNC) -> Rows:
        """Everything, in chains: opens and checks linked softly, reads firmly; `flags` for the reads."""
        rows: Rows = np.empty(len(order), abi.SQE)
        whole = rows.view(_OPAQUE)  # NumPy would move a row field by field
        whole[order.read_at] = self.read_rows(flags | abi.IOSQE_IO_HARDLINK).view(_OPAQUE)
        if len(order.open_at):
            files = np.arange(len(order.open_at), dtype=np.int64)
            for at, what in ((0, self.open_rows(files)), (1, self.check_rows(files))):
                what["flags"] |= abi.IOSQE_IO_LINK
                whole[order.open_at + at] = what.view(_OPAQUE)
        rows["flags"][order.last] &= ~np.uint8(abi.IOSQE_IO_LINK | abi.IOSQE_IO_HARDLINK)
        return rows

    def cancel_rows(self, rows: Int64) -> Rows:
        """Wishes that these reads end."""
        return abi.cancel_rows(self.mark | rows, np.full(len(rows), CANCEL))


@lru_cache(maxsize=16)
def _how(flags: int, resolve: int) -> npt.NDArray[np.void]:
    """What OPENAT2 reads when it is submitted; kept, since the kernel is given its address."""
    how = np.zeros(1, OPEN_HOW)
    how["flags"], how["resolve"] = flags, resolve
    return how


def descriptors(batch: Batch) -> npt.NDArray[np.int32]:
    """Of the files of a batch; the unbuffered ones where all have one, and it is to be read past the page cache."""
    assert batch.handles is not None
    if batch.direct:
        unbuffered = [handle.unbuffered_fd for handle in batch.handles]
        found = [fd for fd in unbuffered if fd is not None]
        if len(found) == len(unbuffered):
            return np.array(found, np.int32)
        lacking = next(handle for handle, fd in zip(batch.handles, unbuffered, strict=True) if fd is None)
        batch.direct, batch.refused = 0, lacking.unbuffered_reason
    return np.fromiter((handle.buffered_fd for handle in batch.handles), np.int32, len(batch.handles))
