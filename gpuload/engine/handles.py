"""The process's cache of open handles, and leases from it.

Threads: safe. Fork: the child starts with an empty cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpuload.files.cache import HandleCache
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root
from gpuload.once import once


@once
def handle_cache() -> HandleCache:
    """The process's cache of open handles."""
    return HandleCache()


@contextmanager
def lease(root: Root, keys: Sequence[str]) -> Iterator[list[FileHandle | None]]:
    """Open handles of `keys` for the time of a block; None where there is no such file.

    All are open at once, so `keys` may be at most ``handle_cache().wave_size`` many.
    """
    cache = handle_cache()
    handles = cache.acquire(root, keys)
    try:
        yield handles
    finally:
        cache.release(handles)
