"""Runs the contenders of each case in turn, each in a process of its own, and gathers medians and ratios."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from gpuload.bench import cache, limits, machine, pairs
from gpuload.bench.cases import Case, Mode, data, folder_of, side_of, write
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
    limit = _limit_of(case, path)
    reached: list[float] = []  # measured in turn with the contenders: what holds them up may vary, too
    with ExitStack() as stack:
        workers: list[Worker] = []
        for contender in contenders:
            progress(f"{case.name}: {contender.name}")
            if _takes_part(contender, case):
                workers.append(stack.enter_context(Worker(contender, path, len(values), gpu=gpu, mode=case.mode)))
        cached = cache.cached_share(path) if case.mode is not Mode.COLD else None
        for i in range(repeats):
            progress(f"{case.name}: round {i + 1}")
            for worker in workers:
                worker.read()
            measured = None if limit is None else limit.measure()
            if measured is not None:
                reached.append(measured)
        for worker in workers:
            worker.end()
    if case.mode is Mode.COLD:
        cached = max((worker.cached for worker in workers if worker.cached is not None), default=None)
    most = statistics.median(reached) if reached else None
    return {
        **asdict(case),
        "stored_ratio": ratio,
        "cached_share": cached,
        "limit": None if most is None else {"what": _LIMITS[type(limit)], "gb_per_s": most},
        "results": rows(workers, int(values.nbytes), case.chunk_bytes, most),
    }


def _takes_part(contender: Contender, case: Case) -> bool:
    """Whether this case is anything to the contender; gpuload's own record is compared once."""
    if case.mode is Mode.RECORD:
        return contender.name == OWN
    return case.mode is Mode.COLD or not contender.cold_only


_LIMITS = {limits.Decoder: "decoder alone", limits.Drive: "raw O_DIRECT"}


def _limit_of(case: Case, path: str) -> limits.Decoder | limits.Drive | None:
    """What a case cannot be faster than, where that is not a limit of the whole machine."""
    if case.mode is Mode.COLD:
        return limits.Drive(path)
    return limits.Decoder(path) if case.codec == "zstd" and not case.shard_bytes else None


def rows(
    workers: Sequence[Worker], nbytes: int, chunk_bytes: int = 0, limit: float | None = None
) -> list[dict[str, Any]]:
    """One record a contender: medians, how many times its speed gpuload's is, and what it keeps of other speeds."""
    own = next((w.seconds for w in workers if w.contender.name == OWN), [])
    found = []
    for worker in workers:
        speed = _speed(worker.seconds, nbytes)
        found.append(
            {
                "contender": worker.contender.name,
                "setting": worker.setting,
                "equal": worker.equal,
                "error": worker.error,
                "gb_per_s": speed,
                "seconds": worker.seconds,
                "cpu_s_per_gb": statistics.median(worker.cpu) / (nbytes / 1e9) if worker.cpu else None,
                "gpuload_is_times": (
                    statistics.median(worker.seconds) / statistics.median(own) if own and worker.seconds else None
                ),
                "of_limit": speed / limit if speed and limit else None,
                "beside_gb_per_s": _speed(worker.beside, nbytes),
                "kept": pairs.kept(worker.seconds, worker.beside) if worker.beside else None,
                "kept_interval": pairs.interval(worker.seconds, worker.beside) if worker.beside else None,
                "cpu_us_a_chunk": _dearer(worker, nbytes, chunk_bytes),
                "served": worker.served,
            }
        )
    return found


def _dearer(worker: Worker, nbytes: int, chunk_bytes: int) -> float | None:
    """CPU time a chunk, in µs, that the timed reads take more than those beside them."""
    if not worker.beside_cpu or not chunk_bytes:
        return None
    more = statistics.median(a - b for a, b in zip(worker.cpu, worker.beside_cpu, strict=True))
    return more / (nbytes / chunk_bytes) * 1e6


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
