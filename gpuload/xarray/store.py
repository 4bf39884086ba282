"""`Store`: a zarr group as xarray's own store has it, but for what its variables are read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import xarray
from xarray.backends.zarr import ZarrStore
from xarray.core import indexing

from gpuload.memory.device import Device
from gpuload.xarray.lazy import LazyArray
from gpuload.xarray.variable import ZarrVariable
from gpuload.zarr import Array
from gpuload.zarr.source import Source
from gpuload.zarr.store import DeviceStore
from gpuload.zarr.virtual_store import VirtualStore


@dataclass(frozen=True, slots=True)
class Options:
    """How the variables of a store are opened.

    Parameters
    ----------
    device, strict
        As `gpuload.open` has them.
    times, durations
        Whether xarray will decode these, which it does in host memory.
    """

    device: str | Device
    strict: bool | None
    times: bool
    durations: bool


class Store(ZarrStore):
    """A group for reading. Threads: safe. Fork: safe. Pickle: not needed, the variables travel by themselves."""

    options: Options

    def coordinates(self) -> set[str]:
        """Names of what is a coordinate for CF: dimensions, and what an attribute ``coordinates`` names."""
        named = str(self.zarr_group.attrs.get("coordinates", "")).split()
        for _, array in self.arrays():
            named += str(array.attrs.get("coordinates", "")).split()
        return {*named, *self.get_dimensions()}  # type: ignore[no-untyped-call]

    def open_store_variable(self, name: str) -> xarray.Variable:
        """A variable as zarr-python's would be, in dimensions, attributes and encoding, that gpuload reads."""
        theirs = super().open_store_variable(name)  # type: ignore[no-untyped-call]
        array = self._array(name, for_host=self._is_for_host(name, theirs))
        # On the host theirs may say more than NumPy's: that these objects are strings.
        dtype = theirs.dtype if array.result_dtype == array.dtype else array.result_dtype
        data = indexing.LazilyIndexedArray(LazyArray(array, dtype))
        return ZarrVariable(theirs.dims, data, theirs.attrs, theirs.encoding, fastpath=True)

    def _array(self, name: str, *, for_host: bool) -> Array:
        node, device, strict = self.members[name], self.options.device, self.options.strict
        store = node.store
        assert isinstance(store, DeviceStore | VirtualStore)
        if for_host:  # which is no fallback from anything
            device, strict = "cpu", False
        source = Source(store, node.path, zarr_format=node.metadata.zarr_format, device=device, strict=strict)
        return Array(source, node.metadata)

    def _is_for_host(self, name: str, variable: xarray.Variable) -> bool:
        if name in self._coordinates or variable.dtype.kind in "mM":
            return True
        units, dtype = str(variable.attrs.get("units", "")), str(variable.attrs.get("dtype", ""))
        if self.options.times and "since" in units:
            return True
        return self.options.durations and (dtype.startswith("timedelta64") or units in _DURATIONS)

    def get_variables(self) -> Any:
        """All variables; what is a coordinate is known once for all of them."""
        self._coordinates = self.coordinates()
        return super().get_variables()  # type: ignore[no-untyped-call]


_DURATIONS = ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")
