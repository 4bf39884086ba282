"""Larger than memory: a reduction over an array needs memory for some blocks, not for all of them.

The array is 2 GiB, and 12 GiB with the profile ``deep``: its chunks are hard links to a few files, so that the disk
needs no such room.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import settings

GIB = 1 << 30
DEEP = settings().max_examples > 100
TOTAL, BOUND = (12 * GIB, 4 * GIB) if DEEP else (2 * GIB, 1 * GIB)
CHUNK = 8 << 20
DIFFERENT = 4

CODE = """
import json, sys, dask
from gpuload.dask import from_zarr
array = from_zarr(sys.argv[1], chunks="64 MiB", device="cpu")
with dask.config.set(scheduler="threads", num_workers=2):
    total, least = dask.compute(array.sum(dtype="f8"), array.min())
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"bytes": array.nbytes, "total": float(total), "least": float(least), "peak": int(peak) << 10}))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800 if DEEP else 600)
def test_a_reduction_runs_in_bounded_memory(tmp_path: Path) -> None:
    count, side = TOTAL // CHUNK, CHUNK // 4
    array = zarr.create_array(str(tmp_path / "a"), shape=(count * side,), chunks=(side,), dtype="f4", compressors=None)
    values = np.random.default_rng(2).integers(-8, 9, (DIFFERENT, side)).astype("f4")
    array[: DIFFERENT * side] = values.reshape(-1)
    folder = tmp_path / "a/c"
    for number in range(DIFFERENT, count):
        os.link(folder / str(number % DIFFERENT), folder / str(number))
    done = subprocess.run([sys.executable, "-c", CODE, tmp_path / "a"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["bytes"] == TOTAL
    assert told["total"] == values.sum(dtype="f8") * (count // DIFFERENT)
    assert told["least"] == -8
    assert told["peak"] < BOUND
