"""The pool of slabs: blocks never overlap, free ranges join again, the limit holds; under threads too."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuload.memory.slabs import LARGEST_SLAB, SMALLEST_SLAB, UNREGISTERED, Block, SlabPool

MIB = 1 << 20


class Pool(RuleBasedStateMachine):
    """Takes and gives in any order, against a plain account of who holds what."""

    LIMIT = 14 * MIB

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlabPool(4 * MIB, self.LIMIT, poison=True)
        self.held: list[tuple[Block, int]] = []
        self.stamp = 0

    @precondition(lambda self: self.pool.may_grow())
    @rule()
    def grow(self) -> None:
        slab = self.pool.grow()
        assert slab.buffer == UNREGISTERED
        assert slab.address % (2 * MIB) == 0

    @rule(nbytes=st.integers(0, 64 << 10) | st.integers(0, 5 * MIB))
    def take(self, nbytes: int) -> None:
        block = self.pool.take(nbytes)
        if block is None:
            grains = -(-max(nbytes, 1) // 4096) * 4096
            assert all(size < grains for slab in self.pool.slabs for _, size in slab.free)
            return
        assert block.nbytes >= nbytes
        assert block.nbytes - nbytes <= 4096
        assert block.address % 4096 == 0
        assert block.address == block.array.ctypes.data == block.slab.address + block.offset
        assert (block.array[:: max(1, block.nbytes // 64)] == 0xA5).all()
        self.stamp = self.stamp % 100 + 1
        block.array[[0, -1]] = self.stamp
        self.held.append((block, self.stamp))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        block, stamp = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        assert block.array[0] == block.array[-1] == stamp, "another block was written over this one"
        self.pool.give(block)

    @rule(nbytes=st.integers(1, 30 * MIB))
    def own(self, nbytes: int) -> None:
        before = self.pool.lent
        if self.pool.may_own(nbytes):
            block = self.pool.own(nbytes)
            assert block.buffer == UNREGISTERED
            assert self.pool.lent == before + nbytes
            self.pool.give(block)
        assert self.pool.lent == before

    @invariant()
    def blocks_do_not_overlap(self) -> None:
        ranges = sorted((block.address, block.address + block.nbytes) for block, _ in self.held)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))

    @invariant()
    def the_account_is_exact(self) -> None:
        assert self.pool.lent == sum(block.nbytes for block, _ in self.held)
        assert self.pool.nbytes <= self.LIMIT

    @invariant()
    def free_ranges_are_sorted_and_joined(self) -> None:
        for slab in self.pool.slabs:
            for (offset, size), (following, _) in zip(slab.free, slab.free[1:], strict=False):
                assert offset + size < following, "two neighbours that should be one"
            assert all(size > 0 for _, size in slab.free)

    def teardown(self) -> None:
        for block, _ in self.held:
            self.pool.give(block)
        for slab in self.pool.slabs:
            assert slab.free == [(0, slab.nbytes)]
        self.held.clear()
        self.pool.close()


Pool.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestPoolOfSlabs = Pool.TestCase


def test_the_size_of_a_slab_has_bounds() -> None:
    assert SlabPool(1, 1).slab_size == SMALLEST_SLAB
    assert SlabPool(1 << 40, 1 << 40).slab_size == LARGEST_SLAB == 64 * MIB


def test_one_slab_is_made_whatever_the_limit() -> None:
    pool = SlabPool(8 * MIB, 1)
    assert pool.may_grow()
    pool.grow()
    assert not pool.may_grow()
    assert pool.take(MIB) is not None
    pool.close()


def test_what_never_fits_is_known() -> None:
    pool = SlabPool(4 * MIB, 9 * MIB)
    assert pool.fits(4 * MIB)
    assert not pool.fits(5 * MIB)
    pool.grow()
    pool.grow()
    assert pool.fits(4 * MIB)
    assert not pool.fits(5 * MIB)
    pool.close()


def test_own_blocks_have_a_limit_but_one_may_be() -> None:
    pool = SlabPool(4 * MIB, 10 * MIB)
    assert pool.may_own(100 * MIB)
    first = pool.own(8 * MIB)
    assert pool.may_own(2 * MIB)
    assert not pool.may_own(2 * MIB + 1)
    pool.give(first)
    assert pool.may_own(100 * MIB)


def test_many_threads_take_and_give() -> None:
    pool = SlabPool(4 * MIB, 4 * MIB)
    pool.grow()
    errors: list[str] = []

    def work(stamp: int) -> None:
        random = np.random.default_rng(stamp)
        for _ in range(150):
            block = pool.take(int(random.integers(1, 600 << 10)))
            if block is None:
                continue
            block.array[::4096] = stamp
            if not (block.array[::4096] == stamp).all():
                errors.append("overlap")
            pool.give(block)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert pool.lent == 0
    assert pool.slabs[0].free == [(0, pool.slabs[0].nbytes)]
    pool.close()


class Pins:
    """A device that counts what is pinned."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.refuse = False

    def pin(self, address: int, nbytes: int) -> None:
        if self.refuse:
            raise MemoryError("cannot pin")
        assert address not in self.pinned
        self.pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        del self.pinned[address]


def test_slabs_are_pinned_once_and_unpinned_before_they_go() -> None:
    pool, device, other = SlabPool(4 * MIB, 20 * MIB), Pins(), Pins()
    before = pool.grow()
    pool.pin_for(device)
    pool.pin_for(device)
    pool.pin_for(other)  # pinned memory is portable
    after = pool.grow()
    assert device.pinned == {slab.address: slab.nbytes for slab in (before, after)}
    assert other.pinned == {}
    pool.drop(after)
    assert device.pinned == {before.address: before.nbytes}
    pool.close()
    pool.close()
    assert device.pinned == {}


def test_memory_that_cannot_be_pinned_is_not_kept() -> None:
    pool, device = SlabPool(4 * MIB, 20 * MIB), Pins()
    pool.pin_for(device)
    device.refuse = True
    with pytest.raises(MemoryError):
        pool.grow()
    assert pool.slabs == []
    device.refuse = False
    pool.grow()
    pool.close()


def test_blocks_are_poisoned_where_asked(monkeypatch: Any) -> None:
    pool = SlabPool(4 * MIB, 4 * MIB)
    pool.grow()
    block = pool.take(100)
    assert block is not None
    block.array[:] = 1
    pool.give(block)
    pool.poison = True
    block = pool.take(100)
    assert block is not None
    assert (block.array == 0xA5).all()
    assert (pool.own(1000).array == 0xA5).all()
    pool.give(block)
    pool.close()
