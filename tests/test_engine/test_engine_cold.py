"""Reads past the page cache: right at every offset and size, refused where they cannot be, and only where they pay."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload
from gpuload import config
from gpuload.backends import registry
from gpuload.backends.lanes import Lane
from gpuload.backends.uring import UringBackend
from gpuload.bindings.pagecache import cached_pages
from gpuload.engine import cold, reader
from gpuload.errors import ChunkReadError, ChunkSizeError, ConfigError
from gpuload.files.handle import FileHandle
from gpuload.request import Reason, Served

Make = Callable[..., Any]
KINDS = ("raw", "zlib", "shard", "zshard")
SELECTIONS: list[Any] = [
    ...,
    (slice(3, 290, 7), slice(5, 400)),
    (slice(None, None, -1), slice(100, 101)),
    (slice(60, 80), slice(120, 140)),
    (299, 516),
]
PAST = "io_uring (O_DIRECT)"


def numbers(shape: tuple[int, ...], dtype: str = "f4") -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(0, 200, shape).astype(dtype)


def reads_past_the_cache(folder: Path) -> bool:
    """Whether a file in this folder can be read by O_DIRECT, and says how."""
    path = folder / "probe"
    path.write_bytes(bytes(8192))
    with FileHandle.open_path(path) as handle:
        return cold._suits(handle).reason is None


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small reads count as large ones."""
    if registry.available("io_uring").reason is not None:
        pytest.skip("io_uring is not available here")
    monkeypatch.setattr(cold, "LEAST", 1)
    monkeypatch.setattr(cold, "SHORTEST", 1)


@pytest.fixture
def always(small: None, tmp_path: Path) -> Iterator[None]:
    if not reads_past_the_cache(tmp_path):
        pytest.skip("files here cannot be read by O_DIRECT")
    with config.set({"direct.cold": "always", "backend": "io_uring"}):
        yield


def backends(served: list[Any]) -> set[str]:
    return {event.backend for event in served if isinstance(event, Served)}


def declined(served: list[Any]) -> dict[str, Reason]:
    return {k: v for event in served if isinstance(event, Served) for k, v in event.declined.items()}


# ---------------------------------------------------------------------------------------------- right in every case


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_values_are_those_that_were_stored(
    always: None, stored: Make, served: list[Any], kind: str, selection: Any
) -> None:
    array = stored(numbers((300, 517)), (70, 130), kind=kind, missing=(3,))
    array.check(selection)
    assert backends(served) == {PAST}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["u1", "i2", "c16"])
def test_any_width_of_element(always: None, stored: Make, kind: str, dtype: str) -> None:
    with config.set({"piece_bytes": 5000, "batch_bytes": 20000}):  # pieces that end inside blocks, many batches
        array = stored(numbers((200, 131), dtype), (33, 50), kind=kind)
        array.check()
        array.check((slice(1, 199, 3), slice(7, 100)))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_range_of_any_file(data: st.DataObject) -> None:
    if registry.available("io_uring").reason is not None:
        pytest.skip("io_uring is not available here")
    size = data.draw(st.sampled_from([1, 511, 512, 513, 4095, 4096, 4097, 70_001]))
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if not reads_past_the_cache(Path(folder)):
            pytest.skip("files here cannot be read by O_DIRECT")
        patch.setattr(cold, "LEAST", 1)
        patch.setattr(cold, "SHORTEST", 1)
        path = Path(folder, "x")
        path.write_bytes(content.tobytes())
        start = data.draw(st.integers(0, size))
        length = data.draw(st.integers(0, size - start + 10))
        skip = data.draw(st.integers(0, 5))
        out = np.full(skip + length + 7, 0xA5, np.uint8)
        with config.set({"direct.cold": "always", "poison": True}), gpuload.RegisteredFile(path) as file:
            n = file.read_into(out, start, length, skip)
    assert n == min(length, size - start)
    assert bytes(out[skip : skip + n]) == content[start : start + n].tobytes()
    assert (out[:skip] == 0xA5).all()
    assert (out[skip + n :] == 0xA5).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_on_a_gpu(
    always: None, fake_cupy: ModuleType, stored: Make, served: list[Any], kind: str, selection: Any
) -> None:
    array = stored(numbers((300, 517)), (70, 130), kind=kind, missing=(2,))
    out = fake_cupy.empty(np.empty(array.shape)[selection].shape, array.dtype)
    request, _ = array.request(selection, out)
    reader.read(request)
    assert fake_cupy.asnumpy(out).tobytes() == np.asarray(array.full[selection], "f4").tobytes()
    assert backends(served) == {PAST}


def test_what_was_just_written_is_seen(always: None, stored: Make, served: list[Any]) -> None:
    array = stored(numbers((64, 64)), (64, 64))
    for value in range(3):
        array.full[:] = value
        array.path(0, 0).write_bytes(array.full.tobytes())  # in the page cache alone
        array.check()
    assert backends(served) == {PAST}


@pytest.mark.parametrize("kind", ["raw", "shard"])
@pytest.mark.parametrize("change", [-5000, -1, 1, 4096])
def test_a_file_that_changes_its_size_meanwhile(
    always: None, stored: Make, monkeypatch: pytest.MonkeyPatch, kind: str, change: int
) -> None:
    array = stored(numbers((64, 64)), (64, 64), kind=kind)
    path, look = array.path(0, 0), cold.road

    def late(request: Any) -> cold.Road:
        if request.handles is not None:  # they are open, and their sizes were looked at
            os.truncate(path, path.stat().st_size + change)
        return look(request)

    monkeypatch.setattr(cold, "road", late)
    if kind == "shard" and change > -4:  # only what is behind its last chunk, three bytes of gap, came or went
        array.check()
    else:
        with pytest.raises(ChunkSizeError):
            array.read()


# ---------------------------------------------------------------------------------------------- what can go wrong


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_that_the_kernel_refuses_come_through_the_page_cache(
    always: None, stored: Make, served: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    came = UringBackend._came_direct

    def refused(backend: UringBackend, lane: Lane, row: int, result: int) -> None:
        batch = lane.batch
        start = int(batch.address[row]) - batch.block.address
        if row % 2 or len(batch) == 1:
            result = -errno.EINVAL
            batch.block.array[start : start + int(batch.want[row])] = 0x5A
        came(backend, lane, row, result)

    monkeypatch.setattr(UringBackend, "_came_direct", refused)
    array = stored(numbers((300, 517)), (70, 130), kind=kind)
    array.check()
    assert backends(served) == {"io_uring"}
    assert declined(served) == {"o_direct": Reason.ODIRECT_REFUSED}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [4096, 8192])
def test_reads_that_come_short_are_finished(
    always: None, stored: Make, monkeypatch: pytest.MonkeyPatch, kind: str, most: int
) -> None:
    blocks = Lane._blocks

    def shortened(lane: Lane, offset: Any, address: Any, size: Any) -> Any:
        offset, address, size = blocks(lane, offset, address, size)
        return offset, address, np.minimum(size, most)

    monkeypatch.setattr(Lane, "_blocks", shortened)
    stored(numbers((300, 517)), (70, 130), kind=kind).check()


def test_a_read_error_is_one(always: None, stored: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    array = stored(numbers((300, 517)), (70, 130))
    with monkeypatch.context() as patch:
        blocks = Lane._blocks

        def nowhere(lane: Lane, offset: Any, address: Any, size: Any) -> Any:
            offset, address, size = blocks(lane, offset, address, size)
            lane.batch.registered = False
            return offset, np.full_like(address, 4096), size  # no memory there: EFAULT

        patch.setattr(Lane, "_blocks", nowhere)
        with pytest.raises(ChunkReadError, match="Bad address"):
            array.read()
    array.check()


def test_files_that_take_no_direct_reads(
    always: None, stored: Make, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: FileHandle) -> None:
        handle._unbuffered_reason = Reason.FD_LIMIT

    monkeypatch.setattr(FileHandle, "_open_unbuffered", refuse)
    stored(numbers((64, 64)), (32, 32)).check()
    assert backends(served) == {"io_uring"}
    assert declined(served) == {"o_direct": Reason.FD_LIMIT}


def test_a_descriptor_that_is_missing_after_the_look(
    always: None, stored: Make, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "LOOKS", 1)
    refused: list[str] = []
    opened = FileHandle._open_unbuffered

    def some(handle: FileHandle) -> None:
        if handle.key.endswith("1"):
            refused.append(handle.key)
            handle._unbuffered_reason = Reason.FD_LIMIT
        else:
            opened(handle)

    monkeypatch.setattr(FileHandle, "_open_unbuffered", some)
    stored(numbers((64, 64)), (32, 32)).check()
    assert refused
    assert backends(served) == {"io_uring"}
    assert declined(served) == {"o_direct": Reason.FD_LIMIT}


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no /dev/shm here")
def test_memory_is_no_drive(small: None, served: list[Any]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, config.set({"direct.cold": "always"}):
        path = Path(folder, "x")
        path.write_bytes(bytes(range(256)) * 64)
        out = np.zeros(16384, np.uint8)
        with gpuload.RegisteredFile(path) as file:
            if file.handle.geometry.file_system != "tmpfs":
                pytest.skip("/dev/shm is no tmpfs here")
            assert file.read_into(out) == 16384
    assert out.tobytes() == bytes(range(256)) * 64
    assert backends(served) == {"io_uring"}
    assert declined(served) == {"o_direct": Reason.FILE_SYSTEM}


# ---------------------------------------------------------------------------------------------- which reads


def drop(array: Any) -> None:
    for key in array.keys:
        fd = os.open(array.folder / key, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@pytest.fixture
def auto(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read could be kept in the page cache; a look tells what is."""
    if not reads_past_the_cache(tmp_path):
        pytest.skip("files here cannot be read by O_DIRECT")
    fd = os.open(tmp_path / "probe", os.O_RDONLY)
    try:
        cached_pages(fd, 0, 0)
    except OSError:
        pytest.skip("this kernel does not tell what is cached")
    finally:
        os.close(fd)
    monkeypatch.setattr(cold, "available_memory", lambda: 0)


@pytest.mark.parametrize("kind", KINDS)
def test_cold_files_are_read_past_the_cache_and_warm_ones_from_it(
    auto: None, stored: Make, served: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pages = {"cold": 0, "warm": 1 << 30, "mixed": 1}
    array = stored(numbers((300, 517)), (70, 130), kind=kind)
    for state, counted in pages.items():
        monkeypatch.setattr(cold, "cached_pages", lambda fd, offset, size, counted=counted: counted)
        served.clear()
        array.check()
        assert backends(served) == {PAST if state == "cold" else "io_uring"}
        assert declined(served) == {}


def test_the_kernel_tells_cold_from_warm(auto: None, stored: Make, served: list[Any]) -> None:
    array = stored(numbers((300, 517)), (70, 130))
    array.check()
    assert backends(served) == {"io_uring"}  # it was just written
    drop(array)
    if any(_cached(array.folder / key) for key in array.keys):
        pytest.skip("the page cache is not to be emptied here")
    served.clear()
    array.check()
    assert backends(served) == {PAST}
    assert not any(_cached(array.folder / key) for key in array.keys)  # nor did that fill it


def _cached(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return cached_pages(fd, 0, 0)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("code", "reason"), [(errno.ENOSYS, {"o_direct": Reason.KERNEL_TOO_OLD}), (errno.EPERM, {})])
def test_where_the_kernel_does_not_tell_reads_stay_with_the_cache(
    auto: None, stored: Make, served: list[Any], monkeypatch: pytest.MonkeyPatch, code: int, reason: dict[str, Reason]
) -> None:
    def refuse(fd: int, offset: int, size: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cold, "cached_pages", refuse)
    stored(numbers((64, 64)), (32, 32)).check()
    assert backends(served) == {"io_uring"}
    assert declined(served) == reason


@pytest.mark.parametrize("limit", ["LEAST", "SHORTEST", "memory", "never", "posix"])
def test_reads_that_are_not_meant_stay_with_the_cache(
    auto: None, stored: Make, served: list[Any], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(cold, "cached_pages", lambda fd, offset, size: 0)
    array = stored(numbers((64, 64)), (32, 32))
    options: dict[str, Any] = {}
    if limit == "memory":
        monkeypatch.setattr(cold, "available_memory", lambda: 2 * 64 * 64 * 4)
    elif limit == "never":
        options = {"direct.cold": "never"}
    elif limit == "posix":
        options = {"backend": "posix"}
    else:
        monkeypatch.setattr(cold, limit, 64 * 64 * 4 + 1)
    with config.set(options):
        array.check()
    assert backends(served) == {"posix" if limit == "posix" else "io_uring"}
    assert declined(served).get("o_direct") is None


def test_a_word_that_is_none_is_refused(stored: Make) -> None:
    array = stored(numbers((64, 64)), (32, 32))
    with config.set({"direct.cold": "sometimes"}), pytest.raises(ConfigError, match=r"direct\.cold = 'sometimes'"):
        array.read()


def test_the_record_counts_whole_blocks(always: None, stored: Make, served: list[Any]) -> None:
    array = stored(numbers((64, 64)), (64, 64), kind="shard")  # 16384 bytes, from byte 4 on
    array.check()
    (event,) = served
    align = event.moved[0] - 16384
    assert event.size.tolist() == [16384]
    assert align in (512, 4096)  # the blocks around it


def test_memory_that_is_available_is_told() -> None:
    assert 0 < cold.available_memory() < 1 << 50
