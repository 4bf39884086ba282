"""cufile on a real NVIDIA GPU: the bytes come directly, or a named reason says why not and cuFile is left as it was.

Real calls in cuFile's compatible mode, beside its own counters, need an entry of udev's database for the drive; where
it is missing, and may be made, it is made for the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuload.bindings import cufile
from gpuload.errors import BackendUnavailableError
from gpuload.memory import device


def _missing() -> str:
    if not device.gpu_count():
        return "CuPy sees no GPU here"
    import cupy

    if cupy.cuda.runtime.is_hip:
        return "the GPU is not NVIDIA's"
    try:
        cufile.load()
    except BackendUnavailableError as error:
        return str(error)
    return ""


_WHY = _missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(_WHY), reason=_WHY or "there is one")]

DIRECT = ("fastpath", "cufile")
PRELUDE = """
import json, os, sys
import cupy, numpy as np, gpuload
from gpuload.bindings import cufile
content = np.random.default_rng(0).integers(0, 256, (4 << 20) + 777, np.uint8)
path = sys.argv[1]
with open(path, "wb") as file:
    file.write(content.tobytes())
    os.fsync(file.fileno())
out = cupy.zeros(len(content), "u1")
def rows(trace):
    return [(str(r.path), r.backend, r.reason and str(r.reason), r.moved) for r in trace.summary().rows]
def read():
    with gpuload.trace() as trace, gpuload.RegisteredFile(path) as file:
        assert file.read_into(out) == len(content)
    assert (out.get() == content).all()
    return rows(trace)
"""
READ = (
    PRELUDE
    + """
from gpuload.backends import cufile as backends
backends.backend().count()
found = [read(), read()]
state = gpuload.doctor(path, timeout=200).backends["cufile"]
print(json.dumps([
    found, os.environ.get("CUFILE_ALLOW_COMPAT_MODE"), cufile.load().use_count(), backends.backend().counted(),
    state.reason and str(state.reason),
]))
assert os.readlink("/proc/self/fd/0") == sys.argv[2]
"""
)
COUNTED = (
    PRELUDE
    + """
library = cufile.load()
if "parameters" in library.features:
    library._module.set_parameter_bool(library._module.BoolConfigParameter.PROPERTIES_ALLOW_COMPAT_MODE, True)
library.open_driver()
library._module.set_stats_level(3)
library._module.stats_start()
assert library.count()  # it does
found = read()
stats = library._module.StatsLevel1()
library._module.get_stats_l1(stats.ptr)
assert library.counted() == (int(stats.read_bytes), int(stats.write_bytes))
print(json.dumps([found, int(stats.read_bytes)]))
"""
)


def run(script: str, folder: Path, *arguments: str, **more: str) -> Any:
    environment = {**os.environ, **more}
    for name in ("CUFILE_ALLOW_COMPAT_MODE", "CUFILE_LOGFILE_PATH"):
        if name not in more:
            environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder / "x"), *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(400)
def test_directly_or_with_a_reason(tmp_path: Path) -> None:
    """The bytes are compared there. Where nvidia-fs is missing, on a virtual disk for one, the reason is no-driver."""
    found, switch, users, counted, said = run(READ, tmp_path, os.devnull)
    for rows in found:
        assert sum(moved for *_, moved in rows) >= (4 << 20) + 777
        reasons = {reason for _, _, reason, _ in rows} - {"tail", None}
        if DIRECT in {(path, backend) for path, backend, *_ in rows}:
            assert reasons == set()
        else:
            assert len(reasons) == 1
        if reasons <= {"driver-error", "p2p-route"}:  # none, or what is found out with the driver open
            assert (users, said) == (1, None)
        else:
            assert reasons <= {"no-driver", "file-system", "block-layer", "ext4-journal-mode", "odirect-refused"}
            assert (users, switch, counted) == (0, None, None)
        if reasons == {"no-driver"}:
            assert said == "no-driver"  # the doctor, too
    claimed = sum(moved for rows in found for path, backend, _, moved in rows if (path, backend) == DIRECT)
    assert claimed == (counted[0] if counted else 0)
    assert not (tmp_path / "cufile.log").exists()


@pytest.fixture
def udev_entry(tmp_path: Path) -> Iterator[None]:
    """What cuFile asks udev's database of the drive, made for the test where it is missing."""
    number = tmp_path.stat().st_dev
    entry = Path(f"/run/udev/data/b{os.major(number)}:{os.minor(number)}")
    if entry.exists():
        yield
        return
    made = [folder for folder in (entry.parent.parent, entry.parent) if not folder.exists()]
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.write_text("E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\n")
    except OSError as error:
        pytest.skip(f"udev's database has no entry of the drive, and none can be made: {error}")
    yield
    entry.unlink()
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


@pytest.mark.timeout(400)
def test_cufiles_own_count_of_a_detour_agrees(udev_entry: None, tmp_path: Path) -> None:
    rows, counted = run(COUNTED, tmp_path, CUFILE_ALLOW_COMPAT_MODE="true")
    ways = {(path, backend, reason): moved for path, backend, reason, moved in rows}
    if not any(backend == "cufile" for _, backend, _ in ways):
        pytest.skip(f"this drive is none for cuFile: {sorted(map(str, ways))}")
    assert ways["fallback", "cufile", "unverified"] == counted == 4 << 20
    assert not any(path == "fastpath" for path, *_ in ways)
