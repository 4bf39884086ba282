"""Every error gpuload raises.

::

    GpuloadError
    ├── ConfigError (ValueError)              a configuration value that cannot be used
    ├── SelectionError (IndexError)           an index that does not fit the array
    ├── DestinationError (ValueError)         an `out` array or buffer that does not fit
    ├── AssignmentError (ValueError)          a value that does not fit where it is assigned to
    ├── JoinError (ValueError)                stores, or variables, that do not fit together
    ├── SampleError (ValueError)              windows, batches or an order that cannot be had of a dataset
    ├── StoreError
    │   ├── NotFoundError (FileNotFoundError) no such path
    │   ├── NotZarrError (ValueError)         a directory that is no zarr node
    │   ├── NotLocalError (ValueError)        a store that is not local files
    │   ├── ExistsError (FileExistsError)     something is where a store should be made
    │   ├── ReadOnlyError (ValueError)        a store that was opened for reading is written to
    │   ├── UnsupportedArrayError (ValueError) an array zarr-python cannot open or decode: codec or dtype named
    │   ├── ChangedError                      files that changed since a graph was made of them, or an epoch began
    │   └── EscapesStoreError (PermissionError) a key or link that leaves the store
    ├── ChunkError                            `key` names the chunk, shard or file
    │   ├── ChunkSizeError                    `expected` and `actual` bytes
    │   ├── ChunkDecodeError                  bytes its codecs refuse
    │   ├── ChunkReadError (OSError)          the kernel's error, `errno` kept
    │   ├── ChunkWriteError (OSError)         likewise, for a file that cannot be written
    │   ├── ChunkLostError                    it was there when the reading began
    │   └── NotRegularFileError               a FIFO, a directory or a device where a file should be
    ├── HandleError
    │   ├── HandleClosedError (ValueError)
    │   ├── AlreadyRegisteredError
    │   └── HandleInUseError                  deregistered or closed while I/O is in flight
    ├── BackendError
    │   ├── BackendUnavailableError           `reason` says why
    │   ├── RegistrationError                 memory the kernel cannot register: too large, file-backed, memlock
    │   └── VendorError                       a call that hipFile or cuFile refused: `call`, `code`, `errno`
    ├── DeviceError                           no such device, or it failed
    ├── StrictError                           `strict` is on and the fastpath did not serve: `reason`
    ├── AfterForkError                        a device read in a forked child
    └── TransportError                        the I/O thread failed
"""

from __future__ import annotations

from typing import Any

from gpuload.request import Reason


class GpuloadError(Exception):
    """The root of all errors of gpuload."""


def _rebuild(kind: type[GpuloadError], arguments: tuple[Any, ...], state: dict[str, Any]) -> GpuloadError:
    """An error out of a pickle, its message made already; a pool of processes hangs on one that it cannot rebuild."""
    error = kind.__new__(kind)
    error.args = arguments
    for name, value in state.items():
        setattr(error, name, value)
    return error


class ConfigError(GpuloadError, ValueError):
    """A configuration value that cannot be used."""


class SelectionError(GpuloadError, IndexError):
    """An index that does not fit the array."""


class DestinationError(GpuloadError, ValueError):
    """An `out` array or buffer that does not fit what is read into it."""


class AssignmentError(GpuloadError, ValueError):
    """A value that does not fit the selection it is assigned to, in shape or data type."""


class JoinError(GpuloadError, ValueError):
    """Stores or variables whose dimensions, data types or lengths do not fit together; names both."""


class SampleError(GpuloadError, ValueError):
    """Samples that cannot be had: a window that does not fit, a rank that is none, an order that is not known."""


class StoreError(GpuloadError):
    """A store that cannot be read or written."""


class NotFoundError(StoreError, FileNotFoundError):
    """No such path."""


class NotZarrError(StoreError, ValueError):
    """A path that exists but holds no zarr array or group."""


class NotLocalError(StoreError, ValueError):
    """A store that is not made of local files."""

    reason = Reason.NOT_LOCAL


class ExistsError(StoreError, FileExistsError):
    """Something is already where an array or a group should be made."""


class ReadOnlyError(StoreError, ValueError):
    """A store that was opened for reading is written to."""


class UnsupportedArrayError(StoreError, ValueError):
    """An array that zarr-python cannot open or decode here; names the codec or data type."""


class ChangedError(StoreError):
    """Files of an array that changed after a graph was made of it, or while samples of it are read.

    What is read now may not fit what was read.
    """


class EscapesStoreError(StoreError, PermissionError):
    """A key or a link that leaves the store's root."""


class ChunkError(GpuloadError):
    """One chunk, shard or file that cannot be read or written; `key` names it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key!r}: {message}")
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ChunkSizeError(ChunkError):
    """A chunk whose file or range holds another number of bytes than it must."""

    def __init__(self, key: str, expected: int, actual: int, hint: str = "") -> None:
        super().__init__(key, f"expected {expected} bytes, found {actual}" + (f"; {hint}" if hint else ""))
        self.expected = expected
        self.actual = actual


class ChunkDecodeError(ChunkError):
    """Bytes that the array's codecs refuse."""


class ChunkReadError(ChunkError, OSError):
    """The kernel refused to open or read; `errno` is its error."""

    def __init__(self, key: str, errno: int, message: str) -> None:
        ChunkError.__init__(self, key, message)
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, {**self.__dict__, "errno": self.errno})


class ChunkWriteError(ChunkError, OSError):
    """The kernel refused to make, write or rename a file; `errno` is its error, and what was there before still is."""

    def __init__(self, key: str, errno: int, message: str) -> None:
        ChunkError.__init__(self, key, message)
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, {**self.__dict__, "errno": self.errno})


class ChunkLostError(ChunkError):
    """A chunk or shard without a file, in a directory that was changed since the reading began."""


class NotRegularFileError(ChunkError):
    """A FIFO, a socket, a directory or a device where a regular file should be."""


class HandleError(GpuloadError):
    """A file handle used against its rules."""


class HandleClosedError(HandleError, ValueError):
    """A handle that is already closed."""


class AlreadyRegisteredError(HandleError):
    """A handle that is registered twice with one driver."""


class HandleInUseError(HandleError):
    """A handle deregistered or closed while I/O is in flight."""


class BackendError(GpuloadError):
    """A backend that cannot do its work."""


class BackendUnavailableError(BackendError):
    """A backend that cannot be used here; `reason` says why."""

    def __init__(self, backend: str, reason: Reason, detail: str) -> None:
        super().__init__(f"{backend} is not available ({reason}): {detail}")
        self.backend = backend
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class RegistrationError(BackendError):
    """Memory that the kernel cannot register: larger than 1 GiB, file-backed, or over the memlock limit.

    `reason` is ``memlock`` or ``fd-limit`` where a limit of the process is the cause.
    """

    def __init__(self, message: str, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class VendorError(BackendError):
    """A call that a vendor's library (hipFile, cuFile) refused.

    Attributes
    ----------
    call, code
        The call and the library's own error; -1 where it was the kernel's.
    errno
        The kernel's error; 0 where it was not one.
    """

    def __init__(self, call: str, code: int, message: str, *, errno: int = 0) -> None:
        super().__init__(f"{call}: {message}")
        self.call = call
        self.code = code
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class DeviceError(GpuloadError):
    """No such device, or the device failed."""


class StrictError(GpuloadError):
    """`strict` is on and the fastpath did not serve; `reason` says why."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"strict: the fastpath did not serve this read ({reason})" + (f": {detail}" if detail else ""))
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class AfterForkError(GpuloadError):
    """A device read in a forked child, where no GPU runtime works: start workers with spawn."""

    reason = Reason.AFTER_FORK


class TransportError(GpuloadError):
    """The I/O thread failed; the next read starts a new one."""
