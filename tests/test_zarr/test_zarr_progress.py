"""Whoever watches is told of every read and pack, and how much of it is done; the rest costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

import gpuload
from gpuload import tasks
from gpuload.tasks import Task

VALUE = np.arange(1, 1 + 64 * 48, dtype="f4").reshape(64, 48)


class Watcher:
    """Remembers what it was told, and each step."""

    def __init__(self) -> None:
        self.begins: list[Task] = []
        self.ends: list[tuple[Task, BaseException | None]] = []

    def begun(self, task: Task) -> None:
        self.begins.append(task)

    def ended(self, task: Task, error: BaseException | None) -> None:
        self.ends.append((task, error))


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    own = Watcher()
    tasks.watch(own)
    yield own
    tasks.unwatch(own)
    tasks.unwatch(own)


FORMS: dict[str, dict[str, Any]] = {
    "raw": {"chunks": (8, 8), "compressors": None},
    "zstd": {"chunks": (8, 8), "compressors": ZstdCodec()},
    "shards": {"chunks": (8, 8), "shards": (16, 24), "compressors": None},
    "v2": {"chunks": (8, 8), "compressors": None, "zarr_format": 2},
    "one chunk": {"chunks": (64, 48), "compressors": None},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("selection", [..., (slice(3, 50), slice(None, None, 5)), ([1, 9, 9, 60],)], ids=str)
def test_a_read_adds_up_to_just_its_bytes(tmp_path: Path, watcher: Watcher, form: str, selection: Any) -> None:
    stored = zarr.create_array(tmp_path / "air", shape=VALUE.shape, dtype="f4", fill_value=7, **FORMS[form])
    stored[...] = VALUE
    stored[8:16, :8] = 7  # in some forms a chunk without a file
    array: Any = gpuload.open(tmp_path / "air", device="cpu")
    assert watcher.begins == []
    found = array[selection]
    (task,) = watcher.begins
    assert watcher.ends == [(task, None)]
    assert (task.words, task.unit) == ("reading air", "bytes")
    assert task.total == task._done == task.done == found.nbytes


def test_what_only_zarr_decodes_adds_up_too(tmp_path: Path, watcher: Watcher) -> None:
    group = zarr.create_group(tmp_path / "g")
    group.create_array("words", shape=(40,), chunks=(7,), dtype=str)[...] = np.array([f"w{i}" for i in range(40)])
    array: Any = gpuload.open(tmp_path / "g", device="cpu")["words"]  # type: ignore[index]
    found = array[3:30]
    (task,) = watcher.begins
    assert task.words == "reading words"
    assert task.total == task._done == 27 * found.dtype.itemsize


def test_an_error_ends_it(tmp_path: Path, watcher: Watcher) -> None:
    zarr.create_array(tmp_path / "a", data=VALUE, chunks=(8, 8), compressors=None)
    (tmp_path / "a/c/1/1").write_bytes(b"short")
    array: Any = gpuload.open(tmp_path / "a", device="cpu")
    with pytest.raises(gpuload.errors.ChunkError) as caught:
        array[...]
    assert [error for _, error in watcher.ends] == [caught.value]
    assert tasks.current() is None
    array[:8]
    assert watcher.ends[-1][1] is None


def test_a_pack_is_one_task_with_all_its_reads(tmp_path: Path, watcher: Watcher) -> None:
    group = zarr.create_group(tmp_path / "g")
    for name in "ab":
        group.create_array(name, data=VALUE, chunks=(8, 8))
    gpuload.zarr.pack(tmp_path / "g", tmp_path / "packed", shards=(16, 48), verify=True)
    (task,) = watcher.begins
    assert watcher.ends == [(task, None)]
    assert task.words == "packing packed"
    assert task.total == task._done == 2 * 2 * VALUE.nbytes


def test_work_inside_of_work_is_part_of_it(watcher: Watcher) -> None:
    assert tasks.watched()
    with tasks.work("outer", 2, "steps") as outer:
        assert not tasks.watched()
        assert tasks.current() is outer
        with tasks.part_of(None):
            assert tasks.watched()
    assert tasks.current() is None
    with pytest.raises(KeyboardInterrupt), tasks.work("stopped", 1):
        raise KeyboardInterrupt
    assert isinstance(watcher.ends[-1][1], KeyboardInterrupt)


def test_many_threads_lose_nothing(watcher: Watcher) -> None:
    task = Task("count", 4000, "steps")

    def count() -> None:
        for _ in range(1000):
            task.add(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert task.done == 4000
    task.add(5)
    assert task.done == 4000


def test_nothing_is_counted_while_nobody_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr.create_array(tmp_path / "a", data=VALUE, chunks=(8, 8))
    array: Any = gpuload.open(tmp_path / "a", device="cpu")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(tasks, "work", never)
    monkeypatch.setattr(Task, "add", never)
    assert (array[...] == VALUE).all()
