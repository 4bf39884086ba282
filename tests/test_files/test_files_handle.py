"""Handles: descriptors, drivers, leases and the order in which all of it ends."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuload.errors import (
    AlreadyRegisteredError,
    ChunkReadError,
    HandleClosedError,
    HandleError,
    HandleInUseError,
    NotFoundError,
    NotRegularFileError,
)
from gpuload.files.geometry import geometry
from gpuload.files.handle import FileHandle, reopen_unbuffered
from gpuload.files.root import Root
from gpuload.request import Reason

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"0123456789")
    return tmp_path / "file"


def refusing(number: int) -> Callable[[int, int], int]:
    def reopen(fd: int, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    return reopen


def takes_direct(path: str | os.PathLike[str]) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def same_file(first: int, second: int) -> bool:
    return os.path.sameopenfile(first, second)


@pytest.mark.parametrize("where", ["tmp_path", "/dev/shm"])
def test_both_descriptors_are_of_the_same_file(where: str, tmp_path: Path) -> None:
    path = (tmp_path if where == "tmp_path" else Path(where)) / f"gpuload-test-{os.getpid()}"
    path.write_bytes(b"x" * 8192)
    try:
        with FileHandle.open_path(path) as handle:
            assert handle.size == 8192
            assert handle.descriptors == 1
            assert handle.buffered_fd >= 0
            if takes_direct(path):
                assert handle.unbuffered_fd is not None
                assert handle.unbuffered_reason is None
                assert handle.unbuffered_fd != handle.buffered_fd
                assert same_file(handle.unbuffered_fd, handle.buffered_fd)
                assert handle.descriptors == 2
                assert handle.unbuffered_fd == handle.unbuffered_fd
            else:
                assert handle.unbuffered_fd is None
                assert handle.unbuffered_reason is Reason.ODIRECT_REFUSED
            assert handle.geometry == geometry(handle.buffered_fd)
    finally:
        path.unlink()


def test_the_flags_of_the_descriptors(path: Path) -> None:
    import fcntl

    with FileHandle.open_path(path) as handle:
        flags = fcntl.fcntl(handle.buffered_fd, fcntl.F_GETFL)
        assert not flags & (os.O_NONBLOCK | os.O_DIRECT)
        assert flags & os.O_ACCMODE == os.O_RDONLY
        if handle.unbuffered_fd is not None:
            flags = fcntl.fcntl(handle.unbuffered_fd, fcntl.F_GETFL)
            assert flags & os.O_DIRECT
            assert flags & os.O_ACCMODE == os.O_RDONLY
            assert not os.get_inheritable(handle.unbuffered_fd)
        assert not os.get_inheritable(handle.buffered_fd)
    with FileHandle.open_path(path, writable=True) as handle:
        assert os.pwrite(handle.buffered_fd, b"abc", 0) == 3
        if handle.unbuffered_fd is not None:
            assert fcntl.fcntl(handle.unbuffered_fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    assert path.read_bytes() == b"abc3456789"


def test_a_file_that_refuses_direct_io_says_so() -> None:
    """procfs takes no O_DIRECT on any kernel."""
    assert not takes_direct("/proc/version")
    with FileHandle.open_path("/proc/version") as handle:
        assert handle.unbuffered_fd is None
        assert handle.unbuffered_reason is Reason.ODIRECT_REFUSED
        assert handle.descriptors == 1


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT, errno.EACCES])
def test_a_refusal_is_remembered(path: Path, number: int) -> None:
    calls: list[int] = []

    def reopen(fd: int, flags: int) -> int:
        calls.append(fd)
        raise OSError(number, os.strerror(number))

    with FileHandle.open_path(path, reopen=reopen) as handle:
        for _ in range(3):
            assert handle.unbuffered_fd is None
            assert handle.unbuffered_reason is Reason.ODIRECT_REFUSED
        assert calls == [handle.buffered_fd]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_want_of_descriptors_is_not_held_against_the_file(path: Path, number: int) -> None:
    scarce = [True]

    def reopen(fd: int, flags: int) -> int:
        if scarce[0]:
            raise OSError(number, os.strerror(number))
        return os.dup(fd)

    with FileHandle.open_path(path, reopen=reopen) as handle:
        assert handle.unbuffered_fd is None
        assert handle.unbuffered_reason is Reason.FD_LIMIT
        scarce[0] = False
        assert handle.unbuffered_fd is not None
        assert handle.unbuffered_reason is None


def test_an_allowance_is_kept(path: Path, make_driver: Any) -> None:
    with FileHandle("k", str(path), os.open(path, os.O_RDONLY), allowance=1) as handle:
        assert handle.unbuffered_fd is None
        assert handle.unbuffered_reason is Reason.FD_LIMIT
        driver = make_driver(descriptors=1)
        with pytest.raises(HandleError, match="reserved"):
            handle.register(driver)
        assert driver.calls == []
    with FileHandle(
        "k", str(path), os.open(path, os.O_RDONLY), allowance=3, reopen=lambda fd, flags: os.dup(fd)
    ) as handle:
        handle.register(make_driver(descriptors=1))
        assert handle.unbuffered_fd is not None
        assert handle.descriptors == 3


def test_a_handle_from_a_root(tmp_path: Path, path: Path) -> None:
    with Root(tmp_path) as root:
        with FileHandle.open(root, "file") as handle:
            assert handle.key == "file"
            assert handle.path == str(path)
            assert os.pread(handle.buffered_fd, 4, 3) == b"3456"
            assert handle.identity.matches(os.stat(path))
        with pytest.raises(FileNotFoundError):
            FileHandle.open(root, "nothing")


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket", "device", "link to a device"])
@pytest.mark.parametrize("way", ["root", "walk", "path", "writable"])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: Any, no_leak: Any, open_fds: Any, kind: str, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    listening = socket.socket(socket.AF_UNIX)
    if kind == "fifo":
        os.mkfifo("key")
    elif kind == "directory":
        os.mkdir("key")
    elif kind == "socket":
        listening.bind("key")
    elif kind == "link to a device":
        os.symlink("/dev/null", "key")
    elif kind == "device":
        if os.getuid() == 0:
            os.mknod("key", 0o600 | 0o020000, os.makedev(1, 3))
        else:
            os.symlink("/dev/null", "key")
    before = open_fds()
    if way in ("path", "writable"):
        with pytest.raises(NotRegularFileError, match="key"):
            FileHandle.open_path("key", writable=way == "writable")
    else:
        options = {"follow_links": "device" in kind, "openat2": None if way == "root" else False}
        with Root(tmp_path, **options) as root, pytest.raises(NotRegularFileError, match="key"):
            FileHandle.open(root, "key")
    assert open_fds() == before
    listening.close()


def test_a_path_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        FileHandle.open_path(tmp_path / "nothing")
    os.symlink("loop", tmp_path / "loop")
    with pytest.raises(ChunkReadError) as caught:
        FileHandle.open_path(tmp_path / "loop")
    assert caught.value.errno == errno.ELOOP


def test_a_descriptor_that_is_refused_is_closed(tmp_path: Path) -> None:
    with pytest.raises(NotRegularFileError):
        FileHandle("key", "path", os.open(tmp_path, os.O_RDONLY))


# -------------------------------------------------------------------- drivers


def test_a_driver_is_told_before_the_descriptors_close(path: Path, make_driver: Any) -> None:
    first, second = make_driver("first"), make_driver("second", descriptors=2)
    handle = FileHandle.open_path(path, reopen=lambda fd, flags: os.dup(fd))
    handle.register(first)
    handle.register(second)
    assert handle.descriptors == 4
    assert handle.registration("first") is not None
    assert handle.registration("third") is None
    handle.close()
    handle.close()
    assert first.calls == [("register", str(path)), ("deregister", str(path))]
    assert second.calls == [("register", str(path)), ("deregister", str(path))]
    assert handle.descriptors == 0
    assert handle.closed


def test_the_recording_driver_would_notice_the_wrong_order(path: Path, make_driver: Any) -> None:
    driver = make_driver()
    handle = FileHandle.open_path(path)
    handle.register(driver)
    token = handle.registration("recording")
    handle.close()
    driver._own[str(path)] = []
    driver.deregister(token)
    assert driver.calls[-1] == ("deregister after close", str(path))


def test_a_second_registration_is_refused(path: Path, make_driver: Any) -> None:
    with FileHandle.open_path(path) as handle:
        driver = make_driver()
        handle.register(driver)
        with pytest.raises(AlreadyRegisteredError, match="recording"):
            handle.register(make_driver())
        handle.deregister("recording")
        handle.deregister("recording")
        assert driver.calls == [("register", str(path)), ("deregister", str(path))]
        handle.register(driver)


def test_a_driver_may_come_back_to_the_handle_while_it_is_called(path: Path) -> None:
    class Curious:
        name, descriptors = "curious", 0

        def register(self, handle: FileHandle) -> object:
            with handle.lease():
                assert handle.unbuffered_fd is not None or handle.unbuffered_reason
                assert handle.geometry
            with pytest.raises(AlreadyRegisteredError):
                handle.register(self)
            with pytest.raises(HandleInUseError, match="curious"):
                handle.close()
            return handle

        def deregister(self, token: Any) -> None:
            assert token.registration("curious") is None or token.closed
            if not token.closed:
                with pytest.raises(HandleInUseError):
                    token.close()
                with pytest.raises(AlreadyRegisteredError):
                    token.register(self)

    with FileHandle.open_path(path) as handle:
        handle.register(Curious())
        handle.deregister("curious")
        handle.register(Curious())


def test_a_failed_registration_leaves_nothing(path: Path, make_driver: Any, open_fds: Any) -> None:
    with FileHandle.open_path(path) as handle:
        assert handle.unbuffered_fd != -1
        before = open_fds()
        driver = make_driver(descriptors=2)
        driver.fail_register = True
        with pytest.raises(OSError, match="no registration"):
            handle.register(driver)
        assert open_fds() == before
        assert handle.registration("recording") is None
        assert handle.descriptors == len([handle.buffered_fd, handle.unbuffered_fd]) - (handle.unbuffered_fd is None)
        driver.fail_register = False
        handle.register(driver)
    assert driver.calls[-1] == ("deregister", str(path))


def test_a_driver_that_fails_does_not_stop_the_rest(path: Path, make_driver: Any, open_fds: Any) -> None:
    before = open_fds()
    drivers = [make_driver(name, descriptors=1) for name in "abc"]
    handle = FileHandle.open_path(path)
    for driver in drivers:
        handle.register(driver)
    drivers[1].fail_deregister = True
    with pytest.raises(RuntimeError, match="b cannot deregister"):
        handle.close()
    assert all(driver.calls[-1] == ("deregister", str(path)) for driver in drivers)
    assert open_fds() == before
    handle.close()

    handle = FileHandle.open_path(path)
    for driver in drivers:
        driver.fail_deregister = True
        handle.register(driver)
    with pytest.raises(ExceptionGroup) as caught:
        handle.close()
    assert len(caught.value.exceptions) == 3
    assert open_fds() == before

    handle = FileHandle.open_path(path)
    handle.register(drivers[0])
    with pytest.raises(RuntimeError):
        handle.deregister("a")
    handle.close()
    assert drivers[0].calls[-1] == ("deregister", str(path))


def test_an_interrupt_in_a_driver_still_closes(path: Path, open_fds: Any) -> None:
    class Interrupted:
        name, descriptors = "interrupted", 0

        def register(self, handle: FileHandle) -> object:
            return None

        def deregister(self, token: object) -> None:
            raise KeyboardInterrupt

    before = open_fds()
    handle = FileHandle.open_path(path)
    handle.register(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        handle.close()
    assert open_fds() == before


# -------------------------------------------------------------------- leases


def test_what_is_in_use_is_neither_closed_nor_deregistered(path: Path, make_driver: Any) -> None:
    driver = make_driver()
    handle = FileHandle.open_path(path)
    handle.register(driver)
    with handle.lease() as same:
        assert same is handle
        handle.acquire()
        assert handle.leases == 2
        handle.release()
        with pytest.raises(HandleInUseError, match="1 reads in flight"):
            handle.close()
        with pytest.raises(HandleInUseError):
            handle.deregister("recording")
        assert os.pread(handle.buffered_fd, 2, 0) == b"01"
        assert driver.calls == [("register", str(path))]
    handle.close()
    with pytest.raises(HandleError):
        handle.release()


def test_a_closed_handle_says_so(path: Path, make_driver: Any) -> None:
    handle = FileHandle.open_path(path)
    handle.close()
    assert "closed" in repr(handle)
    for attempt in (
        lambda: handle.buffered_fd,
        lambda: handle.unbuffered_fd,
        lambda: handle.geometry,
        handle.acquire,
        lambda: handle.register(make_driver()),
    ):
        with pytest.raises(HandleClosedError):
            attempt()


def test_leases_beside_a_close_never_see_a_closed_descriptor(path: Path, make_driver: Any) -> None:
    for _ in range(20):
        handle = FileHandle.open_path(path)
        handle.register(make_driver())
        failures: list[BaseException] = []

        def use(handle: FileHandle = handle, failures: list[BaseException] = failures) -> None:
            try:
                while True:
                    with handle.lease():
                        assert os.pread(handle.buffered_fd, 10, 0) == b"0123456789"
                    time.sleep(0.0005)
            except HandleClosedError:
                pass
            except BaseException as error:  # noqa: BLE001 - told to the test
                failures.append(error)

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not handle.closed:
            try:
                handle.close()
            except HandleInUseError:
                time.sleep(0)
        for thread in threads:
            thread.join()
        assert failures == []


def test_one_unbuffered_descriptor_for_many_threads(path: Path) -> None:
    opened: list[int] = []

    def reopen(fd: int, flags: int) -> int:
        opened.append(os.dup(fd))
        return opened[-1]

    with FileHandle.open_path(path, reopen=reopen) as handle:
        start = threading.Barrier(8)
        seen: list[int | None] = []

        def look() -> None:
            start.wait()
            seen.append(handle.unbuffered_fd)

        threads = [threading.Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == opened * 8


def test_a_handle_is_not_pickled(path: Path) -> None:
    with FileHandle.open_path(path) as handle, pytest.raises(TypeError, match="pickle"):
        pickle.dumps(handle)


def test_a_forgotten_handle_is_closed_with_a_warning(path: Path, make_driver: Any) -> None:
    driver = make_driver()
    handle = FileHandle.open_path(path)
    handle.register(driver)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del handle
    assert driver.calls[-1] == ("deregister", str(path))


def test_the_real_reopen_asks_for_direct_io(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        if takes_direct(path):
            unbuffered = reopen_unbuffered(fd, os.O_RDONLY)
            assert same_file(fd, unbuffered)
            os.close(unbuffered)
        else:
            with pytest.raises(OSError, match="Invalid"):
                reopen_unbuffered(fd, os.O_RDONLY)
    finally:
        os.close(fd)


# -------------------------------------------------------------------- the end of the process, and fork

SETUP = """
import atexit
atexit.register(print, "last handler")  # registered first: all that comes after it is not the handlers' work
import os, sys, tempfile, threading
from gpuload.errors import AfterForkError
from gpuload.files.handle import FileHandle

class Driver:
    descriptors = 0
    def __init__(self, name="driver", fails=False):
        self.name, self.fails = name, fails
    def register(self, handle):
        return handle.key, handle.buffered_fd, os.fstat(handle.buffered_fd).st_ino
    def deregister(self, token):
        key, fd, inode = token
        try:
            order = "in order" if os.fstat(fd).st_ino == inode else "after close"
        except OSError:
            order = "after close"
        print(self.name, os.path.basename(key), order, os.getpid() == parent, flush=True)
        if self.fails:
            raise RuntimeError("refused")

parent = os.getpid()
def opened(name):
    path = sys.argv[1] + "/" + name
    with open(path, "wb") as file:
        file.write(b"0123456789")
    return FileHandle.open_path(path)
"""


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "threading.Thread(target=lambda: None).start()"])
def test_at_exit_drivers_are_told_before_the_descriptors_close(tmp_path: Path, run_python: Any, end: str) -> None:
    program = f"""{SETUP}
import logging
logging.disable()
handles = [opened(name) for name in "abc"]
for handle in handles:
    handle.register(Driver("first"))
    handle.register(Driver("second", fails=handle is handles[1]))
handles[2].acquire()
{end}
"""
    *lines, last = run_python(program, str(tmp_path)).splitlines()
    assert last == "last handler"
    # The one in use is left to the kernel: not deregistered, so not closed either.
    assert sorted(lines) == sorted(f"{name} {key} in order True" for key in "ab" for name in ("second", "first"))
    for key in "ab":
        assert next(line for line in lines if f" {key} " in line).startswith("second")


def test_a_forked_child_tells_no_driver_and_leaves_the_parent_alone(tmp_path: Path, run_python: Any) -> None:
    program = f"""{SETUP}
handle = opened("a")
handle.register(Driver())
handle.acquire()
for end in ("close", "exit", "forget"):
    handle._lock.acquire()  # as another thread may have it at the moment of the fork
    child = os.fork()
    if not child:
        assert handle.registration("driver") is None and handle.leases == 0
        handle.release()
        try:
            handle.register(Driver())
            print("registered in the child")
        except AfterForkError:
            pass
        if end == "close":
            handle.close()
        elif end == "forget":
            import warnings
            warnings.simplefilter("ignore")
            del handle
        sys.exit(0)  # with the handlers at exit
    handle._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert os.pread(handle.buffered_fd, 4, 0) == b"0123"
    assert handle.registration("driver") is not None and handle.leases == 1
print("end", flush=True)
handle.release()
handle.close()
"""
    assert run_python(program, str(tmp_path)) == "last handler\n" * 3 + "end\ndriver a in order True\nlast handler\n"
