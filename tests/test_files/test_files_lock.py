"""The lock of a directory: one holder at a time, thread or process; nothing of it stays behind."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuload.errors import NotFoundError
from gpuload.files import lock
from gpuload.files.lock import locked
from gpuload.files.root import Root


def is_held(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "r" / "a").mkdir(parents=True)
    return Root(tmp_path / "r")


@pytest.mark.parametrize("directory", ["", "a", "a/"])
def test_it_is_held_in_the_block_alone(root: Root, directory: str) -> None:
    path = Path(root.path) / directory
    with locked(root, directory):
        assert is_held(path)
        assert not is_held(path.parent)
    assert not is_held(path)
    with pytest.raises(ZeroDivisionError), locked(root, directory):
        raise ZeroDivisionError
    assert not is_held(path)
    assert sorted(p.name for p in Path(root.path).rglob("*")) == ["a"]


def test_threads_take_turns(root: Root) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(50):
            with locked(root, "a"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                os.sched_yield()
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(500)
    assert most == [1]


HOLDING = """
import sys
from gpuload.files.lock import locked
from gpuload.files.root import Root

with locked(Root(sys.argv[1]), "a"):
    print("held", flush=True)
    sys.stdin.read()
"""


def started(program: str, root: Root) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", program, root.path]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_process_that_is_killed_lets_it_go(root: Root) -> None:
    with started(HOLDING, root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_held(Path(root.path) / "a")
        process.kill()
        process.wait(500)
    with locked(root, "a"):
        pass


FORKING = """
import os, sys
from gpuload.files.lock import locked
from gpuload.files.root import Root

reader, writer = os.pipe()
with locked(Root(sys.argv[1]), "a"):
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent has closed its end
        os._exit(0)
print("let go", flush=True)
sys.stdin.read()
os.close(writer)
os.waitpid(child, 0)
"""


def test_a_forked_child_does_not_keep_it(root: Root) -> None:
    with started(FORKING, root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"let go\n"
        assert not is_held(Path(root.path) / "a")
        process.communicate(timeout=500)
    assert process.returncode == 0


def test_the_directory_that_is_there_now_is_locked(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one was put in its place between the open and the lock."""
    path, flock = Path(root.path) / "a", fcntl.flock

    def late(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            monkeypatch.setattr(lock.fcntl, "flock", flock)
            path.rename(path.parent / "old")
            path.mkdir()
        flock(fd, operation)

    monkeypatch.setattr(lock.fcntl, "flock", late)
    with locked(root, "a"):
        assert is_held(path)
        assert not is_held(path.parent / "old")


def test_a_file_system_without_locks(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.EBADF, "as NFS says of a directory")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    done = []
    with locked(root, "a"):
        done.append(1)
    with pytest.raises(FileNotFoundError, match="mine"), locked(root, "a"):
        raise FileNotFoundError("mine")
    assert done == [1]


def test_no_directory(root: Root) -> None:
    with pytest.raises(FileNotFoundError), locked(root, "absent"):
        pass
    Path(root.path).rename(Path(root.path).parent / "gone")
    with pytest.raises(NotFoundError), locked(root, ""):
        pass
