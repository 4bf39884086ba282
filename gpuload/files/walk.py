"""Opens a path below a directory without leaving it, where the kernel cannot be asked to see to that.

No state: threads and fork do not matter.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from gpuload.errors import EscapesStoreError

# Links and `..` in their targets that one walk may meet; the kernel follows 40 links in a path (MAXSYMLINKS).
_MAX_STARTS = 64

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def walk(root_fd: int, key: str, flags: int) -> int:
    """Open `key` below the directory `root_fd`, one component at a time; returns the descriptor.

    Each step refuses links (O_NOFOLLOW), so what is opened is a child of a directory that was opened the same way,
    whatever others rename meanwhile. A link is read, its target put in its place and the walk begun again from the
    root; so is the way back of a `..` in a target, which is never left to the kernel. At most two descriptors are open
    at a time.

    Raises
    ------
    EscapesStoreError
        A link leads out of the root; the message names it.
    OSError
        The kernel's error; ELOOP for too many links.
    """
    if key.endswith("/"):
        flags |= os.O_DIRECTORY
    todo = _components(key)
    for _ in range(_MAX_STARTS):
        ways = _descend(root_fd, key, todo, flags)
        if isinstance(ways, int):
            return ways
        todo = ways
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), key)


def _descend(root_fd: int, key: str, todo: Sequence[str], flags: int) -> int | list[str]:
    """One walk along `todo`: a descriptor, or what to walk along instead, for there was a link or a ``..``."""
    at = root_fd
    try:
        for i, name in enumerate(todo):
            last = i == len(todo) - 1
            if name == "..":
                if i == 0:
                    raise EscapesStoreError(f"the key {key!r} leaves its store by a link with '..'")
                return [*todo[: i - 1], *todo[i + 1 :]]
            fd = _step(name, (flags if last else _DIRECTORY) | os.O_NOFOLLOW, at)
            if fd < 0:
                target = _read_link(name, at)
                if target is None:  # it was a link a moment ago
                    return list(todo)
                return [*todo[:i], *_inside(key, todo[: i + 1], target), *todo[i + 1 :]]
            if last:
                return fd
            if at != root_fd:
                os.close(at)
            at = fd
        return os.open(".", flags, dir_fd=at)  # a link led to the root itself
    finally:
        if at != root_fd:
            os.close(at)


def _step(name: str, flags: int, at: int) -> int:
    """Open the component `name` of the directory `at`; -1 where it is a link."""
    try:
        fd = os.open(name, flags, dir_fd=at)
    except OSError as error:
        # A link refused: ELOOP, but ENOTDIR where a directory was asked for.
        if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and _read_link(name, at) is not None):
            return -1
        raise
    if flags & os.O_PATH and not flags & os.O_DIRECTORY and stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)  # O_PATH opens the link itself
        return -1
    return fd


def _read_link(name: str, at: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=at)
    except OSError as error:
        if error.errno == errno.EINVAL:  # no link
            return None
        raise


def _inside(key: str, link: Sequence[str], target: str) -> list[str]:
    """The components of a link's `target`, refused where they leave the root at once (later `..` meet the walk)."""
    parts = _components(target)
    up = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or up >= len(link):
        name = "/".join(link)
        raise EscapesStoreError(f"the key {key!r} leaves its store by the link {name!r} -> {target!r}")
    return parts


def _components(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
