"""The hash of a result depends on its values, not on how they lie in memory."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.cli.digest import sha256, to_host


class OnDevice:
    """Stands for a CuPy array: `get` copies it to the host."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def get(self) -> np.ndarray[Any, Any]:
        return self.values.copy()


@given(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=6, max_size=6), st.sampled_from(["i2", "i4", "f8", "c16"]))
def test_layout_byte_order_and_device_do_not_count(numbers: list[int], dtype: str) -> None:
    values = np.array(numbers, dtype).reshape(2, 3)
    expected = hashlib.sha256(values.tobytes()).hexdigest()
    assert sha256(values) == expected
    assert sha256(np.asfortranarray(values)) == expected
    assert sha256(values.astype(values.dtype.newbyteorder("S"))) == expected
    assert sha256(np.repeat(values, 2, axis=1)[:, ::2]) == expected
    assert sha256(OnDevice(values)) == expected


@pytest.mark.parametrize("dtype", ["U3", "S3", "M8[s]", "bool", [("a", ">i4"), ("b", "U2")]])
def test_bytes_of_other_fixed_types(dtype: Any) -> None:
    values = np.zeros(3, dtype)
    native = values.astype(values.dtype.newbyteorder("="))
    assert sha256(values) == hashlib.sha256(native.tobytes()).hexdigest()


def test_values_count() -> None:
    assert sha256(np.array([1, 2])) != sha256(np.array([2, 1]))


@pytest.mark.parametrize("dtype", [object, np.dtypes.StringDType()])
def test_strings_of_any_length_are_hashed_as_json(dtype: Any) -> None:
    texts = [["a", "äöü"], ["", "日本"]]
    expected = hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode("utf-8")).hexdigest()
    assert sha256(np.array(texts, dtype)) == expected


def test_objects_that_json_does_not_know() -> None:
    values = np.empty(3, object)
    values[:] = [b"\x00\xff", np.arange(2), np.float32(0.5)]
    assert sha256(values) == hashlib.sha256(b'["AP8=", [0, 1], 0.5]').hexdigest()
    values[0] = {1, 2}
    with pytest.raises(TypeError, match="set has no JSON form"):
        sha256(values)


def test_scalars_and_empty_arrays() -> None:
    assert sha256(np.float32(1)) == hashlib.sha256(np.float32(1).tobytes()).hexdigest()
    assert sha256(np.zeros((0, 3))) == hashlib.sha256(b"").hexdigest()
    assert to_host(np.float32(1)).shape == ()
