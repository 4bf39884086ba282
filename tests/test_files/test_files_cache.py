"""The cache of handles: its budget, its waves, what it notices, and how it ends."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuload.config import config
from gpuload.errors import (
    ChunkReadError,
    ConfigError,
    EscapesStoreError,
    HandleError,
    HandleInUseError,
    NotRegularFileError,
)
from gpuload.files.cache import HandleCache
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root

pytestmark = pytest.mark.usefixtures("no_leak")


def fill(store: Path, count: int, *, split: int = 50) -> list[str]:
    keys = [f"c/{i // split}/{i % split}" for i in range(count)]
    for i, key in enumerate(keys):
        if i % split == 0:
            (store / key).parent.mkdir(parents=True)
        (store / key).write_bytes(key.encode())
    return keys


def content(handle: FileHandle | None) -> bytes | None:
    return None if handle is None else os.pread(handle.buffered_fd, 100, 0)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with Root(tmp_path) as opened:
        yield opened


@pytest.fixture
def make_cache(root: Root) -> Iterator[Callable[..., HandleCache]]:
    made: list[HandleCache] = []

    def make(*arguments: Any, **options: Any) -> HandleCache:
        made.append(HandleCache(*arguments, **options))
        return made[-1]

    yield make
    for cache in made:
        cache.clear()
        assert len(cache) == cache.open_descriptors == 0


# -------------------------------------------------------------------- the budget


@pytest.mark.parametrize(("count", "way"), [(5000, None), (1000, False)], ids=["kernel", "walk"])
def test_many_files_within_the_budget(
    tmp_path: Path, make_cache: Any, make_driver: Any, count: int, way: bool | None
) -> None:
    """Thousands of files, each with an unbuffered descriptor and one of a driver's: never more than 64, ever."""
    keys = fill(tmp_path, count)
    driver = make_driver(descriptors=1)
    with Root(tmp_path, openat2=way) as root:
        cache = make_cache(64, per_handle=3)
        assert cache.wave_size == 20
        baseline = len(os.listdir("/proc/self/fd"))
        most, stop = [0], threading.Event()

        def watch() -> None:
            while not stop.is_set():
                most[0] = max(most[0], len(os.listdir("/proc/self/fd")) - baseline)
                time.sleep(0.0002)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            for start in range(0, len(keys), cache.wave_size):
                wave = keys[start : start + cache.wave_size]
                handles = cache.acquire(root, wave)
                for key, handle in zip(wave, handles, strict=True):
                    assert handle.unbuffered_fd is not None or handle.unbuffered_reason == "odirect-refused"
                    handle.register(driver)
                    assert content(handle) == key.encode()
                most[0] = max(most[0], len(os.listdir("/proc/self/fd")) - baseline)
                assert cache.open_descriptors <= 64
                cache.release(handles)
        finally:
            stop.set()
            watching.join()
        assert 40 <= most[0] <= 64
        assert cache.open_descriptors >= 40  # what nobody needs the place of stays open
        cache.clear()
    assert driver.calls.count(("register", keys[0])) == 1
    assert [call for call, _ in driver.calls].count("deregister") == count
    assert "deregister after close" not in {call for call, _ in driver.calls}


def test_the_least_recently_used_goes_first(tmp_path: Path, root: Root, make_cache: Any) -> None:
    keys = fill(tmp_path, 6)
    cache = make_cache(6, per_handle=1)
    assert cache.wave_size == 4
    handles = {}
    for key in keys[:4]:
        [handles[key]] = cache.acquire(root, [key])
        cache.release([handles[key]])
    cache.release(cache.acquire(root, [keys[0]]))  # used again
    cache.release(cache.acquire(root, keys[4:6]))
    assert [key for key in keys[:4] if handles[key].closed] == [keys[1], keys[2]]
    again = cache.acquire(root, [keys[0], keys[3]])
    assert again == [handles[keys[0]], handles[keys[3]]]
    cache.release(again)


def test_what_is_held_is_not_evicted(tmp_path: Path, root: Root, make_cache: Any) -> None:
    keys = fill(tmp_path, 6)
    cache = make_cache(6, per_handle=1)
    held = cache.acquire(root, keys[:2])
    for key in keys[2:]:
        cache.release(cache.acquire(root, [key]))
    assert [content(handle) for handle in held] == [key.encode() for key in keys[:2]]
    assert len(cache) == 4
    cache.release(held)


def test_a_wave_that_never_fits_is_refused(tmp_path: Path, root: Root, make_cache: Any) -> None:
    keys = fill(tmp_path, 6)
    cache = make_cache(6, per_handle=1)
    for take in (cache.acquire, cache.try_acquire):
        with pytest.raises(ValueError, match="5 files at once"):
            take(root, keys[:5])
    same = cache.acquire(root, [keys[0]] * 5)
    assert len(set(map(id, same))) == 1
    assert same[0].leases == 5
    cache.release(same)
    assert same[0].leases == 0
    same = cache.acquire(root, [keys[0]] * 2 + ["nothing"] * 2)  # from the cache this time
    assert same[2:] == [None, None]
    assert same[0].leases == 2
    cache.release(same)


def test_the_budget_comes_from_configuration_and_limits(monkeypatch: Any) -> None:
    with config.set({"handles.budget": 99}):
        assert HandleCache().budget == 99
        assert HandleCache(10).budget == 10
    used = len(os.listdir("/proc/self/fd"))
    limits = {"soft": used + 1000}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], 1 << 20))
    assert abs(HandleCache().budget - 500) <= 1
    for limits["soft"], budget in ((4, 8), (1 << 20, 4096), (resource.RLIM_INFINITY, 4096)):
        assert HandleCache().budget == budget
    for bad, per_handle in ((3, 2), (0, 1), (-1, 2), (64, 0), (4, 3)):
        with pytest.raises(ConfigError):
            HandleCache(bad, per_handle=per_handle)


def test_a_handle_takes_no_more_than_is_set_aside(
    tmp_path: Path, root: Root, make_cache: Any, make_driver: Any
) -> None:
    keys = fill(tmp_path, 1)
    cache = make_cache(64, per_handle=1)
    [handle] = cache.acquire(root, keys)
    assert handle.unbuffered_fd is None
    assert handle.unbuffered_reason == "fd-limit"
    with pytest.raises(HandleError):
        handle.register(make_driver(descriptors=1))
    cache.release([handle])


# -------------------------------------------------------------------- waves


def test_missing_files_are_none(tmp_path: Path, root: Root, make_cache: Any) -> None:
    keys = fill(tmp_path, 3)
    cache = make_cache(64)
    handles = cache.acquire(root, ["c/9/9", keys[0], "c/0/0/0", "nothing", keys[2]])
    assert [content(handle) for handle in handles] == [None, b"c/0/0", None, None, b"c/0/2"]
    cache.release(handles)
    assert cache.acquire(root, []) == []
    cache.release([])


@pytest.mark.parametrize("case", ["fifo", "escapes", "dots", "unopenable"])
def test_one_bad_file_and_nothing_is_held(
    tmp_path: Path, root: Root, make_cache: Any, open_fds: Any, case: str
) -> None:
    keys = fill(tmp_path, 4)
    cache = make_cache(64)
    cache.release(cache.acquire(root, keys[:2]))
    before = open_fds()
    bad, error = {
        "fifo": ("bad", NotRegularFileError),
        "escapes": ("bad", EscapesStoreError),
        "dots": ("../x", EscapesStoreError),
        "unopenable": ("x" * 300, ChunkReadError),
    }[case]
    if case == "fifo":
        os.mkfifo(tmp_path / "bad")
    elif case == "escapes":
        os.symlink("/etc/passwd", tmp_path / "bad")
    for _ in range(2):
        with pytest.raises(error):
            cache.acquire(root, [keys[0], bad, keys[1]])
        assert open_fds() == before
        assert all(handle.leases == 0 for handle in cache._handles.values())
    handles = cache.acquire(root, keys)
    assert all(handle.leases == 1 for handle in handles)
    cache.release(handles)


def test_whoever_finds_no_room_waits_for_a_release(
    tmp_path: Path, root: Root, make_cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = fill(tmp_path, 8)
    cache = make_cache(6, per_handle=1)
    held = cache.acquire(root, keys[:3])
    got: list[list[FileHandle | None]] = []
    waits = threading.Semaphore(0)
    wait = cache._changed.wait
    monkeypatch.setattr(cache._changed, "wait", lambda: (waits.release(), wait()))
    waiting = threading.Thread(target=lambda: got.append(cache.acquire(root, keys[2:6])), daemon=True)
    waiting.start()
    assert waits.acquire(timeout=60)
    assert cache.try_acquire(root, [keys[0]]) is None  # somebody is waiting in front
    cache.release(held[:1])
    assert waits.acquire(timeout=60)  # one place is not enough, and it takes all or nothing
    cache.release(held[1:])
    waiting.join(60)
    assert [content(handle) for handle in got[0]] == [key.encode() for key in keys[2:6]]
    cache.release(got[0])


def test_trying_never_waits_and_holds_nothing_when_it_fails(tmp_path: Path, root: Root, make_cache: Any) -> None:
    keys = fill(tmp_path, 8)
    cache = make_cache(6, per_handle=1)
    held = cache.acquire(root, keys[:3])
    assert cache.try_acquire(root, keys[2:6]) is None
    assert [handle.leases for handle in held] == [1, 1, 1]
    more = cache.try_acquire(root, keys[2:4])
    assert more is not None
    assert more[0] is held[2]
    cache.release(held)
    cache.release(more)


def test_an_interrupt_while_waiting_holds_nothing(
    tmp_path: Path, root: Root, make_cache: Any, monkeypatch: Any
) -> None:
    keys = fill(tmp_path, 8)
    cache = make_cache(6, per_handle=1)
    held = cache.acquire(root, keys[:3])

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache._changed, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.acquire(root, keys[2:6])
    assert [handle.leases for handle in held] == [1, 1, 1]
    cache.release(held)
    cache.release(cache.acquire(root, keys[4:8]))


def test_eight_threads(tmp_path: Path, root: Root, make_cache: Any, make_driver: Any, open_fds: Any) -> None:
    """Each reads waves of its own choice while files are replaced, rewritten and removed beside it."""
    keys = fill(tmp_path, 200)
    cache = make_cache(34, per_handle=2)
    before = len(open_fds())
    driver = make_driver()
    failures: list[BaseException] = []
    stop = threading.Event()

    def disturb() -> None:
        choose = random.Random(0)
        while not stop.is_set():
            key = choose.choice(keys)
            if choose.random() < 0.3:
                (tmp_path / key).unlink(missing_ok=True)
            (tmp_path / f"{key}.new").write_bytes(key.encode() * choose.randint(1, 3))
            os.replace(tmp_path / f"{key}.new", tmp_path / key)

    def use(seed: int) -> None:
        choose = random.Random(seed)
        try:
            for _ in range(60):
                wave = choose.sample(keys, choose.randint(1, cache.wave_size))
                handles = cache.acquire(root, wave)
                for key, handle in zip(wave, handles, strict=True):
                    if handle is not None:
                        found = content(handle)
                        assert found is not None
                        assert found == key.encode() * (len(found) // len(key))
                        assert len(found) == handle.size > 0
                assert cache.open_descriptors <= 34
                cache.release(handles)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    disturbing = threading.Thread(target=disturb)
    for thread in (disturbing, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    disturbing.join()
    assert failures == []
    assert len(open_fds()) - before <= 34
    assert all(handle.leases == 0 for handle in cache._all())
    assert driver.calls == []


# -------------------------------------------------------------------- what is noticed


def change_replaced(path: Path) -> bytes | None:
    path.with_name("new").write_bytes(b"new!!")
    os.replace(path.with_name("new"), path)
    return b"new!!"


def change_truncated(path: Path) -> bytes | None:
    os.truncate(path, 2)
    return b"c/"


def change_grown(path: Path) -> bytes | None:
    with path.open("ab") as file:
        file.write(b"more")
    return b"c/0/0more"


def change_rewritten(path: Path) -> bytes | None:
    with path.open("r+b") as file:
        file.write(b"C/1/1")
    return b"C/1/1"


def change_removed(path: Path) -> bytes | None:
    path.unlink()
    return None


def change_directory_removed(path: Path) -> bytes | None:
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    return None


def change_to_a_link_inside(path: Path) -> bytes | None:
    path.with_name("target").write_bytes(b"linked")
    path.unlink()
    os.symlink("target", path)
    return b"linked"


CHANGES = [value for name, value in list(globals().items()) if name.startswith("change_")]


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed(
    tmp_path: Path, root: Root, make_cache: Any, make_driver: Any, open_fds: Any, change: Any, held: bool
) -> None:
    [key] = fill(tmp_path, 1)
    cache = make_cache(64)
    driver = make_driver()
    [old] = first = cache.acquire(root, [key])
    old.register(driver)
    before = len(open_fds())
    if not held:
        cache.release(first)
    expected = change(tmp_path / key)
    [new] = second = cache.acquire(root, [key])
    assert new is not old
    assert content(new) == expected
    assert new is None or new.size == len(expected)
    if held:
        assert not old.closed  # its reader goes on with the file it opened
        assert old.buffered_fd >= 0
        assert driver.calls == [("register", key)]
        cache.release(first)
    assert old.closed
    assert driver.calls == [("register", key), ("deregister", key)]
    assert len(open_fds()) <= before
    assert cache.acquire(root, [key]) == [new]  # and the new one is kept
    cache.release(second)
    cache.release(second)


def test_the_unchanged_file_is_not_opened_again(tmp_path: Path, root: Root, make_cache: Any) -> None:
    keys = fill(tmp_path, 10)
    cache = make_cache(64)
    first = cache.acquire(root, keys)
    cache.release(first)
    assert all((tmp_path / key).read_bytes() == key.encode() for key in keys)  # reading changes nothing
    second = cache.acquire(root, keys[::-1])
    assert second == first[::-1]
    cache.release(second)


def test_a_file_behind_a_link_that_now_leaves_is_refused_though_it_is_open(tmp_path: Path, make_cache: Any) -> None:
    """The very file that is open, moved out of the store and linked to from inside, is out of the store."""
    store = tmp_path / "store"
    [key] = fill(store, 1)
    cache = make_cache(64)
    with Root(store) as root, Root(store, follow_links=True) as trusting:
        first = cache.acquire(root, [key])
        cache.release(first)
        os.rename(store / "c", tmp_path / "moved")
        os.symlink("../moved", store / "c")
        for _ in range(2):
            with pytest.raises(EscapesStoreError):
                cache.acquire(root, [key])
        handles = cache.acquire(trusting, [key])
        assert content(handles[0]) == key.encode()
        cache.release(handles)
        cache.clear()


def test_roots_of_one_directory_share_and_others_do_not(tmp_path: Path, root: Root, make_cache: Any) -> None:
    fill(tmp_path, 2)
    cache = make_cache(64)
    with Root(tmp_path) as same, Root(tmp_path, follow_links=True) as trusting, Root(tmp_path / "c") as other:
        handles = [cache.acquire(where, ["c/0/0"])[0] for where in (root, same, trusting)]
        assert handles[0] is handles[1]
        assert handles[2] is not handles[0]
        (tmp_path / "c" / "c" / "0").mkdir(parents=True)
        (tmp_path / "c" / "c" / "0" / "0").write_bytes(b"other")
        handles += cache.acquire(other, ["c/0/0"])
        assert content(handles[3]) == b"other"
        cache.release(handles)


def test_a_handle_closed_by_somebody_else_is_opened_again(tmp_path: Path, root: Root, make_cache: Any) -> None:
    [key] = fill(tmp_path, 1)
    cache = make_cache(64)
    [handle] = cache.acquire(root, [key])
    cache.release([handle])
    handle.close()
    [again] = cache.acquire(root, [key])
    assert content(again) == key.encode()
    cache.release([again])


# -------------------------------------------------------------------- the end


def test_a_driver_that_fails_does_not_fail_the_reader_who_needs_the_place(
    tmp_path: Path, root: Root, make_cache: Any, make_driver: Any, open_fds: Any, caplog: Any
) -> None:
    keys = fill(tmp_path, 8)
    before = open_fds()
    cache = make_cache(4, per_handle=2)
    driver = make_driver()
    driver.fail_deregister = True
    for key in keys:
        [handle] = cache.acquire(root, [key])
        handle.register(driver)
        cache.release([handle])
    assert [call for call, _ in driver.calls] == (["register", "deregister"] * 8)[:-1]
    assert sum("could not be deregistered" in record.message for record in caplog.records) == 7
    with pytest.raises(RuntimeError, match="cannot deregister"):
        cache.clear()
    assert open_fds() == before
    assert driver.calls[-1] == ("deregister", keys[-1])


def test_clear_closes_all_and_raises_all(tmp_path: Path, root: Root, make_cache: Any, make_driver: Any) -> None:
    keys = fill(tmp_path, 3)
    cache = make_cache(64)
    driver = make_driver()
    driver.fail_deregister = True
    handles = cache.acquire(root, keys)
    for handle in handles:
        handle.register(driver)
    cache.release(handles[:2])
    with pytest.raises(ExceptionGroup) as caught:
        cache.clear()
    assert len(caught.value.exceptions) == 2
    assert [handle.closed for handle in handles] == [True, True, False]
    assert content(handles[2]) == keys[2].encode()
    with pytest.raises(HandleInUseError):
        handles[2].close()
    cache.release(handles[2:])
    assert handles[2].closed


def test_a_lease_that_the_cache_does_not_know_of_keeps_the_file_open(
    tmp_path: Path, root: Root, make_cache: Any
) -> None:
    keys = fill(tmp_path, 3)
    cache = make_cache(4, per_handle=1)
    [handle] = cache.acquire(root, [keys[0]])
    cache.release([handle])
    original, turns = handle.close, []

    def close() -> None:
        if not turns:  # somebody takes it in the moment between being chosen and being closed
            turns.append(handle.acquire())
        original()

    handle.close = close
    try:
        assert cache.try_acquire(root, keys[1:3]) is None
        assert not handle.closed
        assert content(handle) == keys[0].encode()
    finally:
        handle.release()
        del handle.close
    taken = cache.acquire(root, keys[1:3])
    assert handle.closed
    cache.release(taken)


PROGRAM = """
import atexit
atexit.register(print, "last handler")  # registered first: all that comes after it is not the handlers' work
import os, sys
from gpuload.files.cache import HandleCache
from gpuload.files.root import Root

class Driver:
    name, descriptors = "driver", 0
    def register(self, handle):
        return handle.key, handle.buffered_fd, os.fstat(handle.buffered_fd).st_ino
    def deregister(self, token):
        key, fd, inode = token
        try:
            order = "in order" if os.fstat(fd).st_ino == inode else "after close"
        except OSError:
            order = "after close"
        print(key, order, os.getpid() == parent, flush=True)

parent = os.getpid()
for key in "abc":
    with open(sys.argv[1] + "/" + key, "wb") as file:
        file.write(key.encode())
root = Root(sys.argv[1])
cache = HandleCache(64)
handles = cache.acquire(root, list("abc"))
for handle in handles:
    handle.register(Driver())
"""


def test_at_exit_everything_is_deregistered_then_closed(tmp_path: Path, run_python: Any) -> None:
    *lines, last = run_python(PROGRAM + "cache.release(handles)", str(tmp_path)).splitlines()
    assert last == "last handler"
    assert sorted(lines) == [f"{key} in order True" for key in "abc"]


def test_a_forked_child_has_an_empty_cache_and_leaves_the_parent_alone(tmp_path: Path, run_python: Any) -> None:
    program = f"""{PROGRAM}
def count():
    return len(os.listdir("/proc/self/fd"))

cache.release(handles[:2])
os.unlink(sys.argv[1] + "/c")
assert cache.acquire(root, ["c"]) == [None]  # in use, and outdated
before = count()
cache._turn.acquire()  # as other threads may have them at the moment of the fork
cache._changed.acquire()
child = os.fork()
if not child:
    assert len(cache) == 0 and cache.open_descriptors == 0
    assert count() == before - 3, (count(), before)
    cache.release(handles[2:])  # what the parent's frame would do next
    mine = cache.acquire(root, ["a", "b", "c"])
    assert [handle and os.pread(handle.buffered_fd, 9, 0) for handle in mine] == [b"a", b"b", None]
    assert mine[0] is not handles[0]
    cache.release(mine)
    sys.exit(0)  # with the handlers at exit
cache._changed.release()
cache._turn.release()
assert os.waitpid(child, 0)[1] == 0
assert [os.pread(handle.buffered_fd, 9, 0) for handle in handles] == [b"a", b"b", b"c"]
assert cache.open_descriptors == 3 and count() == before
assert handles[2].leases == 1 and all(handle.registration("driver") for handle in handles)
again = cache.acquire(root, ["a", "b"])
assert again == handles[:2]
cache.release(again)
cache.release(handles[2:])
print("end", flush=True)
"""
    lines = run_python(program, str(tmp_path)).splitlines()
    assert lines[:3] == ["last handler", "c in order True", "end"]  # the child's, then the parent's
    assert sorted(lines[3:5]) == ["a in order True", "b in order True"]
    assert lines[5:] == ["last handler"]


def test_idle_files_give_way_where_others_used_up_the_descriptors(tmp_path):
    keys = [f"f{i}" for i in range(6)]
    for key in keys:
        (tmp_path / key).write_bytes(key.encode())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    cache = HandleCache(64)
    with Root(tmp_path) as root:
        held = cache.acquire(root, keys[:1])
        cache.release(cache.acquire(root, keys[1:4]))
        highest = os.open(tmp_path, os.O_RDONLY)
        filling = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
            with contextlib.suppress(OSError):
                while True:
                    filling.append(os.open(tmp_path, os.O_RDONLY))
            handles = cache.acquire(root, keys[4:])
            assert [os.pread(handle.buffered_fd, 9, 0) for handle in handles] == [b"f4", b"f5"]
            assert len(cache) == 3
            with contextlib.suppress(OSError):
                while True:
                    filling.append(os.open(tmp_path, os.O_RDONLY))
            with pytest.raises(ChunkReadError, match="Too many open files"):  # nothing is idle
                cache.acquire(root, keys[1:2])
            cache.release(handles)
        finally:
            for fd in filling:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            os.close(highest)
        assert os.pread(held[0].buffered_fd, 9, 0) == b"f0"
        cache.release(held)
        cache.clear()
