"""Runs the contenders of a case in turn, each in a process of its own, and gathers medians and ratios."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuload.bench import limits
from gpuload.bench.cases import Case, data, side_of, write
from gpuload.bench.contenders import CONTENDERS, Contender


@dataclass(slots=True)
class Result:
    """One contender in one case."""

    contender: str
    equal: bool = False
    error: str | None = None
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def speed(self, nbytes: int) -> float | None:
        """GB/s of decoded data, the median run."""
        return nbytes / statistics.median(self.seconds) / 1e9 if self.seconds else None

    def cpu_per_gb(self, nbytes: int) -> float | None:
        """CPU seconds a GB, user and system, kernel workers included; the median run."""
        return statistics.median(self.cpu) / (nbytes / 1e9) if self.cpu else None


class Worker:
    """A contender's process."""

    def __init__(self, contender: Contender, path: str, side: int, gpu: bool) -> None:
        self.result = Result(contender.name)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpuload.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        task = {"contender": contender.name, "path": path, "side": side, "gpu": gpu}
        answer = self._ask(task)
        self.result.error, self.result.equal = answer.get("error"), bool(answer.get("equal"))

    def read(self) -> None:
        """One timed read."""
        answer = self._ask({})
        if "seconds" in answer:
            self.result.seconds.append(answer["seconds"])
            self.result.cpu.append(answer["cpu"])
        else:
            self.result.error = answer.get("error", "its process ended")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, task: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": "its process ended"}
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
        return answer


def run_case(
    case: Case, folder: str, values: Any, *, gpu: bool, repeats: int, contenders: Sequence[Contender]
) -> dict[str, Any]:
    """All contenders read `case` once to check and warm up, then in turn `repeats` times; one record of it."""
    path = os.path.join(folder, case.name.replace(" ", "_").replace("/", "in"))
    ratio = write(case, path, values)
    workers = [Worker(c, path, len(values), gpu) for c in contenders]
    try:
        for _ in range(repeats):
            for worker in workers:
                if worker.result.error is None:
                    worker.read()
    finally:
        for worker in workers:
            worker.close()
    nbytes = int(values.nbytes)
    own = next((w.result.speed(nbytes) for w in workers if w.result.contender == "gpuload"), None)
    rows = []
    for worker in workers:
        speed = worker.result.speed(nbytes)
        rows.append(
            {
                "contender": worker.result.contender,
                "equal": worker.result.equal,
                "error": worker.result.error,
                "gb_per_s": speed,
                "cpu_s_per_gb": worker.result.cpu_per_gb(nbytes),
                "gpuload_is_times": own / speed if own and speed else None,
            }
        )
    return {**asdict(case), "stored_ratio": ratio, "results": rows}


def run(
    folder: str,
    cases: Sequence[Case],
    *,
    gpu: bool,
    nbytes: int,
    repeats: int,
    only: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure all cases.

    Returns
    -------
    report
        ``{"machine": {...}, "limits": {...}, "cases": [...]}``, as JSON can hold it.
    """
    from gpuload.backends import registry

    contenders = [
        c for c in CONTENDERS if c.installed() and (gpu or not c.gpu_only) and (not only or c.name in only)
    ]
    side = side_of(nbytes)
    values = data(side)
    found: list[dict[str, Any]] = []
    for case in cases:
        progress(case.name)
        found.append(run_case(case, folder, values, gpu=gpu, repeats=repeats, contenders=contenders))
    progress("limits")
    large = os.path.join(folder, "limits.bin")
    values.tofile(large)
    cores = os.cpu_count() or 1
    measured: dict[str, float | None] = {
        "cached_preadv_1_thread": limits.cached(large, 1),
        f"cached_preadv_{min(16, cores)}_threads": limits.cached(large, min(16, cores)),
        "o_direct": limits.direct(large),
    }
    if gpu:
        measured["pinned_copy"] = limits.pinned_copy()
    os.remove(large)
    machine = {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": cores,
        "io_uring": registry.available("io_uring").detail or "usable",
        "gpu": gpu,
        "bytes": int(values.nbytes),
        "repeats": repeats,
    }
    return {"machine": machine, "limits": measured, "cases": found}
