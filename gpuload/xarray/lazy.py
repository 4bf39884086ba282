"""`LazyArray`: a zarr array as xarray indexes it, read when its values are asked for."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from gpuload.memory.device import of
from gpuload.planning.selection import normalise, orthogonal, vectorised
from gpuload.zarr import Array
from gpuload.zarr.state import FileState, look

_UNDERSTAND = {
    indexing.BasicIndexer: normalise,
    indexing.OuterIndexer: orthogonal,
    indexing.VectorizedIndexer: vectorised,
}


class LazyArray(BackendArray):
    """What the variables of a dataset read from.

    Threads: safe. Fork: as its `Array`. Pickle: by path, options and state.

    Parameters
    ----------
    array
        What is read.
    dtype
        Of the results, as xarray should know it: on the host it may be wrapped to say that these are strings.
    """

    def __init__(self, array: Array, dtype: np.dtype[Any]) -> None:
        # Not `array`: xarray evaluates what has an attribute of this name.
        self._array = array
        self._state: FileState | None = None
        self._to_host = False
        self.shape, self.dtype = array.shape, dtype

    @property
    def empty(self) -> Any:
        """An array without elements, of the type that reading gives."""
        return self[indexing.BasicIndexer(tuple(slice(0, 0) for _ in self.shape))]

    def to_host(self) -> None:
        """Give results in host memory from now on: this became a coordinate."""
        self._to_host = True

    def hold(self) -> LazyArray:
        """The same, but read only as the files are at this moment."""
        held = copy(self)
        held._state = look(self._array.source)  # noqa: SLF001 - an array as this one
        return held

    @property
    def digest(self) -> str:
        """Names the state that is held; empty where none is."""
        return "" if self._state is None else self._state.digest

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """Read a selection.

        Raises
        ------
        ChangedError
            What it reads is not what was held.
        """
        method = {
            indexing.BasicIndexer: self._array.__getitem__,
            indexing.OuterIndexer: self._array.oindex.__getitem__,
            indexing.VectorizedIndexer: self._array.vindex.__getitem__,
        }[type(key)]
        result: Any = indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.VECTORIZED, method)
        if self._state is not None:
            self._state.check(self._array, _UNDERSTAND[type(key)](key.tuple, self.shape))
        if self._to_host and not of(result).is_host:
            result = result.get()
        return result

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """`__getitem__`, in a thread."""
        return await asyncio.to_thread(self.__getitem__, key)

    def __repr__(self) -> str:
        return f"LazyArray({self._array!r})"
