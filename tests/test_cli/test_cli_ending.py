"""Commands end in one line, and without a traceback, where their output cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import zarr


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ending") / "a.zarr"
    zarr.create_array(path, shape=(4,), chunks=(2,), dtype="f4")[:] = 1.0
    return path


COMMANDS = [["--help"], ["doctor", "--json"], ["read", "STORE"]]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_device(store: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "gpuload", *(str(store) if word == "STORE" else word for word in words)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "No space left on device" in line


def test_a_pipe_that_nobody_reads(store: Path) -> None:
    command = [sys.executable, "-m", "gpuload", "read", str(store)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_both_streams_full() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "gpuload", "--help"], stdout=full, stderr=full)
    assert done.returncode == 1
