"""Decodes the chunks of a batch on host threads, from one part of its block into another.

A task is a share of the batch, never one small chunk; codecs release the GIL.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpuload.config import integer_or_none
from gpuload.engine.plan import Decoder
from gpuload.errors import ChunkDecodeError, ChunkError, ChunkSizeError
from gpuload.once import once
from gpuload.request import Int64

_INLINE = 256 << 10  # decoded bytes that are not worth a hand-over


class Places(Protocol):
    """Where decoded chunks go; called from several threads, for different chunks."""

    def room(self, chunk: int) -> npt.NDArray[np.uint8] | None:
        """Memory that is the chunk's own place, to decode into; None: decode into the block, then `put`."""
        ...

    def put(self, chunk: int) -> None:
        """Place a chunk that was decoded into the block."""
        ...


@once
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_threads(), "gpuload-decode")


def _threads() -> int:
    return integer_or_none("decode.threads") or os.cpu_count() or 1


def decode(
    decoder: Decoder,
    memory: npt.NDArray[np.uint8],
    keys: list[str],
    stored: tuple[Int64, Int64],
    out_offset: Int64,
    places: Places | None = None,
) -> None:
    """Decode chunks of one block.

    Parameters
    ----------
    memory
        uint8 (nbytes,): the block.
    keys
        A name for each chunk, for errors.
    stored
        Offsets and sizes of the stored bytes in `memory`, int64 (n,) each; a size of -1 leaves a chunk out.
    out_offset
        int64 (n,): where each chunk's ``decoder.decoded_size`` bytes go in `memory`.
    places
        Where each goes from there, at once, while it is in the cache.

    Raises
    ------
    ChunkDecodeError, ChunkSizeError
        For the first chunk whose bytes its codecs refuse, or that decodes to another size.
    """
    which = np.flatnonzero(stored[1] >= 0)
    shares = min(_threads(), len(which))
    if shares <= 1 or decoder.decoded_size * len(which) <= _INLINE:
        _decode_share(decoder, memory, keys, stored, out_offset, which, places)
        return
    futures: list[Future[None]] = []
    try:
        for share in np.array_split(which, shares):
            try:
                futures.append(_pool().submit(_decode_share, decoder, memory, keys, stored, out_offset, share, places))
            except RuntimeError:  # the main thread has ended, and with it executors take no work any more
                _decode_share(decoder, memory, keys, stored, out_offset, share, places)
    finally:  # whatever happens, nobody writes to the block afterwards
        interrupt = _wait(futures)
    if interrupt is not None:
        raise interrupt
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]


def _wait(futures: list[Future[None]]) -> BaseException | None:
    """Wait for all of them, also when interrupted (Ctrl-C); returns the interrupt."""
    interrupt: BaseException | None = None
    while True:
        try:
            wait(futures)
        except BaseException as error:
            interrupt = interrupt or error
        else:
            return interrupt


def _decode_share(
    decoder: Decoder,
    memory: npt.NDArray[np.uint8],
    keys: list[str],
    stored: tuple[Int64, Int64],
    out_offset: Int64,
    which: Int64,
    places: Places | None,
) -> None:
    starts, sizes = stored
    for i in which.tolist():
        at, to = int(starts[i]), int(out_offset[i])
        room = None if places is None else places.room(i)
        out = memory[to : to + decoder.decoded_size] if room is None else room
        decode_chunk(decoder, keys[i], memory[at : at + int(sizes[i])], out)
        if places is not None and room is None:
            places.put(i)


def decode_chunk(decoder: Decoder, key: str, stored: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Decode one chunk; whatever its codecs raise becomes an error that names `key`."""
    try:
        decoder.decode(stored, out)
    except ChunkSizeError as error:
        raise ChunkSizeError(key, error.expected, error.actual, "after decoding") from error
    except Exception as error:
        what = str(error) if isinstance(error, ChunkError) else f"{type(error).__name__}: {error}"
        raise ChunkDecodeError(key, f"its {len(stored)} stored bytes cannot be decoded: {what}") from error
