"""The cases: one array, stored in the ways people store it.

The data is float32 of integers 0 - 39 from a fixed seed, so that no chunk is empty and zstd finds what it finds in
real fields.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

SEED = 20261130
KIB, MIB = 1 << 10, 1 << 20


class Mode(StrEnum):
    """How a case is read.

    `WARM`: from the page cache. `COLD`: its files are taken out of the page cache before each read. `BUSY`: in turn
    alone and beside a thread that runs pure Python without pause. `RECORD`: in turn with gpuload's record and without.
    """

    WARM = "warm"
    COLD = "cold"
    BUSY = "busy"
    RECORD = "record"


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
        ``"none"`` or ``"zstd"``, at the level that zarr-python takes by itself.
    mode
        How it is read, see `Mode`; the last word of the name where it is not the usual way.
    """

    name: str
    chunk_bytes: int
    rows: bool = False
    shard_bytes: int = 0
    codec: str = "none"
    mode: Mode = Mode.WARM

    @property
    def store(self) -> str:
        """What its store is called: ways of reading share one."""
        return self.name if self.mode is Mode.WARM else self.name.removesuffix(f" {self.mode}")

    def chunks(self, side: int) -> tuple[int, int]:
        """Shape of a chunk of an array of `side` × `side`."""
        return _shape(self.chunk_bytes, side, rows=self.rows)

    def shards(self, side: int) -> tuple[int, int] | None:
        """Shape of a shard, or None where every chunk is a file."""
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
    Case("256 KiB cold", 256 * KIB, mode=Mode.COLD),
    Case("4 MiB cold", 4 * MIB, mode=Mode.COLD),
    Case("shard 64 MiB / 1 MiB cold", MIB, shard_bytes=64 * MIB, mode=Mode.COLD),
    Case("256 KiB busy", 256 * KIB, mode=Mode.BUSY),
    Case("64 KiB record", 64 * KIB, mode=Mode.RECORD),
)


def side_of(nbytes: int) -> int:
    """The side of the square array of float32 of about `nbytes`: a power of two, at least 512, so that chunks fit."""
    return 1 << max(9, round(math.log2(nbytes / 4) / 2))


def data(side: int) -> npt.NDArray[np.float32]:
    """float32 (side, side): the values every contender must read."""
    return np.random.default_rng(SEED).integers(0, 40, (side, side), np.uint8).astype(np.float32)


def folder_of(case: Case, parent: str) -> str:
    """Where the array of `case` is below `parent`."""
    return os.path.join(parent, case.store.replace("/", "in").replace(" ", "_"))


def write(case: Case, path: str, values: npt.NDArray[np.float32]) -> float:
    """Store `values` as `case` at `path` where it is not yet; returns stored bytes over decoded bytes."""
    done = f"{path}.written"
    chunks, shards = case.chunks(len(values)), case.shards(len(values))
    stamp = {"seed": SEED, "shape": values.shape, "chunks": chunks, "shards": shards, "codec": case.codec}
    if _stamped(done) != json.loads(json.dumps(stamp)):
        import zarr

        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if os.path.exists(done):
            os.remove(done)  # half an array must not pass for a whole one
        options: dict[str, Any] = {"shards": shards} if shards else {}
        if case.codec == "none":
            options["compressors"] = None
        array = zarr.create_array(
            path, shape=values.shape, chunks=chunks, dtype=values.dtype, overwrite=True, **options
        )
        array[...] = values
        with open(done, "w", encoding="utf-8") as file:
            json.dump(stamp, file)
    return sum(os.path.getsize(file) for file in chunk_files(path)) / values.nbytes


def chunk_files(path: str) -> list[str]:
    """The files of chunks or shards of the array at `path`, in order of their names."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names if name != "zarr.json"]
    return sorted(found)


def _shape(nbytes: int, side: int, *, rows: bool) -> tuple[int, int]:
    elements = nbytes // 4
    if rows:
        return max(1, min(side, elements // side)), side
    edge = 1 << (int(math.log2(elements)) // 2)
    return min(edge, side), min(elements // edge, side)


def _stamped(path: str) -> Any:
    """What the stamp at `path` says, or None."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return None
