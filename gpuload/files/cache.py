"""Keeps files open between reads, within a budget of descriptors.

A caller takes the handles of one wave of a read together, all or none, and gives them back when the I/O is done. What
nobody holds stays open until others need its place, the least recently used first. A file that was replaced, rewritten,
truncated or removed is noticed each time it is taken.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from gpuload.config import integer_or_none
from gpuload.errors import ChunkReadError, ConfigError, HandleInUseError
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root

_log = logging.getLogger(__name__)

# Descriptors that are open for a moment while a directory is looked at or a path is walked.
_PASSING = 2
_LEAST, _MOST = 8, 4096  # bounds of a budget that nobody set

_Place = tuple[tuple[int, int, bool], str]


class HandleCache:
    """Open files by root and key.

    Threads: safe; one at a time opens files, releasing never waits for that. Fork: empty in the child.
    At the end of the process every file is deregistered from its drivers, then closed.

    Parameters
    ----------
    budget
        The most descriptors to hold open at a time, the drivers' own included. None: `handles.budget` of the
        configuration; None there too: half of what RLIMIT_NOFILE still allows this process, 8 to 4096.
    per_handle
        How many descriptors are set aside for a file: the buffered one, the unbuffered one, and what drivers open.
        A handle never takes more.

    Raises
    ------
    ConfigError
        A budget that is not enough for one file.
    """

    def __init__(self, budget: int | None = None, *, per_handle: int = 2) -> None:
        if budget is None:
            budget = integer_or_none("handles.budget")
        self.budget = _default_budget() if budget is None else int(budget)
        self.per_handle = per_handle
        if per_handle < 1 or self.budget < per_handle + _PASSING:
            raise ConfigError(
                f"handles.budget = {self.budget} is less than the {per_handle + _PASSING} that one file takes"
            )
        self._reset()
        _caches.add(self)

    def _reset(self) -> None:
        self._turn = threading.Lock()  # held by the one who finds, evicts and opens
        self._changed = threading.Condition(threading.Lock())  # guards what follows; told when files are let go
        self._handles: OrderedDict[_Place, FileHandle] = OrderedDict()  # least recently used first
        self._outdated: set[FileHandle] = set()  # of files that are no longer there, but still in use
        self._closing: set[FileHandle] = set()  # being closed, and counted until they are

    @property
    def wave_size(self) -> int:
        """How many different files one caller may hold at once."""
        return (self.budget - _PASSING) // self.per_handle

    @property
    def open_descriptors(self) -> int:
        """How many descriptors are open now, unbuffered ones and drivers' own included."""
        with self._changed:
            return sum(handle.descriptors for handle in self._all())

    def __len__(self) -> int:
        return len(self._handles) + len(self._outdated) + len(self._closing)

    def acquire(self, root: Root, keys: Sequence[str]) -> list[FileHandle | None]:
        """Take the handles of `keys`, each leased until `release`; None where there is no such file.

        Waits while others hold too much. Whoever holds handles must not wait here for more: see `try_acquire`.

        Raises
        ------
        ValueError
            More different keys than `wave_size`.
        EscapesStoreError, NotRegularFileError, ChunkReadError
            One of them cannot be opened; none is leased then.
        """
        self._check_wave(keys)
        with self._turn:
            handles = self._take(root, keys, wait=True)
        assert handles is not None  # it waited
        return handles

    def try_acquire(self, root: Root, keys: Sequence[str]) -> list[FileHandle | None] | None:
        """`acquire`, but None where it would have to wait for others."""
        self._check_wave(keys)
        if not self._turn.acquire(blocking=False):
            return None
        try:
            return self._take(root, keys, wait=False)
        finally:
            self._turn.release()

    def release(self, handles: Iterable[FileHandle | None]) -> None:
        """Give back what `acquire` returned, once an entry; each file stays open while there is room for it."""
        with self._changed:
            for handle in handles:
                if handle is not None:
                    handle.release()
            closing = self._claim_outdated()
            self._changed.notify_all()
        self._close(closing)

    def clear(self) -> None:
        """Deregister and close every file that nobody holds; one that is held is closed when it is released.

        Raises
        ------
        Exception
            What drivers raised, several as an ExceptionGroup, after all was closed.
        """
        with self._turn:
            with self._changed:
                self._outdated.update(self._handles.values())
                self._handles.clear()
                closing = self._claim_outdated()
            failures = self._close(closing, log=False)
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise ExceptionGroup("files could not be deregistered", failures)

    def abandon(self) -> None:
        """Be empty in a forked child: close its copies of the descriptors, and tell no driver."""
        handles = self._all()
        self._reset()
        for handle in handles:
            handle.abandon()

    def _all(self) -> list[FileHandle]:
        return [*self._handles.values(), *self._outdated, *self._closing]

    def _check_wave(self, keys: Sequence[str]) -> None:
        if len(keys) > self.wave_size and (different := len(set(keys))) > self.wave_size:
            raise ValueError(f"{different} files at once are more than the {self.wave_size} of one wave")

    def _take(self, root: Root, keys: Sequence[str], *, wait: bool) -> list[FileHandle | None] | None:
        """Find, make room, open: all of `keys` or, with an exception or for want of room, none."""
        found: dict[str, FileHandle | None] = {}
        try:
            missing = self._find(root, keys, found)
            if missing:
                if not self._make_room(len(missing), wait=wait):
                    self.release(found.values())
                    return None
                self._open(root, missing, found)
        except BaseException:
            self.release(found.values())
            raise
        if len(found) < len(keys):  # a key that came twice is released twice
            for key, count in Counter(keys).items():
                handle = found[key]
                if handle is not None:
                    for _ in range(count - 1):
                        handle.acquire()
        return [found[key] for key in keys]

    def _find(self, root: Root, keys: Sequence[str], found: dict[str, FileHandle | None]) -> list[str]:
        """Lease into `found` what is open and still the same file; returns the keys to open."""
        where = root.identity
        cached: dict[str, FileHandle] = {}
        missing: dict[str, None] = {}
        # Only whoever has the turn, as we do, takes handles in or out, so a look needs no lock.
        for key in keys:
            handle = self._handles.get((where, key))
            if handle is None:
                missing[key] = None
            else:
                cached[key] = handle
        if not cached:
            return list(missing)
        status = root.stats(list(cached))
        with self._changed:
            for (key, handle), now in zip(cached.items(), status, strict=True):
                if now is not None and handle.identity.matches(now) and not handle.closed:
                    self._handles.move_to_end((where, key))
                    handle.acquire()
                    found[key] = handle
                    continue
                del self._handles[where, key]
                self._outdated.add(handle)
                if now is None:
                    found[key] = None
                else:
                    missing[key] = None
            closing = self._claim_outdated()
        self._close(closing)
        return list(missing)

    def _make_room(self, count: int, *, wait: bool) -> bool:
        """Close least recently used files until `count` more can be opened; whether they can now."""
        while True:
            with self._changed:
                closing = self._claim_outdated()
                excess = len(self) + count - self.wave_size
                if excess <= 0 and not closing:
                    return True
                idle = ((place, handle) for place, handle in self._handles.items() if not handle.leases)
                victims = list(islice(idle, max(0, excess - len(closing))))
                for place, handle in victims:
                    del self._handles[place]
                    self._closing.add(handle)
                    closing.append(handle)
                if not closing:
                    if not wait:
                        return False
                    self._changed.wait()
            self._close(closing)

    def _open(self, root: Root, missing: Sequence[str], found: dict[str, FileHandle | None]) -> None:
        where = root.identity
        for key in missing:
            try:
                handle = self._open_one(root, key)
            except (FileNotFoundError, NotADirectoryError):
                found[key] = None
                continue
            handle.acquire()
            with self._changed:
                self._handles[where, key] = handle
            found[key] = handle

    def _open_one(self, root: Root, key: str) -> FileHandle:
        """Open a file; where others have used up the process's descriptors, idle files give theirs."""
        while True:
            try:
                return FileHandle.open(root, key, allowance=self.per_handle)
            except ChunkReadError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._close_idle():
                    raise

    def _close_idle(self) -> bool:
        """Close every file that nobody holds; whether there was one."""
        with self._changed:
            idle = [(place, handle) for place, handle in self._handles.items() if not handle.leases]
            for place, handle in idle:
                del self._handles[place]
                self._closing.add(handle)
        self._close([handle for _, handle in idle])
        return bool(idle)

    def _claim_outdated(self) -> list[FileHandle]:
        """Outdated handles that nobody uses any more: whoever takes them here must close them, without the lock."""
        if not self._outdated:
            return []
        idle = [handle for handle in self._outdated if not handle.leases]
        self._outdated.difference_update(idle)
        self._closing.update(idle)
        return idle

    def _close(self, handles: Sequence[FileHandle], *, log: bool = True) -> list[Exception]:
        """Close handles that were claimed; the reader who needs their place is not told that a driver failed."""
        if not handles:
            return []
        failures: list[Exception] = []
        try:
            for handle in handles:
                try:
                    handle.close()
                except HandleInUseError:  # taken without the cache's knowledge: stays until it is released
                    pass
                except Exception as error:  # noqa: BLE001 - it is closed all the same
                    failures.append(error)
                    if log:
                        _log.warning("%r could not be deregistered", handle, exc_info=True)
        finally:
            with self._changed:
                self._closing.difference_update(handles)
                self._outdated.update(handle for handle in handles if not handle.closed)
                self._changed.notify_all()
        return failures


def _default_budget() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 0
    return max(_LEAST, min(_MOST, (limit - used) // 2))


_caches: weakref.WeakSet[HandleCache] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_caches):
        cache.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
