"""What the tests of the bindings share: files of awkward sizes, and the loop that every user of a ring has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gpuload.bindings.mapping import Mapping, map_anonymous
from gpuload.bindings.uring import Ring
from gpuload.bindings.uring_abi import Rows

SIZES = (0, 1, 511, 4096, 4097, 100_003, 1 << 20, (5 << 20) + 77)
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Files:
    paths: tuple[str, ...]
    data: tuple[bytes, ...]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(7)
    data = tuple(random.bytes(size) for size in SIZES)
    paths = tuple(str(folder / f"{size}.bin") for size in SIZES)
    for path, content in zip(paths, data, strict=True):
        Path(path).write_bytes(content)
    return Files(paths, data)


@pytest.fixture
def fds(files: Files) -> Iterator[list[int]]:
    opened = [os.open(path, os.O_RDONLY) for path in files.paths]
    yield opened
    for fd in opened:
        os.close(fd)


@pytest.fixture
def memory() -> Iterator[Mapping]:
    mapping = map_anonymous(4 << 20)
    mapping.array[:] = 0xA5
    yield mapping
    mapping.close()


@pytest.fixture
def ring() -> Iterator[Ring]:
    with Ring(64) as made:
        yield made


def run_rows(ring: Ring, rows: Rows, depth: int | None = None) -> list[int]:
    """`res` of each row (their user_data must be 0, 1, ...), with at most `depth` of them in flight."""
    result: list[int | None] = [None] * len(rows)
    pushed = done = 0
    while done < len(rows):
        room = (depth or len(rows)) - (pushed - done)
        pushed += ring.push(rows[pushed : pushed + room])
        ring.enter(1)
        for completion in ring.reap():
            assert result[completion["user_data"]] is None, "completed twice"
            result[completion["user_data"]] = int(completion["res"])
            done += 1
    assert ring.inflight == ring.unsubmitted == 0
    return [r for r in result if r is not None]


@pytest.fixture
def run() -> Callable[..., list[int]]:
    return run_rows


@pytest.fixture
def python() -> Callable[..., str]:
    """Runs a script in a process of its own, which must succeed; returns what it printed."""

    def call(script: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return call


# Installs a seccomp filter that answers the calls in argv with an errno: "425=1,437=38".
FILTERED = """
import ctypes, errno, os, struct, sys
import numpy as np
from gpuload.bindings import syscalls
from gpuload.bindings.uring import Ring, UringUnavailable

LOAD, EQUAL, RETURN, ALLOW, ERRNO = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
program = [(LOAD, 0, 0, 0)]
for rule in sys.argv[1].split(","):
    number, code = map(int, rule.split("="))
    program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | code)]
program.append((RETURN, 0, 0, ALLOW))
code = b"".join(struct.pack("=HBBI", *step) for step in program)
buffer = ctypes.create_string_buffer(code, len(code))
header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(buffer)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
assert prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
assert prctl(22, 2, ctypes.addressof(header), 0, 0) == 0, "PR_SET_SECCOMP"
"""


@pytest.fixture
def filtered(python: Callable[..., str]) -> Callable[..., str]:
    """Runs a script behind a seccomp filter, its rules the first argument."""
    return lambda script, rules, *arguments: python(FILTERED + script, rules, *arguments)
