"""`NotedStore`: somebody else's store whose reads are in the record, as zarr-python's and with the reason why."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from time import monotonic
from typing import Any

import numpy as np

from gpuload import events
from gpuload.request import Decode, ReadPath, Reason, Served
from gpuload.zarr._compat import Buffer, BufferPrototype, ByteRequest, Store, WrapperStore, byte_range


class NotedStore(WrapperStore[Store]):
    """Reads what the store it wraps reads, and publishes it. Threads, fork and pickle: as that store.

    Parameters
    ----------
    store
        What to read from.
    reason
        Why gpuload does not read this itself.
    """

    def __init__(self, store: Store, reason: Reason) -> None:
        super().__init__(store)
        self.reason = reason

    def _with_store(self, store: Store) -> NotedStore:
        return type(self)(store, self.reason)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        started = monotonic()
        buffer = await super().get(key, prototype, byte_range)
        self._note(started, [(key, byte_range, buffer)])
        return buffer

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        started, ranges = monotonic(), list(key_ranges)
        buffers = await super().get_partial_values(prototype, ranges)
        self._note(started, [(*part, buffer) for part, buffer in zip(ranges, buffers, strict=True)])
        return buffers

    async def get_ranges(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], *, prototype: BufferPrototype, **tuning: Any
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """Many ranges of one key, as newer generations of zarr-python read the chunks of a shard."""
        started = monotonic()
        async for group in super().get_ranges(key, byte_ranges, prototype=prototype, **tuning):  # type: ignore[misc]
            self._note(started, [(key, byte_ranges[i], buffer) for i, buffer in group])
            yield group

    def _note(self, started: float, parts: Sequence[tuple[str, ByteRequest | None, Buffer | None]]) -> None:
        found = [(key, byte_range(request)[0], len(buffer)) for key, request, buffer in parts if buffer is not None]
        if not found:
            return
        keys, offset, size = zip(*found, strict=True)
        ended = monotonic()
        sizes = np.array(size, np.int64)
        events.publish(
            Served(
                backend="zarr",
                read_path=ReadPath.FALLBACK,
                reason=self.reason,
                decode=Decode.HOST,
                keys=keys,
                key_index=np.arange(len(keys), dtype=np.int64),
                file_offset=np.array(offset, np.int64),
                size=sizes,
                moved=sizes,
                latency=np.full(len(keys), ended - started),
                started=started,
                ended=ended,
            )
        )
