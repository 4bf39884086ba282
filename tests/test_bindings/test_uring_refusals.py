"""Where io_uring is not to be had, the error says why; limits and filters really bite, in processes of their own."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import threading

import numpy as np
import pytest

from gpuload.bindings import uring_setup
from gpuload.bindings.limits import process_status
from gpuload.bindings.uring import Ring, UringUnavailable
from gpuload.bindings.uring_abi import PARAMS, Setup
from gpuload.errors import BackendError, BackendUnavailableError
from gpuload.request import Reason

# A user without the capabilities that exempt root, under the limit in argv[1]; proves that the limit bites. All that
# is imported must be imported before: the other user may not be able to read this interpreter's files.
UNDER_A_LIMIT = """
import ctypes, encodings.idna, errno, mmap, os, resource, sys, tempfile, traceback
import numpy as np
from gpuload.bindings import uring_abi as abi
from gpuload.bindings.syscalls import map_anonymous, memlock_limit
from gpuload.bindings.uring import Ring, UringUnavailable
from gpuload.errors import RegistrationError

limit = int(sys.argv[1])
fd = os.open(sys.argv[2], os.O_RDONLY)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
memory = map_anonymous(8 << 20)
libc = ctypes.CDLL(None, use_errno=True)
locked = libc.mlock(ctypes.c_void_p(memory.address), ctypes.c_size_t(limit + 4096))
assert locked == -1 and ctypes.get_errno() in (errno.ENOMEM, errno.EPERM), "the limit does not bite"
assert memlock_limit() == limit
"""


def test_registering_beyond_memlock(python, files):
    script = """
with Ring(8) as ring:
    try:
        ring.register_buffers([(memory.address, memory.nbytes)])
    except RegistrationError as error:
        print(error.reason, "|", error, "|", error.__cause__.errno == errno.ENOMEM)
    rows = ring.read_rows(fd, 5, memory.address, 4000, [0], fixed_file=False)
    ring.push(rows)
    ring.enter(1)
    assert ring.reap()["res"].tolist() == [4000]
    assert memory.array[:4000].tobytes() == os.pread(fd, 4000, 5)
    small = map_anonymous(64 << 10, align=4096, huge=False)
    ring.register_buffers([(small.address, small.nbytes)])     # within the limit
    ring.push(ring.read_rows(fd, 9, small.address, 4000, [0], buf_index=0, fixed_file=False))
    ring.enter(1)
    assert ring.reap()["res"].tolist() == [4000]
    assert small.array[:4000].tobytes() == os.pread(fd, 4000, 9)
"""
    limit = 1 << 20
    reason, message, enomem = python(UNDER_A_LIMIT + script, str(limit), files.paths[5]).split(" | ")
    assert (reason, enomem) == ("memlock", "True")
    assert message == f"cannot pin {8 << 20} bytes: RLIMIT_MEMLOCK is {limit}, raise it with ulimit -l"


def test_no_memlock_at_all(python, files):
    script = """
try:
    Ring(8)
except UringUnavailable as error:
    print(error.reason, errno.errorcode[error.errno], error, sep=" | ")
else:
    print("made")
"""
    reason, code, message = python(UNDER_A_LIMIT + script, "0", files.paths[5]).split(" | ")
    assert (reason, code) == ("memlock", "ENOMEM")
    assert "RLIMIT_MEMLOCK is 0" in message


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_seccomp(filtered, code):
    script = """
try:
    Ring(8)
except UringUnavailable as error:
    print(error.backend, error.reason, error.errno, error, sep=" | ")
"""
    backend, reason, seen, message = filtered(script, f"425={code}").split(" | ")
    assert (backend, reason, int(seen)) == ("io_uring", "seccomp", code)
    assert "seccomp filter" in message


def test_seccomp_in_the_middle(filtered):
    """A filter on enter only: the ring is made, then refuses by name rather than hang."""
    script = """
from gpuload.errors import BackendError
from gpuload.bindings.uring_queues import Queues
ring = Queues(8)
try:
    ring.enter()
except BackendError as error:
    print(error)
ring.close()
"""
    assert filtered(script, f"426={errno.EPERM}") == f"io_uring_enter: {os.strerror(errno.EPERM)}"


class Kernel:
    """Answers io_uring_setup with an errno."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.tried: list[int] = []

    def __call__(self, number: int, entries: int, params: int) -> int:
        self.tried.append(number)
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize(
    ("code", "filtered", "disabled", "reason", "says"),
    [
        (errno.ENOSYS, False, 0, Reason.KERNEL_TOO_OLD, "older than 5.1"),
        (errno.ENOSYS, True, 0, Reason.SECCOMP, "seccomp filter"),
        (errno.EPERM, True, 0, Reason.SECCOMP, "seccomp filter"),
        (errno.EPERM, False, 2, Reason.FORCED_OFF, "kernel.io_uring_disabled=2"),
        (errno.EACCES, False, 0, Reason.SECCOMP, "security policy"),
        (errno.ENOMEM, False, 0, Reason.MEMLOCK, "ulimit -l"),
        (errno.EMFILE, False, 0, Reason.FD_LIMIT, "ulimit -n"),
        (errno.EINVAL, False, 0, Reason.KERNEL_TOO_OLD, "none of the flag sets"),
    ],
)
def test_every_refusal_has_its_reason(monkeypatch, code, filtered, disabled, reason, says):
    kernel = Kernel(code)
    monkeypatch.setattr(uring_setup, "syscall", kernel)
    monkeypatch.setattr(uring_setup, "_filtered", lambda: filtered)
    monkeypatch.setattr(uring_setup, "_disabled", lambda: disabled)
    with pytest.raises(BackendUnavailableError, match=says) as caught:
        Ring(8)
    error = caught.value
    assert (error.reason, error.errno, error.backend) == (reason, code, "io_uring")
    assert len(kernel.tried) == (len(uring_setup.SETUP_TRIES) if code == errno.EINVAL else 1)
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.reason, copied.errno, str(copied)) == (error.reason, error.errno, str(error))


def test_older_kernels_get_the_best_set_they_know(monkeypatch):
    """Flags are tried from the newest to the oldest, each after EINVAL only."""
    real, known = uring_setup.syscall, uring_setup.SETUP_TRIES[3]
    tried = []

    def older(number, entries, params, *rest):
        tried.append(int(np.frombuffer(ctypes.string_at(params, PARAMS.itemsize), PARAMS)["flags"][0]))
        if tried[-1] & ~int(known):
            raise OSError(errno.EINVAL, "no such flag")
        return real(number, entries, params, *rest)

    monkeypatch.setattr(uring_setup, "syscall", older)
    with Ring(8) as ring:
        assert ring.setup_flags == known
        assert not ring.deferred
    assert tried == [int(flags) for flags in uring_setup.SETUP_TRIES[:4]]


def test_weakly_ordered_processors_need_deferred_completions(monkeypatch):
    monkeypatch.setattr(uring_setup, "STRONGLY_ORDERED", False)
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(UringUnavailable, match="DEFER_TASKRUN") as caught:
        Ring(8, setup_flags=Setup.CLAMP)
    assert caught.value.reason == Reason.KERNEL_TOO_OLD
    assert os.listdir("/proc/self/fd") == descriptors
    with Ring(8) as ring:
        assert ring.deferred


def test_a_kernel_without_what_the_ring_needs(monkeypatch):
    monkeypatch.setattr(uring_setup, "_REQUIRED", uring_setup._REQUIRED | 1 << 31)
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(UringUnavailable, match="the kernel lacks"):
        Ring(8)
    assert os.listdir("/proc/self/fd") == descriptors


def test_flags_the_kernel_refuses():
    with pytest.raises(UringUnavailable) as caught:
        Ring(8, setup_flags=Setup.DEFER_TASKRUN)  # without SINGLE_ISSUER
    assert (caught.value.reason, caught.value.errno) == (Reason.KERNEL_TOO_OLD, errno.EINVAL)


@pytest.mark.parametrize(
    ("module", "name"),
    [("uring_queues", "map_descriptor"), ("uring", "Ring._probe"), ("uring", "Ring._try_direct_open")],
)
def test_a_ring_half_made_leaves_nothing(monkeypatch, module, name):
    def fail(*_):
        raise MemoryError(name)

    descriptors = os.listdir("/proc/self/fd")
    monkeypatch.setattr(f"gpuload.bindings.{module}.{name}", fail)
    with pytest.raises(MemoryError, match=name):
        Ring(8)
    assert os.listdir("/proc/self/fd") == descriptors


def test_what_the_system_says():
    assert uring_setup._disabled() in (0, 1)  # 2: no ring could be made here
    assert uring_setup._filtered() == (process_status("Seccomp") == "2")


def test_a_descriptor_gone_under_the_ring():
    ring = Ring(8)
    os.close(ring.fd)
    with pytest.raises(BackendError, match="io_uring_enter: Bad file descriptor"):
        ring.enter()
    ring.fd = os.open("/dev/null", os.O_RDONLY)
    ring.close()


def test_a_ring_in_every_thread():
    made = []

    def make():
        with Ring(8) as ring:
            made.append(ring.describe())

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert made[0].startswith("io_uring: 8 entries, 16 completions, ")
