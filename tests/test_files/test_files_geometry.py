"""Identity, alignments and mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuload.bindings import syscalls
from gpuload.files.geometry import Identity, Mount, geometry, identify, parse_mounts

TABLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
36 35 98:0 /mnt1 /data/two\040words\011tab rw,noatime master:1 shared:7 - ext4 /a\040b rw,errors=continue,data=ordered
37 35 98:1 / /back\134slash\134040 rw - xfs /dev/b rw,noquota
38 35 0:99 / /plain rw,relatime - tmpfs none
this is no mount
39 35 not:numbers / /x rw - ext4 /dev/x rw
"""


def test_mounts_are_read_with_their_escapes_and_optional_fields() -> None:
    assert parse_mounts(TABLE) == [
        Mount(22, (0, 21), "/proc", "proc", ("rw", "relatime")),
        Mount(36, (98, 0), "/data/two words\ttab", "ext4", ("rw", "noatime", "errors=continue", "data=ordered")),
        # an escaped backslash followed by digits is not an escape again
        Mount(37, (98, 1), "/back\\slash\\040", "xfs", ("rw", "noquota")),
        Mount(38, (0, 99), "/plain", "tmpfs", ("rw", "relatime")),
    ]


def test_the_geometry_of_a_file_is_what_statx_and_the_table_of_mounts_say(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    fd = os.open(path, os.O_RDONLY)
    try:
        found = geometry(fd)
        status = syscalls.statx(path)
        assert (found.dio_mem_align, found.dio_offset_align) == (status.dio_mem_align, status.dio_offset_align)
        if found.file_system == "ext4":  # since Linux 6.1 ext4 says what it wants
            assert found.dio_offset_align in (512, 1024, 2048, 4096)
        assert found.device == (os.major(status.dev), os.minor(status.dev))
        assert os.path.ismount(found.mount_point)
        assert os.stat(found.mount_point).st_dev == status.dev
        assert "rw" in found.mount_options
    finally:
        os.close(fd)


@pytest.mark.parametrize(("path", "file_system"), [("/proc/version", "proc"), ("/dev/shm", "tmpfs")])
def test_known_file_systems_are_named(path: str, file_system: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        assert geometry(fd).file_system == file_system
    finally:
        os.close(fd)


def test_a_device_number_that_no_mount_has_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()  # pipefs is never mounted
    try:
        found = geometry(reading)
        assert (found.file_system, found.mount_point, found.mount_options) == ("", "", ())
    finally:
        os.close(reading)
        os.close(writing)


def _identity(path: Path) -> Identity:
    fd = os.open(path, os.O_RDONLY)
    try:
        return identify(fd)
    finally:
        os.close(fd)


def test_each_way_to_change_a_file_changes_its_identity(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"abcd")
    first = _identity(path)
    assert first == _identity(path)
    assert first.matches(os.stat(path))
    assert first == Identity.of(os.stat(path))

    with path.open("r+b") as file:
        file.write(b"efgh")
    rewritten = _identity(path)
    assert rewritten != first
    assert not first.matches(os.stat(path))

    os.truncate(path, 2)
    truncated = _identity(path)
    assert truncated.size == 2
    assert not rewritten.matches(os.stat(path))

    other.write_bytes(b"ab")
    os.replace(other, path)
    assert not truncated.matches(os.stat(path))

    before = _identity(path)
    os.utime(path, ns=(before.mtime_ns, before.mtime_ns))  # setting the times back shows in ctime
    assert not before.matches(os.stat(path))


@pytest.mark.parametrize("field", ["st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"])
def test_each_field_counts(tmp_path: Path, field: str) -> None:
    status = os.stat(tmp_path)

    class Changed:
        def __getattr__(self, name: str) -> int:
            return getattr(status, name) + (name == field)

    assert Identity.of(status).matches(status)
    assert not Identity.of(status).matches(Changed())  # type: ignore[arg-type]
