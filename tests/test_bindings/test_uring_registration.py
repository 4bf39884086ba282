"""Buffers and file tables: what is refused and by whom, ranges inside their buffers, and resizing."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.bindings import uring
from gpuload.bindings import uring_abi as abi
from gpuload.bindings.syscalls import map_anonymous
from gpuload.bindings.uring import Ring
from gpuload.errors import BackendError, RegistrationError
from gpuload.request import Reason

GIB = 1 << 30


@pytest.fixture
def no_call(ring, monkeypatch):
    """Any registration that still reaches the kernel fails the test."""
    monkeypatch.setattr(ring, "_register", lambda *_: pytest.fail("reached the kernel"))


@pytest.mark.parametrize(
    ("buffers", "match"),
    [
        ([(4096, 4096), (1 << 30, GIB + 1)], r"buffer 1 has 1073741825 bytes.*1 GiB"),
        ([(4096, 0)], "buffer 0 has 0 bytes"),
        ([], "cannot register 0 buffers"),
        ([(4096, 4096)] * (16384 + 1), "cannot register 16385 buffers: 1 to 16384"),
    ],
)
def test_refused_by_name_before_the_call(ring, no_call, buffers, match):
    with pytest.raises(RegistrationError, match=match) as caught:
        ring.register_buffers(buffers)
    assert caught.value.reason is None
    assert ring.buffers == ()


def test_the_kernel_itself_refuses_more_than_one_gib(ring, monkeypatch):
    monkeypatch.setattr(abi, "MAX_BUFFER_BYTES", 2 * GIB)
    with mmap.mmap(-1, GIB + mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as large:
        address = np.frombuffer(large, np.uint8).ctypes.data
        with pytest.raises(RegistrationError, match="cannot pin 1073741825 bytes") as caught:
            ring.register_buffers([(address, GIB + 1)])
    assert caught.value.__cause__.errno == errno.EFAULT
    assert ring.buffers == ()


def test_one_gib_is_accepted_by_the_check(ring, monkeypatch):
    calls = []
    monkeypatch.setattr(ring, "_register", lambda *call: calls.append(call) or 0)
    ring.register_buffers([(GIB, GIB)])
    assert len(calls) == 1
    ring.buffers = ()


def test_the_largest_number_of_buffers(ring, memory):
    ring.register_buffers([(memory.address + 8 * i, 8) for i in range(16384)])
    assert len(ring.buffers) == 16384


def file_system(path):
    best = ("", "")
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, mount_point, kind, *_ = line.split()
            if os.path.realpath(path).startswith(mount_point) and len(mount_point) >= len(best[0]):
                best = (mount_point, kind)
    return best[1]


@pytest.mark.parametrize("asked", [True, False], ids=["before the call", "by the kernel"])
def test_file_backed_memory_is_refused(ring, tmp_path, monkeypatch, asked):
    if not asked:  # as where there is no /proc
        monkeypatch.setattr(uring, "file_mappings", list)
    folder = tmp_path if file_system(tmp_path) not in ("tmpfs", "ramfs") else os.getcwd()
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.truncate(1 << 20)
        with mmap.mmap(file.fileno(), 1 << 20, flags=mmap.MAP_SHARED) as mapped:
            address = np.frombuffer(mapped, np.uint8).ctypes.data
            with pytest.raises(RegistrationError, match="memory of a file") as caught:
                ring.register_buffers([(address, 1 << 20)])
    assert caught.value.reason is None
    if asked:
        assert caught.value.__cause__ is None
        assert file.name in str(caught.value)
    else:
        assert caught.value.__cause__.errno == errno.EFAULT


def test_shared_memory_without_a_file_is_registered(ring):
    with mmap.mmap(-1, 1 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) as mapped:
        ring.register_buffers([(np.frombuffer(mapped, np.uint8).ctypes.data, 1 << 20)])
        ring.unregister_buffers()


def test_unmapped_memory_is_refused(ring):
    gone = map_anonymous(4096)
    address = gone.address
    gone.close()
    with pytest.raises(RegistrationError, match="not mapped"):
        ring.register_buffers([(address, 4096)])


def test_ranges_inside_their_buffer_only(ring, memory, files, fds, run):
    middle = memory.address + 4096
    ring.register_buffers([(memory.address, 4096), (middle, 1 << 20)])
    ring.register_files(1)
    ring.update_files(0, fds[-1:])
    inside = ring.read_rows(0, [10, 20], [middle + 77, middle + (1 << 20) - 100], [1000, 100], [0, 1], buf_index=1)
    assert run(ring, inside) == [1000, 100]
    assert memory.array[4096 + 77 : 4096 + 1077].tobytes() == files.data[-1][10:1010]
    for address, size, buffer in [
        (middle - 1, 10, 1),
        (middle + (1 << 20) - 9, 10, 1),
        (middle, 10, 0),
        (memory.address, 4097, 0),
        (0, 1, 0),
        (2**63 - 1, 1, 1),
        (middle, 2**40, 1),
        (middle, -1, 1),
    ]:
        with pytest.raises(
            RegistrationError, match=rf"{size} bytes at {address:#x} are outside registered buffer {buffer}"
        ):
            ring.read_rows(0, [0, 0], [middle, address], [1, size], [0, 1], buf_index=[1, buffer])
    for buffer in (2, -1, 70_000):
        with pytest.raises(RegistrationError, match=f"no registered buffer {buffer}"):
            ring.read_rows(0, 0, middle, 1, [0], buf_index=buffer)
    assert ring.inflight == ring.unsubmitted == 0
    # What the check is there for, in the kernel's words:
    assert run(ring, abi.read_rows(0, 0, middle - 1, 10, [0], buf_index=1)) == [-errno.EFAULT]


BUFFERS = [(1 << 20, 4096), ((1 << 20) + 8192, 1), (1 << 46, GIB)]
EDGES = [edge for start, size in BUFFERS for edge in (start, start + size)]


@pytest.fixture(scope="module")
def table():
    with Ring(4) as ring:
        ring.buffers = tuple(BUFFERS)
        ring._buffer_address, ring._buffer_size = np.array(BUFFERS).T
        yield ring


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.one_of(st.sampled_from(EDGES), st.integers(0, 2**63 - 1)),
            st.integers(-2, 2),
            st.one_of(st.integers(0, 4100), st.integers(0, 2**63 - 1)),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_check_ranges_equals_unbounded_integers(table, cases):
    index = [buffer for buffer, *_ in cases]
    address = [max(0, min(2**63 - 1, edge + shift)) for _, edge, shift, _ in cases]
    size = [length for *_, length in cases]
    right = all(
        BUFFERS[i][0] <= a and a + n <= BUFFERS[i][0] + BUFFERS[i][1]
        for i, a, n in zip(index, address, size, strict=True)
    )
    if right:
        table.check_ranges(index, address, size)
    else:
        with pytest.raises(RegistrationError, match="outside registered buffer"):
            table.check_ranges(index, address, size)


def pinned_kib():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmPin"))


def test_resizing_between_reads(ring, files, fds, run):
    ring.register_files(8)
    ring.update_files(2, fds[-2:])
    before = pinned_kib()
    slabs = []
    for shape in ([1 << 20], [64 << 10] * 7, [2 << 20, 4096], [4096] * 33):
        slabs = [map_anonymous(size, align=4096) for size in shape]
        ring.register_buffers([(slab.address, slab.nbytes) for slab in slabs])
        assert pinned_kib() - before == sum(shape) >> 10
        n = len(slabs)
        rows = ring.read_rows(
            3,
            np.arange(n) * 1000,
            [s.address + s.nbytes - 4096 for s in slabs],
            4096,
            np.arange(n),
            buf_index=np.arange(n),
        )
        assert run(ring, rows) == [4096] * n
        for i, slab in enumerate(slabs):
            assert slab.array[-4096:].tobytes() == files.data[-1][i * 1000 : i * 1000 + 4096]
        with pytest.raises(BackendError, match="registered already"):
            ring.register_buffers([(slabs[0].address, 4096)])
        ring.drain()
        ring.unregister_buffers()
        assert pinned_kib() == before
        assert ring.buffers == ()
        for slab in slabs:
            slab.close()
    ring.unregister_buffers()  # nothing to do


def test_registrations_stay_while_reads_are_in_flight(ring, memory):
    ours, theirs = os.pipe()
    ring.register_buffers([(memory.address, 4096)])
    ring.register_files(2)
    ring.update_files(0, [ours])
    ring.push(ring.read_rows(0, 0, memory.address, 16, [0], buf_index=0))
    for _ in ("queued", "in flight"):
        for change in (
            ring.unregister_buffers,
            ring.unregister_files,
            lambda: ring.register_buffers([(memory.address, 4096)]),
        ):
            with pytest.raises(BackendError, match="1 reads in flight: drain first"):
                change()
        ring.enter()
    os.write(theirs, b"still there")
    ring.enter(1)
    assert ring.reap()["res"].tolist() == [11]
    assert memory.array[:11].tobytes() == b"still there"
    ring.unregister_buffers()
    ring.unregister_files()
    os.close(ours)
    os.close(theirs)


def test_plain_reads_work_beside_registered_buffers(ring, memory, fds, files, run):
    ring.register_buffers([(memory.address, 4096)])
    rows = ring.read_rows(fds[-1], 0, memory.address + 8192, 100, [0], fixed_file=False)
    assert run(ring, rows) == [100]
    assert memory.array[8192:8292].tobytes() == files.data[-1][:100]


def test_the_file_table(ring, memory, fds, files, run):
    with pytest.raises(BackendError, match="slot 0 of 0"):
        ring.update_files(0, fds[:1])
    ring.register_files(4)
    with pytest.raises(BackendError, match="already"):
        ring.register_files(4)
    with pytest.raises(BackendError, match="slot 3 of 4"):
        ring.update_files(3, fds[:2])
    closed = os.dup(fds[0])
    os.close(closed)
    with pytest.raises(BackendError, match=f"descriptor {closed} into slot 2 of 4.*Bad file"):
        ring.update_files(1, [fds[-1], closed, fds[-2]])
    rows = abi.read_rows([1, 2], 0, memory.address, 10, [0, 1])
    assert run(ring, rows) == [10, -errno.EBADF]
    ring.update_files(1, [-1, fds[-2]])
    assert run(ring, rows) == [-errno.EBADF, 10]
    ring.unregister_files()
    assert ring.n_files == 0
    assert run(ring, rows) == [-errno.EBADF, -errno.EBADF]
    ring.register_files(100)
    assert run(ring, abi.read_rows(99, 0, memory.address, 10, [0])) == [-errno.EBADF]


def test_a_table_beyond_the_descriptor_limit(python):
    script = """
import resource
from gpuload.bindings.uring import Ring
from gpuload.errors import RegistrationError
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with Ring(4) as ring:
    try:
        ring.register_files(65)
    except RegistrationError as error:
        print(error.reason)
    ring.register_files(64)
"""
    assert python(script) == Reason.FD_LIMIT
