"""Run zarr-python's own tests, out of its source distribution, on gpuload's store and pipeline.

``python tests/zarr_suite/run.py [pytest arguments]`` with the interpreter whose zarr-python is meant; the distribution
of just that version is fetched from the package index by pip, once. ``make test-zarr-suite`` does it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "zarr_suite"
TESTS = ["tests/test_array.py", "tests/test_indexing.py", "tests/test_store/test_local.py", "tests/test_codecs"]
PIPELINE = "gpuload.zarr.DevicePipeline"


def sources(number: str) -> Path:
    """The unpacked source distribution of zarr-python `number`."""
    folder = CACHE / f"zarr-{number}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--no-binary", "zarr", f"zarr=={number}", "--dest", CACHE], check=True)
        with tarfile.open(CACHE / f"zarr-{number}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return folder


def main(arguments: list[str]) -> int:
    folder = sources(version("zarr"))
    chosen = [] if any(argument.startswith("tests/") for argument in arguments) else TESTS
    # A timeout for each test: a pipeline that waits for its own event loop would wait for ever.
    options = ["-c", HERE / "pytest.ini", "--rootdir", folder, "-p", "suite_plugin", "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "ZARR_CODEC_PIPELINE__PATH": PIPELINE}
    command = [sys.executable, "-m", "pytest", *options, "--timeout=600", *chosen, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
