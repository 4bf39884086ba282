"""What hipFile and cuFile have in common as backends: conditions, registration, reads that go on, what may be retried.

Three questions stay three: `availability` of each vendor's module (library and runtime), `score` (each published
condition in turn, without I/O) and `VendorBackend.retry` (may another backend try what failed).

Either library has a detour of its own through host memory. It is switched off just before the driver is opened here,
so that what it serves is known to be direct. Where others opened it before, or the user chose the detour, nothing is
known: `unverified`.

Threads: safe. Fork: not to be used in the child.
"""

from __future__ import annotations

import errno
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from gpuload.backends.base import Candidate, Moved
from gpuload.errors import HandleError, VendorError
from gpuload.files.blocks import direct_reason
from gpuload.files.handle import FileHandle, deregister_all, reopen_unbuffered
from gpuload.request import Reason

MAX_BYTES = 0x7FFFF000  # that one call moves: the kernel's limit of a read

# Error numbers that both libraries have (5000 + n), of which these mean something of their own here.
NOT_SUPPORTED = 5008
INTERNAL = 5030
NO_DESCRIPTOR = 5031  # GetNewFDFailed

_NO_ROUTE = (errno.ENODEV, errno.EREMOTEIO)  # what the driver answers where GPU and drive cannot reach each other
_STALLS = 3  # short reads in a row that do not complete a block
_LOCKS = 64


def switch(name: str) -> bool | None:
    """What a variable of a vendor's library says; None: nothing."""
    return {"true": True, "false": False}.get(os.environ.get(name, "").lower())


def score(candidate: Candidate, *, any_file_system: bool = False) -> Reason | None:
    """The first of the published conditions that a file, a destination and a range fail; None: they hold.

    Parameters
    ----------
    candidate
        What is asked about.
    any_file_system
        The user told the library to take file systems it was not tested with.
    """
    geometry = candidate.geometry
    if candidate.unbuffered_reason is not None:
        return candidate.unbuffered_reason
    if not candidate.device_memory:
        return Reason.NOT_DEVICE_MEMORY
    reason = direct_reason(geometry)
    if reason is not None and not (reason is Reason.FILE_SYSTEM and any_file_system):
        return reason
    if candidate.file_offset % geometry.direct_offset_align:
        return Reason.UNALIGNED_OFFSET
    if candidate.size % geometry.direct_offset_align:
        return Reason.UNALIGNED_SIZE
    if candidate.address % geometry.direct_mem_align:
        return Reason.UNALIGNED_MEMORY
    return None


class Library(Protocol):
    """A vendor's library as `bindings` calls it; what it refuses is a `VendorError`."""

    features: frozenset[str]

    def use_count(self) -> int: ...
    def open_driver(self) -> None: ...
    def close_driver(self) -> None: ...
    def register_file(self, fd: int) -> Any: ...
    def deregister_file(self, handle: Any) -> None: ...
    def register_buffer(self, pointer: int, nbytes: int) -> None: ...
    def deregister_buffer(self, pointer: int) -> None: ...
    def read(self, handle: Any, pointer: int, size: int, file_offset: int, buffer_offset: int) -> int: ...
    def write(self, handle: Any, pointer: int, size: int, file_offset: int, buffer_offset: int) -> int: ...
    def count(self) -> bool: ...
    def counted(self) -> tuple[int, int]: ...


class _Files:
    """What a `FileHandle` is registered with."""

    descriptors = 1  # the library's own

    def __init__(self, backend: VendorBackend) -> None:
        self.name = backend.name
        self._backend = backend

    def register(self, handle: FileHandle) -> object:
        return self._backend.api.register_file(self._backend.descriptor(handle))

    def deregister(self, token: object) -> None:
        self._backend.api.deregister_file(token)


class VendorBackend(ABC):
    """A vendor's library in this process.

    Parameters
    ----------
    api
        The library, as the vendor's module of `bindings` loaded it.
    """

    name: str
    register_call: str  # the library's name of the call that registers a file
    declined: frozenset[int]  # errors of a request that it does not take, and others may

    def __init__(self, api: Library) -> None:
        self.api = api
        self._files = _Files(self)
        self._lock = threading.Lock()
        self._registering = [threading.Lock() for _ in range(_LOCKS)]
        self._opened = False
        self._doubt: Reason | None = None
        self._count = self._counts = False  # asked for; done
        self._takes_direct: dict[int, bool] = {}  # by st_dev
        # By st_dev and GPU: what said that there is no way between them, as long as nothing came on it; None: it did.
        self._routes: dict[tuple[int, int], VendorError | None] = {}
        self._buffers: set[int] = set()

    @abstractmethod
    def descriptor(self, handle: FileHandle) -> int:
        """Which of the handle's descriptors the library is given; it remains the handle's."""

    @abstractmethod
    def open_driver(self, *, used: bool) -> bool:
        """Switch the detour off and open the driver; returns whether what it serves is known to be direct.

        Parameters
        ----------
        used
            Somebody else has opened it already.
        """

    def any_file_system(self) -> bool:
        """Whether the user told the library to take any file system."""
        return False

    def score(self, handle: FileHandle, *, device_memory: bool, gpu: int) -> Reason | None:
        """Why ranges of this file cannot come to that GPU this way, whatever their offsets; None: they can."""
        candidate = Candidate(handle.geometry, self._unbuffered_reason(handle), device_memory=device_memory)
        reason = score(candidate, any_file_system=self.any_file_system())
        if reason is None and self._routes.get((handle.identity.device, gpu)) is not None:
            return Reason.P2P_ROUTE
        return reason

    def _unbuffered_reason(self, handle: FileHandle) -> Reason | None:
        """Whether there will be an unbuffered descriptor: a file of each file system is opened, once, to see."""
        device = handle.identity.device
        if device not in self._takes_direct:
            try:
                os.close(reopen_unbuffered(handle.buffered_fd, os.O_RDONLY))
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    return Reason.FD_LIMIT
                self._takes_direct[device] = False
            else:
                self._takes_direct[device] = True
        return None if self._takes_direct[device] else Reason.ODIRECT_REFUSED

    def open(self) -> Reason | None:
        """Open the driver, the first time; returns why what it serves cannot be called direct, or None.

        Raises
        ------
        VendorError
            It cannot be opened.
        BackendUnavailableError
            It cannot be opened, and would not be the next time.
        """
        with self._lock:
            if not self._opened:
                certain = self.open_driver(used=self.api.use_count() > 0)
                self._opened = True
                self._doubt = None if certain else Reason.UNVERIFIED
                self._counts = self._count and self.api.count()
            return self._doubt

    def count(self) -> None:
        """Have the library count what it moves, as soon as its driver is open."""
        with self._lock:
            self._count = True
            if self._opened:
                self._counts = self.api.count()

    def counted(self) -> tuple[int, int] | None:
        """Bytes that the library says it has read and written in this process; None: it does not count."""
        return self.api.counted() if self._counts else None

    def attach(self, handle: FileHandle) -> Any:
        """The library's handle of an open file, which is registered now if it was not; its lease is the caller's.

        Raises
        ------
        VendorError, HandleError
            It cannot be registered.
        """
        token = handle.registration(self.name)
        if token is None:
            with self._registering[id(handle) // 64 % _LOCKS]:
                token = handle.registration(self.name)
                if token is None:
                    handle.register(self._files)
                    token = handle.registration(self.name)
        return token

    def register_buffer(self, pointer: int, nbytes: int) -> None:
        """Make device memory known; without that it works too, only slower."""
        try:
            self.api.register_buffer(pointer, nbytes)
        except VendorError:
            return
        self._buffers.add(pointer)

    def deregister_buffer(self, pointer: int) -> None:
        """Undo `register_buffer`."""
        if pointer in self._buffers:
            self._buffers.discard(pointer)
            self.api.deregister_buffer(pointer)

    def read(
        self, handle: FileHandle, pointer: int, size: int, file_offset: int, buffer_offset: int, *, gpu: int
    ) -> Moved:
        """Read whole blocks that lie inside the file; never raises, errors come with what was moved before them."""
        return self._move(self.api.read, handle, pointer, size, file_offset, buffer_offset, gpu)

    @property
    def writes(self) -> bool:
        """Whether the library has the call."""
        return "write" in self.api.features

    def write(
        self, handle: FileHandle, pointer: int, size: int, file_offset: int, buffer_offset: int, *, gpu: int
    ) -> Moved:
        """Write whole blocks, as `read` reads them; the file is open for writing."""
        return self._move(self.api.write, handle, pointer, size, file_offset, buffer_offset, gpu)

    def _move(
        self,
        call: Callable[[Any, int, int, int, int], int],
        handle: FileHandle,
        pointer: int,
        size: int,
        file_offset: int,
        buffer_offset: int,
        gpu: int,
    ) -> Moved:
        route = handle.identity.device, gpu
        known = self._routes.get(route)
        if known is not None:
            return Moved(0, 0, known)
        done = moved = stalls = 0
        try:
            token = self.attach(handle)
            while done < size:
                want = min(size - done, MAX_BYTES)
                n = call(token, pointer, want, file_offset + done, buffer_offset + done)
                moved += n
                if n:
                    self._routes[route] = None
                # Behind a part of a block nothing direct can start: it is moved again.
                whole = n if n == want else n - n % handle.geometry.direct_offset_align
                done += whole
                stalls = 0 if whole else stalls + 1
                if not n or stalls == _STALLS:
                    break
        except Exception as error:
            if isinstance(error, VendorError) and error.errno in _NO_ROUTE:
                self._routes.setdefault(route, error)
            return Moved(done, moved, error)
        return Moved(done, moved, None)

    def retry(self, error: Exception) -> Reason | None:
        """Why the fallback may move what failed with `error`; None: it must not, the error is the caller's."""
        if isinstance(error, HandleError):
            return Reason.FD_LIMIT
        if not isinstance(error, VendorError):
            return None
        if error.code == NO_DESCRIPTOR:
            return Reason.FD_LIMIT
        if error.errno in _NO_ROUTE:
            return Reason.P2P_ROUTE
        if error.call == self.register_call or error.code in self.declined:
            return Reason.DRIVER_ERROR
        return None

    def close(self) -> None:
        """Deregister all files, then close the driver; buffers are gone before. Idempotent.

        While a file is in use the driver stays open: for whoever reads, or for the end of the process.
        """
        with self._lock:
            if self._opened and deregister_all(self.name):
                self._opened = self._counts = False
                self.api.close_driver()
