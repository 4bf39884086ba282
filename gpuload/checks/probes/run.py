"""Runs steps of one script and writes what each came to: the arguments are a JSON list [script, steps, arguments].

Nothing of gpuload is imported here, so that a script that needs none starts fast.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Write a line of JSON before each step, and one after it with its value or its error."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it may crash: that is what it is for
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(**entry: Any) -> None:
        print(json.dumps(entry), file=out, flush=True)

    script, steps, arguments = json.loads(sys.argv[1])
    say(step=steps[0])
    path = str(Path(__file__).with_name(f"{script}.py"))
    # Under the name it would be imported by, which is how a measurement of coverage knows it.
    functions = runpy.run_path(path, run_name=f"gpuload.checks.probes.{script}")["STEPS"]
    for step in steps:
        say(step=step)
        try:
            say(step=step, value=functions[step](*arguments))
        except Exception as error:  # noqa: BLE001 - it is the answer
            say(step=step, error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
