"""Scratch on the device: bounded, aligned, registered once, and never lent while the device may still read it."""

from __future__ import annotations

import threading
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from gpuload.memory.device import GpuDevice, resolve
from gpuload.memory.scratch import MOST_BYTES, SLOTS, ScratchPool, Slot

DEADLINE = 120


class Library:
    """What a vendor's library is told of buffers."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self.log: list[tuple[str, int]] = []
        self.refuses: type[BaseException] | None = None

    def register(self, pointer: int, nbytes: int) -> None:
        if self.refuses is not None:
            raise self.refuses()
        assert pointer not in self.known
        self.known[pointer] = nbytes
        self.log.append(("register", pointer))

    def deregister(self, pointer: int) -> None:
        del self.known[pointer]
        self.log.append(("deregister", pointer))


@pytest.fixture
def gpu(fake_cupy: ModuleType) -> GpuDevice:
    found = resolve("cuda:1")
    assert isinstance(found, GpuDevice)
    return found


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def pool(gpu: GpuDevice, library: Library) -> ScratchPool:
    return ScratchPool(gpu, 4 * 8192, library.register, library.deregister)


def take(pool: ScratchPool, **how: Any) -> Slot:
    slot = pool.take(wait=False, **how)
    assert slot is not None
    return slot


@pytest.mark.parametrize(
    ("nbytes", "slot"),
    [(0, 4096), (4095, 4096), (4 * 4096, 4096), (4 * 8191, 4096), (4 * 8192 + 3, 8192), (1 << 40, MOST_BYTES // SLOTS)],
)
def test_a_share_of_what_is_allowed_in_whole_blocks(gpu: GpuDevice, library: Library, nbytes: int, slot: int) -> None:
    assert ScratchPool(gpu, nbytes, library.register, library.deregister).slot_bytes == slot


def test_slots_are_aligned_apart_registered_and_no_more_than_four(
    fake_cupy: ModuleType, pool: ScratchPool, library: Library
) -> None:
    assert fake_cupy.heap == []  # none before the first is needed
    slots = [take(pool) for _ in range(SLOTS)]
    assert pool.take(wait=False) is None
    assert pool.lent == SLOTS
    for slot in slots:
        assert slot.pointer % 4096 == 0
        assert (int(slot.array.data.ptr), slot.nbytes) == (slot.pointer, 8192)
        assert slot.array.device.id == 1
    starts = sorted(slot.pointer for slot in slots)
    assert all(b - a >= 8192 for a, b in pairwise(starts))
    assert library.known == dict.fromkeys(starts, 8192)
    for slot in slots:
        pool.give(slot, None)
    again = [take(pool) for _ in range(SLOTS)]
    assert {id(slot) for slot in again} == {id(slot) for slot in slots}  # made once
    assert len(library.log) == SLOTS
    for slot in again:
        pool.give(slot, None)
    assert pool.lent == 0
    pool.close()


def reads(fake_cupy: ModuleType, gpu: GpuDevice, slot: Slot, seen: list[int]) -> Any:
    """Have a stream read the slot's first byte: the fake does it when somebody waits. The event that follows it."""
    host = slot.array.host
    gpu.stream.enqueue("reads", lambda: seen.append(int(host[0])))
    event = fake_cupy.cuda.Event()
    event.record(gpu.stream)
    return event


def test_it_is_lent_again_when_the_device_has_read_it(fake_cupy: ModuleType, gpu: GpuDevice, pool: ScratchPool) -> None:
    seen: list[int] = []
    slot = take(pool)
    pool.give(slot, reads(fake_cupy, gpu, slot, seen))
    assert seen == []
    assert take(pool) is slot
    assert len(seen) == 1
    pool.give(slot, None)
    assert take(pool) is slot  # and nothing is left to wait for
    assert slot.free is None
    pool.give(slot, None)
    pool.close()


def test_poison_comes_after_what_still_reads(fake_cupy: ModuleType, gpu: GpuDevice, pool: ScratchPool) -> None:
    slot = take(pool, poison=True)
    room = slot.array.host
    assert (room == 0xA5).all()
    room[:] = 7
    seen: list[int] = []
    pool.give(slot, reads(fake_cupy, gpu, slot, seen))
    assert take(pool, poison=True) is slot
    assert seen == [7]
    assert (room == 0xA5).all()
    pool.give(slot, None)
    pool.close()


def test_what_fails_while_it_is_waited_for_gives_the_slot_back(pool: ScratchPool) -> None:
    class Broken:
        def synchronize(self) -> None:
            raise RuntimeError("the GPU fell off the bus")

    slot = take(pool)
    pool.give(slot, Broken())
    for _ in range(3):
        with pytest.raises(RuntimeError, match="bus"):
            pool.take(wait=False)
        assert pool.lent == 0
    slot.free = None
    pool.close()


def test_a_registration_that_fails_is_no_slot(
    fake_cupy: ModuleType, gpu: GpuDevice, pool: ScratchPool, library: Library
) -> None:
    library.refuses = KeyboardInterrupt
    for _ in range(2 * SLOTS):
        with pytest.raises(KeyboardInterrupt):
            pool.take(wait=True)
    assert pool.lent == 0
    gpu.handle.synchronize()  # memory is freed in the order of its stream
    assert not any(allocation.live for allocation in fake_cupy.heap)
    library.refuses = None
    slots = [take(pool) for _ in range(SLOTS)]
    for slot in slots:
        pool.give(slot, None)
    pool.close()


def test_no_memory_for_the_first(fake_cupy: ModuleType, pool: ScratchPool) -> None:
    fake_cupy.refuse["malloc"] = 0
    with pytest.raises(MemoryError, match="8192 bytes of scratch on cuda:1"):
        pool.take(wait=True)
    fake_cupy.refuse.clear()
    pool.give(take(pool), None)
    pool.close()


def test_no_memory_for_more_is_waiting_for_those_there_are(fake_cupy: ModuleType, pool: ScratchPool) -> None:
    slot, got = take(pool), []
    fake_cupy.refuse["malloc"] = 0
    assert pool.take(wait=False) is None
    waiter = threading.Thread(target=lambda: got.append(pool.take(wait=True)))
    waiter.start()
    pool.give(slot, None)
    waiter.join(DEADLINE)
    assert got == [slot]
    assert pool.lent == 1
    pool.give(slot, None)
    pool.close()


def test_many_at_once(pool: ScratchPool) -> None:
    """Nobody shares a slot, and nobody waits for ever."""
    lock, held, failures = threading.Lock(), set(), []

    def use() -> None:
        for _ in range(50):
            slot = pool.take(wait=True)
            with lock:
                if slot is None or id(slot) in held or len(held) >= SLOTS:
                    failures.append(slot)
                held.add(id(slot))
            with lock:
                held.discard(id(slot))
            assert slot is not None
            pool.give(slot, None)

    threads = [threading.Thread(target=use) for _ in range(3 * SLOTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert failures == []
    assert pool.lent == 0
    pool.close()


def test_the_end(fake_cupy: ModuleType, gpu: GpuDevice, pool: ScratchPool, library: Library) -> None:
    """What is idle is deregistered when the device has read it, before its memory goes; what is lent stays."""
    seen: list[int] = []
    lent, idle = take(pool), take(pool)
    pool.give(idle, reads(fake_cupy, gpu, idle, seen))
    at = idle.pointer
    pool.close()
    assert len(seen) == 1
    assert library.known == {lent.pointer: 8192}
    assert library.log[-1] == ("deregister", at)
    pool.close()
    assert pool.lent == 1
    pool.give(lent, None)
    pool.close()
    assert library.known == {}
    del idle, lent
    gpu.handle.synchronize()
    assert not any(allocation.live for allocation in fake_cupy.heap)
