"""Permutations by a counter: each number once, the same everywhere, none like another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.data.permutation import Permutation, key_of, mix

LARGE = (1 << 16) + 1


@given(n=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_every_number_has_one_place(n: int, key: int) -> None:
    permutation = Permutation(n, key)
    assert np.sort(permutation(np.arange(n))).tolist() == list(range(n))


@pytest.mark.parametrize("n", [LARGE, LARGE + 1, 100_003, 1 << 17, (1 << 17) + 1, 300_000])
@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_every_number_of_a_large_one_has_one_place(n: int, key: int) -> None:
    values = Permutation(n, key)(np.arange(n))
    assert values.dtype == np.int64
    counted = np.bincount(values, minlength=n)
    assert len(counted) == n
    assert (counted == 1).all()


@given(n=st.integers(LARGE, 1 << 50), key=st.integers(0, 2**64 - 1), data=st.data())
def test_a_place_alone_is_what_it_is_among_others(n: int, key: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    together = Permutation(n, key)(places)
    assert ((together >= 0) & (together < n)).all()
    assert together.tolist() == [int(Permutation(n, key)(np.array([place]))[0]) for place in places]
    assert len(set(together.tolist())) == len(set(places.tolist()))


def test_it_is_the_same_on_every_machine_and_in_every_version() -> None:
    # Written down once: a state that was saved must bring the same samples years later.
    assert Permutation(12, key_of(3, 1))(np.arange(12)).tolist() == [9, 2, 7, 10, 1, 5, 8, 6, 4, 3, 0, 11]
    assert Permutation(1_000_000, key_of(3, 1))(np.arange(5)).tolist() == [377605, 228071, 184383, 291952, 364557]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_mixing_is_splitmix64(value: int, key: int) -> None:
    z = ((value + 1) * 0x9E3779B97F4A7C15 + key) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    assert mix(np.array([value], np.uint64), key).tolist() == [z ^ (z >> 31)]


def test_keys_differ_by_each_part_and_by_their_order() -> None:
    keys = [key_of(*parts) for parts in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (2**64,), (2**64 + 1,)]]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**64 for key in keys)


@pytest.mark.parametrize("n", [1000, 200_000])
def test_places_say_nothing_of_their_numbers(n: int) -> None:
    """Chance differs by 1/sqrt(n) or so; a network of too few rounds fails this by a lot."""
    for seed in range(5):
        values = Permutation(n, key_of(seed, 0))(np.arange(n))
        other = Permutation(n, key_of(seed, 1))(np.arange(n))
        for a, b in [(values, np.arange(n)), (values[1:], values[:-1]), (values, other)]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(n)
        # As many neighbours stay neighbours as chance leaves: 2 on average.
        assert (np.abs(np.diff(values)) == 1).sum() < 15


def test_all_permutations_of_four_are_about_as_likely() -> None:
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(4800):
        order = tuple(Permutation(4, key_of(seed))(np.arange(4)).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 24
    assert sum((count - 200) ** 2 / 200 for count in seen.values()) < 60  # chi squared, 23 degrees: 1 in 40 000
