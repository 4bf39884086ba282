"""What is no regular file, cannot be opened or has another size is named, and nothing is left behind."""

from __future__ import annotations

import os
import socket
import stat
import threading
from typing import Any

import numpy as np
import pytest

from gpuload import config
from gpuload.engine import reader
from gpuload.errors import (
    ChunkDecodeError,
    ChunkError,
    ChunkReadError,
    ChunkSizeError,
    EscapesStoreError,
    NotRegularFileError,
)

KINDS = ["raw", "zlib"]

pytestmark = pytest.mark.usefixtures("road")


@pytest.fixture
def array(stored: Any, request: pytest.FixtureRequest) -> Any:
    return stored(np.arange(24, dtype="<i8").reshape(6, 4), (1, 4), kind=request.param)


def refused(array: Any, error: type[Exception], match: str, descriptors: Any) -> Exception:
    """The read fails so, three times in a row, leaves no descriptor, and all else can still be read."""
    array.check(np.s_[3:])  # what stays open for good is open now
    before = descriptors()
    for _ in range(3):
        with pytest.raises(error, match=match) as raised:
            array.read()
        assert type(raised.value) is error
    assert descriptors() == before
    array.check(np.s_[3:])
    return raised.value


@pytest.mark.parametrize("array", KINDS, indirect=True)
def test_a_directory(array: Any, backend: str, descriptors: Any) -> None:
    array.path(1, 0).unlink()
    array.path(1, 0).mkdir()
    error = refused(array, NotRegularFileError, "a directory", descriptors)
    assert error.key == "c/1/0"


@pytest.mark.parametrize("array", KINDS, indirect=True)
def test_a_fifo_that_nobody_writes(array: Any, backend: str, descriptors: Any) -> None:
    array.path(1, 0).unlink()
    os.mkfifo(array.path(1, 0))
    refused(array, NotRegularFileError, "a FIFO", descriptors)


@pytest.mark.parametrize("array", KINDS, indirect=True)
def test_a_fifo_with_a_silent_writer(array: Any, backend: str, descriptors: Any) -> None:
    array.path(1, 0).unlink()
    os.mkfifo(array.path(1, 0))
    writer = os.open(array.path(1, 0), os.O_RDWR)
    try:
        refused(array, NotRegularFileError, "a FIFO", descriptors)
    finally:
        os.close(writer)


@pytest.mark.parametrize("array", KINDS, indirect=True)
def test_a_fifo_beside_much_else(array: Any, backend: str, stored: Any) -> None:
    """Other reads keep going while the FIFO's waits to be found out."""
    array.path(1, 0).unlink()
    os.mkfifo(array.path(1, 0))
    writer = os.open(array.path(1, 0), os.O_RDWR)
    other = stored(np.arange(1000, dtype="<i4"), (10,))
    found: list[BaseException] = []

    def read() -> None:
        try:
            array.read()
        except ChunkError as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        while thread.is_alive():
            other.check()
        thread.join()
    finally:
        os.close(writer)
    assert isinstance(found[0], NotRegularFileError)


@pytest.mark.parametrize("array", KINDS, indirect=True)
def test_a_socket(array: Any, backend: str, descriptors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    array.path(1, 0).unlink()
    monkeypatch.chdir(array.path(1, 0).parent)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("0")
        refused(array, NotRegularFileError, "a socket", descriptors)


@pytest.mark.parametrize("device", [(1, 5), (1, 3), (1, 7)], ids=["zero", "null", "full"])
@pytest.mark.parametrize("array", KINDS, indirect=True)
def test_a_device(array: Any, device: tuple[int, int], backend: str, descriptors: Any) -> None:
    array.path(1, 0).unlink()
    try:
        os.mknod(array.path(1, 0), 0o666 | stat.S_IFCHR, os.makedev(*device))
        os.close(os.open(array.path(1, 0), os.O_RDONLY))
    except PermissionError:
        pytest.skip("only root may make device nodes, on a file system that allows them")
    refused(array, NotRegularFileError, "a character device", descriptors)


def test_a_part_of_a_device(stored: Any, backend: str) -> None:
    array = stored(np.arange(24, dtype="<i8").reshape(6, 4), (2, 4))
    array.path(1, 0).unlink()
    try:
        os.mknod(array.path(1, 0), 0o666 | stat.S_IFCHR, os.makedev(1, 5))
        os.close(os.open(array.path(1, 0), os.O_RDONLY))
    except PermissionError:
        pytest.skip("only root may make device nodes, on a file system that allows them")
    with pytest.raises(NotRegularFileError, match="a character device"):
        array.read(np.s_[2])


@pytest.mark.parametrize("array", KINDS, indirect=True)
def test_a_link_out_of_the_store(array: Any, backend: str, descriptors: Any) -> None:
    outside = array.folder.parent / "outside"
    os.replace(array.path(1, 0), outside)
    array.path(1, 0).symlink_to(outside)
    refused(array, EscapesStoreError, "c/1/0", descriptors)


@pytest.mark.parametrize("size", [0, 5, 31, 33, 40])
@pytest.mark.parametrize("selection", [np.s_[:], np.s_[1], np.s_[1, 0], np.s_[::-1, 1:3], np.s_[1, 3]])
def test_a_raw_chunk_of_another_size(size: int, selection: Any, stored: Any, backend: str) -> None:
    array = stored(np.arange(24, dtype="<i8").reshape(6, 4), (1, 4))
    array.path(1, 0).write_bytes(bytes(size))
    with pytest.raises(ChunkSizeError, match=f"expected 32 bytes, found {size}") as raised:
        array.read(selection)
    assert (raised.value.key, raised.value.expected, raised.value.actual) == ("c/1/0", 32, size)
    array.check(np.s_[2:])


@pytest.mark.parametrize("change", [-5, 8])
def test_a_large_chunk_of_another_size(change: int, stored: Any, backend: str) -> None:
    with config.set(piece_bytes=4096):
        array = stored(np.arange(3 * 9000, dtype="<i4").reshape(3, 9000), (1, 9000))
        os.truncate(array.path(1, 0), 36000 + change)
        for selection in [np.s_[:], np.s_[1, :10], np.s_[1, 8990:], np.s_[1, 4000:4001]]:
            with pytest.raises(ChunkSizeError, match=f"expected 36000 bytes, found {36000 + change}"):
                array.read(selection)
        array.check(np.s_[::2])


@pytest.mark.parametrize("kind", ["shard", "zshard"])
def test_a_shard_that_was_cut(kind: str, stored: Any, backend: str) -> None:
    array = stored(np.arange(24, dtype="<i8").reshape(6, 4), (1, 4), kind=kind)
    array.check()
    os.truncate(array.folder / "shard.1", 20)
    with pytest.raises(ChunkSizeError, match=r"'shard\.1'.*found 20"):
        array.read()
    array.check(np.s_[:3])


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x78\x01\x01"])
def test_bytes_that_cannot_be_decoded(content: bytes, stored: Any, backend: str) -> None:
    array = stored(np.arange(24, dtype="<i8").reshape(6, 4), (1, 4), kind="zlib")
    array.path(1, 0).write_bytes(content)
    with pytest.raises(ChunkDecodeError, match="c/1/0") as raised:
        array.read()
    assert raised.value.key == "c/1/0"
    array.check(np.s_[2:])


def test_a_chunk_that_decodes_to_another_size(stored: Any, backend: str) -> None:
    import zlib

    array = stored(np.arange(24, dtype="<i8").reshape(6, 4), (1, 4), kind="zlib")
    array.path(1, 0).write_bytes(zlib.compress(bytes(31)))
    with pytest.raises(ChunkDecodeError, match="31 bytes, not 32"):
        array.read()
    array.check(np.s_[2:])


def test_keys_that_leave_the_store(stored: Any, backend: str) -> None:
    array = stored(np.arange(4), (1,))
    for key in ["../x", "/etc/passwd", "a/../../b", "", "a\0b"]:
        array.keys[2] = key
        with pytest.raises(EscapesStoreError):
            array.read()


def test_unreadable_files_of_another_user(tmp_path: Any, python: Any) -> None:
    """EACCES, in a process without the capabilities that exempt root: first it proves that they are gone."""
    os.chmod(tmp_path, 0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.getuid() and len(folder.parts) > 2:
            os.chmod(folder, folder.stat().st_mode | 0o055)
    script = """
from gpuload.errors import ChunkReadError
folder = Path(sys.argv[1]) / "a"
arrays = [t.Stored(folder / kind, np.arange(24).reshape(6, 4), (1, 4), kind=kind) for kind in ("raw", "zlib", "shard")]
for path in folder.rglob("*"):
    path.chmod(0o755)
for array in arrays:
    array.path(1, 0).chmod(0)
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
try:
    open(arrays[0].path(1, 0), "rb")
    raise SystemExit("the permission does not bite")
except PermissionError:
    pass
for backend in ("io_uring", "posix"):
    for array in arrays:
        with config.set(backend=backend, poison=True):
            array.check(np.s_[3:])
            before = t.open_descriptors()
            for _ in range(2):
                try:
                    array.read()
                except ChunkReadError as error:
                    assert error.errno == 13 and "Permission denied" in str(error), error
                    assert error.key == array.keys[array.where[1, 0][0]], error
                else:
                    raise SystemExit("no error")
            array.check(np.s_[3:])
            assert t.lent() == 0
            assert t.open_descriptors() == before
            print(backend, array.kind)
"""
    way = config.get("direct.host")
    printed = python(script, tmp_path, other_user=True, GPULOAD_DIRECT__HOST=way)
    assert printed.split("\n") == [f"{b} {k}" for b in ("io_uring", "posix") for k in ("raw", "zlib", "shard")]


def test_fetch_refuses_what_is_no_file(tmp_path: Any, stored: Any, backend: str, descriptors: Any) -> None:
    array = stored(np.arange(4), (1,))
    os.mkfifo(array.folder / "fifo")
    (array.folder / "empty").write_bytes(b"")
    before = descriptors()
    for key, error in [("fifo", NotRegularFileError), ("c", NotRegularFileError), ("../x", EscapesStoreError)]:
        with pytest.raises(error):
            reader.fetch(array.root, [key])
    assert descriptors() == before
    empty, none = reader.fetch(array.root, ["empty", "none"])
    assert (len(empty), none) == (0, None)


def test_the_errno_is_kept(stored: Any, backend: str) -> None:
    array = stored(np.arange(4), (1,))
    array.path(2).unlink()
    array.path(2).symlink_to("2")  # a link to itself
    with pytest.raises(ChunkReadError, match="c/2") as raised:
        array.read()
    assert raised.value.errno == 40
