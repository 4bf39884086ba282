"""`BlockReader`: what every task of a graph has of an array; it finds the files again where it arrives."""

from __future__ import annotations

import os
import pickle
import threading
from functools import lru_cache
from typing import Any

from gpuload.errors import ChangedError, GpuloadError
from gpuload.planning.selection import normalise
from gpuload.zarr import Array
from gpuload.zarr.state import FileState


class BlockReader:
    """An array as dask indexes it: reads what is between the brackets, and nothing when it is made.

    Threads: safe. Fork: as its `Array`. Pickle: by path, options and state; a process opens each array once.

    Parameters
    ----------
    array
        What is read.
    state
        Of its files. Whatever changed since is not read: `ChangedError`.
    token
        Names the array, the state and where results are made.
    """

    def __init__(self, array: Array, state: FileState, token: str) -> None:
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.result_dtype
        self.token = token
        self._state = state
        self._pickled = pickle.dumps(array)

    @property
    def array(self) -> Array:
        """The array; opened by the first task that needs it, and kept for those that follow."""
        return _opened(self._pickled, self.token)

    def __getitem__(self, selection: Any) -> Any:
        """As `Array`'s, of the files as they were.

        Raises
        ------
        ChangedError
            A file that it reads has changed.
        """
        try:
            array = self.array
            result = array[selection]
        except GpuloadError as error:
            self._check_metadata(error)
            raise
        self._state.check(array, normalise(selection, array.shape))
        return result

    def _check_metadata(self, error: GpuloadError) -> None:
        """Where a read failed because another array is there now, say that."""
        try:
            self._state.check(self.array, None)
        except ChangedError as changed:
            raise changed from error
        except GpuloadError:
            return

    def __dask_tokenize__(self) -> str:
        return self.token

    def __repr__(self) -> str:
        return f"<gpuload.dask.BlockReader {self.token} {self.shape} {self.dtype}>"


_lock = threading.Lock()


def _unlock_in_child() -> None:
    # The thread that held the lock at the moment of the fork does not exist here.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)


def _opened(pickled: bytes, token: str) -> Array:
    with _lock:  # several threads of a worker begin at once
        return _open(pickled, token)


@lru_cache(maxsize=256)
def _open(pickled: bytes, _token: str) -> Array:
    array: Array = pickle.loads(pickled)  # noqa: S301 - made above, by who made the graph
    return array
