"""What a backend is, and the batch of ranges it moves into host memory.

Three questions stay three: can it be used here (`availability`)? does it suit this request (`score`)? and moving the
bytes (`begin`, `advance`). A backend belongs to the I/O thread; only its availability is asked from elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from errno import ENOENT
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gpuload.bindings.vectors import IOVEC, behind
from gpuload.errors import ChunkReadError, ChunkSizeError
from gpuload.files.geometry import Geometry
from gpuload.files.root import Root, not_regular, open_error
from gpuload.request import Float64, Int64, Reason

if TYPE_CHECKING:
    from gpuload.files.handle import FileHandle
    from gpuload.memory.slabs import Block, Slab


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can be used in this process, and if not, why."""

    reason: Reason | None = None
    detail: str = ""

    @property
    def usable(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a fastpath is asked about: a file, a destination, a range. Facts only, gathered before.

    Parameters
    ----------
    geometry
        Of the file.
    unbuffered_reason
        Why it has no unbuffered descriptor; None: it has one.
    device_memory
        The destination is plain memory of a device: neither the host's nor managed.
    file_offset, size, address
        The range, in bytes, and where it goes.
    """

    geometry: Geometry
    unbuffered_reason: Reason | None = None
    device_memory: bool = True
    file_offset: int = 0
    size: int = 0
    address: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """What one direct read did.

    Parameters
    ----------
    done
        Bytes from the start of the range that are in place.
    moved
        Bytes that were transferred: more than `done` where some came twice.
    error
        What ended it early; None with fewer bytes than asked for: the file ended, or the driver does not go on.
    """

    done: int
    moved: int
    error: Exception | None


class DirectBackend(Protocol):
    """A vendor's library that moves bytes between storage and device memory. Threads: safe; its calls block."""

    name: str

    def score(self, handle: FileHandle, *, device_memory: bool, gpu: int) -> Reason | None:
        """Why ranges of this file cannot come to that GPU this way, whatever their offsets; None: they can."""
        ...

    def open(self) -> Reason | None:
        """Open the driver, the first time; returns why what it serves cannot be called direct, or None."""
        ...

    def register_buffer(self, pointer: int, nbytes: int) -> None:
        """Make device memory known: reads name its first byte and an offset."""
        ...

    def deregister_buffer(self, pointer: int) -> None:
        """Undo `register_buffer`."""
        ...

    @property
    def writes(self) -> bool:
        """Whether it writes, too."""
        ...

    def read(
        self, handle: FileHandle, pointer: int, size: int, file_offset: int, buffer_offset: int, *, gpu: int
    ) -> Moved:
        """Read whole blocks that lie inside a leased file; never raises."""
        ...

    def write(
        self, handle: FileHandle, pointer: int, size: int, file_offset: int, buffer_offset: int, *, gpu: int
    ) -> Moved:
        """Write whole blocks into a leased file that is open for it; never raises."""
        ...

    def count(self) -> None:
        """Have the library count what it moves, as soon as its driver is open."""
        ...

    def counted(self) -> tuple[int, int] | None:
        """Bytes that the library says it has read and written in this process; None: it does not count."""
        ...

    def retry(self, error: Exception) -> Reason | None:
        """Why the fallback may move what failed; None: it must not."""
        ...

    def close(self) -> None:
        """Let go of files and driver; buffers are deregistered before. Idempotent."""
        ...


@dataclass(slots=True, eq=False)
class Batch:
    """Ranges that are read together into one block; the plan fills the first part, the backend the second.

    A row is one read. It is done when it has `want` bytes or its file has ended; it asks for `ask` bytes. Where the two
    differ the surplus proves the file's size: one byte more than the chunk has must not be there.

    Attributes
    ----------
    root, keys, handles
        The files, by key below `root`; `handles` are those already open, else the backend opens each key once, reads
        all its rows from that one open file and closes it.
    file
        int64 (n,): each row's entry of `keys`.
    file_offset, want, ask, address
        int64 (n,): the read; `address` lies in `block`.
    vectors
        int64 (n,), or None: with it a row is read into as many places, which the table at its `address` names; they are
        bytes of the destination, and scratch in the block.
    piece
        int64 (n,): the piece of the plan each row belongs to, counted from the first of this batch.
    sizes
        int64 (n,): bytes of the whole file where a row proves them, else -1; for the error message.
    open_ended
        `want` is a capacity: a file may end before it without being too short.
    direct
        Not 0: read past the page cache, by the handles' unbuffered descriptors, in whole blocks of that many bytes. In
        the block each row lies as in its file, with room for the blocks around it.
    got, submitted, completed
        Results: bytes per row, and `time.monotonic()` when its first read went in and its last came back.
    missing
        bool (files,): no such file.
    refused
        Why some of it came by way of the page cache all the same.
    error
        The first thing that went wrong; nothing of the batch may be used then.
    """

    root: Root
    keys: Sequence[str]
    handles: Sequence[FileHandle] | None
    block: Block
    file: Int64
    file_offset: Int64
    want: Int64
    ask: Int64
    address: Int64
    piece: Int64
    sizes: Int64
    vectors: Int64 | None = None
    open_ended: bool = False
    direct: int = 0
    proofs_from: int = -1  # rows from here on only prove the size of a file; -1: none does
    dense: bool = True  # most of its files are likely to be there
    undecoded: bool = False  # nothing is to be done to it on the host but to read it
    owner: Any = None
    index: int = 0
    got: Int64 = field(init=False)
    submitted: Float64 = field(init=False)
    completed: Float64 = field(init=False)
    missing: npt.NDArray[np.bool_] = field(init=False)
    refused: Reason | None = None
    error: Exception | None = None
    registered: bool = False
    blob: npt.NDArray[np.uint8] | None = None
    rests: list[npt.NDArray[np.void]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = len(self.want)
        self.got = np.zeros(n, np.int64)
        self.submitted = np.zeros(n)
        self.completed = np.zeros(n)
        self.missing = np.zeros(len(self.keys), bool)
        if self.proofs_from < 0:
            self.proofs_from = n

    def __len__(self) -> int:
        return len(self.want)

    def rest_of_table(self, row: int, got: int) -> tuple[int, int]:
        """Address and entries of the table for what a row still lacks when it has `got` bytes; lives with the batch."""
        assert self.vectors is not None
        address, count = int(self.address[row]), int(self.vectors[row])
        if not got:
            return address, count
        start = address - self.block.address
        rest = behind(self.block.array[start : start + count * IOVEC.itemsize].view(IOVEC), got)
        self.rests.append(rest)
        return rest.ctypes.data, len(rest)

    @property
    def moved(self) -> Int64:
        """int64 (n,): bytes that were transferred, of whole blocks where only these could be asked for."""
        if not self.direct or self.refused is not None:
            return self.got
        first, last = self.file_offset, self.file_offset + self.got
        return -(-last // self.direct) * self.direct - first // self.direct * self.direct

    def finish_buffered(self, row: int, got: int) -> int:
        """Read what a row still lacks by way of the page cache, at once; returns the bytes it has then."""
        assert self.handles is not None
        handle = self.handles[int(self.file[row])]
        start, offset = int(self.address[row]) - self.block.address, int(self.file_offset[row])
        want, ask = int(self.want[row]), int(self.ask[row])
        memory = memoryview(self.block.array)  # type: ignore[arg-type]
        try:
            while got < want:
                n = os.preadv(handle.buffered_fd, [memory[start + got : start + ask]], offset + got)
                if n == 0:
                    break
                got += n
        except OSError as error:
            self.fail_read(row, error.errno or 0)
        return got

    def fail(self, error: Exception) -> None:
        """Keep the first error."""
        if self.error is None:
            self.error = error

    def fail_open(self, file: int, errno: int) -> None:
        """A file that could not be opened: missing where it is just not there, an error otherwise."""
        error: Exception
        try:
            error = open_error(self.root, self.keys[file], errno)
        except Exception as other:
            error = other
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            self.missing[file] = True
        else:
            self.fail(error)

    def fail_read(self, row: int, errno: int) -> None:
        """A read the kernel refused; a file that is none is named as what it is."""
        key = self.keys[int(self.file[row])]
        error = self._irregular(key)
        self.fail(error or ChunkReadError(key, errno, f"cannot be read in {self.root.path!r}: {os.strerror(errno)}"))

    def check(self) -> None:
        """After the last read: every row has just the bytes it must have."""
        if self.error is not None or self.open_ended:
            return
        wrong = self.got != self.want
        if self.missing.any():
            wrong &= ~self.missing[self.file]
        if not wrong.any():
            return
        row = int(np.flatnonzero(wrong)[0])
        key = self.keys[int(self.file[row])]
        self.fail(self._irregular(key) or self._size_error(row, key))

    def is_regular(self, file: int) -> bool:
        """Whether a file whose read does not come back is one to wait for; if not, the batch has failed."""
        key = self.keys[file]
        error = self._irregular(key)
        try:
            if error is None and self.root.stat(key) is None:
                error = ChunkReadError(key, ENOENT, f"vanished from {self.root.path!r} while it was read")
        except Exception as other:
            error = other
        if error is not None:
            self.fail(error)
        return error is None

    def _irregular(self, key: str) -> Exception | None:
        """What `key` leads to instead of a regular file, or why that cannot be told."""
        if self.handles is not None:
            return None  # looked at when they were opened
        try:
            return not_regular(self.root, key)
        except Exception as error:
            return error

    def _size_error(self, row: int, key: str) -> Exception:
        try:
            handle = None if self.handles is None else self.handles[int(self.file[row])]
            actual = self.root.stat(key) if handle is None else os.fstat(handle.buffered_fd)
        except Exception as error:
            return error
        expected = int(self.sizes[row])
        if expected < 0:
            expected = int(self.file_offset[row] + self.want[row])
            hint = f"its range {int(self.file_offset[row])}:{expected} does not lie in the file"
        else:
            hint = "the chunk file was cut, overwritten or replaced"
        seen = int(self.file_offset[row] + self.got[row]) if actual is None else actual.st_size
        if seen == expected:  # it has been mended since: what was read is what counts
            seen = int(self.file_offset[row] + self.got[row])
        return ChunkSizeError(key, expected, seen, hint)

    def names(self) -> Int64:
        """int64 (files,): the address of each key as the kernel wants it, NUL-terminated, while the batch lives."""
        self.blob = np.frombuffer(os.fsencode("\0".join(self.keys)) + b"\0", np.uint8)
        starts = np.zeros(len(self.keys), np.int64)
        starts[1:] = np.flatnonzero(self.blob == 0)[:-1] + 1
        return starts + self.blob.ctypes.data


class Backend(Protocol):
    """One way to move batches into host memory; all but `availability` belongs to the I/O thread."""

    name: str
    files_per_batch: int
    declined: dict[str, Reason]  # what it does without, and why: registered buffers at the memlock limit

    @property
    def active(self) -> int:
        """Batches it holds."""
        ...

    @property
    def hungry(self) -> bool:
        """Whether it has too little queued to keep its I/O rolling, and room for another batch."""
        ...

    def adopt(self, slab: Slab) -> bool:
        """Take note of a new slab; False: it is too large to register, a smaller one may do."""
        ...

    def read_plain(self) -> None:
        """Read into memory that is not registered from now on: there is no room under the memlock limit."""
        ...

    def begin(self, batch: Batch) -> None:
        """Start a batch; it was `hungry`."""
        ...

    def advance(self, timeout: float) -> list[Batch]:
        """Drive the I/O for at most about `timeout` seconds, less when something finishes; returns what finished."""
        ...

    def rest(self) -> None:
        """Let go of what is kept open from batch to batch: there is nothing to read for now."""
        ...

    def close(self) -> None:
        """Wait for all I/O in flight, then free everything."""
        ...
