"""Slabs: anonymous host memory that the kernel and the GPU both read into, pinned once and reused for ever.

A process has one pool. It starts empty and grows slab by slab to its limit; a block is a part of one slab, lent to one
batch. Slabs are never given back while the pool lives: memory that is registered with a ring or a GPU must not be
freed, remapped or trimmed, or reads land in pages nobody sees.

Threads: `take` and `grow` belong to the I/O thread, `give` may be called from any thread. Fork: slabs are not inherited
(MADV_DONTFORK); a child makes a pool of its own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpuload.bindings import syscalls

UNREGISTERED = -1
SMALLEST_SLAB = 4 << 20
LARGEST_SLAB = 64 << 20
_GRAIN = 4096  # blocks start and end at pages
_EXTRA = 16 * _GRAIN  # a slab is a little more than its size, for blocks that are a little more than a power of two


class Pinning(Protocol):
    """A device that copies faster from memory it knows."""

    def pin(self, address: int, nbytes: int) -> None: ...

    def unpin(self, address: int) -> None: ...


@dataclass(slots=True, eq=False)
class Slab:
    """One mapping: 2 MiB aligned, touched, and known to the ring under `buffer` (or `UNREGISTERED`)."""

    mapping: syscalls.Mapping
    buffer: int = UNREGISTERED
    free: list[tuple[int, int]] = field(default_factory=list)  # (offset, nbytes), in order of offset

    def __post_init__(self) -> None:
        self.free = [(0, self.mapping.nbytes)]

    @property
    def address(self) -> int:
        return self.mapping.address

    @property
    def nbytes(self) -> int:
        return self.mapping.nbytes

    def carve(self, nbytes: int) -> int | None:
        """First fit: the offset of `nbytes` free bytes, now taken, or None."""
        for i, (offset, room) in enumerate(self.free):
            if room >= nbytes:
                self.free[i : i + 1] = [(offset + nbytes, room - nbytes)] if room > nbytes else []
                return offset
        return None

    def mend(self, offset: int, nbytes: int) -> None:
        """Make a carved range free again, joined with its free neighbours."""
        ranges = sorted([*self.free, (offset, nbytes)])
        joined = [ranges[0]]
        for start, size in ranges[1:]:
            last, room = joined[-1]
            if last + room == start:
                joined[-1] = (last, room + size)
            else:
                joined.append((start, size))
        self.free = joined


@dataclass(slots=True, eq=False)
class Block:
    """Host memory lent to one batch: a part of a slab, or memory of its own where `slab` is None."""

    array: npt.NDArray[np.uint8]
    address: int
    slab: Slab | None
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return len(self.array)

    @property
    def buffer(self) -> int:
        """The ring's number for this memory, or `UNREGISTERED`."""
        return UNREGISTERED if self.slab is None else self.slab.buffer


class SlabPool:
    """The slabs of a process.

    Parameters
    ----------
    slab_size
        Bytes of one slab, at most 64 MiB; the first one is half as large, which is enough for most reads.
    limit
        Bytes of all slabs together; at least one slab is made.
    poison
        Fill every block with 0xA5 before it is lent: a byte that was not read is then seen.
    """

    def __init__(self, slab_size: int, limit: int, *, poison: bool = False) -> None:
        self.slab_size = min(max(slab_size, SMALLEST_SLAB), LARGEST_SLAB)
        self.limit = limit
        self.poison = poison
        self.slabs: list[Slab] = []
        self._lock = threading.Lock()
        self._own = 0  # bytes of blocks outside every slab
        self._devices: list[Pinning] = []

    @property
    def nbytes(self) -> int:
        return sum(slab.nbytes for slab in self.slabs)

    @property
    def lent(self) -> int:
        """Bytes in the hands of batches."""
        with self._lock:
            return self._own + sum(slab.nbytes - sum(size for _, size in slab.free) for slab in self.slabs)

    def fits(self, nbytes: int) -> bool:
        """Whether a block of `nbytes` can ever come out of a slab of this pool."""
        largest = max((slab.nbytes for slab in self.slabs), default=0)
        return nbytes <= max(largest, self.slab_size + _EXTRA if self.may_grow() else 0)

    def take(self, nbytes: int) -> Block | None:
        """A block of `nbytes` from the slabs there are, or None when all are lent."""
        size = max(_GRAIN, -(-nbytes // _GRAIN) * _GRAIN)
        with self._lock:
            for slab in self.slabs:
                offset = slab.carve(size)
                if offset is not None:
                    break
            else:
                return None
        block = Block(slab.mapping.array[offset : offset + size], slab.address + offset, slab, offset)
        if self.poison:
            block.array[:] = 0xA5
        return block

    def give(self, block: Block) -> None:
        """Take a block back; every read into it and every copy out of it has ended."""
        with self._lock:
            if block.slab is None:
                self._own -= block.nbytes
            else:
                block.slab.mend(block.offset, block.nbytes)

    def may_own(self, nbytes: int) -> bool:
        """Whether `own` may be asked for: such blocks together have a limit as large as the slabs', but one may be."""
        return not self._own or self._own + nbytes <= self.limit

    def own(self, nbytes: int) -> Block:
        """A block outside every slab, for a batch that is larger than any; its memory is free again after `give`."""
        array = np.full(nbytes, 0xA5, np.uint8) if self.poison else np.empty(nbytes, np.uint8)
        with self._lock:
            self._own += nbytes
        return Block(array, array.ctypes.data, None)

    def may_grow(self) -> bool:
        return not self.slabs or self.nbytes + self.slab_size + _EXTRA <= self.limit

    @property
    def next_size(self) -> int:
        """Bytes of the slab that `grow` would make."""
        return self.slab_size if self.slabs else max(SMALLEST_SLAB, self.slab_size // 2)

    def grow(self, nbytes: int | None = None) -> Slab:
        """Map and touch one more slab; pinned for the device that `pin_for` named. Not yet known to a ring.

        Raises
        ------
        MemoryError
            The process may not have that much more.
        """
        size = (nbytes or self.next_size) + _EXTRA
        try:
            slab = Slab(syscalls.map_anonymous(size))
        except OSError as error:
            raise MemoryError(f"{size} bytes of host memory to read into cannot be had: {error}") from error
        for device in self._devices:
            device.pin(slab.address, slab.nbytes)
        self.slabs.append(slab)
        return slab

    def drop(self, slab: Slab) -> None:
        """Unmap a slab that no block uses: one the ring refused because it was too large."""
        self.slabs.remove(slab)
        self._unmap(slab)

    def pin_for(self, device: Pinning) -> None:
        """Pin every slab, those to come too, for copies to `device`; pinned memory is portable, once is enough."""
        if self._devices:
            return
        for slab in self.slabs:
            device.pin(slab.address, slab.nbytes)
        self._devices.append(device)

    def close(self) -> None:
        """Unpin and unmap everything; no block may be lent."""
        slabs, self.slabs = self.slabs, []
        for slab in slabs:
            self._unmap(slab)

    def _unmap(self, slab: Slab) -> None:
        for device in self._devices:
            device.unpin(slab.address)
        slab.mapping.close()
