"""Writing whole files: old or new, never a mixture, nothing outside, nothing left behind."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuload.bindings import syscalls
from gpuload.errors import ChunkWriteError, EscapesStoreError
from gpuload.files import writer as module
from gpuload.files.root import Root
from gpuload.files.writer import Writer, is_temporary

WAYS = [True, False] if syscalls.openat2_supported() else [False]


@pytest.fixture(params=WAYS, ids=["openat2" if way else "walk" for way in WAYS])
def root(tmp_path: Path, request: Any, no_leak: Any) -> Iterator[Root]:
    (tmp_path / "store").mkdir()
    with Root(tmp_path / "store", openat2=request.param) as opened:
        yield opened


def everything(path: str | Path) -> set[str]:
    """All that is below a directory, directories too."""
    return {os.path.relpath(os.path.join(at, name), path) for at, ds, fs in os.walk(path) for name in ds + fs}


def test_writes_replaces_and_deletes(root: Root) -> None:
    with Writer(root) as writer:
        writer.write("a/b/c", b"one ", bytearray(b"two"), memoryview(b" three"))
        assert Path(root.path, "a/b/c").read_bytes() == b"one two three"
        writer.write("a/b/c", b"")
        assert Path(root.path, "a/b/c").read_bytes() == b""
        writer.write("top", b"x")
        assert everything(root.path) == {"a", "a/b", "a/b/c", "top"}
        for _ in range(2):
            writer.delete("a/b/c")
        writer.delete("no/such/directory")
        writer.delete("top/nor/this")
    assert everything(root.path) == {"a", "a/b", "top"}


def test_in_any_order_with_room_between(root: Root) -> None:
    with Writer(root) as writer, writer.create("shard") as file:
        assert file.write(8, b"later") == 5
        file.write(0, b"first")
        file.extend(16)
        file.extend(3)
        assert not os.path.exists(os.path.join(root.path, "shard"))
    assert Path(root.path, "shard").read_bytes() == b"first\0\0\0later\0\0\0"


def test_an_error_in_the_block_leaves_the_old_file(root: Root) -> None:
    writer = Writer(root)
    writer.write("k", b"old")

    def interrupted() -> None:
        with writer.create("k") as file:
            file.write(0, b"new")
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert Path(root.path, "k").read_bytes() == b"old"
    assert everything(root.path) == {"k"}


@pytest.mark.parametrize("key", ["../out", "a/../../out", "/out", "", "a/", ".", "a/.", "nul\0"])
def test_keys_that_leave_or_name_no_file(root: Root, key: str) -> None:
    writer = Writer(root)
    for act in (lambda: writer.write(key, b"x"), lambda: writer.delete(key)):
        with pytest.raises(EscapesStoreError):
            act()
    assert everything(os.path.dirname(root.path)) == {"store"}


def test_links_do_not_lead_out(root: Root, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"theirs")
    os.symlink("../outside", os.path.join(root.path, "away"))
    os.symlink("../outside/file", os.path.join(root.path, "link"))
    writer = Writer(root)
    for key in ("away/file", "away/new", "away/deep/new"):
        with pytest.raises(EscapesStoreError):
            writer.write(key, b"x")
    with pytest.raises(EscapesStoreError):
        writer.delete("away/file")
    # A link in the place of the file itself is replaced, as any file there is.
    writer.write("link", b"ours")
    assert not os.path.islink(os.path.join(root.path, "link"))
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"file": b"theirs"}


def test_links_that_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "outside").mkdir()
    os.symlink("../outside", tmp_path / "store" / "away")
    with Root(tmp_path / "store", follow_links=True) as root:
        Writer(root).write("away/deep/new", b"x")
    assert (tmp_path / "outside" / "deep" / "new").read_bytes() == b"x"


def test_a_file_where_a_directory_should_be(root: Root) -> None:
    writer = Writer(root)
    writer.write("a", b"x")
    with pytest.raises(ChunkWriteError, match="'a/b'") as caught:
        writer.write("a/b", b"y")
    assert (caught.value.errno, caught.value.key) == (errno.ENOTDIR, "a/b")
    writer.write("d/e", b"y")
    with pytest.raises(ChunkWriteError, match="'d'") as caught:
        writer.write("d", b"z")
    assert caught.value.errno == errno.EISDIR
    with pytest.raises(ChunkWriteError):
        writer.delete("d")
    assert everything(root.path) == {"a", "d", "d/e"}


def test_a_limit_of_file_size(root: Root, run_python: Any) -> None:
    Path(root.path, "k").write_bytes(b"old")
    program = """
import errno, resource, sys
from gpuload.errors import ChunkWriteError
from gpuload.files.root import Root
from gpuload.files.writer import Writer
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10000, before[1]))
try:
    Writer(Root(sys.argv[1])).write("k", b"n" * 9000, b"n" * 9000)
except ChunkWriteError as error:
    print(error.key, error.errno == errno.EFBIG)
resource.setrlimit(resource.RLIMIT_FSIZE, before)  # what measures the coverage writes a file at the end
"""
    assert run_python(program, root.path) == "k True\n"
    assert Path(root.path, "k").read_bytes() == b"old"
    assert everything(root.path) == {"k"}


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "mounted"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "gpuload-test", place], capture_output=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_and_a_read_only_one(mounted: Path) -> None:
    with Root(mounted) as root:
        writer = Writer(root)
        writer.write("k", b"old")
        with pytest.raises(ChunkWriteError) as caught:
            writer.write("k", bytes(1 << 20))
        assert caught.value.errno == errno.ENOSPC
        assert everything(mounted) == {"k"}
        subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
        for act in (lambda: writer.write("k", b"new"), lambda: writer.write("d/k", b"new"), lambda: writer.delete("k")):
            with pytest.raises(ChunkWriteError) as caught:
                act()
            assert caught.value.errno == errno.EROFS
        assert (mounted / "k").read_bytes() == b"old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_others(root: Root) -> None:
    os.chmod(root.path, 0o555)
    with pytest.raises(ChunkWriteError) as caught:
        Writer(root).write("k", b"x")
    assert caught.value.errno == errno.EACCES


def leftover(directory: str, key: str) -> str:
    """What a writer of `key` that was killed leaves in `directory`."""
    at = os.open(directory, os.O_RDONLY)
    name, fd = module._make(at, key)
    os.close(fd)
    os.close(at)
    return name


def test_names_of_temporary_files(root: Root) -> None:
    name = leftover(root.path, "k" * 255)
    assert is_temporary(name)
    for other in ("c", ".zarray", "zarr.json", ".gpuload", f"{name}x", f"x{name}", name.upper(), name + "\n"):
        assert not is_temporary(other)
    with pytest.raises(ChunkWriteError, match="temporary"):
        Writer(root).write(name, b"x")


def test_what_a_killed_writer_left_goes_with_the_next_write_of_the_key(root: Root) -> None:
    writer = Writer(root)
    writer.write("k", b"0")
    leftover(root.path, "k")
    kept = leftover(root.path, "another")
    writer.write("k", b"1")
    assert everything(root.path) == {"k", kept}
    writer.write("another", b"2")
    assert everything(root.path) == {"k", "another"}


def test_what_a_killed_writer_left_goes_with_the_first_write_to_the_directory(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover(root.path, "another")
    monkeypatch.setattr(module, "_swept", set())
    Writer(root).write("k", b"1")
    assert everything(root.path) == {"k"}


def test_what_is_being_written_stays(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_swept", set())
    first, second = Writer(root), Writer(root)
    with first.create("k") as a:
        a.write(0, b"first")
        monkeypatch.setattr(module, "_swept", set())
        with second.create("k") as b:
            b.write(0, b"second, longer")
            assert len(everything(root.path)) == 2
        assert Path(root.path, "k").read_bytes() == b"second, longer"
    assert Path(root.path, "k").read_bytes() == b"first"  # the last to finish wins, whole
    assert everything(root.path) == {"k"}


def test_without_locks_nothing_is_taken_for_abandoned(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    kept = leftover(root.path, "k")
    Writer(root).write("k", b"x")
    assert everything(root.path) == {"k", kept}


def test_a_temporary_file_that_vanishes_before_it_is_locked(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = module._lock
    seen = []

    def late(fd: int) -> bool | None:
        if not seen:
            seen.append(fd)
            (name,) = everything(root.path)
            os.unlink(os.path.join(root.path, name))  # as somebody does who found it without a lock
        return lock(fd)

    monkeypatch.setattr(module, "_lock", late)
    Writer(root).write("k", b"x")
    assert everything(root.path) == {"k"}


def test_foreign_things_with_temporary_names_stay(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = leftover(root.path, "k")
    makes: tuple[Callable[[str], None], ...] = (
        os.mkdir,
        functools.partial(os.symlink, tmp_path / "precious"),
        os.mkfifo,
    )
    for make in makes:
        path = os.path.join(root.path, name)
        os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
        make(path)
        (tmp_path / "precious").write_bytes(b"precious")
        monkeypatch.setattr(module, "_swept", set())
        Writer(root).write("k", b"x")
        assert os.path.lexists(path)
        assert (tmp_path / "precious").read_bytes() == b"precious"


def test_durable_syncs_the_file_before_its_name_and_then_the_directories(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(fd: int) -> None:
        calls.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), root.path))
        fsync(fd)

    def noted_rename(*arguments: Any, **options: Any) -> None:
        calls.append("rename")
        rename(*arguments, **options)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    with Writer(root, durable=True) as writer:
        writer.write("a/b/k", b"x")
        writer.write("a/b/l", b"x")
        writer.delete("k")
    assert [is_temporary(os.path.basename(name)) for name in calls[:4]] == [True, False, True, False]
    assert [calls[1], calls[3], *calls[4:]] == ["rename", "rename", "a/b", "a", "."]
    writer.close()
    assert len(calls) == 7
    with Writer(root) as writer:
        writer.write("k", b"x")
    assert calls[7:] == ["rename"]


def test_each_content_has_a_time_of_its_own(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever keeps what it knows of a file by inode, size and times must never take a new one for an old one, and many
    # kernels count time in ticks of some milliseconds. So the time is one that is asked for.
    now = iter(range(10**18, 10**18 + 2))
    monkeypatch.setattr(module.time, "time_ns", lambda: next(now))
    for at in (10**18, 10**18 + 1):
        Writer(root).write("k", b"x")
        assert os.stat(os.path.join(root.path, "k")).st_mtime_ns == at


def test_directories_that_others_delete_meanwhile(root: Root) -> None:
    stop = threading.Event()

    def remove() -> None:
        while not stop.is_set():
            for directory in ("a/b", "a"):
                try:
                    os.rmdir(os.path.join(root.path, directory))
                except OSError:
                    pass

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        writer = Writer(root)
        for _ in range(100):
            writer.write("a/b/k", b"x")
            writer.delete("a/b/k")
    finally:
        stop.set()
        thread.join()


WRITING = """
import sys
from gpuload.files.root import Root
from gpuload.files.writer import Writer
writer = Writer(Root(sys.argv[1]))
print("ready", flush=True)
n = 0
while True:
    n += 1
    writer.write("d/k", bytes([n % 251]) * 70_000, bytes([n % 251]) * 70_000)
"""


def test_readers_see_one_content_whole_and_kill_leaves_it(root: Root) -> None:
    path = Path(root.path, "d", "k")
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITING, root.path], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            contents = set()
            while len(contents) < 5:  # until some have been written: then in the middle of one
                if path.exists():
                    data = path.read_bytes()
                    assert len(data) == 140_000
                    assert len(set(data)) == 1
                    contents.add(data[0])
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        assert len(set(path.read_bytes())) == 1
        assert all(name == "k" or is_temporary(name) for name in os.listdir(path.parent))
    Writer(root).write("d/k", b"the last one")
    assert path.read_bytes() == b"the last one"
    assert everything(root.path) == {"d", "d/k"}


def test_many_threads_write_one_key(root: Root) -> None:
    writer = Writer(root)
    barrier = threading.Barrier(4)

    def write(n: int) -> None:
        barrier.wait()
        for _ in range(50):
            writer.write("k", bytes([n]) * 5000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(set(Path(root.path, "k").read_bytes())) == 1
    assert everything(root.path) == {"k"}
