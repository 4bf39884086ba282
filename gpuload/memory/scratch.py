"""Scratch: device memory that direct reads land in before a kernel puts its elements in place; registered once, reused.

A device has one pool of a few slots, made when they are first needed and bounded together. A slot is lent to one batch
of reads; who gives it back says by an event when the device has read the last of it.

Threads: safe. Fork: not to be used in the child.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuload.memory.device import GpuDevice

MOST_BYTES = 256 << 20  # of all slots of a device
SLOTS = 4
_ALIGN = 4096
_POISON = 0xA5


@dataclass(slots=True, eq=False)
class Slot:
    """Device memory lent to one batch of reads.

    Attributes
    ----------
    array
        uint8 (nbytes,): the memory, from an address that is a multiple of 4096.
    pointer
        Its address.
    free
        The event after which nothing reads it any more; None when nothing ever did.
    """

    array: Any
    pointer: int
    free: Any = None

    @property
    def nbytes(self) -> int:
        return len(self.array)


class ScratchPool:
    """The slots of one device.

    Parameters
    ----------
    device
        Where they are.
    nbytes
        Bytes of all slots together, at most 256 MiB.
    register, deregister
        Called with a slot's address (and bytes) when it is made and before it is freed.
    """

    def __init__(
        self,
        device: GpuDevice,
        nbytes: int,
        register: Callable[[int, int], None],
        deregister: Callable[[int], None],
    ) -> None:
        self.device = device
        self.slot_bytes = max(_ALIGN, min(nbytes, MOST_BYTES) // SLOTS // _ALIGN * _ALIGN)
        self._register, self._deregister = register, deregister
        self._changed = threading.Condition()
        self._idle: list[Slot] = []
        self._made = 0

    @property
    def lent(self) -> int:
        """Slots in the hands of readers."""
        with self._changed:
            return self._made - len(self._idle)

    def take(self, *, wait: bool, poison: bool = False) -> Slot | None:
        """A slot that the device is done with; None where there is none now, and `wait` is off.

        Whoever holds a slot must not wait for another.

        Raises
        ------
        MemoryError
            There is no slot, and no device memory for one.
        """
        slot = self._lend(wait=wait)
        if slot is not None:
            try:
                if slot.free is not None:
                    slot.free.synchronize()
                    slot.free = None
                if poison:
                    self._poison(slot)
            except BaseException:
                self.give(slot, None)
                raise
        return slot

    def _lend(self, *, wait: bool) -> Slot | None:
        with self._changed:
            while True:
                if self._idle:
                    return self._idle.pop(0)
                if self._made < SLOTS:
                    slot = self._make()
                    if slot is not None:
                        self._made += 1
                        return slot
                    if not self._made:
                        raise MemoryError(f"no {self.slot_bytes} bytes of scratch on {self.device.name}")
                if not wait:
                    return None
                self._changed.wait()

    def give(self, slot: Slot, event: Any) -> None:
        """Take a slot back; all reads into it have ended, and `event` follows the last work that reads it."""
        slot.free = event if event is not None else slot.free
        with self._changed:
            self._idle.append(slot)
            self._changed.notify()

    def close(self) -> None:
        """Deregister and free every slot that is not lent. Idempotent."""
        with self._changed:
            slots, self._idle = self._idle, []
            self._made -= len(slots)
        for slot in slots:
            if slot.free is not None:
                slot.free.synchronize()
            self._deregister(slot.pointer)

    def _make(self) -> Slot | None:
        """One slot more; None where there is no memory for it."""
        # Straight from the runtime: the current allocator's memory may be managed, or a part of what others registered.
        xp, room = self.device.xp, self.slot_bytes + _ALIGN
        with self.device.handle:
            try:
                memory = xp.cuda.Memory(room)
            except (xp.cuda.memory.OutOfMemoryError, xp.cuda.runtime.CUDARuntimeError):
                return None
            skip = -int(memory.ptr) % _ALIGN
            array = xp.ndarray((self.slot_bytes,), "u1", memptr=xp.cuda.MemoryPointer(memory, skip))
            slot = Slot(array, int(memory.ptr) + skip)
            self._register(slot.pointer, slot.nbytes)
        return slot

    def _poison(self, slot: Slot) -> None:
        stream = self.device.stream
        with self.device.handle:
            self.device.xp.cuda.runtime.memsetAsync(slot.pointer, _POISON, slot.nbytes, stream.ptr)
            stream.synchronize()
