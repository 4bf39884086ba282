"""The ring gives the right bytes under every set-up, and opens files straight into its slots."""

from __future__ import annotations

import ctypes
import errno
import os
import select

import numpy as np
import pytest

from gpuload.bindings import uring_abi as abi
from gpuload.bindings.syscalls import OPEN_HOW, Resolve, map_anonymous
from gpuload.bindings.uring import Ring
from gpuload.bindings.uring_setup import SETUP_TRIES

STEP = 64 << 10  # room for one read
N = 96


@pytest.mark.parametrize("depth", [1, 8, None])
@pytest.mark.parametrize("fixed_file", [True, False])
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("flags", [None, *SETUP_TRIES], ids=str)
def test_right_bytes_under_every_set_up(flags, registered, fixed_file, depth, files, fds, run):
    random = np.random.default_rng([depth or 0, registered, fixed_file])
    memory = map_anonymous(N * STEP)
    half = N // 2 * STEP
    with Ring(depth or 256, setup_flags=flags) as ring:
        if registered:
            ring.register_buffers([(memory.address, half), (memory.address + half, memory.nbytes - half)])
        if fixed_file:
            ring.register_files(32)
            ring.update_files(11, fds)
        for more in (0, abi.IOSQE_ASYNC):
            memory.array[:] = 0xA5
            which = random.integers(0, len(fds), N)
            sizes = np.array([len(files.data[w]) for w in which])
            offset = random.integers(0, sizes + 5000)  # past the end, too
            size = random.integers(1, STEP - 64, N)
            address = memory.address + np.arange(N) * STEP
            rows = ring.read_rows(
                which + 11 if fixed_file else np.array(fds)[which],
                offset,
                address,
                size,
                np.arange(N),
                buf_index=np.arange(N) // (N // 2) if registered else None,
                fixed_file=fixed_file,
                flags=more,
            )
            result = run(ring, rows, depth)
            for i in range(N):
                expected = files.data[which[i]][offset[i] : offset[i] + size[i]]
                place = memory.array[i * STEP : (i + 1) * STEP]
                assert result[i] == len(expected)
                assert place[: result[i]].tobytes() == expected
                assert (place[result[i] :] == 0xA5).all(), "written past the read"
            opcode = abi.OP_READ_FIXED if registered else abi.OP_READ
            assert ring.counts[opcode, more | (abi.IOSQE_FIXED_FILE if fixed_file else 0)] == N
        assert sum(ring.counts.values()) == 2 * N
    memory.close()


def test_unbuffered_reads(files, ring, memory, run):
    fd = os.open(files.paths[-1], os.O_RDONLY | os.O_DIRECT)
    try:
        ring.register_buffers([(memory.address, memory.nbytes)])
        ring.register_files(1)
        ring.update_files(0, [fd])
    finally:
        os.close(fd)  # the table holds the file
    offset = np.array([0, 4096, 5 << 20, 3 << 20])
    size = np.array([4096, 1 << 20, 4096, 65536])
    place = np.array([0, 1, 2, 3]) << 20
    rows = ring.read_rows(0, offset, memory.address + place, size, np.arange(4), buf_index=0)
    assert run(ring, rows) == [4096, 1 << 20, 77, 65536]
    for o, p, n in zip(offset, place, (4096, 1 << 20, 77, 65536), strict=True):
        assert memory.array[p : p + n].tobytes() == files.data[-1][o : o + n]
    unaligned = ring.read_rows(0, 1, memory.address, 4096, [0], buf_index=0)
    assert run(ring, unaligned) == [-errno.EINVAL]


def test_everything_staged_is_read_fixed_from_a_fixed_file(ring, memory, files, fds, run):
    ring.register_buffers([(memory.address, memory.nbytes)])
    ring.register_files(4)
    ring.update_files(0, fds[-1:])
    rows = ring.read_rows(
        0, np.arange(500) * 100, memory.address + np.arange(500) * 100, 100, np.arange(500), buf_index=0
    )
    assert run(ring, rows, 50) == [100] * 500
    assert memory.array[:50_000].tobytes() == files.data[-1][:50_000]
    assert ring.counts == {(abi.OP_READ_FIXED, abi.IOSQE_FIXED_FILE): 500}


class Opens:
    """Keeps the paths and the open_how that OPENAT2 rows point to."""

    def __init__(self, root: str, resolve: Resolve) -> None:
        self.fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
        self.how = np.zeros(1, OPEN_HOW)
        self.how["flags"], self.how["resolve"] = os.O_RDONLY | os.O_NONBLOCK, int(resolve)
        self.kept: list[ctypes.Array[ctypes.c_char]] = []

    def rows(self, names: list[str], slots: list[int], user_data: list[int], flags: int = 0) -> abi.Rows:
        paths = [ctypes.create_string_buffer(os.fsencode(name)) for name in names]
        self.kept += paths
        addresses = [ctypes.addressof(path) for path in paths]
        return abi.openat2_rows(self.fd, addresses, self.how.ctypes.data, slots, user_data, flags=flags)


@pytest.fixture
def opens(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store/a").write_bytes(b"aaaa")
    (tmp_path / "store/b").write_bytes(b"bbbb")
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "store/link").symlink_to("../outside")
    made = Opens(str(tmp_path / "store"), Resolve.BENEATH | Resolve.NO_MAGICLINKS)
    yield made
    os.close(made.fd)


def read_slot(ring, memory, slot, run):
    result = run(ring, abi.read_rows(slot, 0, memory.address, 16, [0]))[0]
    return memory.array[:result].tobytes() if result >= 0 else result


def test_a_failed_open_keeps_the_previous_file_until_the_slot_is_cleared(ring, memory, opens, run):
    assert ring.direct_open
    ring.register_files(4)
    before = set(os.listdir("/proc/self/fd"))
    assert run(ring, opens.rows(["a", "b"], [1, 3], [0, 1])) == [0, 0]
    assert read_slot(ring, memory, 1, run) == b"aaaa"
    assert read_slot(ring, memory, 3, run) == b"bbbb"
    failures = run(ring, opens.rows(["missing", "link", "../outside", "a/b"], [1, 1, 1, 1], [0, 1, 2, 3]))
    assert failures == [-errno.ENOENT, -errno.EXDEV, -errno.EXDEV, -errno.ENOTDIR]
    assert read_slot(ring, memory, 1, run) == b"aaaa"  # which is why slots must be cleared
    assert run(ring, abi.close_rows([1, 2], [0, 1])) == [0, -errno.EBADF]
    assert read_slot(ring, memory, 1, run) == -errno.EBADF
    assert read_slot(ring, memory, 3, run) == b"bbbb"
    assert set(os.listdir("/proc/self/fd")) == before
    assert run(ring, opens.rows(["b"], [3], [0])) == [0]  # a full slot is replaced
    ring.update_files(3, [-1])
    assert read_slot(ring, memory, 3, run) == -errno.EBADF


def test_a_read_linked_to_a_failed_open_is_cancelled(ring, memory, opens, run):
    ring.register_files(4)
    assert run(ring, opens.rows(["a"], [0], [0])) == [0]
    chain = np.concatenate(
        [
            opens.rows(["missing"], [0], [0], abi.IOSQE_IO_LINK),
            abi.read_rows(0, 0, memory.address, 4, [1]),
            opens.rows(["b"], [1], [2], abi.IOSQE_IO_LINK),
            abi.read_rows(1, 0, memory.address + 64, 4, [3]),
        ]
    )
    assert run(ring, chain) == [-errno.ENOENT, -errno.ECANCELED, 0, 4]
    assert memory.array[:4].tobytes() == b"\xa5" * 4
    assert memory.array[64:68].tobytes() == b"bbbb"


def test_skipped_completions_are_forgotten(ring, memory, opens):
    ring.register_files(8)
    skip = abi.IOSQE_IO_LINK | abi.IOSQE_CQE_SKIP_SUCCESS
    pairs = np.concatenate(
        [
            opens.rows(["a"], [0], [0], skip),
            abi.read_rows(0, 0, memory.address, 4, [1]),
            opens.rows(["missing"], [1], [2], skip),  # posts its failure, and its read posts nothing
            abi.read_rows(1, 0, memory.address, 4, [3]),
        ]
    )
    assert ring.push(pairs) == 4
    ring.enter(2)
    done = ring.reap()
    assert sorted((int(c["user_data"]), int(c["res"])) for c in done) == [(1, 4), (2, -errno.ENOENT)]
    assert ring.inflight == 2
    ring.forget(2)
    assert ring.inflight == 0
    assert ring.room == ring.sq_entries


def test_enter_waits_no_longer_than_asked(ring):
    ours, theirs = os.pipe()
    buffer = ctypes.create_string_buffer(8)
    ring.push(abi.read_rows(ours, 0, ctypes.addressof(buffer), 8, [5], fixed_file=False))
    ring.enter(1, timeout=0.01)
    assert len(ring.reap()) == 0
    assert ring.inflight == 1
    ring.enter(0, timeout=2.25)
    assert list(ring._time) == [2, 250_000_000]  # what the kernel is told: seconds, nanoseconds
    os.write(theirs, b"late")
    while not len(done := ring.reap()):
        ring.enter(1, timeout=5)
    assert (int(done["user_data"][0]), int(done["res"][0]), buffer.raw[:4]) == (5, 4, b"late")
    os.close(ours)
    os.close(theirs)


def test_waiting_for_more_than_is_in_flight_returns(ring, run):
    ring.enter(10)
    ring.push(abi.nop_rows([0, 1]))
    ring.enter(10)
    assert ring.reap()["res"].tolist() == [0, 0]


def test_push_takes_what_fits():
    with Ring(4, 4) as ring:
        rows = abi.nop_rows(np.arange(9))
        assert (ring.room, ring.push(rows), ring.room, ring.push(rows)) == (4, 4, 0, 0)
        assert (ring.unsubmitted, ring.inflight) == (4, 0)
        ring.enter()
        assert (ring.unsubmitted, ring.inflight) == (0, 4)
        assert ring.push(rows[4:]) == 0, "the completion queue bounds what is in flight"
        assert ring.reap()["user_data"].tolist() == [0, 1, 2, 3]
        assert ring.push(rows[4:7]) == 3
        ring.enter(3)
        assert ring.push(rows[7:]) == 1
        ring.enter(4)
        assert ring.reap()["user_data"].tolist() == [4, 5, 6, 7]


def test_poll_and_cancel(ring, run):
    ours, theirs = os.pipe()
    os.write(theirs, b"x")
    assert run(ring, abi.poll_rows(ours, select.POLLIN, [0])) == [select.POLLIN]
    os.read(ours, 1)
    both = np.concatenate([abi.poll_rows(ours, select.POLLIN, [0]), abi.cancel_rows(0, [1])])
    assert run(ring, both) == [-errno.ECANCELED, 0]
    os.close(ours)
    os.close(theirs)


def test_counts_stay_exact_beyond_the_log(ring):
    rows = np.concatenate([abi.nop_rows(np.arange(40)), abi.nop_rows(np.arange(20), flags=abi.IOSQE_ASYNC)])
    for _ in range(700):
        assert ring.push(rows) == 60
        ring.enter(60)
        ring.reap()
    while ring.inflight:
        ring.enter(1)
        ring.reap()
    assert ring.counts == {(abi.OP_NOP, 0): 28_000, (abi.OP_NOP, abi.IOSQE_ASYNC): 14_000}


def test_queue_counters_wrap(ring, monkeypatch):
    monkeypatch.setattr(ring, "_sq_tail", ctypes.c_uint32(3))
    monkeypatch.setattr(ring, "_sq_head", ctypes.c_uint32(2**32 - 5))
    monkeypatch.setattr(ring, "_cq_head", ctypes.c_uint32(2**32 - 15))
    assert (ring.unsubmitted, ring.inflight, ring.room) == (8, 10, 56)


def test_rows_have_no_gaps():
    assert [abi.SQE.itemsize, abi.CQE.itemsize, abi.PARAMS.itemsize] == [64, 16, 120]
    for dtype in (abi.SQE, abi.CQE, abi.PARAMS):
        assert sum(dtype[name].itemsize for name in dtype.names) == dtype.itemsize
