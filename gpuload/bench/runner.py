"""Runs the contenders of each case in turn, each in a process of its own, and gathers medians and ratios."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from gpuload.bench import limits, machine
from gpuload.bench.cases import Case, data, folder_of, side_of, write
from gpuload.bench.contenders import CONTENDERS, Contender
from gpuload.bench.process import Worker

OWN = "gpuload"  # the contender that the others are compared with
Progress = Callable[[str], None]


def present(*, gpu: bool, only: Sequence[str] = ()) -> list[Contender]:
    """The contenders that are installed and can read to where the result goes; of these `only` the named ones."""
    found = [c for c in CONTENDERS if c.installed() and (gpu or not c.gpu_only)]
    return [c for c in found if not only or c.name in only]


def steps(cases: int, contenders: int, repeats: int) -> int:
    """How often `run` calls `progress`."""
    return cases * (1 + contenders + repeats) + 1


def run(
    folder: str,
    cases: Sequence[Case],
    contenders: Sequence[Contender],
    *,
    gpu: bool,
    nbytes: int,
    repeats: int,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Measure all cases, whole array each.

    Parameters
    ----------
    folder
        Where the arrays are written and kept; made where it is not there.
    nbytes
        Decoded bytes of the array, about: its side is a power of two.
    repeats
        Timed reads of each contender in each case.
    progress
        Called with what comes next, `steps` times.

    Returns
    -------
    report
        ``{"machine": {...}, "limits": {...}, "cases": [{..., "results": [...]}]}``, as JSON can hold it. Speeds are
        GB/s of decoded data. A contender that fails, or reads wrong values, has its `error` and no speed.
    """
    os.makedirs(folder, exist_ok=True)
    values = data(side_of(nbytes))
    about = {
        **machine.describe(folder, contenders, gpu=gpu),
        "bytes": int(values.nbytes),
        "repeats": repeats,
        "cache": "warm",
    }
    found = [run_case(c, folder, values, contenders, gpu=gpu, repeats=repeats, progress=progress) for c in cases]
    progress("the machine's limits")
    return {"machine": about, "limits": _limits(folder, values, gpu=gpu), "cases": found}


def run_case(
    case: Case,
    folder: str,
    values: Any,
    contenders: Sequence[Contender],
    *,
    gpu: bool,
    repeats: int,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """One case: each contender chooses its setting and proves its values, then all read in turn, `repeats` times."""
    path = folder_of(case, folder)
    progress(f"{case.name}: writing")
    ratio = write(case, path, values)
    decoder = limits.decoder(path) if case.codec == "zstd" and not case.shard_bytes else None
    with ExitStack() as stack:
        workers: list[Worker] = []
        for contender in contenders:
            progress(f"{case.name}: {contender.name}")
            workers.append(stack.enter_context(Worker(contender, path, len(values), gpu=gpu)))
        cached = limits.cached_share(path)
        for i in range(repeats):
            progress(f"{case.name}: round {i + 1}")
            for worker in workers:
                worker.read()
        for worker in workers:
            worker.end()
    return {
        **asdict(case),
        "stored_ratio": ratio,
        "cached_share": cached,
        "decoder_gb_per_s": decoder,
        "results": rows(workers, int(values.nbytes)),
    }


def rows(workers: Sequence[Worker], nbytes: int) -> list[dict[str, Any]]:
    """One record a contender: medians, and how many times its speed gpuload's is."""
    own = next((w.seconds for w in workers if w.contender.name == OWN), [])
    return [
        {
            "contender": worker.contender.name,
            "setting": worker.setting,
            "equal": worker.equal,
            "error": worker.error,
            "gb_per_s": _speed(worker.seconds, nbytes),
            "seconds": worker.seconds,
            "cpu_s_per_gb": statistics.median(worker.cpu) / (nbytes / 1e9) if worker.cpu else None,
            "gpuload_is_times": (
                statistics.median(worker.seconds) / statistics.median(own) if own and worker.seconds else None
            ),
            "served": worker.served,
        }
        for worker in workers
    ]


def _speed(seconds: Sequence[float], nbytes: int) -> float | None:
    return nbytes / statistics.median(seconds) / 1e9 if seconds else None


def _limits(folder: str, values: Any, *, gpu: bool) -> dict[str, float | None]:
    large = os.path.join(folder, "limits.bin")
    threads = min(16, os.cpu_count() or 1)
    try:
        values.tofile(large)
        measured = {
            "cached_preadv_1_thread": limits.cached(large, 1),
            f"cached_preadv_{threads}_threads": limits.cached(large, threads),
            "o_direct": limits.direct(large),
        }
    finally:
        os.remove(large)
    if gpu:
        measured["pinned_copy"] = limits.pinned_copy()
    return measured
