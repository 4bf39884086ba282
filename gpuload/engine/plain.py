"""Plain files through registered handles: what hipFileRead does for a file, with the fallback and the record."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gpuload.config import flag
from gpuload.engine.reader import read_ranges
from gpuload.errors import DestinationError
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root
from gpuload.memory.device import of
from gpuload.request import Reason


class RegisteredFile:
    """A file whose bytes are read straight into arrays, on the host or on a GPU.

    Threads: safe. Fork: the child must open its own. Pickle: no.

    Parameters
    ----------
    path
        A regular file.

    Raises
    ------
    FileNotFoundError
        No such file.
    NotRegularFileError
        A FIFO, a directory or a device.

    Examples
    --------
    >>> with gpuload.RegisteredFile("x.bin") as f:
    ...     n = f.read_into(buf)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._handle = FileHandle.open_path(path)
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        self._root, self._key = Root(folder, follow_links=True), name

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
        if file_offset < 0 or buffer_offset < 0 or (size is not None and size < 0):
            raise DestinationError(f"negative: {file_offset=}, {size=}, {buffer_offset=}")
        if size is None:
            size = max(0, len(out) - buffer_offset)
        if buffer_offset + size > len(out):
            raise DestinationError(
                f"{size} bytes at buffer_offset {buffer_offset} do not lie in a buffer of {len(out)} bytes"
            )
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

    def close(self) -> None:
        """Deregister, then close; idempotent."""
        self._handle.close()
        self._root.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gpuload.RegisteredFile {self.path!r}>"


def _as_bytes(buf: Any) -> Any:
    """`buf` as a uint8 array of one dimension that shares its memory."""
    if not hasattr(buf, "dtype"):
        view = memoryview(buf)
        if view.readonly:
            raise DestinationError(f"{type(buf).__name__} is read-only")
        if not view.c_contiguous:
            raise DestinationError("the buffer is not contiguous")
        array: npt.NDArray[np.uint8] = np.frombuffer(view.cast("B"), np.uint8)
        return array
    of(buf)  # names what it is when it is neither NumPy's nor CuPy's
    if buf.dtype.hasobject:
        raise DestinationError(f"an array of dtype {buf.dtype} holds references, which no bytes of a file can be")
    if not buf.flags.c_contiguous:
        raise DestinationError(f"an array of shape {buf.shape} and strides {buf.strides} is not C-contiguous")
    if isinstance(buf, np.ndarray):
        if not buf.flags.writeable:
            raise DestinationError("the array is read-only")
        return buf.reshape(-1).view(np.uint8)
    return buf.ravel().view("uint8")
