"""The last requests in columns: bounded, cheap to fill, and made into objects only when looked at.

Not thread-safe by itself: the recorder that owns the ring holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.record.ways import Way
from gpuload.request import Decode, Float64, Int64, ReadPath, Reason, Served


@dataclass(frozen=True, slots=True)
class Row:
    """One request.

    `bytes` were wanted and `moved` were transferred; `latency` is in seconds from submission to completion; `started`
    and `ended` are the `time.monotonic()` of the block that the request was part of. `purpose` says what it was for,
    where the reader said it: a loader names itself, the epoch and the batches.
    """

    key: str
    file_offset: int
    bytes: int
    moved: int
    read_path: ReadPath
    backend: str
    reason: Reason | None
    declined: Mapping[str, Reason]
    decode: Decode
    latency: float
    started: float
    ended: float
    purpose: str


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The same as a sequence of `Row`, oldest first, as arrays of shape (n,) and lists of n keys and purposes.

    `way` is int32 and numbers the entry of `ways` that a request was served in.
    """

    key: list[str]
    file_offset: Int64
    bytes: Int64
    moved: Int64
    latency: Float64
    started: Float64
    ended: Float64
    way: npt.NDArray[np.int32]
    ways: tuple[Way, ...]
    purpose: list[str]

    def __len__(self) -> int:
        return len(self.key)

    def rows(self) -> list[Row]:
        """One object a request."""
        declined = [way.declined_by for way in self.ways]
        numbers = (self.file_offset, self.bytes, self.moved, self.way, self.latency, self.started, self.ended)
        return [
            Row(
                key=key,
                file_offset=offset,
                bytes=size,
                moved=moved,
                read_path=self.ways[way].path,
                backend=self.ways[way].backend,
                reason=self.ways[way].reason,
                declined=declined[way],
                decode=self.ways[way].decode,
                latency=latency,
                started=started,
                ended=ended,
                purpose=purpose,
            )
            for key, purpose, offset, size, moved, way, latency, started, ended in zip(
                self.key, self.purpose, *(column.tolist() for column in numbers), strict=True
            )
        ]


class Block(NamedTuple):
    """One event's own copy of its columns, in the types that are kept."""

    way: int
    keys: list[str]
    file_offset: Int64
    size: Int64
    moved: Int64
    latency: Float64
    started: float
    ended: float
    purpose: str

    @classmethod
    def of(cls, served: Served, way: int, last: int) -> Block:
        """Copy the columns of `served`, and the keys of its `last` ranges.

        Copies of a few rows cost little and let go of everything else: arrays that are views of larger ones, and the
        list of keys, which may name every file of a large array.
        """
        n = len(served.size)
        block = cls(
            way,
            _last_keys(served, last),
            np.array(served.file_offset, np.int64),
            np.array(served.size, np.int64),
            np.array(served.moved, np.int64),
            np.array(served.latency, np.float64),
            served.started,
            served.ended,
            served.purpose,
        )
        if not (len(served.key_index) == len(block.file_offset) == len(block.moved) == len(block.latency) == n):
            raise ValueError(f"a block of {n} ranges with columns of other lengths")
        return block


def _last_keys(served: Served, last: int) -> list[str]:
    keys, index = served.keys, served.key_index
    if len(keys) == 1:
        return [keys[0]] * last
    if last < len(index):
        index = index[len(index) - last :]
    return [keys[i] for i in index.tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Blocks put together: their keys, at least the last ones, and their columns of shape (n,)."""

    keys: list[str]
    purposes: list[str]
    columns: dict[str, npt.NDArray[Any]]
    bytes: list[int]
    moved: list[int]

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> Batch:
        """Put one or more blocks together, none of them empty; `bytes` and `moved` are the sum of each."""
        lengths = [len(block.size) for block in blocks]
        starts = np.cumsum([0, *lengths[:-1]])
        size = np.concatenate([block.size for block in blocks])
        moved = np.concatenate([block.moved for block in blocks])
        columns = {
            "file_offset": np.concatenate([block.file_offset for block in blocks]),
            "bytes": size,
            "moved": moved,
            "latency": np.concatenate([block.latency for block in blocks]),
            "started": np.repeat([float(block.started) for block in blocks], lengths),
            "ended": np.repeat([float(block.ended) for block in blocks], lengths),
            "way": np.repeat([block.way for block in blocks], lengths),
        }
        keys = [key for block in blocks for key in block.keys]
        purposes = [block.purpose for block in blocks for _ in block.keys]
        sums = (np.add.reduceat(size, starts).tolist(), np.add.reduceat(moved, starts).tolist())
        return cls(keys, purposes, columns, *sums)


_DTYPES: dict[str, npt.DTypeLike] = {
    "file_offset": np.int64,
    "bytes": np.int64,
    "moved": np.int64,
    "latency": np.float64,
    "started": np.float64,
    "ended": np.float64,
    "way": np.int32,
}


class Ring:
    """The newest `limit` requests; older ones are overwritten. Its memory grows with use up to that limit."""

    _FIRST = 256

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._capacity = 0
        self._count = 0
        self._next = 0
        self._key: list[str] = []
        self._purpose: list[str] = []
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.empty(0, dtype) for name, dtype in _DTYPES.items()}

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes held by the columns, the keys' own characters not counted."""
        return sum(c.nbytes for c in self._columns.values()) + 8 * (len(self._key) + len(self._purpose))

    def append(self, batch: Batch) -> None:
        """Keep the last requests of `batch`, as many as there is room for."""
        n = min(self.limit, len(batch.columns["way"]))
        if not n:
            return
        if self._count + n > self._capacity < self.limit:
            self._grow(n)
        head = min(n, self._capacity - self._next)
        for name, column in self._columns.items():
            newest = batch.columns[name][-n:]
            column[self._next : self._next + head] = newest[:head]
            column[: n - head] = newest[head:]
        for words, newer in ((self._key, batch.keys[-n:]), (self._purpose, batch.purposes[-n:])):
            words[self._next : self._next + head] = newer[:head]
            words[: n - head] = newer[head:]
        self._count = min(self._count + n, self._capacity)
        self._next = (self._next + n) % self._capacity

    def columns(self, last: int | None, ways: tuple[Way, ...]) -> Columns:
        """A copy of the newest `last` requests, or of all that are kept."""
        n = self._count if last is None else max(0, min(last, self._count))
        start = self._next - n
        parts = [slice(start, self._next)] if start >= 0 else [slice(start + self._capacity, None), slice(self._next)]
        key = [key for part in parts for key in self._key[part]]
        purpose = [purpose for part in parts for purpose in self._purpose[part]]
        copies = {name: np.concatenate([column[part] for part in parts]) for name, column in self._columns.items()}
        return Columns(key=key, ways=ways, purpose=purpose, **copies)

    def _grow(self, n: int) -> None:
        # Below its limit the ring has never wrapped: its rows are the first `_count` and stay where they are.
        capacity = min(self.limit, max(self._FIRST, 2 * self._capacity, self._count + n))
        for name, column in self._columns.items():
            grown = np.empty(capacity, column.dtype)
            grown[: self._count] = column[: self._count]
            self._columns[name] = grown
        for words in (self._key, self._purpose):
            words.extend([""] * (capacity - self._capacity))
        # A ring that was full begins again at its start only when it cannot grow; this one goes on after its rows.
        self._capacity, self._next = capacity, self._count
