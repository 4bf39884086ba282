"""Writing from arrays into files: every byte beside what was there, whoever writes it, whatever fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gpuload
from gpuload import config, events
from gpuload.engine import fastpath
from gpuload.errors import AssignmentError, ChunkWriteError, ConfigError, HandleInUseError, ReadOnlyError, StrictError
from gpuload.request import ReadPath, Reason, Written

BLOCK = 64
OLD = np.random.default_rng(1).integers(0, 256, 1000, np.uint8)
NEW = np.random.default_rng(2).integers(0, 256, 4000, np.uint8)
RANGES = [(0, 640, 0), (0, 4000, 0), (64, 1000, 64), (64, 1000, 3), (37, 1777, 37), (37, 1777, 0), (900, 30, 1)]
RANGES += [(990, 70, 5), (5000, 128, 0), (64, 0, 0)]


@pytest.fixture
def written() -> Iterator[list[Written]]:
    found: list[Written] = []
    end = events.subscribe(lambda event: found.append(event) if isinstance(event, Written) else None)
    yield found
    end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x"
    path.write_bytes(OLD.tobytes())
    return path


def after(offset: int, size: int, at: int) -> bytes:
    """The file as it must be."""
    length = max(len(OLD), offset + size) if size else len(OLD)
    found = np.zeros(length, np.uint8)
    found[: len(OLD)] = OLD
    found[offset : offset + size] = NEW[at : at + size]
    return found.tobytes()


def on(vendor: ModuleType) -> Any:
    out = vendor.fake.cupy.empty((len(NEW),), "u1")
    out[...] = NEW  # on the caller's stream, and late
    return out


def moved(written: list[Written], path: ReadPath = ReadPath.FASTPATH) -> int:
    return sum(event.moved for event in written if event.read_path is path)


@pytest.mark.parametrize(("offset", "size", "at"), RANGES)
def test_from_the_host(path: Path, written: list[Written], offset: int, size: int, at: int) -> None:
    for source in (NEW, NEW.tobytes(), NEW.reshape(40, 100).astype("u1")):
        path.write_bytes(OLD.tobytes())
        with gpuload.RegisteredFile(path, "r+") as file:
            assert file.write_from(source, offset, size, at) == size
        assert path.read_bytes() == after(offset, size, at)
    assert {event.backend for event in written} <= {"posix"}
    assert moved(written, ReadPath.FALLBACK) == 3 * size


@pytest.mark.parametrize(("offset", "size", "at"), RANGES)
def test_from_a_gpu(
    fake_vendor: ModuleType, path: Path, written: list[Written], offset: int, size: int, at: int
) -> None:
    with gpuload.RegisteredFile(path, "r+") as file:
        assert file.write_from(on(fake_vendor), offset, size, at) == size
        assert path.read_bytes() == after(offset, size, at)
    blocks = max(0, (offset + size) // BLOCK - -(-offset // BLOCK)) * BLOCK
    assert moved(written) == fake_vendor.fake.written == blocks
    assert sum(event.size for event in written) == size
    reasons = {event.reason for event in written if event.read_path is ReadPath.FALLBACK}
    assert reasons <= ({Reason.UNALIGNED_OFFSET, Reason.TAIL} if blocks else {Reason.UNALIGNED_SIZE})
    assert all(event.declined == {fake_vendor.name: event.reason} for event in written if event.reason)


def test_what_is_written_is_read_again(fake_vendor: ModuleType, tmp_path: Path, written: list[Written]) -> None:
    source, back = on(fake_vendor), fake_vendor.fake.cupy.empty((len(NEW),), "u1")
    with gpuload.RegisteredFile(tmp_path / "new", "w") as file:
        assert file.write_from(source[:2000]) == 2000
        assert file.write_from(source, 2000, buffer_offset=2000) == 2000
        assert file.read_into(back) == 4000
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "new").read_bytes() == NEW.tobytes() == back.get().tobytes()
    assert os.listdir(tmp_path) == ["new"]


def test_scratch_is_small_and_lent_again(fake_vendor: ModuleType, path: Path) -> None:
    with config.set({"fastpath.scratch": 1, "piece_bytes": 64}), gpuload.RegisteredFile(path, "r+") as file:
        file.write_from(on(fake_vendor), 64, 3000, 1)
    assert path.read_bytes() == after(64, 3000, 1)
    assert all(pool.lent == 0 for pool, _ in fastpath._pools.values())


def test_no_memory_for_scratch(fake_vendor: ModuleType, path: Path, written: list[Written]) -> None:
    source = on(fake_vendor)
    cupy = fake_vendor.fake.cupy

    def refuse(nbytes: int) -> Any:
        raise cupy.OutOfMemoryError("none")

    cupy.cuda.Memory = refuse
    with gpuload.RegisteredFile(path, "r+") as file:
        file.write_from(source, 64, 3000, 1)
    assert path.read_bytes() == after(64, 3000, 1)
    assert Reason.DRIVER_ERROR in {event.reason for event in written}


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EREMOTEIO])
def test_no_route_is_written_by_the_host(
    fake_vendor: ModuleType, path: Path, written: list[Written], number: int
) -> None:
    fake_vendor.fake.faults["write"] = lambda n: 128 if n == 1 else fake_vendor.error(number, call="write")
    with gpuload.RegisteredFile(path, "r+") as file:
        file.write_from(on(fake_vendor), 0, 1000)
    assert path.read_bytes() == after(0, 1000, 0)
    assert moved(written) == fake_vendor.fake.written == 128
    assert {event.reason for event in written} == {None, Reason.P2P_ROUTE, Reason.TAIL}
    assert sum(event.size for event in written) == 1000


@pytest.mark.parametrize("short", [BLOCK, 100, 0])
def test_short_writes_go_on(fake_vendor: ModuleType, path: Path, written: list[Written], short: int) -> None:
    fake_vendor.fake.faults["write"] = fake_vendor.always(short)
    with gpuload.RegisteredFile(path, "r+") as file:
        file.write_from(on(fake_vendor), 0, 1000)
    assert path.read_bytes() == after(0, 1000, 0)
    assert moved(written) == fake_vendor.fake.written
    assert sum(event.size for event in written) == 1000


def test_any_other_error_names_the_file(fake_vendor: ModuleType, path: Path) -> None:
    fake_vendor.fake.faults["write"] = fake_vendor.at(1, fake_vendor.error(errno.ENOSPC, call="write"))
    source = on(fake_vendor)
    with gpuload.RegisteredFile(path, "r+") as file:
        with pytest.raises(ChunkWriteError) as caught:
            file.write_from(source)
        assert caught.value.errno == errno.ENOSPC
        assert str(path) in str(caught.value)
        file.write_from(source)
    assert path.read_bytes() == after(0, 4000, 0)


@pytest.mark.parametrize(
    ("set_up", "reason"),
    [
        (lambda lib: setattr(lib, "managed", True), "not-device-memory"),
        (lambda lib: setattr(lib, "file_system", Reason.FILE_SYSTEM), "file-system"),
        (lambda lib: setattr(lib, "features", frozenset()), "no-library"),
    ],
    ids=["managed", "file system", "old library"],
)
def test_a_condition_that_fails_is_named(
    fake_hipfile: ModuleType, path: Path, written: list[Written], set_up: Any, reason: str
) -> None:
    set_up(fake_hipfile.fake)
    source = on(fake_hipfile)
    with gpuload.RegisteredFile(path, "r+") as file:
        file.write_from(source)
        assert {(event.backend, event.reason) for event in written} == {("posix", reason)}
        assert path.read_bytes() == after(0, 4000, 0)
        with config.set(strict=True), pytest.raises(StrictError, match=reason):
            file.write_from(source)


def test_a_driver_that_does_not_open(fake_vendor: ModuleType, path: Path, written: list[Written]) -> None:
    fake_vendor.fake.faults["open_driver"] = fake_vendor.always(fake_vendor.error(code=5010, call="open"))
    with gpuload.RegisteredFile(path, "r+") as file:
        file.write_from(on(fake_vendor))
    assert path.read_bytes() == after(0, 4000, 0)
    assert {event.reason for event in written} == {"driver-error" if fake_vendor.name == "hipfile" else "no-driver"}


def test_what_cannot_be_known_is_unverified(
    fake_vendor: ModuleType, path: Path, written: list[Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fake_vendor.allow, "true")
    source = on(fake_vendor)
    with gpuload.RegisteredFile(path, "r+") as file:
        file.write_from(source)
        assert moved(written) == 0
        assert (fake_vendor.name, Reason.UNVERIFIED) in {(event.backend, event.reason) for event in written}
        with config.set(strict=True), pytest.raises(StrictError, match="unverified"):
            file.write_from(source)


def test_strict_takes_heads_and_tails_beside_blocks(fake_vendor: ModuleType, path: Path) -> None:
    source = on(fake_vendor)
    with config.set(strict=True), gpuload.RegisteredFile(path, "r+") as file:
        file.write_from(source, 37, 1777)
        with pytest.raises(StrictError, match="unaligned-size"):
            file.write_from(source, 1, 70)
    assert path.read_bytes() == after(37, 1777, 0)


def test_strict_refuses_the_host(path: Path) -> None:
    with config.set(strict=True), gpuload.RegisteredFile(path, "r+") as file, pytest.raises(StrictError):
        file.write_from(NEW)
    assert path.read_bytes() == OLD.tobytes()


@pytest.mark.parametrize("how", [{"file_offset": -1}, {"size": -1}, {"buffer_offset": -1}, {"size": 4001}])
def test_ranges_that_are_none(path: Path, how: dict[str, int]) -> None:
    with gpuload.RegisteredFile(path, "r+") as file, pytest.raises(AssignmentError):
        file.write_from(NEW, **how)
    assert path.read_bytes() == OLD.tobytes()


@pytest.mark.parametrize("array", [NEW[::2], np.array([None, 1], object), memoryview(NEW)[::2]], ids=str)
def test_arrays_that_are_no_run_of_bytes(path: Path, array: Any) -> None:
    with gpuload.RegisteredFile(path, "r+") as file, pytest.raises(AssignmentError):
        file.write_from(array)


def test_a_file_opened_for_reading(path: Path) -> None:
    with gpuload.RegisteredFile(path) as file, pytest.raises(ReadOnlyError, match=r"'r\+'"):
        file.write_from(NEW)
    with pytest.raises(ConfigError, match="'x'"):
        gpuload.RegisteredFile(path, "x")  # type: ignore[arg-type]


def test_read_only_arrays_are_written(path: Path) -> None:
    source = NEW.copy()
    source.flags.writeable = False
    with gpuload.RegisteredFile(path, "r+") as file:
        file.write_from(source)
    assert path.read_bytes() == NEW.tobytes()


def test_a_new_file_that_failed_leaves_the_old_one(path: Path, tmp_path: Path) -> None:
    with pytest.raises(AssignmentError), gpuload.RegisteredFile(path, "w") as file:
        file.write_from(NEW, size=len(NEW) + file.write_from(NEW))
    assert path.read_bytes() == OLD.tobytes()
    assert os.listdir(tmp_path) == ["x"]
    file.close()


def test_a_new_file_replaces_where_a_link_leads(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("x")
    with gpuload.RegisteredFile(tmp_path / "link", "w") as file:
        file.write_from(NEW)
    assert (tmp_path / "link").is_symlink()
    assert path.read_bytes() == NEW.tobytes()


@pytest.mark.parametrize("mode", ["r+", "w"])
def test_durable_waits_for_the_drive(path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any) -> None:
    synced: list[bool] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.path.isdir(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    for durable in (False, True):
        with gpuload.RegisteredFile(path, mode, durable=durable) as file:
            file.write_from(NEW)
            assert synced == []
        assert synced == ([] if not durable else [False] if mode == "r+" else [False, True])


def test_closing_while_it_is_written_is_refused(fake_vendor: ModuleType, path: Path) -> None:
    inside, go = threading.Event(), threading.Event()
    original = fake_vendor.fake.write

    def wait(*arguments: Any) -> int:
        inside.set()
        assert go.wait(60)
        return int(original(*arguments))

    fake_vendor.fake.write = wait
    source = on(fake_vendor)
    source.get()
    file = gpuload.RegisteredFile(path, "r+")
    writer = threading.Thread(target=lambda: file.write_from(source, 0, 640))
    writer.start()
    assert inside.wait(60)
    with pytest.raises(HandleInUseError):
        file.close()
    go.set()
    writer.join()
    file.close()
    assert path.read_bytes() == after(0, 640, 0)


def test_writes_are_no_reads_in_the_record(path: Path) -> None:
    with gpuload.trace() as trace, gpuload.RegisteredFile(path, "r+") as file:
        file.write_from(NEW)
    assert trace.summary().requests == 0
