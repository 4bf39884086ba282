"""What the tests of files share: counting descriptors, and drivers that write down what is asked of them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


def descriptors() -> set[int]:
    """The descriptors open in this process, without the one that the look itself takes."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue
        found.add(int(name))
    return found


class RecordingDriver:
    """Writes down each call, and whether the file's descriptors were open at that moment."""

    def __init__(self, name: str = "recording", descriptors: int = 0) -> None:
        self.name = name
        self.descriptors = descriptors
        self.calls: list[tuple[str, str]] = []
        self.fail_register = False
        self.fail_deregister = False
        self._own: dict[str, list[int]] = {}

    def register(self, handle: Any) -> object:
        self.calls.append(("register", handle.key))
        if self.fail_register:
            raise OSError("no registration")
        os.fstat(handle.buffered_fd)
        fds = [handle.buffered_fd] + ([handle.unbuffered_fd] if handle.unbuffered_fd is not None else [])
        self._own[handle.key] = [os.dup(handle.buffered_fd) for _ in range(self.descriptors)]
        return handle.key, fds, os.fstat(handle.buffered_fd).st_ino

    def deregister(self, token: Any) -> None:
        key, fds, inode = token
        still = all(_inode(fd) == inode for fd in fds)
        self.calls.append(("deregister" if still else "deregister after close", key))
        for fd in self._own.pop(key):
            os.close(fd)
        if self.fail_deregister:
            raise RuntimeError(f"{self.name} cannot deregister {key}")


def _inode(fd: int) -> int | None:
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return None


@pytest.fixture
def make_driver() -> Callable[..., RecordingDriver]:
    return RecordingDriver


@pytest.fixture
def open_fds() -> Callable[[], set[int]]:
    return descriptors


@pytest.fixture
def no_leak() -> Any:
    """The test leaves no descriptor open; what others left to the garbage collector is collected first."""
    gc.collect()
    before = descriptors()
    yield before
    assert descriptors() <= before


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run a program in a process of its own, unclosed handles being errors there; returns what it printed."""

    def run(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        assert "Error" not in done.stderr, done.stderr
        return done.stdout

    return run
