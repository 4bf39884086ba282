"""One contender's process: reads when it is told to, and answers with seconds.

Lines of JSON on stdin and stdout: first what to read, then one empty object a read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from gpuload.bench.cases import data
from gpuload.bench.contenders import CONTENDERS


def main() -> None:
    """Serve one contender until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not get between the answers
    task = json.loads(sys.stdin.readline())
    contender = next(c for c in CONTENDERS if c.name == task["contender"])
    gpu = bool(task["gpu"])
    try:
        read = contender.prepare(task["path"], gpu)
        right = _check(read(), task["side"], gpu)
    except Exception as error:
        _answer(answers, error=f"{type(error).__name__}: {error}")
        return
    _answer(answers, equal=right)
    for _ in sys.stdin:
        cpu, start = time.process_time(), time.perf_counter()
        result = read()
        _wait(gpu)
        seconds = time.perf_counter() - start
        _answer(answers, seconds=seconds, cpu=time.process_time() - cpu)
        del result


def _check(result: Any, side: int, gpu: bool) -> bool:
    values = data(side)
    if gpu:
        import cupy

        return bool((result == cupy.asarray(values)).all())
    return bool((result == values).all())


def _wait(gpu: bool) -> None:
    if gpu:
        import cupy

        cupy.cuda.Device().synchronize()


def _answer(file: Any, **answer: Any) -> None:
    file.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
