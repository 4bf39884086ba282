"""The process's cache of open handles, and leases from it.

Threads: safe. Fork: the child starts with an empty cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from gpuload.files.cache import HandleCache
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root


@lru_cache(maxsize=1)
def handle_cache() -> HandleCache:
    """The process's cache of open handles."""
    return HandleCache()


os.register_at_fork(after_in_child=handle_cache.cache_clear)


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
