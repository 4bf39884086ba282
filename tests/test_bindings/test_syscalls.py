"""statx and openat2, against what `os` says and under calls that are missing."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat

import pytest

from gpuload.bindings import syscalls
from gpuload.bindings.libc import syscall
from gpuload.bindings.syscalls import (
    STATX_DIOALIGN,
    Resolve,
    openat2,
    openat2_supported,
    statx,
)


def agrees(found, status):
    return (found.mode, found.size, found.ino, found.dev, found.mtime_ns, found.ctime_ns) == (
        status.st_mode,
        status.st_size,
        status.st_ino,
        status.st_dev,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


@pytest.fixture(params=["kernel", "os.stat"])
def either(request, monkeypatch):
    if request.param == "os.stat":
        monkeypatch.setattr(syscalls, "_statx", None)
    return request.param


def test_statx_agrees_with_stat(either, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 12345)
    os.utime(file, ns=(1, 1_234_567_890_123_456_789))
    link = tmp_path / "link"
    link.symlink_to("file")
    folder = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    fd = os.open(file, os.O_RDONLY)
    for found in (
        statx(str(file)),
        statx(os.fsencode(link)),
        statx("file", dir_fd=folder),
        statx("link", dir_fd=folder),
        statx(dir_fd=fd, empty_path=True),
    ):
        assert agrees(found, os.stat(file))
        assert found.size == 12345
    assert agrees(statx("link", dir_fd=folder, follow=False), os.lstat(link))
    assert stat.S_ISLNK(statx(str(link), follow=False).mode)
    assert agrees(statx(dir_fd=folder, empty_path=True), os.stat(tmp_path))
    assert agrees(statx(empty_path=True), os.stat("."))
    os.close(fd)
    os.close(folder)


def test_statx_names_the_missing_file(either, tmp_path):
    with pytest.raises(FileNotFoundError, match="no-such") as caught:
        statx(str(tmp_path / "no-such"))
    assert caught.value.filename == str(tmp_path / "no-such")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        statx(str(tmp_path / "file" / "below"))


def test_direct_io_alignment(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    found = statx(str(tmp_path / "file"))
    if found.mask & STATX_DIOALIGN:
        for alignment in (found.dio_mem_align, found.dio_offset_align):
            assert alignment & (alignment - 1) == 0
    else:
        assert (found.dio_mem_align, found.dio_offset_align) == (0, 0)
    pipe = os.pipe()
    found = statx(dir_fd=pipe[0], empty_path=True)
    assert (found.dio_mem_align, found.dio_offset_align) == (0, 0)
    for fd in pipe:
        os.close(fd)


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store/below").mkdir(parents=True)
    (tmp_path / "store/below/chunk").write_bytes(b"chunk")
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "store/out").symlink_to("../outside")
    (tmp_path / "store/absolute").symlink_to(tmp_path / "outside")
    (tmp_path / "store/inside").symlink_to("below/../below/chunk")
    fd = os.open(tmp_path / "store", os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def content(fd):
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_openat2_stays_beneath(store):
    assert openat2_supported()
    for path in ("below/chunk", b"below/chunk", "inside", "below/../inside"):
        assert content(openat2(store, path, os.O_RDONLY | os.O_CLOEXEC, Resolve.BENEATH)) == b"chunk"
    for path in ("out", "absolute", "../outside", "/etc/passwd", "below/../../outside"):
        with pytest.raises(OSError, match=r"outside|out|absolute|passwd") as caught:
            openat2(store, path, os.O_RDONLY, Resolve.BENEATH)
        assert (caught.value.errno, caught.value.filename) == (errno.EXDEV, path)
    assert content(openat2(store, "out", os.O_RDONLY, Resolve(0))) == b"secret"
    for path, code in (("inside", errno.ELOOP), ("missing", errno.ENOENT), ("below/chunk/x", errno.ENOTDIR)):
        with pytest.raises(OSError, match=path) as caught:
            openat2(store, path, os.O_RDONLY, Resolve.NO_SYMLINKS)
        assert caught.value.errno == code
    with pytest.raises(ValueError, match="null byte"):
        openat2(store, "below/chunk\0", os.O_RDONLY, Resolve.BENEATH)


@pytest.mark.parametrize(
    ("answers", "tries", "code"),
    [
        ([errno.EAGAIN] * 3 + [0], 4, None),
        ([errno.EINTR] * 200 + [errno.EAGAIN, 0], 202, None),
        ([errno.EAGAIN] * 1000, 65, errno.EAGAIN),
        ([errno.EXDEV], 1, errno.EXDEV),
    ],
)
def test_openat2_tries_again_a_bounded_number_of_times(monkeypatch, answers, tries, code):
    asked = []

    def kernel(*call):
        answer = answers[len(asked)]
        asked.append(call)
        ctypes.set_errno(answer)
        return -1 if answer else 77

    monkeypatch.setattr(syscalls, "raw_syscall", kernel)
    if code is None:
        assert openat2(5, "a", os.O_RDONLY, Resolve.BENEATH) == 77
    else:
        with pytest.raises(OSError, match="'a'") as caught:
            openat2(5, "a", os.O_RDONLY, Resolve.BENEATH)
        assert caught.value.errno == code
    assert len(asked) == tries


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter names statx by its number on x86-64")
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_under_a_filter_without_statx_and_openat2(filtered, tmp_path, code):
    (tmp_path / "file").write_bytes(b"x" * 99)
    script = """
path = sys.argv[2]
found, status = syscalls.statx(path), os.stat(path)
assert (found.size, found.ino, found.dev) == (99, status.st_ino, status.st_dev)
assert found.dio_offset_align == 0 and not found.mask & syscalls.STATX_DIOALIGN
try:
    syscalls.statx(path + "-missing")
except FileNotFoundError:
    print(syscalls.openat2_supported())
"""
    assert filtered(script, f"332={code},437={code}", str(tmp_path / "file")) == "False"


def test_syscall_raises_errno():
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as caught:
        syscall(426, -1)
    assert caught.value.errno == errno.EBADF
