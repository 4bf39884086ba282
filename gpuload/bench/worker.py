"""One contender's process: reads when it is told to, and answers with seconds.

Lines of JSON on stdin and stdout: first what to read, which is answered when every setting was tried and the values
were compared; then ``{"do": "read"}`` as often as wanted; at last ``{"do": "end"}``, after which the values are
compared once more.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TextIO

from gpuload import events
from gpuload.bench import cache
from gpuload.bench.cases import Mode, data
from gpuload.bench.contenders import Contender, Read, named

RECORD_PAIRS = 8  # a round: five rounds are forty pairs


def main(asked: Iterable[str], answers: TextIO) -> None:
    """Serve one contender until there is no more to do."""
    questions = iter(asked)
    task = json.loads(next(questions))
    contender, gpu = named(task["contender"]), bool(task["gpu"])
    values = _values(task["side"], gpu)
    mode, path = Mode(task["mode"]), task["path"]
    try:
        chosen = choose(contender, path, values, gpu, cold=mode is Mode.COLD)
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result
        _answer(answers, error=one_line(error))
        return
    # A copy on the host is made again at the end: meanwhile memory belongs to those who are measured.
    if not gpu:
        del values
    _answer(answers, equal=chosen.equal, setting=chosen.setting)
    for line in questions:
        try:
            if json.loads(line)["do"] == "end":
                equal = _same(chosen.read(), values if gpu else _values(task["side"], gpu))
                _answer(answers, equal=equal, served=_served() if contender.records else None)
                return
            times = timed(mode, chosen.read, path, gpu)
        except Exception as error:  # noqa: BLE001 - as above
            _answer(answers, error=one_line(error))
            return
        _answer(answers, **times)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The fastest setting of a contender, prepared, and whether all settings read the right values."""

    setting: str
    read: Read
    equal: bool


def timed(mode: Mode, read: Read, path: str, gpu: bool) -> dict[str, Any]:
    """One round of timed reads: wall and CPU seconds of each, and of those they are compared with."""
    if mode is Mode.COLD:
        cache.drop(path)
        cached = cache.cached_share(path)
        seconds, cpu = _time(read, gpu)
        return {"seconds": [seconds], "cpu": [cpu], "cached": cached}
    if mode is Mode.BUSY:
        pairs = [_pair(_busy, read, gpu, first=bool(i % 2)) for i in range(2)]
        # CPU seconds would be those of the other thread, too.
        return {"seconds": [a[0] for a, _ in pairs], "beside": [b[0] for _, b in pairs]}
    if mode is Mode.RECORD:
        pairs = [_pair(nullcontext, read, gpu, first=bool(i % 2), other=events.muted) for i in range(RECORD_PAIRS)]
        return {
            "seconds": [a[0] for a, _ in pairs],
            "cpu": [a[1] for a, _ in pairs],
            "beside": [b[0] for _, b in pairs],
            "beside_cpu": [b[1] for _, b in pairs],
        }
    seconds, cpu = _time(read, gpu)
    return {"seconds": [seconds], "cpu": [cpu]}


Times = tuple[float, float]


def _pair(
    one: Callable[[], AbstractContextManager[None]],
    read: Read,
    gpu: bool,
    *,
    first: bool,
    other: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[Times, Times]:
    """A read under `one` and a read under `other`, in this order where `first`; whichever comes first helps neither."""
    times: dict[bool, Times] = {}
    for which in (first, not first):
        with (one if which else other)():
            times[which] = _time(read, gpu)
    return times[True], times[False]


@contextmanager
def _busy() -> Iterator[None]:
    """Meanwhile another thread runs pure Python without pause."""
    started, ended = threading.Event(), threading.Event()

    def compute() -> None:
        started.set()
        number = 0
        while not ended.is_set():
            for _ in range(1000):
                number += 1

    thread = threading.Thread(target=compute, name="busy")
    thread.start()
    try:
        started.wait()
        yield
    finally:
        ended.set()
        thread.join()


def choose(contender: Contender, path: str, values: Any, gpu: bool, *, cold: bool = False) -> Chosen:
    """Read with each setting once to warm up and compare with `values`, then once more against the clock.

    A setting that does not work here is left out; where none does, the first one's error is raised.
    """
    errors: list[Exception] = []
    seconds: dict[str, float] = {}
    equal, read = True, None
    for setting, prepare in contender.settings.items():
        try:
            read = prepare(path, gpu)
            equal &= _same(read(), values)
            if cold and len(contender.settings) > 1:
                cache.drop(path)
            seconds[setting] = _time(read, gpu)[0] if len(contender.settings) > 1 else 0.0
        except Exception as error:  # noqa: BLE001 - another setting may work
            errors.append(error)
    if not seconds:
        raise errors[0]
    best = min(seconds, key=seconds.__getitem__)
    if best != list(contender.settings)[-1] or read is None or errors:  # settings may be those of the whole process
        read = contender.settings[best](path, gpu)
    return Chosen(best, read, equal)


def one_line(error: BaseException) -> str:
    """The kind of an error and what it says."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _values(side: int, gpu: bool) -> Any:
    if not gpu:
        return data(side)
    import cupy

    return cupy.asarray(data(side))


def _same(result: Any, values: Any) -> bool:
    if result.shape != values.shape or result.dtype != values.dtype:
        return False
    rows = max(1, (64 << 20) // max(1, values[:1].nbytes))  # no third array of that size
    return all(bool((result[i : i + rows] == values[i : i + rows]).all()) for i in range(0, len(values), rows))


def _time(read: Read, gpu: bool) -> tuple[float, float]:
    """Wall and CPU seconds of one read: the result is ready, and has not been freed yet."""
    cpu, start = time.process_time(), time.perf_counter()
    result = read()
    if gpu:
        import cupy

        cupy.cuda.Device().synchronize()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    del result
    return seconds, cpu


def _served() -> list[dict[str, Any]]:
    """The ways all reads of this process went, the timed ones too, with each one's share of the bytes."""
    import gpuload

    summary = gpuload.report()
    return [
        {
            **{name: row[name] for name in ("path", "backend", "reason", "decode", "declined")},
            "share": row["bytes"] / max(1, summary.bytes),
        }
        for row in summary.to_dict()["rows"]
    ]


def _answer(file: TextIO, **answer: Any) -> None:
    file.write(json.dumps(answer) + "\n")
    file.flush()


def serve() -> None:
    """`main` on this process's stdin and stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    main(sys.stdin, answers)


if __name__ == "__main__":
    serve()
