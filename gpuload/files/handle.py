"""One open file, registered: its descriptors, its drivers and the I/O in flight on it.

A file has a *buffered* descriptor and, where it takes one, an *unbuffered* one (O_DIRECT), opened when it is first
asked for. Drivers that keep state of a file (hipFile, cuFile) are registered here, and are always told that the file
goes before a descriptor of it is closed: by `close`, whatever a driver raises, and at the end of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Self

from gpuload.errors import (
    AfterForkError,
    AlreadyRegisteredError,
    ChunkReadError,
    HandleClosedError,
    HandleError,
    HandleInUseError,
    NotFoundError,
)
from gpuload.files.driver import Driver
from gpuload.files.geometry import Geometry, Identity, geometry
from gpuload.files.root import OPEN_FLAGS, Root, irregular
from gpuload.request import Reason

__all__ = ["Driver", "FileHandle", "deregister_all", "reopen_unbuffered"]

_log = logging.getLogger(__name__)


def reopen_unbuffered(fd: int, flags: int) -> int:
    """Open the very file of `fd` once more, with O_DIRECT; OSError with EINVAL where the file refuses it."""
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_DIRECT | os.O_CLOEXEC)


class FileHandle:
    """A regular file, open and ready to be registered with drivers.

    Threads: safe. Fork: the child must not use it; closing it there tells no driver. Not picklable.

    Parameters
    ----------
    key, path
        The file's name in its store, and for messages its full path.
    fd
        The buffered descriptor; belongs to the handle from now on, also when this raises.
    writable
        Whether it was opened for writing too.
    allowance
        The most descriptors the handle may come to hold, drivers' included; None for no limit.
    reopen
        Opens the unbuffered descriptor.

    Raises
    ------
    NotRegularFileError
        It is a directory, a FIFO, a socket or a device; nothing stays open.
    """

    _closed = True  # until there is a descriptor

    def __init__(
        self,
        key: str,
        path: str,
        fd: int,
        *,
        writable: bool = False,
        allowance: int | None = None,
        reopen: Callable[[int, int], int] = reopen_unbuffered,
    ) -> None:
        self._fd = fd
        self._unbuffered = -1
        self._closed = False
        self._registrations: dict[str, tuple[Driver, object]] = {}
        try:
            status = os.fstat(fd)
            error = irregular(key, status)
            if error is not None:
                raise error
            # It was only for the open. Some kernels take it as a wish never to wait for the disk either.
            fcntl.fcntl(fd, fcntl.F_SETFL, 0)  # of the flags that this can change none is wanted
        except BaseException:
            self._closed = True
            os.close(fd)
            raise
        self.key = key
        self.path = path
        self.identity = Identity.of(status)
        self._access = os.O_RDWR if writable else os.O_RDONLY
        self._allowance = allowance
        self._reopen = reopen
        self._unbuffered_reason: Reason | None = None
        self._geometry: Geometry | None = None
        self._leases = 0
        self._calls: list[Driver] = []  # drivers that are being called now
        self._forked = False
        self._lock = threading.Lock()  # never held while a driver is called: drivers have locks of their own
        _live.add(self)

    @classmethod
    def open(
        cls,
        root: Root,
        key: str,
        *,
        allowance: int | None = None,
        reopen: Callable[[int, int], int] = reopen_unbuffered,
    ) -> FileHandle:
        """Open `key` below `root`; errors as `Root.open` raises them, and NotRegularFileError."""
        return cls(key, f"{root.path}/{key}", root.open(key), allowance=allowance, reopen=reopen)

    @classmethod
    def open_path(
        cls,
        path: str | os.PathLike[str],
        *,
        writable: bool = False,
        reopen: Callable[[int, int], int] = reopen_unbuffered,
    ) -> FileHandle:
        """Open a file anywhere; links are followed.

        Raises
        ------
        NotFoundError
            There is no such file.
        ChunkReadError
            Any other error of the kernel.
        NotRegularFileError
            It is a directory, a FIFO, a socket or a device.
        """
        name = os.fsdecode(path)
        flags = OPEN_FLAGS | os.O_CLOEXEC | (os.O_RDWR if writable else 0)
        try:
            fd = os.open(name, flags)
        except FileNotFoundError as error:
            raise NotFoundError(errno.ENOENT, "no such file", name) from error
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENODEV, errno.EISDIR):
                special = irregular(name, os.stat(name))
                if special is not None:
                    raise special from error
            raise ChunkReadError(
                name, error.errno or 0, f"cannot be opened: {os.strerror(error.errno or 0)}"
            ) from error
        return cls(name, os.path.abspath(name), fd, writable=writable, reopen=reopen)

    # ---------------------------------------------------------------- what it is

    @property
    def size(self) -> int:
        """Bytes in the file when it was opened."""
        return self.identity.size

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def buffered_fd(self) -> int:
        """The descriptor that goes through the page cache."""
        self._check_open()
        return self._fd

    @property
    def unbuffered_fd(self) -> int | None:
        """The descriptor that goes past the page cache, opened now if it was not; None with `unbuffered_reason`."""
        if self._unbuffered < 0 and self._unbuffered_reason is not Reason.ODIRECT_REFUSED:
            with self._lock:
                self._check_open()
                if self._unbuffered < 0:
                    self._open_unbuffered()
        self._check_open()
        return None if self._unbuffered < 0 else self._unbuffered

    @property
    def unbuffered_reason(self) -> Reason | None:
        """Why there is no unbuffered descriptor: refused for good, or for now for want of descriptors."""
        return self._unbuffered_reason if self.unbuffered_fd is None else None

    def _open_unbuffered(self) -> None:
        if self._allowance is not None and self.descriptors >= self._allowance:
            self._unbuffered_reason = Reason.FD_LIMIT
            return
        try:
            self._unbuffered = self._reopen(self._fd, self._access)
            self._unbuffered_reason = None
        except OSError as error:
            # Whatever else it is, without /proc for one, the file can still be read through the page cache.
            lacking = error.errno in (errno.EMFILE, errno.ENFILE)
            self._unbuffered_reason = Reason.FD_LIMIT if lacking else Reason.ODIRECT_REFUSED

    @property
    def geometry(self) -> Geometry:
        """Alignments and file system, asked for once."""
        if self._geometry is None:
            with self.lease():  # the descriptor must stay this file's
                self._geometry = geometry(self._fd)
        return self._geometry

    @property
    def descriptors(self) -> int:
        """How many descriptors are open for this file now, those of drivers included."""
        drivers = [*(driver for driver, _ in self._registrations.values()), *self._calls]
        return (self._fd >= 0) + (self._unbuffered >= 0) + sum(driver.descriptors for driver in drivers)

    # ---------------------------------------------------------------- drivers

    def register(self, driver: Driver) -> None:
        """Register the file with `driver`; whatever it raises leaves the handle as it was.

        Raises
        ------
        AlreadyRegisteredError
            A driver of that name has the file already.
        HandleError
            The driver's own descriptors are more than the handle was allowed.
        AfterForkError
            In a forked child.
        """
        with self._lock:
            self._check_open()
            if self._forked:
                raise AfterForkError(f"{self.path!r} was opened before fork(): no driver can serve it here")
            if driver.name in self._registrations or any(driver.name == other.name for other in self._calls):
                raise AlreadyRegisteredError(f"{self.path!r} is already registered with {driver.name}")
            if self._allowance is not None and self.descriptors + driver.descriptors > self._allowance:
                raise HandleError(
                    f"{driver.name} opens {driver.descriptors} descriptors a file: with {self.descriptors} open that is"
                    f" more than the {self._allowance} reserved for {self.path!r}"
                )
            self._calls.append(driver)
        token: object = None
        registered = False
        try:
            token = driver.register(self)
            registered = True
        finally:
            with self._lock:
                self._calls.remove(driver)
                if registered and not self._forked:
                    self._registrations[driver.name] = (driver, token)

    def registration(self, driver_name: str) -> object | None:
        """What the driver returned when the file was registered; None if it is not. Hold a lease while using it."""
        entry = self._registrations.get(driver_name)
        return None if entry is None else entry[1]

    def deregister(self, driver_name: str) -> None:
        """Take the file away from the driver; does nothing if it does not have it.

        Raises
        ------
        HandleInUseError
            I/O is in flight.
        """
        with self._lock:
            self._check_idle("deregistered")
            entry = self._registrations.pop(driver_name, None)
            if entry is None:
                return
            self._calls.append(entry[0])
        try:
            entry[0].deregister(entry[1])
        finally:
            with self._lock:
                self._calls.remove(entry[0])

    # ---------------------------------------------------------------- use

    @property
    def leases(self) -> int:
        """How many users the handle has now."""
        return self._leases

    def acquire(self) -> None:
        """Count one user more: until `release` the handle can neither be closed nor deregistered."""
        with self._lock:
            self._check_open()
            self._leases += 1

    def release(self) -> None:
        """Count one user less."""
        with self._lock:
            if self._leases > 0:
                self._leases -= 1
            elif not self._forked:  # the child of a fork has no users, but may run what the parent began
                raise HandleError(f"{self.path!r} was released more often than acquired")

    @contextlib.contextmanager
    def lease(self) -> Iterator[FileHandle]:
        """`acquire`, and `release` at the end."""
        self.acquire()
        try:
            yield self
        finally:
            self.release()

    def _check_open(self) -> None:
        if self._closed:
            raise HandleClosedError(f"{self.path!r} is closed")

    def _check_idle(self, what: str) -> None:
        if self._leases or self._calls:
            users = f"{self._leases} reads in flight" if self._leases else f"{self._calls[0].name} being called"
            raise HandleInUseError(f"{self.path!r} cannot be {what}: {users}")

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        """Deregister from every driver, the last one first, then close the unbuffered and the buffered descriptor.

        Idempotent. All of it is done whatever a driver raises; then that is raised, several as an ExceptionGroup.

        Raises
        ------
        HandleInUseError
            I/O is in flight; nothing was done.
        """
        with self._lock:
            if self._closed:
                return
            self._check_idle("closed")
            self._closed = True
            registrations = list(self._registrations.values())
        failures: list[Exception] = []
        try:
            for driver, token in reversed(registrations):
                try:
                    driver.deregister(token)
                except Exception as error:  # noqa: BLE001 - the rest must go on; raised below
                    failures.append(error)
        finally:
            self._registrations.clear()
            self._close_descriptors()
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise ExceptionGroup(f"{self.path!r} could not be deregistered", failures)

    def _close_descriptors(self) -> None:
        # A number is forgotten before it is closed: a fork between the two must not leave the child with a number that
        # may by then belong to another file.
        unbuffered, self._unbuffered = self._unbuffered, -1
        if unbuffered >= 0:
            os.close(unbuffered)
        buffered, self._fd = self._fd, -1
        if buffered >= 0:
            os.close(buffered)

    def after_fork(self) -> None:
        """Forget, in a forked child, drivers and users, which are the parent's."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._registrations.clear()
        self._calls.clear()
        self._leases = 0
        self._forked = True

    def abandon(self) -> None:
        """Close a forked child's copies of the descriptors, whatever was under way in the parent."""
        self.after_fork()
        self._closed = True
        self._close_descriptors()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FileHandle {self.path!r}{' closed' if self._closed else ''}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a FileHandle cannot be pickled: send its path")

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            with contextlib.suppress(Exception):
                self.close()


_live: weakref.WeakSet[FileHandle] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for handle in list(_live):
        handle.after_fork()


def deregister_all(driver_name: str) -> bool:
    """Take every file away from a driver, which is to be closed; False where one is still in use."""
    idle = True
    for handle in list(_live):
        try:
            handle.deregister(driver_name)
        except HandleInUseError:
            idle = False
    return idle


def _at_exit() -> None:
    # Drivers may print or crash when the process ends with files registered. What is still in use then is left to the
    # kernel: neither deregistered nor closed is in order, too.
    for handle in list(_live):
        try:
            handle.close()
        except HandleInUseError:
            pass
        except Exception:  # noqa: BLE001 - the other files must be let go, too
            _log.warning("%r could not be deregistered at exit", handle, exc_info=True)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
