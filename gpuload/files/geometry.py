"""What the kernel says of an open file: its identity, its direct I/O alignments and its file system.

Values that may be shared, forked and pickled freely; the table of mounts is read once a process, under a lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from dataclasses import dataclass

from gpuload.bindings import syscalls

# statx may report 512, but the drivers of GPUs want pages: the alignment in force is the larger of the two.
DIRECT_ALIGN = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one content of one file from another: equal before and after means the same bytes.

    Sizes in bytes, times in nanoseconds since the epoch. Each rewriting moves `ctime_ns`, one of the same length too.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Identity:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def matches(self, stat: os.stat_result) -> bool:
        """Whether `stat` describes this very content; no value is made, for this runs once a cached file and read."""
        return (
            self.inode == stat.st_ino
            and self.ctime_ns == stat.st_ctime_ns
            and self.size == stat.st_size
            and self.mtime_ns == stat.st_mtime_ns
            and self.device == stat.st_dev
        )


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the table of mounts."""

    mount_id: int
    device: tuple[int, int]
    mount_point: str
    file_system: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a file must be addressed for direct I/O, and where it lives.

    Attributes
    ----------
    dio_mem_align, dio_offset_align
        Bytes that memory addresses, and file offsets and sizes, must be multiples of; 0 where the kernel does not say.
    file_system
        The type's name, ``"ext4"``; empty where no mount is found.
    mount_point
        Where it is mounted, as this process sees it.
    mount_options
        Options of the mount and of the file system, without repetition.
    device
        Major and minor number.
    """

    dio_mem_align: int
    dio_offset_align: int
    file_system: str
    mount_point: str
    mount_options: tuple[str, ...]
    device: tuple[int, int]

    @property
    def direct_offset_align(self) -> int:
        """What offsets and sizes of direct reads into a GPU must be multiples of."""
        return max(self.dio_offset_align, DIRECT_ALIGN)

    @property
    def direct_mem_align(self) -> int:
        """What addresses of direct reads into a GPU must be multiples of."""
        return max(self.dio_mem_align, DIRECT_ALIGN)


def identify(fd: int) -> Identity:
    """The identity of the open file `fd`."""
    return Identity.of(os.fstat(fd))


def geometry(fd: int) -> Geometry:
    """The alignments and the file system of the open file `fd`."""
    status = syscalls.statx(dir_fd=fd, empty_path=True)
    mount = _mount_of(fd, os.fstat(fd).st_dev)
    return Geometry(
        dio_mem_align=status.dio_mem_align,
        dio_offset_align=status.dio_offset_align,
        file_system=mount.file_system,
        mount_point=mount.mount_point,
        mount_options=mount.options,
        device=mount.device,
    )


def parse_mounts(text: str) -> list[Mount]:
    """The mounts that the text of ``/proc/self/mountinfo`` describes (proc_pid_mountinfo(5)); odd lines are left out.

    Optional fields, any number of them, end at a lone hyphen: only after it are the type and its options found.
    """
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        head, tail = before.split(" "), after.split(" ")
        if not separator or len(head) < 6 or len(tail) < 2:
            continue
        try:
            major, minor = (int(number) for number in head[2].split(":"))
            mount_id = int(head[0])
        except ValueError:
            continue
        options = [*head[5].split(","), *(tail[2].split(",") if len(tail) > 2 else ())]
        mounts.append(
            Mount(
                mount_id=mount_id,
                device=(major, minor),
                mount_point=_unescape(head[4]),
                file_system=_unescape(tail[0]),
                options=tuple(dict.fromkeys(_unescape(option) for option in options)),
            )
        )
    return mounts


def _unescape(text: str) -> str:
    # The kernel writes space, tab, newline and backslash as three octal digits: they would end the field otherwise.
    # One pass, so that an escaped backslash before three digits stays what it was.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


_lock = threading.Lock()
_mounts: dict[int, Mount] = {}  # by st_dev


def _mount_of(fd: int, st_dev: int) -> Mount:
    mount = _mounts.get(st_dev)
    if mount is None:
        with _lock:
            mount = _mounts.get(st_dev)
            if mount is None:
                mount = _mounts[st_dev] = _find_mount(fd, st_dev)
    return mount


def _find_mount(fd: int, st_dev: int) -> Mount:
    # btrfs and overlayfs give their files device numbers that the table does not show, so the mount's own number,
    # which the kernel tells of each descriptor, is asked first.
    device = (os.major(st_dev), os.minor(st_dev))
    mounts: list[Mount] = []
    mount_id = -1
    with contextlib.suppress(OSError):  # no /proc: nothing is known, and nothing is eligible
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            mounts = parse_mounts(table.read())
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
            mount_id = next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), -1)
    for mount in mounts:
        if mount.mount_id == mount_id:
            return Mount(mount_id, device, mount.mount_point, mount.file_system, mount.options)
    for mount in mounts:
        if mount.device == device:
            return mount
    return Mount(-1, device, "", "", ())


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
