"""Opening keys below a root without leaving it, by openat2 and by the component walk."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from gpuload.bindings import syscalls
from gpuload.bindings.syscalls import Resolve
from gpuload.errors import (
    ChunkReadError,
    EscapesStoreError,
    HandleClosedError,
    NotFoundError,
    NotRegularFileError,
    NotZarrError,
    StoreError,
)
from gpuload.files.root import Root, not_regular, open_error

INSIDE, OUTSIDE = b"inside", b"OUTSIDE"
WAYS = [True, False] if syscalls.openat2_supported() else [False]


@pytest.fixture(params=WAYS, ids=["openat2" if way else "walk" for way in WAYS])
def way(request: Any) -> bool:
    return bool(request.param)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store beside a directory that is none of its business."""
    store = tmp_path / "store"
    (store / "c" / "0").mkdir(parents=True)
    (store / "c" / "0" / "0").write_bytes(INSIDE)
    (tmp_path / "outside" / "deep").mkdir(parents=True)
    (tmp_path / "outside" / "secret").write_bytes(OUTSIDE)
    (tmp_path / "outside" / "deep" / "secret").write_bytes(OUTSIDE)
    return store


@pytest.fixture
def root(place: Path, way: bool, no_leak: Any) -> Iterator[Root]:
    with Root(place, openat2=way) as opened:
        yield opened


def read(root: Root, key: str) -> bytes:
    fd = root.open(key)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


BAD = ["", "..", "../x", "c/..", "c/../c/0/0", "/", "/etc/passwd", "a\0b", "\0", "c//../x"]


@pytest.mark.parametrize("key", BAD)
def test_keys_that_could_leave_are_refused(root: Root, key: str) -> None:
    for attempt in (root.open, root.stat, root.check_key):
        with pytest.raises(EscapesStoreError):
            attempt(key)
    for several in ([key], ["c/0/0", key], [key, "c/0/0"], ["c/0/0", key, "x"]):
        with pytest.raises(EscapesStoreError):
            root.check_keys(several)
        with pytest.raises(EscapesStoreError):
            root.stats(several)


@pytest.mark.parametrize(
    "key", ["..a", "a..", "a..b/c", "...", ".zarray", "c.0.0", "./c/0/0", "c//0//0", "\n", "ü\udcff"]
)
def test_keys_that_only_look_odd_are_not_refused(root: Root, key: str) -> None:
    root.check_key(key)
    root.check_keys([key, "c/0/0", key])
    assert (root.stat(key) is not None) == (key in ("./c/0/0", "c//0//0"))


def test_no_keys_are_fine(root: Root) -> None:
    root.check_keys([])
    assert root.stats([]) == []


def test_a_file_is_opened_and_missing_ones_are_said_to_be(root: Root) -> None:
    assert read(root, "c/0/0") == INSIDE
    fd = root.open("c/0/0")
    try:
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)
    for key, error in (("c/0/1", FileNotFoundError), ("x/y", FileNotFoundError), ("c/0/0/0", NotADirectoryError)):
        with pytest.raises(error) as caught:
            root.open(key)
        assert not isinstance(caught.value, StoreError)
        assert root.stat(key) is None
    with pytest.raises(NotADirectoryError):
        root.open("c/0/0/")


def test_many_stats_are_those_of_each(root: Root, place: Path) -> None:
    (place / "flat").write_bytes(b"1")
    (place / "c" / "1").mkdir()
    (place / "c" / "1" / "5").write_bytes(b"123")
    os.symlink("../0/0", place / "c" / "1" / "link")
    keys = [
        "c/0/0",
        "flat",
        "c/0/9",
        "c/1/5",
        "nowhere/1",
        "nowhere/2",
        "c/1/link",
        "flat/x",
        "flat/y",
        "c/0/0",
        "c",
        "c/0/",
    ]
    stats = root.stats(keys)
    assert stats == [root.stat(key) for key in keys]
    assert [None if status is None else status.st_size for status in stats[:10]] == [
        len(INSIDE), 1, None, 3, None, None, len(INSIDE), None, None, len(INSIDE),
    ]  # fmt: skip


def test_the_root_may_be_a_link(place: Path, tmp_path: Path, way: bool, no_leak: Any) -> None:
    os.symlink(place, tmp_path / "link")
    os.symlink("link", tmp_path / "link to link")
    with Root(tmp_path / "link to link", openat2=way) as root:
        assert read(root, "c/0/0") == INSIDE
        assert root.path == str(tmp_path / "link to link")


LEAVING = {
    "absolute file": ("key", "{outside}/secret"),
    "relative file": ("key", "../outside/secret"),
    "relative directory": ("key", "../outside"),
    "deep directory": ("c/0/key", "../../../outside/deep"),
    "the root's parent": ("key", ".."),
    "by its own name": ("key", "../store/c/0/0"),
    "absolute, inside": ("key", "{store}/c/0/0"),
    "up after down": ("key", "c/0/../../../outside/secret"),
    "up after a link": ("key", "inner/../../../outside/secret"),
    "link to a leaving link": ("key", "c/leaving"),
    "magic": ("key", "/proc/self/root/{outside}/secret"),
}


@pytest.mark.parametrize("case", LEAVING)
def test_a_link_that_leaves_is_refused_and_named(root: Root, place: Path, tmp_path: Path, case: str) -> None:
    name, target = LEAVING[case]
    os.symlink("c/0", place / "inner")
    os.symlink("../../outside/secret", place / "c" / "leaving")
    os.symlink(target.format(outside=tmp_path / "outside", store=place), place / name)
    keys = [name, f"{name}/secret"] if "directory" in case else [name]
    for key in keys:
        with pytest.raises(EscapesStoreError, match="key") as caught:
            root.open(key)
        assert key in str(caught.value)
        assert "by " in str(caught.value)
        for attempt in (root.stat, lambda key: root.stats([key, key]), lambda key: not_regular(root, key)):
            with pytest.raises(EscapesStoreError):
                attempt(key)
    number = errno.EXDEV  # what a ring's OPENAT2 answers
    error = open_error(root, keys[-1], number)
    assert isinstance(error, EscapesStoreError)
    if case in ("absolute file", "relative file", "relative directory", "the root's parent"):
        assert "'key' -> " in str(error)


STAYING = {
    "file": "c/0/0",
    "file by a dot": "./c//0/./0",
    "up and down": "c/../c/0/0",
    "up after a link, which is another place than the text says": "away/../0/0",
    "chain": "chain",
}


@pytest.mark.parametrize("case", STAYING)
def test_a_link_that_stays_inside_works(root: Root, place: Path, case: str) -> None:
    (place / "c" / "1").mkdir()
    os.symlink("c/1", place / "away")
    os.symlink("c/chain", place / "chain")
    os.symlink("../c/0/../chain2", place / "c" / "chain")
    os.symlink("../away/../0/0", place / "c" / "chain2")
    os.symlink(STAYING[case], place / "key")
    assert read(root, "key") == INSIDE
    assert root.stat("key") == os.stat(place / "c" / "0" / "0")


def test_linked_directories_inside_work(root: Root, place: Path) -> None:
    os.symlink("c/0", place / "directory")
    os.symlink("..", place / "c" / "up")
    assert read(root, "directory/0") == INSIDE
    assert read(root, "c/up/c/up/directory/0") == INSIDE
    fd = root.open("c/up", os.O_PATH | os.O_DIRECTORY)
    try:
        assert os.fstat(fd).st_ino == os.stat(place).st_ino
    finally:
        os.close(fd)


def test_loops_and_dangling_links_end(root: Root, place: Path) -> None:
    os.symlink("loop", place / "loop")
    os.symlink("nothing", place / "dangling")
    os.symlink("c/0/0/", place / "file as directory")
    with pytest.raises(ChunkReadError) as caught:
        root.open("loop")
    assert caught.value.errno == errno.ELOOP
    with pytest.raises(FileNotFoundError):
        root.open("dangling")
    assert root.stat("dangling") is None


def test_links_may_leave_when_asked_but_dots_may_not(place: Path, tmp_path: Path, way: bool, no_leak: Any) -> None:
    os.symlink("../outside/secret", place / "out")
    os.symlink(tmp_path / "outside", place / "directory")
    with Root(place, follow_links=True, openat2=way) as root:
        assert root.resolve == Resolve.NO_MAGICLINKS
        assert read(root, "out") == OUTSIDE
        assert read(root, "directory/deep/secret") == OUTSIDE
        assert [status and status.st_size for status in root.stats(["out", "directory/secret", "directory/deep"])][
            :2
        ] == [len(OUTSIDE)] * 2
        for key in ("../outside/secret", "directory/../outside/secret", "/etc/passwd"):
            with pytest.raises(EscapesStoreError):
                root.open(key)


def test_the_kernel_is_asked_to_stay_beneath(root: Root) -> None:
    assert root.resolve == Resolve.BENEATH | Resolve.NO_MAGICLINKS
    assert root.open_flags & os.O_NONBLOCK


class Swapper:
    """Makes a name lead inside and outside by turns, as fast as it can, never being absent for the last step."""

    def __init__(self, swap: Callable[[int], None]) -> None:
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(swap,))

    def _run(self, swap: Callable[[int], None]) -> None:
        turn = 0
        try:
            while not self._stop.is_set():
                swap(turn)
                turn += 1
        except BaseException as error:  # noqa: BLE001 - told to the test
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._failure is None


def race(attempt: Callable[[], bytes], swap: Callable[[int], None]) -> None:
    """Some hundred attempts, more until both a success and a refusal were seen; outside bytes never."""
    seen: dict[str, int] = {}
    with Swapper(swap):
        for i in range(20_000):
            try:
                content = attempt()
                assert content != OUTSIDE
                assert content == INSIDE
                what = "read"
            except EscapesStoreError:
                what = "refused"
            except (FileNotFoundError, NotADirectoryError):
                what = "missing"
            seen[what] = seen.get(what, 0) + 1
            if i >= 300 and {"read", "refused"} <= seen.keys():
                break
    assert {"read", "refused"} <= seen.keys(), seen


def test_a_link_swapped_under_way_never_leads_outside(root: Root, place: Path) -> None:
    def swap(turn: int) -> None:
        os.symlink("../outside/secret" if turn % 2 else "c/0/0", place / "new")
        os.replace(place / "new", place / "key")

    swap(0)
    race(lambda: read(root, "key"), swap)


def test_a_directory_swapped_for_a_link_under_way_never_leads_outside(root: Root, place: Path) -> None:
    (place / "d").mkdir()
    (place / "d" / "secret").write_bytes(INSIDE)

    def swap(turn: int) -> None:
        if turn % 2:
            os.unlink(place / "d")
            os.rename(place / "kept", place / "d")
        else:
            os.rename(place / "d", place / "kept")
            os.symlink("../outside", place / "d")

    race(lambda: read(root, "d/secret"), swap)


def test_a_directory_moved_out_under_way_never_leads_outside(root: Root, place: Path, tmp_path: Path) -> None:
    """`..` in a link, taken in a directory that is being moved out of the store, would be the other place's parent."""
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "secret").write_bytes(INSIDE)
    (place / "bad").symlink_to("../outside/secret")
    os.symlink("../secret", place / "a" / "b" / "key")

    turns = [0]

    def swap(turn: int) -> None:
        if turn % 2:
            os.rename(tmp_path / "outside" / "b", place / "a" / "b")
        else:
            os.rename(place / "a" / "b", tmp_path / "outside" / "b")
        turns[0] = turn

    with Swapper(swap):
        count = 0
        while count < 300 or turns[0] < 50:
            count += 1
            try:
                assert read(root, "a/b/key") == INSIDE
            except (EscapesStoreError, FileNotFoundError, ChunkReadError):
                pass


def test_what_is_no_regular_file_is_told(root: Root, place: Path, monkeypatch: Any) -> None:
    os.mkfifo(place / "fifo")
    (place / "directory").mkdir()
    monkeypatch.chdir(place)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for key, what in (("fifo", "a FIFO"), ("directory", "a directory"), ("socket", "a socket")):
            error = not_regular(root, key)
            assert isinstance(error, NotRegularFileError)
            assert what in str(error)
            assert error.key == key
        os.close(root.open("fifo"))  # does not wait for a writer
        with pytest.raises(NotRegularFileError, match="a socket"):
            root.open("socket")
    assert not_regular(root, "c/0/0") is None
    assert not_regular(root, "nothing") is None


def test_errors_of_the_kernel_become_errors_that_name_the_key(root: Root) -> None:
    assert isinstance(open_error(root, "k", errno.ENOENT), FileNotFoundError)
    assert isinstance(open_error(root, "k", errno.ENOTDIR), NotADirectoryError)
    for number in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.EIO, errno.ENXIO, errno.ELOOP):
        error = open_error(root, "c/0/0", number)
        assert type(error) is ChunkReadError
        assert error.errno == number
        assert error.key == "c/0/0"
        assert "c/0/0" in str(error)
        assert os.strerror(number) in str(error)
    with pytest.raises(ChunkReadError) as caught:
        root.open("x" * 300)
    assert caught.value.errno == errno.ENAMETOOLONG


def test_a_root_must_be_a_directory(tmp_path: Path, way: bool, no_leak: Any) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.symlink("loop", tmp_path / "loop")
    with pytest.raises(NotFoundError):
        Root(tmp_path / "nothing", openat2=way)
    with pytest.raises(NotFoundError):
        Root("a\0b", openat2=way)
    with pytest.raises(NotZarrError, match="no directory"):
        Root(tmp_path / "file", openat2=way)
    with pytest.raises(StoreError):
        Root(tmp_path / "loop", openat2=way)


def test_refresh_follows_the_path(root: Root, place: Path, tmp_path: Path, open_fds: Any, monkeypatch: Any) -> None:
    fd, identity, count = root.fd, root.identity, len(open_fds())
    root.refresh()
    assert (root.fd, root.identity) == (fd, identity)
    os.rename(place, tmp_path / "old")
    with pytest.raises(NotFoundError):
        root.refresh()
    assert read(root, "c/0/0") == INSIDE  # still the directory it was
    (place / "c" / "0").mkdir(parents=True)
    (place / "c" / "0" / "0").write_bytes(b"new")
    closed: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", lambda number, close=os.close: closed.append(number) or close(number))
        root.refresh()
    assert fd not in closed  # not even for a moment: another file might get the number that other threads are using
    assert len(closed) == 1
    assert read(root, "c/0/0") == b"new"
    assert root.fd == fd
    assert root.identity != identity
    assert len(open_fds()) == count
    assert not os.get_inheritable(root.fd)


def test_refresh_beside_opens_is_never_some_other_directory(root: Root, place: Path, tmp_path: Path) -> None:
    """The descriptor's number must not be free for a moment while others use it."""
    other = tmp_path / "other"
    (other / "c" / "0").mkdir(parents=True)
    (other / "c" / "0" / "0").write_bytes(INSIDE)
    noise = tmp_path / "noise"
    (noise / "c" / "0").mkdir(parents=True)
    (noise / "c" / "0" / "0").write_bytes(OUTSIDE)

    def swap(turn: int) -> None:
        os.rename(place, tmp_path / "away")
        os.rename(other, place)
        os.rename(tmp_path / "away", other)
        root.refresh()
        for fd in [os.open(noise, os.O_PATH) for _ in range(3)]:
            os.close(fd)

    with Swapper(swap):
        for _ in range(300):
            assert read(root, "c/0/0") == INSIDE


def test_a_pickled_root_opens_the_same_path(root: Root, place: Path, monkeypatch: Any, way: bool) -> None:
    with pickle.loads(pickle.dumps(root)) as copy:
        assert (copy.path, copy.follow_links, copy.identity) == (root.path, root.follow_links, root.identity)
        assert read(copy, "c/0/0") == INSIDE
    monkeypatch.chdir(place)
    with Root("c", follow_links=True, openat2=way) as relative:
        monkeypatch.chdir("/")
        with pickle.loads(pickle.dumps(relative)) as copy:
            assert copy.follow_links
            assert read(copy, "0/0") == INSIDE


def test_a_path_with_dots_is_resolved_by_the_kernel(place: Path, tmp_path: Path, way: bool, monkeypatch: Any) -> None:
    """`link/..` is the parent of what the link leads to, not the directory the link is in."""
    os.symlink(place / "c" / "0", tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    with Root("link/..", openat2=way) as root:
        assert read(root, "0/0") == INSIDE


def test_a_closed_root_says_so(place: Path, way: bool, no_leak: Any) -> None:
    root = Root(place, openat2=way)
    root.close()
    root.close()
    for attempt in (lambda: root.fd, lambda: root.open("c/0/0"), root.refresh):
        with pytest.raises(HandleClosedError):
            attempt()


def test_a_forgotten_root_is_closed(place: Path, no_leak: Any) -> None:
    Root(place)


def test_permission_is_told_from_absence(run_python: Callable[..., str]) -> None:
    program = """
import errno, os, sys, tempfile
from gpuload.errors import ChunkReadError, StoreError
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root
with tempfile.TemporaryDirectory() as path:
    os.chmod(path, 0o755)
    os.makedirs(path + "/closed/store")
    for name in ("unreadable", "closed/file"):
        with open(f"{path}/{name}", "wb") as file:
            file.write(b"1")
    os.chmod(path + "/unreadable", 0)
    os.chmod(path + "/closed", 0)
    child = os.fork()
    if not child:
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        try:
            os.close(os.open(path + "/unreadable", os.O_RDONLY))
            os._exit(3)  # the permission does not hold: nothing is tested
        except PermissionError:
            pass
        code = 0
        for way in (True, False):
            root = Root(path, openat2=way)
            for key in ("unreadable", "closed/file"):
                try:
                    FileHandle.open(root, key)
                    code = 4
                except ChunkReadError as error:
                    if error.errno != errno.EACCES or error.key != key:
                        code = 5
            try:
                root.stats(["closed/file", "closed/other"])
                code = 6
            except ChunkReadError as error:
                if error.errno != errno.EACCES:
                    code = 7
        try:
            Root(path + "/closed/store")
            code = 8
        except StoreError:
            pass
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.chmod(path + "/closed", 0o755)
print(code)
"""
    assert run_python(program) == "0\n"
