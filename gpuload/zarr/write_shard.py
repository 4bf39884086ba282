"""Builds the bytes of a shard: where each inner chunk goes, what is between them, and the index.

Inner chunks start at multiples of an alignment and the file ends at one, so that every byte of it can be read in whole
blocks. What is between them is zeros, which the index does not mention. An index at the end is the last thing in the
file, because readers look for it there: its padding comes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuload.request import Int64
from gpuload.zarr import _compat
from gpuload.zarr.shards import EMPTY, IndexForm

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """Where everything in a shard is, in bytes.

    Parameters
    ----------
    offset, size
        int64 (inner chunks,): of each inner chunk, in C order of the shard's grid; size -1 where there is none.
    index_offset
        Of the index.
    nbytes
        Of the file.
    """

    offset: Int64
    size: Int64
    index_offset: int
    nbytes: int


def arrange(form: IndexForm, size: Int64, align: int) -> Arrangement:
    """Put inner chunks one after the other.

    Parameters
    ----------
    form
        Of the index.
    size
        int64 (inner chunks,): bytes of each; -1 where there is none.
    align
        Bytes; 1: no padding.
    """
    start = -(-form.nbytes // align) * align if form.at_start else 0
    room = -(-np.maximum(size, 0) // align) * align
    offset = start + np.cumsum(room) - room
    present = np.flatnonzero(size >= 0)
    end = int(offset[present[-1]] + size[present[-1]]) if len(present) else start
    if form.at_start:
        return Arrangement(offset, size, 0, -(-end // align) * align)
    nbytes = -(-(end + form.nbytes) // align) * align
    return Arrangement(offset, size, nbytes - form.nbytes, nbytes)


def index_bytes(form: IndexForm, arrangement: Arrangement) -> bytes:
    """The index of a shard, as it is stored."""
    entries = np.empty((len(arrangement.size), 2), np.uint64)
    present = arrangement.size >= 0
    entries[:, 0] = np.where(present, arrangement.offset.astype(np.uint64), np.uint64(EMPTY))
    entries[:, 1] = np.where(present, arrangement.size.astype(np.uint64), np.uint64(EMPTY))
    raw = entries.astype(">u8" if form.big_endian else "<u8").tobytes()
    return raw + _compat.crc32c(raw).to_bytes(4, "little") if form.checksum else raw


def assemble(form: IndexForm, chunks: Sequence[Bytes | None], align: int) -> Bytes:
    """The file of a shard.

    Parameters
    ----------
    chunks
        The bytes of each inner chunk, in C order of the shard's grid; None where there is none.
    """
    size = np.array([-1 if chunk is None else len(chunk) for chunk in chunks], np.int64)
    where = arrange(form, size, align)
    file = blank(form, where)
    for chunk, offset in zip(chunks, where.offset.tolist(), strict=True):
        if chunk is not None:
            file[offset : offset + len(chunk)] = chunk
    return file


def blank(form: IndexForm, where: Arrangement) -> Bytes:
    """The file of a shard with its index, and zeros where its inner chunks go."""
    file = np.zeros(where.nbytes, np.uint8)
    index = np.frombuffer(index_bytes(form, where), np.uint8)
    file[where.index_offset : where.index_offset + len(index)] = index
    return file
