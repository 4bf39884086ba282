"""The directory a store lives in, and opening files below it without ever leaving it.

A key may name what is inside the root only. The kernel enforces it where it can (``openat2``, RESOLVE_BENEATH): a
comparison of path strings would be true of the path as it was, not of the one that is opened. Without ``openat2`` the
path is walked one component at a time, each opened relative to the one before and never through a link.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Sequence
from typing import Self

from gpuload.bindings import syscalls
from gpuload.bindings.syscalls import Resolve
from gpuload.errors import (
    ChunkReadError,
    EscapesStoreError,
    HandleClosedError,
    NotFoundError,
    NotRegularFileError,
    NotZarrError,
    StoreError,
)
from gpuload.files.walk import walk

# A FIFO without a writer would block an open for ever, a terminal would become the process's own.
OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MISSING = (errno.ENOENT, errno.ENOTDIR)


class Root:
    """The directory of a store, held open.

    Threads: safe, but for `close`, which must be the last call. Fork: safe, the child has a descriptor of its own.
    Pickle: by path and `follow_links`.

    Parameters
    ----------
    path
        The directory; may be, or go through, links.
    follow_links
        Let links below the root leave it. ``..`` in a key is refused all the same.
    openat2
        Whether to resolve in the kernel; None: if it can.

    Raises
    ------
    NotFoundError
        There is no such path.
    NotZarrError
        It is no directory.

    Attributes
    ----------
    resolve
        How ``openat2`` must resolve a key below `fd`, for those who call it themselves.
    open_flags
        The flags to open a key with.
    """

    open_flags = OPEN_FLAGS

    def __init__(
        self, path: str | os.PathLike[str], *, follow_links: bool = False, openat2: bool | None = None
    ) -> None:
        self.path = _absolute(os.fsdecode(path))
        self.follow_links = follow_links
        self.resolve = Resolve.NO_MAGICLINKS if follow_links else Resolve.BENEATH | Resolve.NO_MAGICLINKS
        self._openat2 = syscalls.openat2_supported() if openat2 is None else openat2
        self._fd = _open_directory(self.path)
        self._finalizer = weakref.finalize(self, os.close, self._fd)
        self._finalizer.atexit = False  # handles and rings that stand on it end at exit, in their own order
        self._note_identity()

    def _note_identity(self) -> None:
        status = os.fstat(self._fd)
        self._identity = (status.st_dev, status.st_ino, self.follow_links)

    @property
    def fd(self) -> int:
        """Descriptor of the directory (O_PATH); the number stays the same when `refresh` finds another directory."""
        if self._fd < 0:
            raise HandleClosedError(f"the store at {self.path!r} is closed")
        return self._fd

    @property
    def identity(self) -> tuple[int, int, bool]:
        """Device, inode and `follow_links`: roots that are equal in them open the same files."""
        return self._identity

    def refresh(self) -> None:
        """Make sure that `path` still leads to the directory that is open, or open the one it leads to now.

        Raises
        ------
        NotFoundError
            The path is gone.
        """
        fd = self.fd
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise _root_error(self.path, error) from error
        if (status.st_dev, status.st_ino) == self._identity[:2]:
            return
        new = _open_directory(self.path)
        try:
            # Other threads may be using the number this moment: dup2 changes what it means in one step, where closing
            # it would let the number go to some other file between two of their calls.
            os.dup2(new, fd, inheritable=False)
        finally:
            os.close(new)
        self._note_identity()

    def check_key(self, key: str) -> None:
        """Refuse a key that is empty, absolute, holds a NUL or a ``..`` component: EscapesStoreError."""
        if not key:
            raise EscapesStoreError(f"an empty key names no file of the store at {self.path!r}")
        if "\0" in key:
            raise EscapesStoreError(f"the key {key!r} holds a NUL")
        if key[0] == "/":
            raise EscapesStoreError(f"the key {key!r} is an absolute path")
        if ".." in key and ".." in key.split("/"):
            raise EscapesStoreError(f"the key {key!r} leaves the store at {self.path!r}: '..' is refused")

    def check_keys(self, keys: Sequence[str]) -> None:
        """`check_key` for many: one look at all of them together, and at each only where that finds anything odd."""
        joined = "\0".join(keys)
        odd = (
            ".." in joined
            or "\0/" in joined
            or "\0\0" in joined
            or joined.count("\0") != len(keys) - 1
            or joined[:1] in ("", "/", "\0")
            or joined[-1] == "\0"
        )
        if odd:
            for key in keys:
                self.check_key(key)

    def open(self, key: str, flags: int | None = None) -> int:
        """Open `key` and return its descriptor (close-on-exec); never blocks on a FIFO.

        Raises
        ------
        FileNotFoundError, NotADirectoryError
            There is no such file.
        EscapesStoreError
            The key, or a link on its way, leaves the root.
        ChunkReadError
            Any other error of the kernel.
        """
        self.check_key(key)
        try:
            return self._open(key, OPEN_FLAGS if flags is None else flags)
        except EscapesStoreError:
            raise
        except OSError as error:
            raise open_error(self, key, error.errno or 0) from error

    def stat(self, key: str) -> os.stat_result | None:
        """The status of the file `key` leads to, links followed inside the root; None where there is none."""
        try:
            fd = self.open(key, os.O_PATH)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def stats(self, keys: Sequence[str]) -> list[os.stat_result | None]:
        """`stat` for many: each directory is resolved once, and its files are looked at from there."""
        self.check_keys(keys)
        found: list[os.stat_result | None] = [None] * len(keys)
        directories: dict[str, list[int]] = {}
        for i, key in enumerate(keys):
            directories.setdefault(key.rpartition("/")[0], []).append(i)
        for directory, members in directories.items():
            if directory and len(members) == 1:  # no cheaper by way of its directory
                found[members[0]] = self.stat(keys[members[0]])
                continue
            try:
                fd = self.open(directory, os.O_PATH | os.O_DIRECTORY) if directory else self.fd
            except (FileNotFoundError, NotADirectoryError):
                continue
            skip = len(directory) + 1 if directory else 0
            try:
                for i in members:
                    name = keys[i][skip:]
                    try:
                        status = os.stat(name, dir_fd=fd, follow_symlinks=False) if name else None
                    except OSError as error:
                        if error.errno in _MISSING:
                            continue
                        raise open_error(self, keys[i], error.errno or 0) from error
                    if status is None or stat.S_ISLNK(status.st_mode):
                        status = self.stat(keys[i])
                    found[i] = status
            finally:
                if directory:
                    os.close(fd)
        return found

    def close(self) -> None:
        """Close the directory; files opened below it stay open. Idempotent."""
        self._fd = -1
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Root({self.path!r}, follow_links={self.follow_links})"

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle, (self.path, self.follow_links)

    def _open(self, key: str, flags: int) -> int:
        flags |= os.O_CLOEXEC
        if self._openat2:
            try:
                return syscalls.openat2(self.fd, key, flags, self.resolve)
            except OSError as error:
                # Somebody keeps renaming directories on the way, so the kernel could not be certain that a `..` in a
                # link stays inside. The walk can: it never goes up by the name `..`.
                if error.errno != errno.EAGAIN:
                    raise
        if self.follow_links:
            return os.open(key, flags, dir_fd=self.fd)
        return walk(self.fd, key, flags)


def open_error(root: Root, key: str, number: int) -> Exception:
    """The exception that says that opening `key` below `root` failed with the error `number` (positive errno).

    FileNotFoundError and NotADirectoryError are as they are: there is no such file, which the caller may expect.
    """
    if number in _MISSING:
        return OSError(number, os.strerror(number), key)
    if number in (errno.EXDEV, errno.ELOOP) and not root.follow_links:
        try:
            os.close(walk(root.fd, key, os.O_PATH | os.O_CLOEXEC))
        except EscapesStoreError as error:  # knows which link it was
            return error
        except OSError:
            pass
        if number == errno.EXDEV:
            return EscapesStoreError(f"the key {key!r} leaves the store at {root.path!r} by a link")
    if number in (errno.ENXIO, errno.ENODEV, errno.EISDIR, errno.ESPIPE):
        irregular = not_regular(root, key)
        if irregular is not None:
            return irregular
    return ChunkReadError(key, number, f"cannot be opened in {root.path!r}: {os.strerror(number)}")


def not_regular(root: Root, key: str) -> NotRegularFileError | None:
    """The exception that says what `key` leads to instead of a regular file; None if that is what it is, or nothing."""
    status = root.stat(key)
    return None if status is None else irregular(key, status)


def irregular(key: str, status: os.stat_result) -> NotRegularFileError | None:
    """The exception for a file of this `status`; None for a regular one."""
    if stat.S_ISREG(status.st_mode):
        return None
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
    }
    kind = kinds.get(stat.S_IFMT(status.st_mode), "something else")
    return NotRegularFileError(key, f"is {kind} where a regular file should be")


def _absolute(path: str) -> str:
    # `link/..` is not what comes before it, so a path with `..` is left as it is but for the working directory.
    return os.path.join(os.getcwd(), path) if ".." in path.split("/") else os.path.abspath(path)


def _open_directory(path: str) -> int:
    try:
        return os.open(path, _DIRECTORY)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _root_error(path, error) from error


def _root_error(path: str, error: OSError | ValueError) -> StoreError:
    if isinstance(error, FileNotFoundError | ValueError):
        return NotFoundError(errno.ENOENT, "no such directory", path)
    if isinstance(error, NotADirectoryError):
        return NotZarrError(f"{path!r} is no directory")
    return StoreError(f"{path!r} cannot be opened: {error.strerror}")


def _unpickle(path: str, follow_links: bool) -> Root:
    return Root(path, follow_links=follow_links)
