"""The build: once for many starts, and with a clear word where it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.rocm

ROOT = Path(__file__).parents[2]


# Two builds at the same time, each of which waits for the other to begin: both end with the same folder.
RACE = """
import sys, time
from rocm_sim import build

def build_slowly(folder, scratch, tools):
    cache = scratch.parent
    while len(list(cache.iterdir())) < 2:  # the other builds too, or has finished
        time.sleep(0.01)
    folder.mkdir()
    (folder / "lib").write_text(str(scratch))

build._build = build_slowly
print(build.root())
"""


def start(cache: Path, *command: str, **more: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT / "tests"), os.environ["PYTHONPATH"]])
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, "ROCM_SIM_CACHE": str(cache), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_parallel_starts_end_with_one_build(rocm_sim: Any, tmp_path: Path) -> None:
    printed = []
    for process in [start(tmp_path, "-c", RACE) for _ in range(2)]:
        out, err = process.communicate(timeout=500)
        assert process.returncode == 0, err
        printed.append(Path(out.strip()))
    assert printed[0] == printed[1]
    assert [path.name for path in tmp_path.iterdir()] == [printed[0].name]
    assert (printed[0] / "lib").is_file()


def test_no_compiler(rocm_sim: Any, tmp_path: Path) -> None:
    out, err = start(tmp_path, "-m", "rocm_sim", CXX="no-such-compiler").communicate(timeout=500)
    assert out == ""
    assert "apt-get install g++" in err


def test_a_run_says_what_is_missing() -> None:
    """Without a compiler the plugin is an error of usage, not a wall of failing tests."""
    path = os.pathsep.join(["tests", os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "rocm_sim.plugin", "--collect-only", "-q"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "apt-get install g++" in done.stderr
