"""Memory for pinning: aligned, touched, freed once, absent after fork; and what may be locked of it."""

from __future__ import annotations

import ctypes
import errno
import gc
import io
import mmap
import os

import numpy as np
import pytest

from gpuload.bindings import limits
from gpuload.bindings import mapping as mapping_module
from gpuload.bindings.limits import memlock_limit, process_status, usable_cores
from gpuload.bindings.mapping import map_anonymous


@pytest.mark.parametrize("huge", [True, False])
@pytest.mark.parametrize(("nbytes", "align"), [(1, 4096), (4096, 4096), (5000, 2 << 20), (3 << 20, 2 << 20)])
def test_anonymous_memory(nbytes, align, huge):
    with open("/proc/self/maps") as maps:
        before = len(maps.readlines())
    mapping = map_anonymous(nbytes, align=align, huge=huge)
    assert mapping.address % align == 0
    assert mapping.array.shape == (nbytes,)
    assert mapping.array.dtype == np.uint8
    assert mapping.array.ctypes.data == mapping.address
    resident = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None)
    assert (
        libc.mincore(ctypes.c_void_p(mapping.address), ctypes.c_size_t(nbytes), ctypes.c_void_p(resident.ctypes.data))
        == 0
    )
    assert (resident & 1).all(), "not touched before use"
    mapping.array[:] = 7
    assert int(mapping.array.sum(dtype=np.int64)) == 7 * nbytes
    mapping.close()
    mapping.close()
    with pytest.raises(ValueError, match="closed"):
        mapping.array
    with open("/proc/self/maps") as maps:
        assert len(maps.readlines()) <= before + 1  # trimmed head and tail are gone as well


@pytest.mark.parametrize(("huge", "flag"), [(True, "hg"), (False, "nh")])
def test_huge_pages_as_asked(huge, flag):
    mapping = map_anonymous(2 << 20, huge=huge)
    flags: list[str] = []
    inside = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first, *rest = line.split()
            if "-" in first and not first.endswith(":"):
                start, end = (int(edge, 16) for edge in first.split("-"))
                inside = start <= mapping.address < end
            elif inside and first == "VmFlags:":
                flags = rest
    if not {"hg", "nh"} & set(flags):
        pytest.skip("a kernel without transparent huge pages")
    assert flag in flags
    mapping.close()


def test_an_array_keeps_its_memory():
    array = map_anonymous(1 << 20).array
    gc.collect()
    array[:] = 3
    assert (array == 3).all()


def test_old_kernels_get_their_pages_touched(monkeypatch):
    monkeypatch.setattr(mapping_module, "_MADV_POPULATE_WRITE", 9999)
    mapping = map_anonymous(10_000, align=4096)
    assert (mapping.array == 0).all()
    mapping.close()


@pytest.mark.parametrize(("nbytes", "align"), [(0, 4096), (-1, 4096), (10, 3 << 20), (10, 64)])
def test_refused_sizes(nbytes, align):
    with pytest.raises(ValueError, match="cannot map"):
        map_anonymous(nbytes, align=align)


def test_more_memory_than_there_is():
    with pytest.raises(OSError, match="memory") as caught:
        map_anonymous(1 << 60)
    assert caught.value.errno == errno.ENOMEM


def test_fork_leaves_memory_alone(python):
    script = """
import os
from gpuload.bindings.mapping import map_anonymous
shared, alone = map_anonymous(4096, align=4096, dontfork=False), map_anonymous(4096, align=4096)
shared.array[:] = 5
view = shared.array
child = os.fork()
if child == 0:
    code = 1
    try:
        at = f"{alone.address:x}-"
        assert not any(line.startswith(at) for line in open("/proc/self/maps"))
        assert (shared.array == 5).all()
        shared.close()
        alone.close()
        assert (view == 5).all()      # unmapped by the process that mapped it alone
        code = 0
    finally:
        os._exit(code)
print(os.waitpid(child, 0)[1])
"""
    assert python(script) == "0"


def test_memlock_limit(monkeypatch):
    soft = [12345]
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (soft[0], soft[0]))
    monkeypatch.setattr(limits, "process_status", {"CapEff": "0000000000003fff"}.get)
    assert memlock_limit() == 12345
    monkeypatch.setattr(limits, "process_status", {"CapEff": "0000000000004000"}.get)
    assert memlock_limit() is None
    monkeypatch.setattr(limits, "process_status", {}.get)
    assert memlock_limit() == 12345
    soft[0] = limits.resource.RLIM_INFINITY
    assert memlock_limit() is None


def test_process_status():
    assert int(process_status("Pid")) == os.getpid()
    assert process_status("NoSuchField") is None


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("max 100000\n", 16),
        ("400000 100000\n", 4),
        ("50000 100000\n", 1),
        ("9900000 100000\n", 16),
        ("", 16),
        (None, 16),
    ],
)
def test_cores_that_may_be_kept_busy(content: str | None, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: str) -> io.StringIO:
        assert path == "/sys/fs/cgroup/cpu.max"
        if content is None:
            raise FileNotFoundError(path)
        return io.StringIO(content)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(limits, "open", opened, raising=False)
    assert usable_cores() == cores
