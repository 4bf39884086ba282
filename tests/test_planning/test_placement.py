"""Whether elements of an array overlap, against counting every byte."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.planning.placement import overlaps


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-24, 24)), max_size=4),
    st.sampled_from([1, 2, 4, 8, 3]),
)
def test_every_byte_belongs_to_one_element(axes: list[tuple[int, int]], itemsize: int) -> None:
    shape, strides = [n for n, _ in axes], [stride for _, stride in axes]
    starts = [
        sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*map(range, shape))
    ]
    taken = [start + byte for start in starts for byte in range(itemsize)]
    assert overlaps(shape, strides, itemsize) == (len(set(taken)) < len(taken))


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((1 << 40, 1 << 10), (1 << 12, 4), False),  # too many elements to look at each
        ((1 << 40, 1 << 10), (0, 4), True),
        ((1 << 40, 1 << 10), (4, 4), True),
        ((1, 5), (0, 4), False),
        ((3, 4), (-16, 4), False),
        ((3, 2), (8, 12), False),  # interleaved, and yet no byte twice
        ((), (), False),
    ],
)
def test_shapes_that_matter(shape: tuple[int, ...], strides: tuple[int, ...], expected: bool) -> None:
    assert overlaps(shape, strides, 4) is expected
