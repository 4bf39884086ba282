"""What the tests of the benchmark share: a small array, and contenders of the tests' own, in their own processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuload.bench import process
from gpuload.bench.cases import MIB, data, side_of
from gpuload.bench.contenders import Contender

# A worker that knows contenders which misbehave, each in its own way.
_WORKER = '''
import os, sys, time
from gpuload.bench import contenders, worker
from gpuload.bench.cases import data

SIDE = {side}

def reads(*results):
    """A contender's read that gives one result after the other, the last one for ever."""
    def prepare(path, gpu):
        left = list(results)
        def read():
            result = left.pop(0) if len(left) > 1 else left[0]
            return result() if callable(result) else result
        return read
    return prepare

def refuse(path, gpu):
    raise OSError("no such\\nluck [here]")

def die():
    print("something else first", file=sys.stderr)
    print("out of luck", file=sys.stderr)
    os._exit(7)

def fail():
    raise ValueError("later")

def chatty(path, gpu):
    def read():
        print("not an answer")
        return right
    return read

def slow(path, gpu):
    return lambda: (time.sleep(1), right)[1]

right = data(SIDE)
wrong = right.copy()
wrong[-1, -1] += 1
made = dict(
    right=dict(only=reads(right)),
    wrong=dict(only=reads(wrong)),
    shape=dict(only=reads(right[:, :1])),
    dtype=dict(only=reads(right.astype("f8"))),
    refuses=dict(first=refuse, second=refuse),
    dies=dict(only=reads(right, die)),
    fails=dict(only=reads(right, right, fail)),
    turns=dict(only=reads(right, right, wrong)),
    chatty=dict(only=chatty),
    hangs=dict(only=reads(lambda: time.sleep(60))),
    picks=dict(broken=refuse, slow=slow, quick=reads(right)),
    forgets=dict(quick=reads(right), slow=slow),
    half=dict(good=reads(right), bad=reads(wrong)),
)
contenders.CONTENDERS = tuple(contenders.Contender(name, "numpy", settings) for name, settings in made.items())
worker.serve()
'''


@pytest.fixture(scope="session")
def values() -> np.ndarray[Any, Any]:
    """1 MiB of the benchmark's data."""
    return data(side_of(MIB))


@pytest.fixture
def fake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, values: np.ndarray[Any, Any]
) -> Callable[..., list[Contender]]:
    """Contenders by name; their processes are started from a script that knows them."""
    script = tmp_path / "worker.py"
    script.write_text(_WORKER.format(side=len(values)))
    monkeypatch.setattr(process, "COMMAND", [sys.executable, str(script)])
    return lambda *names: [Contender(name, "numpy", {}) for name in names]
