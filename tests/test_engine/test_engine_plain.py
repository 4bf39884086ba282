"""Plain files: `RegisteredFile.read_into` with every argument, every buffer, and its rows in the record."""

from __future__ import annotations

import array
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload import config
from gpuload.engine.plain import RegisteredFile
from gpuload.errors import DestinationError, HandleClosedError, NotRegularFileError, StrictError
from gpuload.request import Decode, ReadPath, Reason, Served

SIZE = 100_003
DATA = np.random.default_rng(12).integers(0, 256, SIZE, np.uint8).tobytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plain") / "x.bin"
    made.write_bytes(DATA)
    return made


@given(
    file_offset=st.integers(0, SIZE + 100),
    size=st.none() | st.integers(0, SIZE + 100),
    buffer_offset=st.integers(0, 200),
    room=st.integers(0, SIZE + 500),
    piece=st.sampled_from([1000, 1 << 20]),
)
def test_any_range_into_any_place(
    path: Path, backend: str, file_offset: int, size: int | None, buffer_offset: int, room: int, piece: int
) -> None:
    buf = bytearray(b"\xa5" * room)
    with config.set(piece_bytes=piece), RegisteredFile(path) as f:
        asked = max(0, room - buffer_offset) if size is None else size
        if buffer_offset + asked > room:
            with pytest.raises(DestinationError):
                f.read_into(buf, file_offset, size, buffer_offset)
            assert buf == b"\xa5" * room
            return
        n = f.read_into(buf, file_offset=file_offset, size=size, buffer_offset=buffer_offset)
    wanted = DATA[file_offset : file_offset + asked]
    assert n == len(wanted)  # short only at the end of the file
    assert buf == b"\xa5" * buffer_offset + wanted + b"\xa5" * (room - buffer_offset - n)


@pytest.mark.parametrize(
    "buf",
    [
        bytearray(64),
        memoryview(bytearray(64)),
        memoryview(bytearray(64)).cast("i"),
        array.array("d", [0.0] * 8),
        np.zeros(64, np.uint8),
        np.zeros((4, 2), "<i8"),
        np.zeros((2, 2), "<c16"),
        np.zeros(8, ">f8"),
        np.zeros((), "V64"),
        np.zeros(2, [("a", "<i4"), ("b", "V28")]),
        np.zeros(8, "M8[ns]"),
        np.zeros(64, bool),
        np.zeros(16, "U1"),
    ],
    ids=lambda buf: f"{type(buf).__name__}-{getattr(buf, 'dtype', getattr(buf, 'format', ''))}",
)
def test_every_kind_of_buffer(buf: Any, path: Path, backend: str) -> None:
    with RegisteredFile(path) as f:
        assert f.read_into(buf, 7) == 64
        raw = bytes(memoryview(buf).cast("B")) if not isinstance(buf, np.ndarray) else buf.tobytes()
        assert raw == DATA[7:71]
        assert f.read_into(buf, 100, 5, 3) == 5
        raw = bytes(memoryview(buf).cast("B")) if not isinstance(buf, np.ndarray) else buf.tobytes()
        assert raw == DATA[7:10] + DATA[100:105] + DATA[15:71]


def test_buffers_that_are_refused(path: Path, backend: str) -> None:
    frozen = np.zeros(8)
    frozen.flags.writeable = False
    refused = [
        (bytes(8), "read-only"),
        (memoryview(bytes(8)), "read-only"),
        (frozen, "read-only"),
        (np.zeros((4, 4))[:, ::2], "contiguous"),
        (np.zeros(8)[::-1], "contiguous"),
        (np.zeros((4, 4), order="F"), "contiguous"),
        (memoryview(bytearray(8))[::2], "contiguous"),
    ]
    with RegisteredFile(path) as f:
        for buf, why in refused:
            with pytest.raises(DestinationError, match=why):
                f.read_into(buf)
        for arguments in [(-1,), (0, -1), (0, 1, -1), (0, 9), (0, 1, 8), (0, 0, 9)]:
            with pytest.raises(DestinationError):
                f.read_into(bytearray(8), *arguments)
        for buf in ["text", 5, None, [0] * 8, object()]:
            with pytest.raises((DestinationError, TypeError)):
                f.read_into(buf)


def test_two_descriptors_and_an_identity(path: Path, backend: str, descriptors: Any) -> None:
    f = RegisteredFile(path)
    f.read_into(bytearray(10))
    before = descriptors()
    with f:
        status = os.fstat(f.buffered_fd)
        assert f.size == SIZE == status.st_size
        assert f.path == str(path)
        if f.unbuffered_fd is None:
            assert f.unbuffered_reason is Reason.ODIRECT_REFUSED
        else:
            assert f.unbuffered_reason is None
            assert os.fstat(f.unbuffered_fd).st_ino == status.st_ino
            assert os.readlink(f"/proc/self/fd/{f.unbuffered_fd}") == str(path)
        assert f.handle.identity.inode == status.st_ino
    f.close()
    with pytest.raises(HandleClosedError):
        f.read_into(bytearray(1))
    assert str(path) not in descriptors()
    assert str(path) in before


def test_where_the_file_system_refuses_o_direct(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shm = Path("/proc/self/status")
    with RegisteredFile(shm) as f:
        assert f.unbuffered_fd is None
        assert f.unbuffered_reason is Reason.ODIRECT_REFUSED


def test_rows_of_the_record(path: Path, backend: str, served: list[Any]) -> None:
    with config.set(piece_bytes=1000), RegisteredFile(path) as f:
        f.read_into(bytearray(2500), 500)
        f.read_into(bytearray(2500), SIZE - 7)
        f.read_into(bytearray(10), SIZE)
        f.read_into(bytearray(0))
    blocks = [event for event in served if isinstance(event, Served)]
    rows = [
        (block.keys[key], offset, size, moved)
        for block in blocks
        for key, offset, size, moved in zip(
            block.key_index.tolist(), block.file_offset.tolist(), block.size.tolist(), block.moved.tolist(), strict=True
        )
    ]
    assert rows == [
        ("x.bin", 500, 1000, 1000),
        ("x.bin", 1500, 1000, 1000),
        ("x.bin", 2500, 500, 500),
        ("x.bin", SIZE - 7, 7, 7),
    ]
    for block in blocks:
        assert (block.backend, block.read_path, block.decode) == (backend, ReadPath.FALLBACK, Decode.NONE)
        assert isinstance(block.reason, Reason)
        assert (block.latency >= 0).all()
        assert block.started <= block.ended


def test_what_is_no_file(tmp_path: Path, descriptors: Any) -> None:
    before = descriptors()
    os.mkfifo(tmp_path / "fifo")
    for name, error in [("fifo", NotRegularFileError), (".", NotRegularFileError), ("none", FileNotFoundError)]:
        with pytest.raises(error):
            RegisteredFile(tmp_path / name)
    assert descriptors() == before


def test_a_file_that_grows_and_shrinks(tmp_path: Path, backend: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123")
    with RegisteredFile(path) as f:
        buf = bytearray(10)
        assert f.read_into(buf) == 4
        path.write_bytes(b"01234567")
        assert f.read_into(buf) == 8
        os.truncate(path, 3)
        assert f.read_into(buf) == 3
        assert f.size == 3


def test_it_is_closed_only_when_nobody_reads(path: Path, backend: str) -> None:
    from gpuload.errors import HandleInUseError

    f = RegisteredFile(path)
    with f.handle.lease(), pytest.raises(HandleInUseError):
        f.close()
    assert f.read_into(bytearray(5)) == 5
    f.close()
    f.close()


def test_strict_refuses_the_fallback(path: Path, backend: str) -> None:
    buf = bytearray(5)
    with RegisteredFile(path) as f, config.set(strict=True):
        with pytest.raises(StrictError):
            f.read_into(buf)
        assert f.read_into(buf, SIZE) == 0
    assert buf == bytes(5)
