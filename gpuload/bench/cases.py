"""The cases: one array, stored in the ways people store it.

The data is float32 of integers 0 - 39 from a fixed seed, so that no chunk is empty and zstd finds what it finds in
real fields.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SEED = 20261130
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One way to store the array.

    Parameters
    ----------
    name
        As in tables.
    chunk_bytes
        Decoded bytes of a chunk, or of an inner chunk of a shard.
    rows
        Chunks as wide as the array, instead of square ones.
    shard_bytes
        Bytes of a shard; 0: every chunk is a file.
    codec
        ``"none"`` or ``"zstd"``.
    """

    name: str
    chunk_bytes: int
    rows: bool = False
    shard_bytes: int = 0
    codec: str = "none"

    def chunks(self, side: int) -> tuple[int, int]:
        """Shape of a chunk of an array of `side` × `side`."""
        return _shape(self.chunk_bytes, side, rows=self.rows)

    def shards(self, side: int) -> tuple[int, int] | None:
        return _shape(self.shard_bytes, side, rows=self.rows) if self.shard_bytes else None


CASES = (
    Case("64 KiB", 64 * KIB),
    Case("256 KiB", 256 * KIB),
    Case("1 MiB", MIB),
    Case("1 MiB rows", MIB, rows=True),
    Case("4 MiB", 4 * MIB),
    Case("16 MiB", 16 * MIB),
    Case("shard 64 MiB / 64 KiB", 64 * KIB, shard_bytes=64 * MIB),
    Case("shard 64 MiB / 1 MiB", MIB, shard_bytes=64 * MIB),
    Case("256 KiB zstd", 256 * KIB, codec="zstd"),
    Case("1 MiB zstd", MIB, codec="zstd"),
    Case("4 MiB zstd", 4 * MIB, codec="zstd"),
)


def side_of(nbytes: int) -> int:
    """The side of the square array of float32 that has about `nbytes`: a power of two, so that chunks divide it."""
    return 1 << max(10, round(math.log2(nbytes / 4) / 2))


def data(side: int) -> npt.NDArray[np.float32]:
    """float32 (side, side): the values every contender must read."""
    return np.random.default_rng(SEED).integers(0, 40, (side, side), np.uint8).astype(np.float32)


def write(case: Case, path: str, values: npt.NDArray[np.float32]) -> float:
    """Store `values` as `case` at `path` where it is not yet; returns stored bytes over decoded bytes."""
    done = f"{path}.written"
    stamp = {"shape": values.shape, "chunks": case.chunks(len(values)), "codec": case.codec}
    if not os.path.exists(done) or json.loads(_read(done)) != json.loads(json.dumps(stamp)):
        import zarr

        options: dict[str, Any] = {"shards": case.shards(len(values))} if case.shard_bytes else {}
        if case.codec == "none":
            options["compressors"] = None
        array = zarr.create_array(
            path, shape=values.shape, chunks=case.chunks(len(values)), dtype=values.dtype, overwrite=True, **options
        )
        array[...] = values
        with open(done, "w", encoding="utf-8") as file:
            json.dump(stamp, file)
    return _stored(path) / values.nbytes


def _shape(nbytes: int, side: int, *, rows: bool) -> tuple[int, int]:
    elements = nbytes // 4
    if rows:
        return max(1, min(side, elements // side)), side
    edge = 1 << (int(math.log2(elements)) // 2)
    return min(edge, side), min(elements // edge, side)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _stored(path: str) -> int:
    return sum(entry.stat().st_size for folder, _, _ in os.walk(path) for entry in os.scandir(folder) if entry.is_file())
