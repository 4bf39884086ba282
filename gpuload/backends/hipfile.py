"""hipfile: AMD's hipFile, from storage straight into device memory.

Three questions stay three: `availability` (library and runtime), `score` (each published condition in turn, without
I/O) and `HipfileBackend.retry` (may another backend try what failed).

hipFile has a detour of its own through host memory. It is switched off (HIPFILE_ALLOW_COMPAT_MODE=false, which hipFile
reads at its first use) just before the driver is opened here, so that what it serves is known to be direct. Where
others opened it before, or the switch was set otherwise, nothing is known: `unverified`.

Which descriptor is whose: the handle's buffered one is handed over and stays the handle's; hipFile reopens the file
with O_DIRECT, and closes that one when the file is deregistered, which the handle does before it closes its own.

Threads: safe. Fork: not to be used in the child.
"""

from __future__ import annotations

import errno
import os
import threading
from functools import lru_cache
from typing import Any

from gpuload.backends.base import Availability, Candidate, Moved
from gpuload.bindings import hipfile, runtime
from gpuload.errors import BackendUnavailableError, HandleError, VendorError
from gpuload.files.blocks import direct_reason
from gpuload.files.handle import FileHandle, deregister_all, reopen_unbuffered
from gpuload.request import Reason

NAME = hipfile.NAME
ALLOW = "HIPFILE_ALLOW_COMPAT_MODE"
FORCE = "HIPFILE_FORCE_COMPAT_MODE"
ANY_FILE_SYSTEM = "HIPFILE_UNSUPPORTED_FILE_SYSTEMS"

_RUNTIME_CALLS = ("hipAmdFileRead", "hipAmdFileWrite")
_NO_ROUTE = (errno.ENODEV, errno.EREMOTEIO)  # what the driver answers where GPU and drive cannot reach each other
_DECLINED = (hipfile.NOT_SUPPORTED, hipfile.INTERNAL)  # no backend of hipFile's takes the request
_STALLS = 3  # short reads in a row that do not complete a block
_LOCKS = 64


def availability() -> Availability:
    """Whether hipFile can be used in this process: library, switches, and the runtime's calls for direct reads."""
    try:
        hipfile.load()
    except BackendUnavailableError as error:
        return Availability(error.reason, error.detail)
    if _switch(FORCE):
        return Availability(Reason.FORCED_OFF, f"{FORCE} sends all reads through host memory")
    missing = [name for name in _RUNTIME_CALLS if not runtime.has_call(name)]
    if missing:
        return Availability(Reason.NO_DRIVER, f"this HIP runtime has no {' and no '.join(missing)}")
    return Availability()


def _switch(name: str) -> bool | None:
    """What a variable of hipFile's says; None: nothing."""
    return {"true": True, "false": False}.get(os.environ.get(name, "").lower())


def score(candidate: Candidate) -> Reason | None:
    """The first of hipFile's published conditions that a file, a destination and a range fail; None: it takes them."""
    geometry = candidate.geometry
    if candidate.unbuffered_reason is not None:
        return candidate.unbuffered_reason
    if not candidate.device_memory:
        return Reason.NOT_DEVICE_MEMORY
    reason = direct_reason(geometry)
    if reason is not None and not (reason is Reason.FILE_SYSTEM and _switch(ANY_FILE_SYSTEM)):
        return reason
    if candidate.file_offset % geometry.direct_offset_align:
        return Reason.UNALIGNED_OFFSET
    if candidate.size % geometry.direct_offset_align:
        return Reason.UNALIGNED_SIZE
    if candidate.address % geometry.direct_mem_align:
        return Reason.UNALIGNED_MEMORY
    return None


class _Files:
    """What a `FileHandle` is registered with."""

    name = NAME
    descriptors = 1  # hipFile's own, unbuffered

    def __init__(self, library: hipfile.Library) -> None:
        self._library = library

    def register(self, handle: FileHandle) -> object:
        return self._library.register_file(handle.buffered_fd)

    def deregister(self, token: object) -> None:
        self._library.deregister_file(token)


class HipfileBackend:
    """hipFile in this process.

    Parameters
    ----------
    library
        As `bindings.hipfile.load` found it.
    """

    name = NAME

    def __init__(self, library: hipfile.Library) -> None:
        self._library = library
        self._files = _Files(library)
        self._lock = threading.Lock()
        self._registering = [threading.Lock() for _ in range(_LOCKS)]
        self._opened = False
        self._doubt: Reason | None = None
        self._takes_direct: dict[int, bool] = {}  # by st_dev
        self._buffers: set[int] = set()

    def score(self, handle: FileHandle, *, device_memory: bool) -> Reason | None:
        """Why ranges of this file cannot come by hipFile, whatever their offsets; None: they can."""
        candidate = Candidate(handle.geometry, self._unbuffered_reason(handle), device_memory=device_memory)
        return score(candidate)

    def _unbuffered_reason(self, handle: FileHandle) -> Reason | None:
        """Whether hipFile will get its unbuffered descriptor: a file of each file system is opened, once, to see."""
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
        """
        with self._lock:
            if not self._opened:
                used, allowed = self._library.use_count() > 0, _switch(ALLOW)
                if not used and ALLOW not in os.environ:
                    os.environ[ALLOW] = "false"
                    allowed = False
                self._library.open_driver()
                self._opened = True
                self._doubt = Reason.UNVERIFIED if used or allowed is not False else None
            return self._doubt

    def attach(self, handle: FileHandle) -> Any:
        """hipFile's handle of an open file, which is registered now if it was not; its lease is the caller's.

        Raises
        ------
        VendorError, HandleError
            It cannot be registered.
        """
        token = handle.registration(NAME)
        if token is None:
            with self._registering[id(handle) // 64 % _LOCKS]:
                token = handle.registration(NAME)
                if token is None:
                    handle.register(self._files)
                    token = handle.registration(NAME)
        return token

    def register_buffer(self, pointer: int, nbytes: int) -> None:
        """Make device memory known; without that it works too, only slower."""
        try:
            self._library.register_buffer(pointer, nbytes)
        except VendorError:
            return
        self._buffers.add(pointer)

    def deregister_buffer(self, pointer: int) -> None:
        """Undo `register_buffer`."""
        if pointer in self._buffers:
            self._buffers.discard(pointer)
            self._library.deregister_buffer(pointer)

    def read(self, handle: FileHandle, pointer: int, size: int, file_offset: int, buffer_offset: int) -> Moved:
        """Read whole blocks that lie inside the file; never raises, errors come with what was moved before them."""
        done = moved = stalls = 0
        try:
            token = self.attach(handle)
            while done < size:
                want = min(size - done, hipfile.MAX_BYTES)
                n = self._library.read(token, pointer, want, file_offset + done, buffer_offset + done)
                moved += n
                # Behind a part of a block no direct read can start: it is read again.
                whole = n if n == want else n - n % handle.geometry.direct_offset_align
                done += whole
                stalls = 0 if whole else stalls + 1
                if not n or stalls == _STALLS:
                    break
        except Exception as error:
            return Moved(done, moved, error)
        return Moved(done, moved, None)

    def retry(self, error: Exception) -> Reason | None:
        """Why the fallback may read what failed with `error`; None: it must not, the error is the caller's."""
        if isinstance(error, HandleError):
            return Reason.FD_LIMIT
        if not isinstance(error, VendorError):
            return None
        if error.code == hipfile.NO_DESCRIPTOR:
            return Reason.FD_LIMIT
        if error.errno in _NO_ROUTE:
            return Reason.P2P_ROUTE
        if error.call == "hipFileHandleRegister" or error.code in _DECLINED:
            return Reason.DRIVER_ERROR
        return None

    def close(self) -> None:
        """Deregister all files, then close the driver; buffers are gone before. Idempotent.

        While a file is in use the driver stays open: for whoever reads, or for the end of the process.
        """
        with self._lock:
            if self._opened and deregister_all(NAME):
                self._opened = False
                self._library.close_driver()


@lru_cache(maxsize=1)
def backend() -> HipfileBackend:
    """The process's; its driver is opened when a file is first read."""
    return HipfileBackend(hipfile.load())


os.register_at_fork(after_in_child=backend.cache_clear)
