"""Writes whole files below a store's root: beside their place first, then renamed into it.

Whoever reads sees the old file or the new one, whole, also when the writer is killed. What a killed writer leaves is a
temporary file: it has a name that `is_temporary` knows, and is removed by a later write (`Writer`).

A writer holds a lock (flock) on its temporary file as long as it writes. The kernel drops that lock when the process
ends, however it ends, on the host of a network file system, too: a process id would say nothing beyond its own
container. A file system without such locks keeps what was left behind.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from gpuload.errors import ChunkWriteError, EscapesStoreError
from gpuload.files.root import Root

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TEMPORARY = re.compile(r"\.gpuload-[0-9a-f]{16}-[0-9]+\.tmp", re.ASCII)
_MOST_NAMES = 1000  # temporary names of one key that are tried: so many writers at a time, or files left behind
_SWEPT_MOST = 100_000  # directories that are remembered


def is_temporary(name: str) -> bool:
    """Whether a file of this name (without its directory) is one that a `Writer` has not finished."""
    return _TEMPORARY.fullmatch(name) is not None


class Writer:
    """Writes and deletes files below a root, each whole or not at all.

    A temporary file that a killed process left is removed by the next write of the same key, and when a process first
    writes to its directory.

    Threads: safe. Fork: safe. Pickle: none.

    Parameters
    ----------
    root
        Where the keys are. Nothing is written beyond it, whatever a key or a link on its way says.
    durable
        Have each file, and by `close` the directories that name it, on the drive: what was written when `close` is
        through is there after a loss of power. Slow: the drive is waited for, once a file and once a directory.
    """

    def __init__(self, root: Root, *, durable: bool = False) -> None:
        self.root = root
        self.durable = durable
        self._lock = threading.Lock()
        self._touched: dict[str, None] = {}  # directories to be synced

    def write(self, key: str, *parts: Buffer) -> None:
        """Write the file `key`, made of `parts` one after the other; directories are made as needed.

        Parameters
        ----------
        key
            Below the root.
        parts
            Contiguous host memory.

        Raises
        ------
        EscapesStoreError
            The key, or a link on its way, leaves the root.
        ChunkWriteError
            The kernel's error, such as a full disk. The old file is still there, and nothing else.
        """
        with self.create(key) as file:
            offset = 0
            for part in parts:
                offset += file.write(offset, part)

    @contextmanager
    def create(self, key: str) -> Iterator[PendingFile]:
        """A file to write to in any order, which becomes `key` at the end of the block, or nothing where that raises.

        Raises
        ------
        EscapesStoreError, ChunkWriteError
            As `write` does.
        """
        directory, base = self._split(key)
        with _named(self.root, key):
            while True:
                at = self._open_directory(directory)
                try:
                    name, fd = _make(at, base)
                except FileNotFoundError:  # somebody deleted the directory meanwhile: it is made again
                    os.close(at)
                except BaseException:
                    os.close(at)
                    raise
                else:
                    break
        try:
            try:
                yield PendingFile(self.root, key, fd)
                with _named(self.root, key):
                    self._finish(fd, at, name, base)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name, dir_fd=at)
                raise
        finally:
            os.close(fd)  # and lets the lock go
            os.close(at)
        self._touch(directory)

    def delete(self, key: str) -> None:
        """Delete the file `key`, or nothing where there is none.

        Raises
        ------
        EscapesStoreError, ChunkWriteError
            As `write` does.
        """
        directory, base = self._split(key)
        with _named(self.root, key):
            try:
                at = self.root.open(directory, os.O_PATH | os.O_DIRECTORY) if directory else os.dup(self.root.fd)
            except (FileNotFoundError, NotADirectoryError):
                return
            try:
                os.unlink(base, dir_fd=at)
            except FileNotFoundError:
                return
            finally:
                os.close(at)
        self._touch(directory)

    def close(self) -> None:
        """With `durable`, wait until every directory written to is on the drive. Idempotent."""
        with self._lock:
            touched, self._touched = self._touched, {}
        # The names of new directories are in those above them.
        above = {part for directory in touched for part in _above(directory)}
        for directory in sorted(above, key=len, reverse=True):
            with _named(self.root, directory or "."):
                try:
                    fd = self.root.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY)
                except FileNotFoundError:
                    continue
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _split(self, key: str) -> tuple[str, str]:
        self.root.check_key(key)
        directory, _, base = key.rpartition("/")
        if base in ("", "."):
            raise EscapesStoreError(f"the key {key!r} names no file of the store at {self.root.path!r}")
        if is_temporary(base):
            raise ChunkWriteError(key, errno.EINVAL, "is a name of gpuload's temporary files")
        return directory, base

    def _open_directory(self, directory: str) -> int:
        """The directory, opened; made where it is missing, and cleared of what killed processes left."""
        try:
            at = self.root.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            at = self._make_directory(directory)
        try:
            _sweep(at)
        except BaseException:
            os.close(at)
            raise
        return at

    def _make_directory(self, directory: str) -> int:
        above, _, name = directory.rpartition("/")
        while True:
            at = self._open_directory(above)
            try:
                with suppress(FileExistsError, FileNotFoundError):
                    os.mkdir(name, dir_fd=at)
            finally:
                os.close(at)
            with suppress(FileNotFoundError):  # somebody deletes what is made here: until they stop
                return self.root.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def _finish(self, fd: int, at: int, name: str, base: str) -> None:
        # The kernel's own clock ticks a few times a hundredth of a second: two contents of one size could share inode
        # number and times, and whoever keeps what it knows of a file by them would take the new one for the old.
        now = time.time_ns()
        os.utime(fd, ns=(now, now))
        if self.durable:
            os.fsync(fd)
        os.rename(name, base, src_dir_fd=at, dst_dir_fd=at)

    def _touch(self, directory: str) -> None:
        if self.durable:
            with self._lock:
                self._touched[directory] = None


class PendingFile:
    """A file that is being written, and not there for others yet. Threads: safe. Fork, pickle: none."""

    def __init__(self, root: Root, key: str, fd: int) -> None:
        self._root, self.key, self._fd = root, key, fd

    @property
    def fd(self) -> int:
        """Its descriptor, open for reading and writing; remains the writer's."""
        return self._fd

    def write(self, offset: int, data: Buffer) -> int:
        """Write contiguous host memory at byte `offset`; returns how many bytes that were, which is all of them.

        Raises
        ------
        ChunkWriteError
            The kernel's error.
        """
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        done = 0
        with _named(self._root, self.key):
            while done < len(view):  # one call moves 0x7ffff000 bytes at most, and fewer before a disk is full
                done += os.pwrite(self._fd, view[done:], offset + done)
        return done

    def extend(self, size: int) -> None:
        """Let the file have at least `size` bytes, zeros where nothing is written."""
        with _named(self._root, self.key):
            if os.fstat(self._fd).st_size < size:
                os.truncate(self._fd, size)


@contextmanager
def _named(root: Root, key: str) -> Iterator[None]:
    """Name the key in what the kernel refuses."""
    try:
        yield
    except ChunkWriteError:
        raise
    except OSError as error:  # a ChunkReadError of `Root.open` among them
        if isinstance(error, EscapesStoreError):
            raise
        number = error.errno or 0
        raise ChunkWriteError(key, number, f"cannot be written in {root.path!r}: {os.strerror(number)}") from error


def _make(at: int, base: str) -> tuple[str, int]:
    """Make and lock a temporary file for `base` in the directory `at`; its name and descriptor.

    The names of one key are always the same, so that what was left of it is met, and removed, here.
    """
    digest = hashlib.blake2b(os.fsencode(base), digest_size=8).hexdigest()
    for number in range(_MOST_NAMES):
        name = f".gpuload-{digest}-{number}.tmp"
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=at)
        except FileExistsError:
            if not _remove_abandoned(name, at):
                continue
            try:
                fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=at)
            except FileExistsError:
                continue
        # Until it is locked it looks abandoned: somebody else may have removed it, or be about to.
        if _lock(fd) is not False and os.fstat(fd).st_nlink:
            return name, fd
        os.close(fd)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), base)


def _lock(fd: int) -> bool | None:
    """Lock an open file; False where somebody has it, None where the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_abandoned(name: str, at: int) -> bool:
    """Remove the temporary file `name` of the directory `at` if its writer is gone; whether it is away."""
    try:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except FileNotFoundError:
        return True
    except OSError:  # another user's, a link, a directory
        return False
    try:
        if not _lock(fd):
            return False
        # The lock is that of the file that was opened. It must still be the one with this name: the name may have
        # gone to another writer since, and what is locked may have been renamed into its place.
        status = os.fstat(fd)
        try:
            there = os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return True
        if (there.st_dev, there.st_ino) != (status.st_dev, status.st_ino) or not stat.S_ISREG(status.st_mode):
            return False
        try:
            os.unlink(name, dir_fd=at)
        except OSError:
            return False
        return True
    finally:
        os.close(fd)


_swept: set[tuple[int, int]] = set()


def _sweep(at: int) -> None:
    """Remove what killed processes left in a directory, when this process first writes to it."""
    status = os.fstat(at)
    place = (status.st_dev, status.st_ino)
    if place in _swept:
        return
    if len(_swept) >= _SWEPT_MOST:
        _swept.clear()
    _swept.add(place)
    with suppress(OSError):  # a directory that may be written to need not be readable
        for name in os.listdir(at):
            if is_temporary(name):
                _remove_abandoned(name, at)


def _above(directory: str) -> Sequence[str]:
    """The directory itself and all above it, the root (an empty name) among them."""
    parts = directory.split("/") if directory else []
    return ["/".join(parts[:n]) for n in range(len(parts) + 1)]
