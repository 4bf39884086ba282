"""Enclosing blocks, against their definition byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuload.planning.aligned import DIRECT_ALIGN, enclose

ROWS = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70), st.integers(0, 70)), max_size=20)


def columns(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
    return list(np.array(rows, np.int64).reshape(-1, 3).T)


@given(ROWS, st.sampled_from([1, 2, 4, 8, 16, 64]))
@example([(0, 0, 0), (5, 3, 8), (7, 1, 8), (8, 9, 20), (60, 5, 20)], 8)
def test_each_byte_is_in_a_whole_block_or_in_the_tail(rows: list[tuple[int, int, int]], align: int) -> None:
    offset, size, file_size = columns(rows)
    start, stop = enclose(offset, size, file_size, align)
    assert start.dtype == stop.dtype == np.int64
    for (first, n, length), a, b in zip(rows, start.tolist(), stop.tolist(), strict=True):
        assert a % align == b % align == 0
        assert 0 <= a <= b <= length // align * align
        blocks = {byte // align for byte in range(first, first + n) if byte < length // align * align}
        # Just the blocks that hold a byte of the range and are whole in the file: none too many, none too few.
        assert set(range(a // align, b // align)) == blocks


@given(ROWS)
def test_what_is_aligned_stays_as_it_is(rows: list[tuple[int, int, int]]) -> None:
    offset, size, _ = columns(rows)
    offset, size = offset * DIRECT_ALIGN, size * DIRECT_ALIGN
    start, stop = enclose(offset, size, offset + size, DIRECT_ALIGN)
    assert (start == offset).all()
    assert (stop == offset + size).all()


def test_large_files_are_no_trouble() -> None:
    offset, size = np.array([(1 << 61) + 5], np.int64), np.array([1 << 40], np.int64)
    start, stop = enclose(offset, size, offset + size + 5000, DIRECT_ALIGN)
    assert start.tolist() == [1 << 61]
    assert stop.tolist() == [(1 << 61) + (1 << 40) + DIRECT_ALIGN]


@pytest.mark.parametrize("align", [0, -4096, 3, 4095])
def test_an_alignment_is_a_power_of_two(align: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        enclose(*columns([(0, 1, 1)]), align)
