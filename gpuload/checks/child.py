"""Asks what may crash, hang or change a process in processes of their own, side by side, with an end to waiting.

A script of `gpuload/checks/probes` writes one line of JSON when it begins a step and one when it has its value, so that
what it said before it died is known, and in which step that was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT = 20.0  # seconds for all of them together: a driver that hangs does so for ever

_PROBES = Path(__file__).with_name("probes")


@dataclass(frozen=True, slots=True)
class Job:
    """One script, the steps it is to go through, and what each of them is told."""

    script: str
    steps: tuple[str, ...]
    arguments: tuple[str, ...] = ()


@dataclass(slots=True)
class Answers:
    """What the scripts said, by step, and of each step without a value why there is none."""

    values: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    blamed: set[str] = field(default_factory=set)

    def get(self, step: str) -> Any:
        """The value of a step, or None."""
        return self.values.get(step)

    def why(self, step: str) -> str:
        """Why a step has no value."""
        return self.ended.get(step, "it was not asked")

    def killed(self, step: str, *signals: str) -> bool:
        """Whether one of these signals ended the process in this very step."""
        return step in self.blamed and any(name in self.ended[step] for name in signals)

    def take(self, job: Job, said: bytes, ended: str) -> None:
        """Take in what a script wrote; a line that was cut off is none."""
        begun = ""
        for line in said.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                begun = str(entry["step"])
                if "value" in entry:
                    self.values[begun] = entry["value"]
                    begun = ""
                elif "error" in entry:
                    self.ended[begun] = f"could not be found out: {entry['error']}"
                    begun = ""
        for step in job.steps:
            if step not in self.values and step not in self.ended:
                where = "" if begun in ("", step) else f" at {begun}"
                self.ended[step] = f"the process that was to find out {ended}{where}"
        if begun:
            self.blamed.add(begun)


def ask(jobs: Sequence[Job], timeout: float = TIMEOUT) -> Answers:
    """Run scripts, all at once, until all have ended or `timeout` seconds are over; never raises."""
    deadline = time.monotonic() + timeout
    answers = Answers()
    running = []
    for job in jobs:
        try:
            running.append((job, _start(job)))
        except (OSError, ValueError) as error:
            answers.take(job, b"", f"could not be started ({error})")
    for job, process in running:
        answers.take(job, *_collect(process, max(0.0, deadline - time.monotonic()), timeout))
    return answers


def _start(job: Job) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise OSError("the interpreter's own path is not known")
    # The script sees the packages that this process sees, and none that lie where somebody happens to be.
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    return subprocess.Popen(  # noqa: S603 - this interpreter, a script of ours
        [sys.executable, "-P", str(_PROBES / "run.py"), json.dumps([job.script, job.steps, job.arguments])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Vendor libraries write logs where they are; here nobody can.
        cwd="/proc" if os.path.isdir("/proc") else "/",
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def _collect(process: subprocess.Popen[bytes], left: float, timeout: float) -> tuple[bytes, str]:
    """What a process wrote, and how it ended."""
    try:
        said, _ = process.communicate(timeout=left)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            said, _ = process.communicate(timeout=1.0)
        except subprocess.TimeoutExpired as stuck:  # in the kernel, where no signal reaches it: it goes when it can
            said = stuck.output or b""
        return said, f"gave no answer within {timeout:g} s"
    code = process.returncode
    return said, f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
