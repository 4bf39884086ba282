"""One hash for one result, the same on every machine and device."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt


def to_host(array: Any) -> npt.NDArray[Any]:
    """Copy a device array to the host; an array on the host is handed back as it is."""
    return np.asarray(array.get() if hasattr(array, "get") else array)


def sha256(array: Any) -> str:
    """Hash the values of `array`, on any device, in hexadecimal.

    The bytes that are hashed are the array's in C order and native byte order. Object and variable-length string
    arrays have no such bytes: theirs is the text ``json.dumps(array.tolist(), ensure_ascii=False)`` in UTF-8, where
    values that JSON does not know are written as follows: bytes in base64, NumPy arrays and scalars as their lists and
    numbers.
    """
    host = to_host(array)
    if host.dtype.hasobject or host.dtype.kind == "T":
        text = json.dumps(host.tolist(), ensure_ascii=False, default=_plain)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()
    native = np.ascontiguousarray(host, dtype=host.dtype.newbyteorder("="))
    return hashlib.sha256(native.tobytes()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")
