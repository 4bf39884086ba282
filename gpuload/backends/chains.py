"""Weaves the opens and reads of a batch into linked chains, which the kernel works off without asking anyone.

A chain is a run of submissions of which each starts when the one before it has ended. As many chains as there are
workers keep them all busy, and nobody has to be woken in between: on a machine whose Python is busy that is what keeps
reads going.

Behind each open comes a check that what was opened is no pipe, which would hand out its bytes once, and wait for more.
Opens and checks are linked softly, reads firmly: where an open or a check fails the rest of its chain is cancelled, so
that no read can meet a slot whose own open failed; a read that comes short, as every read does that proves the size of
its file, holds up nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gpuload.request import Int64


@dataclass(frozen=True, slots=True, eq=False)
class Weave:
    """The order in which a batch is submitted.

    Parameters
    ----------
    read_at
        int64 (rows,): place of each read.
    open_at
        int64 (files,): place of the open of each file; its check is at the next, then come its reads. Empty where the
        files are open already.
    last
        int64: places where a chain ends.
    """

    read_at: Int64
    open_at: Int64
    last: Int64

    def __len__(self) -> int:
        return len(self.read_at) + 2 * len(self.open_at)


def weave(file: Int64, files: int, chains: int, *, opened: bool) -> Weave:
    """Divide a batch into chains.

    Parameters
    ----------
    file
        int64 (n,): the file each row reads.
    files
        How many files there are; each has a row.
    chains
        How many chains to make; fewer where there is less to do.
    opened
        The files are open: chains of reads alone.
    """
    if opened:
        return _dealt(len(file), chains)
    if files == len(file) and bool((file == np.arange(files)).all()):
        return _paired(files, chains)
    return _woven(file, files, chains)


@lru_cache(maxsize=64)
def _dealt(n: int, chains: int) -> Weave:
    order, last = _deal(np.ones(n, np.int64), chains)
    return Weave(order, np.zeros(0, np.int64), last)


@lru_cache(maxsize=64)
def _paired(files: int, chains: int) -> Weave:
    return _woven(np.arange(files), files, chains)


def _woven(file: Int64, files: int, chains: int) -> Weave:
    reads = np.bincount(file, minlength=files)
    open_at, last = _deal(reads + 2, chains)
    order = np.argsort(file, kind="stable")
    sorted_file = file[order]
    within = np.arange(len(file)) - (np.cumsum(reads) - reads)[sorted_file]
    read_at = np.empty(len(file), np.int64)
    read_at[order] = open_at[sorted_file] + 2 + within
    return Weave(read_at, open_at, last)


def _deal(length: npt.NDArray[np.int64], chains: int) -> tuple[Int64, Int64]:
    """Deal items of some length out to chains in turn: the first place of each item, and the last of each chain."""
    n = len(length)
    chain = np.arange(n) % chains
    order = np.argsort(chain, kind="stable")
    ends = np.cumsum(length[order])
    place = np.empty(n, np.int64)
    place[order] = ends - length[order]
    count = np.bincount(chain, minlength=min(chains, n))
    return place, ends[np.cumsum(count) - 1] - 1
