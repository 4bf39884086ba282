"""CF decoding on the device: the functions by which xarray masks and scales, for arrays that are not NumPy's.

What xarray decodes lazily is a chain of wrappers around the array, each with a function. Those it has for NumPy arrays
only are replaced here by the same on the array's own module, with the values that xarray chose: fill values, dtype,
scale and offset. A function that is not known here gets the array on the host, and its result goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpuload.memory.device import GpuDevice, of


def on_device(data: Any) -> None:
    """Let the decoding of lazily indexed `data` work where its arrays are; values, dtypes and laziness stay."""
    while data is not None:
        if type(data).__name__ == "_ElementwiseFunctionArray":
            data.func = Decoder(data.func)
        data = getattr(data, "array", None)


class Decoder:
    """A function of xarray's, for arrays in any memory. Threads, fork and pickle: as that function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, data: Any) -> Any:
        """Decode an array; NumPy arrays as xarray does it."""
        if isinstance(data, np.ndarray | np.generic):
            return self._function(data)
        device = of(data)
        assert isinstance(device, GpuDevice)
        known = _known(self._function)
        with device.handle:
            return device.xp.asarray(self._function(data.get())) if known is None else known(data)

    def __repr__(self) -> str:
        return f"Decoder({self._function!r})"


def _known(function: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
    if not isinstance(function, partial) or function.args:
        return None
    given = function.keywords
    if function.func is np.asarray and set(given) == {"dtype"}:
        return lambda data: data.astype(given["dtype"])
    match getattr(function.func, "__name__", ""):
        case "_apply_mask" if set(given) == {"encoded_fill_values", "decoded_fill_value", "dtype"}:
            return lambda data: _mask(data, **given)
        case "_scale_offset_decoding":  # works on any array
            return function
    return None


def _mask(data: Any, encoded_fill_values: Any, decoded_fill_value: Any, dtype: Any) -> Any:
    data = data.astype(dtype)
    if encoded_fill_values:
        found: Any = False
        for value in encoded_fill_values:
            found = found | (data == value)
        data[found] = decoded_fill_value
    return data
