"""Real mounts, through the simulated ROCm: bytes are equal on each, and who served them is what the mount allows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.rocm, pytest.mark.timeout(600)]

# Twice: as the machine is, where all drives are loop devices, and as if these were NVMe drives.
PROGRAM = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import cupy, numpy as np, gpuload
from gpuload import events
from gpuload.files import blocks
from gpuload.request import Written
from rocm_sim.simulator import Simulator

simulator = Simulator()

def way(rows):
    return sorted([str(r[0]), r[1], r[2] and str(r[2]), r[3]] for r in rows)

def read(path):
    with open(path, "rb") as file:
        content = np.frombuffer(file.read(), "u1")
    out = cupy.zeros(len(content), "u1")
    before = simulator.stats()
    with gpuload.trace() as trace, gpuload.RegisteredFile(path) as file:
        assert file.read_into(out) == len(content)
    after = simulator.stats()
    assert (out.get() == content).all()
    assert after["fallback_read"] == 0
    rows = way((r.path, r.backend, r.reason, r.moved) for r in trace.summary().rows)
    return rows, after["fast_read"] - before["fast_read"]

def write(path):
    content = np.random.default_rng(0).integers(0, 256, 8292, np.uint8)
    told, before = [], simulator.stats()
    end = events.subscribe(lambda event: told.append(event) if isinstance(event, Written) else None)
    with gpuload.RegisteredFile(path, "w") as file:
        assert file.write_from(cupy.asarray(content)) == len(content)
    end()
    with open(path, "rb") as file:
        assert file.read() == content.tobytes()
    os.unlink(path)
    rows = way((e.read_path, e.backend, e.reason, e.moved) for e in told)
    return rows, simulator.stats()["fast_write"] - before["fast_write"]

def look(path):
    found = {"read": read(path)}
    if "/read-only/" not in path:
        found["write"] = write(os.path.dirname(path) + "/w")
    return found

as_it_is = {path: look(path) for path in sys.argv[2:]}
blocks._kind = lambda path: blocks.Kind.NVME
blocks.forget()
print(json.dumps([as_it_is, {path: look(path) for path in sys.argv[2:]}]))
"""


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was read and written on each mount, in one process: as it is, and with drives that are NVMe."""
    if request.config.pluginmanager.get_plugin("rocm_sim") is None:
        pytest.skip("needs the simulated ROCm, which `make test-rocm` runs on")
    mounts = request.getfixturevalue("mounts")
    names = [name for name, said in mounts.said.items() if said == "ok"]
    if "ext4" in names:
        names += ["ext4-link", "ext4-bound"]
    if not names:
        return {}, {}
    paths = [str(mounts.scratch / name / "store/c") for name in names]
    done = mounts.run(sys.executable, "-c", PROGRAM, str(Path(__file__).parents[1]), *paths)
    assert done.returncode == 0, done.stderr
    loop, nvme = json.loads(done.stdout)
    return (
        {name: loop[path] for name, path in zip(names, paths, strict=True)},
        {name: nvme[path] for name, path in zip(names, paths, strict=True)},
    )


@pytest.mark.parametrize(
    ("name", "reason", "on_nvme"),
    [
        ("tmpfs", "file-system", "file-system"),
        ("overlay", "file-system", "file-system"),
        ("ext4", "block-layer", None),
        ("ext4-link", "block-layer", None),
        ("ext4-bound", "block-layer", None),
        ("ext4-writeback", "ext4-journal-mode", "ext4-journal-mode"),
        ("ext4-journal", "ext4-journal-mode", "ext4-journal-mode"),
        ("ext4-superblock", "ext4-journal-mode", "ext4-journal-mode"),
        ("read-only", "block-layer", None),
        ("xfs", "block-layer", None),
    ],
)
def test_each_mount(
    told: tuple[dict[str, Any], dict[str, Any]],
    mounts: Any,
    name: str,
    reason: str,
    on_nvme: str | None,
) -> None:
    mounts.need(name)
    for found, expected in zip(told, (reason, on_nvme), strict=True):
        for rows, counted in found[name].values():
            if expected is not None:
                assert [(path, why) for path, _, why, _ in rows] == [("fallback", expected)]
                assert counted == 0
                continue
            (fast, tail) = sorted(rows, key=lambda row: row[0] != "fastpath")
            assert fast == ["fastpath", "hipfile", None, 8192]
            assert (tail[0], tail[2], tail[3]) == ("fallback", "tail", 100)
            assert counted == 8192
