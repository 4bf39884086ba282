"""A contender's process, from outside: what it answers, and what becomes of one that dies or never answers."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Any, Self

from gpuload.bench.cases import Mode
from gpuload.bench.contenders import Contender

COMMAND = [sys.executable, "-m", "gpuload.bench.worker"]
PATIENCE = 600.0  # seconds for one answer


class Worker:
    """The process of one contender, for one array.

    Threads: one at a time. Fork: not to be used in the child.

    Attributes
    ----------
    error
        Why there is no (more) reading; None while all is well.
    equal
        Whether its values were right, whenever they were compared.
    setting
        The setting that was fastest.
    seconds, cpu
        Wall and CPU seconds of each timed read.
    beside, beside_cpu
        The same of the reads that each of them is compared with, where its mode has such.
    cached
        The most that was found in the page cache before a timed read that was to be cold; None: nobody looked.
    served
        How gpuload's reads were served, after `end`.
    """

    def __init__(
        self,
        contender: Contender,
        path: str,
        side: int,
        *,
        gpu: bool,
        mode: Mode = Mode.WARM,
        patience: float = PATIENCE,
    ) -> None:
        self.contender, self.patience = contender, patience
        self.error: str | None = None
        self.equal = False
        self.setting: str | None = None
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.beside: list[float] = []
        self.beside_cpu: list[float] = []
        self.cached: float | None = None
        self.served: list[dict[str, Any]] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(  # noqa: S603 - this package's own module
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
        )
        answer = self._ask({"contender": contender.name, "path": path, "side": side, "gpu": gpu, "mode": mode})
        self._compared(answer)
        self.setting = answer.get("setting")

    def read(self) -> None:
        """One round of timed reads, if all is well."""
        if self.error is None:
            answer = self._ask({"do": "read"})
            for name in ("seconds", "cpu", "beside", "beside_cpu"):
                getattr(self, name).extend(answer.get(name, []))
            if answer.get("cached") is not None:
                self.cached = max(answer["cached"], self.cached or 0.0)

    def end(self) -> None:
        """One more read, whose values are compared like the first one's."""
        if self.error is None:
            answer = self._ask({"do": "end"})
            self._compared(answer)
            self.served = answer.get("served")

    def close(self) -> None:
        """Leave no process behind. Idempotent."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(self.patience if self.error is None else 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _compared(self, answer: dict[str, Any]) -> None:
        self.equal = bool(answer.get("equal"))
        if not self.equal and self.error is None:
            self._failed("it read wrong values")

    def _ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """The answer; an `error` where there is none, or it is one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(task).encode() + b"\n")
        except BrokenPipeError:
            pass  # its last words say more
        heard = select.poll()  # select() knows no descriptor beyond 1023
        heard.register(self._process.stdout, select.POLLIN)
        if not heard.poll(self.patience * 1000):
            self._process.kill()
            return self._failed(f"no answer in {self.patience:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            return self._failed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            return self._failed(answer["error"])
        return answer

    def _failed(self, error: str) -> dict[str, Any]:
        """Who fails at some time, or reads wrong values, has no speed."""
        self.error = error
        for times in (self.seconds, self.cpu, self.beside, self.beside_cpu):
            times.clear()
        return {}

    def _last_words(self) -> str:
        code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with code {code}" + (f": {lines[-1].strip()}" if lines else "")
