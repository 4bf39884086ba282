"""What is known of each chunk of an array: by which path it was served, how often, and whether it exists."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuload.record import wording
from gpuload.record.columns import Columns
from gpuload.request import Int64
from gpuload.zarr.array import Array
from gpuload.zarr.where import chunks_of, grid_of

LOOKED_FOR = 20_000  # files of chunks that are asked for, at most, to tell the missing ones

Way = tuple[str, str, str | None]  # path, backend, reason


@dataclass(slots=True)
class Tally:
    """Requests of one chunk that were served in one way; latency in seconds, the longest."""

    requests: int = 0
    bytes: int = 0
    latency: float = 0.0


@dataclass(slots=True)
class Chunks:
    """Tallies by chunk and way, for one array.

    Threads: one at a time. Fork and pickle: a value.
    """

    array: Array
    grid: tuple[int, ...] = field(init=False)
    ways: list[Way] = field(default_factory=list)
    tallies: dict[tuple[int, int], Tally] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.grid = grid_of(self.array)

    def add(self, columns: Columns) -> list[tuple[int, int]]:
        """Count requests; returns the chunks and ways that changed."""
        if not len(columns):
            return []
        chunk = chunks_of(self.array, columns.key, columns.file_offset)
        known = [
            self._way(way) for way in ((str(w.path), wording.printable(w.backend), w.reason) for w in columns.ways)
        ]
        way = np.array(known, np.int64)[columns.way]
        there = chunk >= 0
        pairs, place = np.unique(chunk[there] * len(self.ways) + way[there], return_inverse=True)
        requests = np.bincount(place, minlength=len(pairs))
        nbytes = np.bincount(place, columns.bytes[there], minlength=len(pairs))
        longest = np.zeros(len(pairs))
        np.maximum.at(longest, place, columns.latency[there])
        changed = [divmod(pair, len(self.ways)) for pair in pairs.tolist()]
        for pair, n, size, latency in zip(changed, requests.tolist(), nbytes.tolist(), longest.tolist(), strict=True):
            tally = self.tallies.setdefault(pair, Tally())
            tally.requests += n
            tally.bytes += int(size)
            tally.latency = max(tally.latency, latency)
        return changed

    def clear(self) -> None:
        self.ways.clear()
        self.tallies.clear()

    def missing(self) -> list[int]:
        """Chunks without a file, as they are now; none are looked for where there are too many, or shards."""
        total = math.prod(self.grid)
        if total > LOOKED_FOR or self.array.layout.index is not None:
            return []
        coordinates: Int64 = np.stack(np.unravel_index(np.arange(total), self.grid or (1,)), axis=1)
        coordinates = coordinates[:, : len(self.grid)].astype(np.int64)
        source = self.array.source
        keys = [source.prefix + key for key in self.array.layout.keys(coordinates)]
        return [i for i, there in enumerate(source.present(keys)) if not there]

    def rows(self, pairs: list[tuple[int, int]] | None = None) -> dict[str, list[Any]]:
        """Tallies as columns, of `pairs` or of all."""
        chosen = sorted(self.tallies) if pairs is None else pairs
        tallies = [self.tallies[pair] for pair in chosen]
        return {
            "chunk": [chunk for chunk, _ in chosen],
            "way": [way for _, way in chosen],
            "requests": [tally.requests for tally in tallies],
            "bytes": [tally.bytes for tally in tallies],
            "latency": [tally.latency for tally in tallies],
        }

    def paths(self) -> dict[int, set[str]]:
        """The paths that served each chunk that was read."""
        found: dict[int, set[str]] = {}
        for chunk, way in self.tallies:
            found.setdefault(chunk, set()).add(self.ways[way][0])
        return found

    def _way(self, way: Way) -> int:
        if way not in self.ways:
            self.ways.append(way)
        return self.ways.index(way)
