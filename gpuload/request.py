"""The words a read is described with: why, by which path, decoded where, and what was served.

Values only; this module imports nothing of gpuload. Sizes and offsets are in bytes, times in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class Reason(StrEnum):
    """Why a better path did not serve a range: a closed list of stable strings."""

    NO_LIBRARY = "no-library"
    NO_DRIVER = "no-driver"
    NO_DEVICE = "no-device"
    FORCED_OFF = "forced-off"
    NOT_DEVICE_MEMORY = "not-device-memory"
    FILE_SYSTEM = "file-system"
    EXT4_JOURNAL_MODE = "ext4-journal-mode"
    BLOCK_LAYER = "block-layer"
    ODIRECT_REFUSED = "odirect-refused"
    UNALIGNED_OFFSET = "unaligned-offset"
    UNALIGNED_SIZE = "unaligned-size"
    UNALIGNED_MEMORY = "unaligned-memory"
    TAIL = "tail"
    BELOW_THRESHOLD = "below-threshold"
    P2P_ROUTE = "p2p-route"
    VIRTUAL_FUNCTION = "virtual-function"
    DRIVER_ERROR = "driver-error"
    FD_LIMIT = "fd-limit"
    MEMLOCK = "memlock"
    SECCOMP = "seccomp"
    KERNEL_TOO_OLD = "kernel-too-old"
    MISSING_CHUNK = "missing-chunk"
    HOST_CODEC = "host-codec"
    HOST_DTYPE = "host-dtype"
    NOT_LOCAL = "not-local"
    AFTER_FORK = "after-fork"
    UNVERIFIED = "unverified"
    ZARR_PIPELINE = "zarr-pipeline"


class ReadPath(StrEnum):
    """Storage → device without the host (`fastpath`), or by way of host memory (`fallback`)."""

    FASTPATH = "fastpath"
    FALLBACK = "fallback"


class Decode(StrEnum):
    """Where the bytes of a range were decoded."""

    NONE = "none"
    HOST = "host"
    DEVICE = "device"


_purpose: ContextVar[str] = ContextVar("gpuload_purpose", default="")


def purpose() -> str:
    """What the reads of this thread, or of this asyncio task, are for; empty where nobody said."""
    return _purpose.get()


@contextmanager
def reading_for(what: str) -> Iterator[None]:
    """Say for the time of a block what its reads are for: every row of the record has it."""
    token = _purpose.set(what)
    try:
        yield
    finally:
        _purpose.reset(token)


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A block of ranges that one backend served in one way: scalars for what they share, columns for the rest.

    Parameters
    ----------
    backend
        Name of the backend that moved the bytes: ``"io_uring"``, ``"posix"``, ``"hipfile"``, ``"cufile"``.
    read_path, reason, decode
        `reason` says why the fastpath did not serve; None on the fastpath itself.
    declined
        Each better choice that was passed over, with its reason: ``{"io_uring": Reason.SECCOMP}``.
    keys
        Names of the files of this block: chunk keys or shard keys below the store's root.
    key_index
        int64 (n,): the entry of `keys` each range belongs to.
    file_offset, size, moved
        int64 (n,): where the range starts in its file, how many bytes were wanted, how many were transferred
        (over-read included).
    latency
        float64 (n,): seconds from submission to completion.
    started, ended
        `time.monotonic()` at the first submission and at the last completion of the block.
    purpose
        What the read was for, in the words of who read: the batches of a loader.
    """

    backend: str
    read_path: ReadPath
    reason: Reason | None
    decode: Decode
    keys: Sequence[str]
    key_index: Int64
    file_offset: Int64
    size: Int64
    moved: Int64
    latency: Float64
    started: float
    ended: float
    declined: Mapping[str, Reason] = field(default_factory=dict)
    purpose: str = field(default_factory=purpose)

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True, slots=True)
class Written:
    """A range of a file that one backend wrote in one way, with the words of `Served`.

    `read_path` tells device → storage without the host from the way through host memory; `size` are the bytes that are
    in place, `moved` those that were transferred; `seconds` from submission to completion.
    """

    backend: str
    read_path: ReadPath
    reason: Reason | None
    key: str
    file_offset: int
    size: int
    moved: int
    seconds: float
    declined: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Filled:
    """Chunks that have no file: their `bytes` in the result are the fill value, and nothing was read."""

    chunks: int
    bytes: int
    purpose: str = field(default_factory=purpose)
