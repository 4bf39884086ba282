"""Plain files through registered handles: what hipFileRead and hipFileWrite do, with the fallback and the record."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from gpuload.config import flag
from gpuload.engine.reader import read_ranges
from gpuload.engine.write import write
from gpuload.errors import AssignmentError, ConfigError, DestinationError, HandleError, ReadOnlyError
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root
from gpuload.files.writer import PendingFile, Writer
from gpuload.memory.device import of
from gpuload.request import Reason


class RegisteredFile:
    """A file whose bytes are moved straight into arrays and out of them, on the host or on a GPU.

    Threads: safe. Fork: the child must open its own. Pickle: no.

    Parameters
    ----------
    path
        A regular file.
    mode
        ``"r"``: it is read. ``"r+"``: it is there, and is written to in place. ``"w"``: a new file, which has its name
        only when `close` is through; before, and where the block of a ``with`` raises, what had that name still has it.
    durable
        What was written is on the drive when `close` is through, and with ``"w"`` its name, too. None: the
        configuration's.

    Raises
    ------
    FileNotFoundError
        No such file.
    NotRegularFileError
        A FIFO, a directory or a device.
    ChunkWriteError
        ``"w"``: the kernel's error.

    Examples
    --------
    >>> with gpuload.RegisteredFile("x.bin") as f:
    ...     n = f.read_into(buf)
    >>> with gpuload.RegisteredFile("y.bin", "w") as f:
    ...     n = f.write_from(buf)
    """

    _pending: AbstractContextManager[PendingFile] | None = None
    _handle: FileHandle
    _root: Root

    def __init__(
        self, path: str | os.PathLike[str], mode: Literal["r", "r+", "w"] = "r", *, durable: bool | None = None
    ) -> None:
        if mode not in ("r", "r+", "w"):
            raise ConfigError(f"mode={mode!r} is none of 'r', 'r+', 'w'")
        self._writable = mode != "r"
        self._durable = flag("durable") if durable is None else durable
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        self._key = name
        if mode == "w":
            self._create(os.path.realpath(os.path.join(folder, name)))
            return
        self._handle = FileHandle.open_path(path, writable=self._writable)
        try:
            self._root = Root(folder, follow_links=True)
        except BaseException:
            self._handle.close()
            raise

    def _create(self, path: str) -> None:
        """Begin a new file beside its place."""
        folder, self._key = os.path.split(path)
        self._root = Root(folder, follow_links=True)
        self._writer = Writer(self._root, durable=self._durable)
        try:
            pending = self._writer.create(self._key)
            file = pending.__enter__()
        except BaseException:
            self._root.close()
            raise
        self._pending = pending
        try:
            # Not a duplicate: drivers reopen a file with its descriptor's flags, and O_NOFOLLOW, which that of the
            # writer has, refuses /proc/self/fd.
            fd = os.open(f"/proc/self/fd/{file.fd}", os.O_RDWR | os.O_CLOEXEC)
            self._handle = FileHandle(self._key, path, fd, writable=True)
        except BaseException as error:
            self._settle(error)
            raise

    @property
    def path(self) -> str:
        return self._handle.path

    @property
    def size(self) -> int:
        """Bytes of the file now."""
        return os.fstat(self._handle.buffered_fd).st_size

    @property
    def buffered_fd(self) -> int:
        """The descriptor that reads through the page cache."""
        return self._handle.buffered_fd

    @property
    def unbuffered_fd(self) -> int | None:
        """The O_DIRECT descriptor; None where the file system refuses it, see `unbuffered_reason`."""
        return self._handle.unbuffered_fd

    @property
    def unbuffered_reason(self) -> Reason | None:
        """Why there is no unbuffered descriptor."""
        return self._handle.unbuffered_reason

    @property
    def handle(self) -> FileHandle:
        """The handle: identity, geometry, driver registrations."""
        return self._handle

    def read_into(self, buf: Any, file_offset: int = 0, size: int | None = None, buffer_offset: int = 0) -> int:
        """Read bytes of the file into `buf`.

        Parameters
        ----------
        buf
            A C-contiguous NumPy or CuPy array of any shape and dtype, or anything with a writable buffer.
        file_offset
            First byte of the file to read.
        size
            How many bytes; None: as many as `buf` has room for behind `buffer_offset`.
        buffer_offset
            First byte of `buf` to write.

        Returns
        -------
        n
            Bytes read: fewer than `size` only at the end of the file. On a GPU they are there for whatever the current
            stream does next.

        Raises
        ------
        DestinationError
            `buf` is read-only, not contiguous, or the range does not lie in it.
        StrictError
            ``strict`` is on, and the fastpath does not serve this.
        """
        out = _as_bytes(buf)
        size = _size_in(out, file_offset, size, buffer_offset, DestinationError)
        with self._handle.lease():
            n = max(0, min(size, self.size - file_offset))
            if n:
                zero = np.zeros(1, np.int64)
                read_ranges(
                    self._root,
                    [self._key],
                    [self._handle],
                    zero + file_offset,
                    zero + n,
                    zero,
                    out[buffer_offset : buffer_offset + n],
                    strict=flag("strict"),
                )
        return n

    def write_from(self, array: Any, file_offset: int = 0, size: int | None = None, buffer_offset: int = 0) -> int:
        """Write bytes of `array` to the file; it grows where they end behind its end, and is never cut.

        Whole blocks go from device memory straight to the drive, where the fastpath is there and the file is eligible;
        what is in front of the first and behind the last one goes through the host. They are in the file when this
        returns; on the drive when a `durable` file is closed. Writes of several threads to one place, or beside reads
        of it, have no order.

        Parameters
        ----------
        array
            A C-contiguous NumPy or CuPy array of any shape and dtype, or anything with a buffer. Of a GPU, what is
            queued on the current stream is waited for.
        file_offset
            First byte of the file to write.
        size
            How many bytes; None: all of `array` behind `buffer_offset`.
        buffer_offset
            First byte of `array` to write.

        Returns
        -------
        n
            Bytes written, which is `size`.

        Raises
        ------
        ReadOnlyError
            The file was opened for reading.
        AssignmentError
            `array` is not contiguous, holds references, or the range does not lie in it.
        ChunkWriteError
            The kernel's error, or the library's, such as a full disk. What the range of the file holds then is
            undefined, as nothing outside of it is; a new file (``"w"``) never gets its name where the block is left so.
        StrictError
            ``strict`` is on, and the fastpath does not take the blocks.
        """
        if not self._writable:
            raise ReadOnlyError(f"{self.path!r} was opened for reading: RegisteredFile(path, 'r+') writes, too")
        data = _as_bytes(array, source=True)
        size = _size_in(data, file_offset, size, buffer_offset, AssignmentError)
        with self._handle.lease():
            if size:
                write(self._handle, data[buffer_offset : buffer_offset + size], file_offset, strict=flag("strict"))
        return size

    def close(self) -> None:
        """Deregister, then close; a new file gets its name. Idempotent."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        closed = self._handle.closed
        try:
            if not closed and self._writable and self._durable and self._pending is None:
                os.fsync(self._handle.buffered_fd)
            self._handle.close()
        except HandleError:  # in use, and open as before
            raise
        except BaseException as failure:
            self._settle(error or failure)
            raise
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        """Give a new file its name, or with an error remove it."""
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                if error is not None:
                    try:
                        pending.__exit__(type(error), error, error.__traceback__)
                    except BaseException as again:
                        if again is not error:
                            raise
                else:
                    pending.__exit__(None, None, None)
                    self._writer.close()
        finally:
            self._root.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(error)

    def __repr__(self) -> str:
        return f"<gpuload.RegisteredFile {self.path!r}>"


def _size_in(
    data: Any, file_offset: int, size: int | None, buffer_offset: int, error: type[DestinationError | AssignmentError]
) -> int:
    """How many bytes are meant, which lie in the array."""
    if file_offset < 0 or buffer_offset < 0 or (size is not None and size < 0):
        raise error(f"negative: {file_offset=}, {size=}, {buffer_offset=}")
    if size is None:
        size = max(0, len(data) - buffer_offset)
    if buffer_offset + size > len(data):
        raise error(f"{size} bytes at buffer_offset {buffer_offset} do not lie in a buffer of {len(data)} bytes")
    return size


def _as_bytes(buf: Any, *, source: bool = False) -> Any:
    """`buf` as a uint8 array of one dimension that shares its memory; a `source` may be read-only."""
    wrong = AssignmentError if source else DestinationError
    if not hasattr(buf, "dtype"):
        view = memoryview(buf)
        if view.readonly and not source:
            raise DestinationError(f"{type(buf).__name__} is read-only")
        if not view.c_contiguous:
            raise wrong("the buffer is not contiguous")
        array: npt.NDArray[np.uint8] = np.frombuffer(view.cast("B"), np.uint8)
        return array
    of(buf)  # names what it is when it is neither NumPy's nor CuPy's
    if buf.dtype.hasobject:
        raise wrong(f"an array of dtype {buf.dtype} holds references, which no bytes of a file can be")
    if not buf.flags.c_contiguous:
        raise wrong(f"an array of shape {buf.shape} and strides {buf.strides} is not C-contiguous")
    if isinstance(buf, np.ndarray):
        if not buf.flags.writeable and not source:
            raise DestinationError("the array is read-only")
        return buf.reshape(-1).view(np.uint8)
    return buf.ravel().view("uint8")
