"""A ring under exceptions, signals, threads and fork, and what is left once it is closed."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading

import numpy as np
import pytest

from gpuload.bindings import uring_abi as abi
from gpuload.bindings.uring import Ring
from gpuload.errors import BackendError


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def mapped():
    with open("/proc/self/maps") as maps:
        return sum("io_uring" in line for line in maps)


def test_close_leaves_nothing(memory, fds):
    gc.collect()
    descriptors, mappings = os.listdir("/proc/self/fd"), mapped()
    ring = Ring(64)
    ring.register_buffers([(memory.address, memory.nbytes)])
    ring.register_files(8)
    ring.update_files(0, fds)
    ring.push(ring.read_rows(7, 0, memory.address, 1 << 20, [0], buf_index=0, flags=abi.IOSQE_ASYNC))
    ring.enter()
    assert mapped() == mappings + 2
    ring.close()
    ring.close()
    assert os.listdir("/proc/self/fd") == descriptors
    assert mapped() == mappings
    assert (ring.fd, ring.buffers, ring.n_files, ring.inflight, ring.unsubmitted) == (-1, (), 0, 0, 0)
    for use in (ring.enter, ring.reap, lambda: ring.push(abi.nop_rows([0])), lambda: ring.register_files(1)):
        with pytest.raises(BackendError, match="the ring is closed"):
            use()


def test_a_ring_that_is_dropped_is_closed_with_a_warning():
    descriptors = os.listdir("/proc/self/fd")
    rings = [Ring(4)]
    with pytest.warns(ResourceWarning, match="unclosed ring"):
        rings.clear()
    assert os.listdir("/proc/self/fd") == descriptors


def test_an_exception_drains(memory, pipe):
    """A read that would wait for ever is cancelled, and no read writes once the block is left."""

    def read_on_purpose():
        with Ring(64) as ring:
            ring.register_buffers([(memory.address, memory.nbytes)])
            address = memory.address + np.arange(3) * 64
            rows = ring.read_rows(pipe[0], 0, address, 64, np.arange(3), buf_index=0, fixed_file=False)
            rows["flags"] = [0, abi.IOSQE_ASYNC, abi.IOSQE_IO_LINK]
            ring.push(rows[:2])
            ring.enter()
            ring.push(rows[2:])  # left in the queue, the open end of a chain
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        read_on_purpose()
    os.write(pipe[1], b"too late")
    assert os.read(pipe[0], 100) == b"too late"
    assert (memory.array[:192] == 0xA5).all()


def test_drain_leaves_a_ring_that_works(ring, memory, pipe, run):
    for _ in range(3):
        ring.push(abi.read_rows(pipe[0], 0, memory.address, 64, np.arange(20), fixed_file=False))
        ring.enter()
        assert ring.inflight == 20
        ring.drain()
        assert (ring.inflight, ring.unsubmitted) == (0, 0)
        assert run(ring, abi.nop_rows(np.arange(5))) == [0] * 5
    ring.drain()


def test_a_read_that_one_cancel_missed_is_cancelled_by_the_next(ring, memory, pipe, run, monkeypatch):
    """As happens to a read that a worker of the kernel is just putting to sleep."""
    real, asked = abi.cancel_all_rows, []

    def misses_twice(user_data):
        asked.append(user_data)
        return real(user_data) if len(asked) > 2 else abi.nop_rows(user_data)

    monkeypatch.setattr(abi, "cancel_all_rows", misses_twice)
    ring.push(abi.read_rows(pipe[0], 0, memory.address, 64, [0], fixed_file=False))
    ring.drain()
    assert len(asked) == 3
    assert (ring.inflight, ring.unsubmitted) == (0, 0)
    assert run(ring, abi.nop_rows([0])) == [0]


def test_reads_that_are_just_going_to_sleep_are_cancelled(memory, pipe):
    for _ in range(200):
        with Ring(8) as ring:
            ring.push(abi.read_rows(pipe[0], 0, memory.address, 64, [0], fixed_file=False, flags=abi.IOSQE_ASYNC))
            ring.enter()
    os.write(pipe[1], b"too late")
    assert os.read(pipe[0], 100) == b"too late"


def test_ctrl_c_interrupts_a_wait(ring, memory, pipe, run):
    ring.push(abi.read_rows(pipe[0], 0, memory.address, 64, [0], fixed_file=False))
    struck, interrupted = threading.Event(), threading.Event()

    def strike(*_):
        if not struck.is_set():
            struck.set()
            raise KeyboardInterrupt

    def send():
        # One signal that comes just before the system call does not interrupt it: that takes another.
        while not interrupted.wait(0.1):
            os.kill(os.getpid(), signal.SIGINT)

    def wait_for_ever():
        sender.start()
        while True:
            ring.enter(1)

    before = signal.signal(signal.SIGINT, strike)
    sender = threading.Thread(target=send)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_for_ever()
    finally:
        interrupted.set()
        sender.join()
        signal.signal(signal.SIGINT, before)
    assert ring.inflight == 1
    ring.drain()
    assert run(ring, abi.nop_rows([0])) == [0]


def test_drain_holds_ctrl_c_back(ring, memory, pipe, monkeypatch):
    ring.push(abi.read_rows(pipe[0], 0, memory.address, 64, [0], fixed_file=False))
    ring.enter()
    real, calls = ring.enter, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) < 3:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(ring, "enter", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ring.drain()
    assert ring.inflight == ring.unsubmitted == 0


def test_another_thread_is_refused(ring, memory, pipe):
    ring.push(abi.read_rows(pipe[0], 0, memory.address, 4, [0], fixed_file=False))
    ring.enter()
    refused = []

    def use():
        for call in (
            ring.enter,
            ring.reap,
            ring.drain,
            ring.close,
            lambda: ring.push(abi.nop_rows([0])),
            lambda: ring.register_buffers([(memory.address, 4096)]),
            lambda: ring.update_files(0, [0]),
        ):
            try:
                call()
            except BackendError as error:
                refused.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert refused == ["the ring belongs to the thread that made it"] * 7
    os.write(pipe[1], b"mine")
    ring.enter(1)
    assert ring.reap()["res"].tolist() == [4]
    assert memory.array[:4].tobytes() == b"mine"


def test_an_idle_ring_may_be_closed_by_another_thread():
    ring = Ring(4)
    thread = threading.Thread(target=ring.close)
    thread.start()
    thread.join()
    assert ring.fd == -1


def test_not_picklable(ring, memory):
    for thing in (ring, memory):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(thing)


FORK = """
import os, sys
import numpy as np
from gpuload.bindings import uring_abi as abi
from gpuload.bindings.syscalls import map_anonymous
from gpuload.bindings.uring import Ring
from gpuload.errors import BackendError

path = sys.argv[1]
memory = map_anonymous(1 << 20)
ours, theirs = os.pipe()
ring = Ring(16)
ring.register_buffers([(memory.address, memory.nbytes)])
ring.register_files(1)
ring.update_files(0, [ours])
inherited = ring.fd
ring.push(ring.read_rows(0, 0, memory.address, 64, [0], buf_index=0))
ring.enter()
ring.push(abi.nop_rows([1]))                       # queued by the parent only
child = os.fork()
if child == 0:
    code = 1
    try:
        refused = 0
        for use in (ring.enter, ring.reap, lambda: ring.push(abi.nop_rows([0])), lambda: ring.register_files(1)):
            try:
                use()
            except BackendError as error:
                refused += "parent process" in str(error)
        assert refused == 4, refused
        assert not os.path.exists(f"/proc/self/fd/{inherited}"), "the child holds the ring"
        assert "io_uring" not in open("/proc/self/maps").read(), "the child holds the queues"
        try:
            memory.array
        except ValueError as error:
            assert "parent process" in str(error)
        else:
            raise AssertionError("a view of memory that is not there")
        ring.close()
        memory.close()
        own_memory = map_anonymous(4096)
        with Ring(4) as own:
            fd = os.open(path, os.O_RDONLY)
            own.register_buffers([(own_memory.address, 4096)])
            own.push(own.read_rows(fd, 0, own_memory.address, 511, [9], buf_index=0, fixed_file=False))
            own.enter(1)
            assert own.reap()["res"].tolist() == [511]
            assert own_memory.array[:511].tobytes() == open(path, "rb").read()
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
os.write(theirs, b"undisturbed")
done = {}
while len(done) < 2:
    ring.enter(1)
    done |= {int(c["user_data"]): int(c["res"]) for c in ring.reap()}
assert done == {0: 11, 1: 0}, done
assert memory.array[:11].tobytes() == b"undisturbed"
ring.close()
print("right")
"""


def test_fork(python, files):
    assert python(FORK, files.paths[2]) == "right"
