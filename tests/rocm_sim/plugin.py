"""pytest's part of the simulated ROCm: loads it before any test imports CuPy; tests marked gpu become rocm tests too.

``make test-rocm`` asks for it: ``PYTHONPATH=tests python -m pytest -p rocm_sim.plugin -m rocm``. The fixtures are in
`tests/conftest.py`, where they skip in every other run.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from .build import FULL, ToolMissing, root
from .libraries import HIP
from .simulator import Simulator, environment

TESTS = Path(__file__).parents[1]


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """The earliest hook: zarr-python's own plugin comes next, and imports CuPy if it can."""
    pluginmanager.register(Plugin(), "rocm_sim")


class Plugin:
    """The simulated ROCm of a run."""

    def __init__(self) -> None:
        loaded = sorted({"cupy", "hip", "rocm"} & sys.modules.keys())
        if loaded:
            raise pytest.UsageError(f"the simulated ROCm comes too late: {', '.join(loaded)} is imported already")
        try:
            self.root = root()
        except (ToolMissing, ModuleNotFoundError, PackageNotFoundError) as error:
            raise pytest.UsageError(f"{error} (`make test-rocm` makes an environment with the wheels)") from error
        os.environ.update(environment(self.root))  # for hip-python, CuPy's compiler and child processes
        # The loader of this process has read LD_LIBRARY_PATH long ago; what is loaded is found by its soname.
        libraries = sorted((self.root / FULL / "lib").glob("*.so.*"), key=lambda path: path.name != HIP.soname)
        self._libraries = [ctypes.CDLL(str(path)) for path in libraries]
        self.simulator = Simulator(self.root)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.rocm)

    def python(self, script: str, *arguments: Any, variant: str = FULL, returncode: int = 0, **more: str) -> str:
        """Run `script` in a process of its own that has `variant` of the simulated ROCm; what it printed.

        `more` are environment variables. The package rocm_sim can be imported there.
        """
        made = environment(self.root, variant, **more)
        made["PYTHONPATH"] = os.pathsep.join([str(TESTS), made["PYTHONPATH"]])
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments)], env=made, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == returncode, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()
