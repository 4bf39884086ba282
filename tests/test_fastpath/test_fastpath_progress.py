"""What the fastpath reads counts for whoever watches, beside what it leaves to the fallback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpuload
from gpuload import tasks
from gpuload.tasks import Task

pytestmark = pytest.mark.rocm
FORMS: dict[str, dict[str, Any]] = {
    "aligned": {"chunks": (16, 64, 64)},
    "odd": {"chunks": (19, 33, 31)},
    "sharded": {"chunks": (8, 16, 15), "shards": (32, 32, 30)},
}


class Watcher:
    def __init__(self) -> None:
        self.ends: list[Task] = []

    def begun(self, task: Task) -> None:
        pass

    def ended(self, task: Task, error: BaseException | None) -> None:
        assert error is None
        self.ends.append(task)


@pytest.mark.parametrize("form", FORMS)
def test_a_read_adds_up_to_just_its_bytes(
    rocm_sim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("HIPFILE_UNSUPPORTED_FILE_SYSTEMS", "true")
    stored = zarr.create_array(tmp_path / "a", shape=(64, 64, 64), dtype="i4", compressors=None, **FORMS[form])
    stored[...] = np.arange(1, 1 + 64**3).reshape(64, 64, 64)
    array: Any = gpuload.open(tmp_path / "a", device="cuda:0")
    watcher = Watcher()
    tasks.watch(watcher)
    try:
        for selection in (np.s_[:], np.s_[3:50:3, ::-1, 5:60], np.s_[10]):
            array[selection]
    finally:
        tasks.unwatch(watcher)
    assert rocm_sim.count("hipFileRead") > 0
    assert [(task._done, task.done) for task in watcher.ends] == [(task.total, task.total) for task in watcher.ends]
    assert len(watcher.ends) == 3
