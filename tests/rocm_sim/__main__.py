"""Runs a command on the simulated ROCm: ``PYTHONPATH=tests python -m rocm_sim [--variant NAME] COMMAND...``."""

from __future__ import annotations

import argparse
import os

from .build import FULL, root
from .simulator import environment

parser = argparse.ArgumentParser(prog="rocm_sim", description="Run a command on the simulated ROCm.")
parser.add_argument("--variant", default=FULL, help="full (default), no-hipfile, old-hipfile, no-ais or no-rocm")
parser.add_argument(
    "command", nargs=argparse.REMAINDER, help="what to run; nothing: print the folder of the simulated ROCm"
)
arguments = parser.parse_args()
folder = root()
if arguments.command:
    os.execvpe(arguments.command[0], arguments.command, environment(folder, arguments.variant))
print(folder)
