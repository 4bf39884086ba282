"""Real mounts: what is said of a file on each, and that the machine's own answers agree."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from gpuload.request import Reason

PROGRAM = """
import json, os, sys
from gpuload.files import blocks
from gpuload.files.handle import FileHandle

found = {}
for path in sys.argv[1:]:
    with FileHandle.open_path(path) as handle:
        geometry = handle.geometry
        found[path] = {
            "file_system": geometry.file_system,
            "mount_point": geometry.mount_point,
            "reason": blocks.direct_reason(geometry),
            "layers": blocks.layers(geometry.device),
            "kinds": [layer.kind for layer in blocks.stack(geometry.device)],
            "unbuffered": handle.unbuffered_fd is not None,
        }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def told(mounts: Any) -> dict[str, Any]:
    """What is said of the file on each mount, in one process."""
    names = [name for name, said in mounts.said.items() if said == "ok"]
    if "ext4" in names:
        names += ["ext4-link", "ext4-bound"]
    paths = [str(mounts.scratch / name / "store/c") for name in names]
    if not paths:
        return {}
    done = mounts.run(sys.executable, "-c", PROGRAM, *paths)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name: found[path] for name, path in zip(names, paths, strict=True)}


@pytest.mark.parametrize(
    ("name", "file_system", "reason"),
    [
        ("tmpfs", "tmpfs", Reason.FILE_SYSTEM),
        ("overlay", "overlay", Reason.FILE_SYSTEM),
        ("ext4", "ext4", Reason.BLOCK_LAYER),
        ("ext4-link", "ext4", Reason.BLOCK_LAYER),
        ("ext4-bound", "ext4", Reason.BLOCK_LAYER),
        ("ext4-writeback", "ext4", Reason.EXT4_JOURNAL_MODE),
        ("ext4-journal", "ext4", Reason.EXT4_JOURNAL_MODE),
        ("ext4-superblock", "ext4", Reason.EXT4_JOURNAL_MODE),
        ("read-only", "ext4", Reason.BLOCK_LAYER),
        ("xfs", "xfs", Reason.BLOCK_LAYER),
    ],
)
def test_each_mount_has_its_reason(
    mounts: Any, told: dict[str, Any], name: str, file_system: str, reason: Reason
) -> None:
    mounts.need(name)
    found = told[name]
    assert (found["file_system"], found["reason"]) == (file_system, reason)
    if reason == Reason.FILE_SYSTEM:
        assert found["layers"] == []
    else:
        assert found["kinds"] == ["loop device"]
        assert found["unbuffered"]


def test_a_link_is_followed_to_the_mount_it_leads_to(mounts: Any, told: dict[str, Any]) -> None:
    mounts.need("ext4-link")
    assert told["ext4-link"] == told["ext4"]
    assert told["ext4"]["mount_point"] == str(mounts.scratch / "ext4")


def test_nobody_else_sees_the_mounts(mounts: Any) -> None:
    with open("/proc/self/mountinfo") as table:
        assert str(mounts.scratch) not in table.read()
