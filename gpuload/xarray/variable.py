"""`ZarrVariable`: a variable whose dask blocks stay on the device, and are of one state of its files."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from xarray import Variable
from xarray.core import indexing

from gpuload.xarray.lazy import LazyArray


class ZarrVariable(Variable):
    """A lazily indexed variable of a zarr array; once it is loaded or computed with, it is as any variable.

    xarray makes dask arrays of what it indexes lazily by way of NumPy. Here the blocks are what reading gives: CuPy
    arrays on a GPU. The name of such a dask array tells the state of the files, and a block whose files have changed
    since is a `ChangedError`.
    """

    __slots__ = ()

    def chunk(  # type: ignore[override] # as xarray.Variable overrides it
        self,
        chunks: Any = {},  # noqa: B006 - as xarray has it
        name: str | None = None,
        lock: bool | None = None,
        inline_array: bool | None = None,
        chunked_array_type: Any = None,
        from_array_kwargs: Any = None,
        **chunks_kwargs: Any,
    ) -> Any:
        """As `xarray.Variable.chunk`."""
        data: Any = self._data
        kwargs = dict(from_array_kwargs or {})
        leaf = leaf_of(data)
        if leaf is None:
            lazy: Any = super()
        else:
            held = leaf.hold()
            data = _with_leaf(data, held)
            name = name and f"{name}-{held.digest}"
            if isinstance(kwargs.get("name"), str):
                kwargs["name"] = f"{kwargs['name']}-{held.digest}"
            data = data if isinstance(held.empty, np.ndarray) else DeviceBlocks(data)
            lazy = Variable(self._dims, data, self._attrs, self._encoding, fastpath=True)
        return lazy.chunk(chunks, name, lock, inline_array, chunked_array_type, kwargs, **chunks_kwargs)


class DeviceBlocks:
    """What dask takes for an array on the device, and reads when it takes a block of it.

    Threads: safe. Fork: as its `Array`. Pickle: by path, options and state.
    """

    def __init__(self, data: Any) -> None:
        self._data = indexing.ImplicitToExplicitIndexingAdapter(data, indexing.OuterIndexer)
        self.shape, self.dtype = tuple(data.shape), np.dtype(data.dtype)
        self.ndim = len(self.shape)

    def __getitem__(self, key: Any) -> Any:
        part = self._data[key]
        return part.get_duck_array() if hasattr(part, "get_duck_array") else part

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        # By having this, dask leaves the blocks as they are.
        return NotImplemented


def leaf_of(data: Any) -> LazyArray | None:
    """What lazily indexed data are read from in the end, if it is a `LazyArray`."""
    while isinstance(data, indexing.ExplicitlyIndexed) and not isinstance(data, LazyArray):
        data = getattr(data, "array", None)
    return data if isinstance(data, LazyArray) else None


def _with_leaf(data: Any, leaf: LazyArray) -> Any:
    """The same lazily indexed data, read from `leaf`; what others hold stays as it is."""
    if isinstance(data, LazyArray):
        return leaf
    same = copy(data)
    same.array = _with_leaf(data.array, leaf)
    return same
