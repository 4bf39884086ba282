"""Looks at mounts and at a store's files: a file system that hangs holds up this process only."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Iterator
from typing import Any

from gpuload.checks.mounts import listed
from gpuload.checks.view import View
from gpuload.files import blocks
from gpuload.files.geometry import geometry, parse_mounts
from gpuload.planning.aligned import DIRECT_ALIGN

_ENTRIES = 20_000  # of a store that are looked at, at most
_ON_A_MOUNT = 200
_METADATA = (".json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


def mounts(root: str, _path: str = "") -> list[dict[str, Any]]:
    """Each mount that can hold a store; `root` is that of the system's own files."""
    view = View(root)
    found = []
    for mount, local in listed(parse_mounts(view.text("/proc/self/mountinfo") or ""), view):
        stack = blocks.stack(mount.device, sys=view.sys)
        reason = blocks.direct_reason_of(mount.device, mount.file_system, mount.options, sys=view.sys, proc=view.proc)
        found.append(
            {
                "mount_point": mount.mount_point,
                "file_system": mount.file_system,
                "device": f"{mount.device[0]}:{mount.device[1]}",
                "backing": [str(layer) for layer in stack],
                "o_direct": _tried(mount.mount_point) if local else None,
                "reason": reason and str(reason),
                "nvme": blocks.on_nvme(stack),
            }
        )
    return found


def _tried(folder: str) -> bool | None:
    """Whether a file near the top of a mount takes O_DIRECT; None where there is none to try it on."""
    try:
        device = os.lstat(folder).st_dev
        for entry in _near(folder, device):
            said = _unbuffered(entry, read=False)
            if said in ("", "refused"):
                return said == ""
    except OSError:
        pass
    return None


def _near(folder: str, device: int) -> Iterator[str]:
    """Regular files of `folder` and of the folders in it, on this device."""
    seen, below = 0, [folder]
    while below and seen < _ON_A_MOUNT:
        here = below.pop(0)
        try:
            entries = os.scandir(here)
        except OSError:
            continue
        with entries:
            for entry in entries:
                seen += 1
                if seen > _ON_A_MOUNT:
                    break
                status = entry.stat(follow_symlinks=False)
                if status.st_dev != device:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield entry.path
                elif stat.S_ISDIR(status.st_mode) and here == folder:
                    below.append(entry.path)


def _unbuffered(path: str, *, read: bool) -> str:
    """Nothing where a file can be opened, and read, past the page cache; ``"refused"``; or what else is in the way."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return "refused" if error.errno == errno.EINVAL else os.strerror(error.errno or 0)
    try:
        if read:
            with mmap.mmap(-1, DIRECT_ALIGN) as page:
                os.preadv(fd, [page], 0)
    except OSError as error:
        return os.strerror(error.errno or 0)
    finally:
        os.close(fd)
    return ""


def store(root: str, path: str) -> dict[str, Any]:
    """What there is to say of a store and of the largest file in it."""
    view = View(root)
    files, more = _data_files(path)
    size, sample = max(files, default=(0, path))
    try:
        fd = os.open(sample, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return {"path": path, "error": f"{os.path.relpath(sample, path)}: {os.strerror(error.errno or 0)}"}
    try:
        where = geometry(fd)
    finally:
        os.close(fd)
    stack = blocks.stack(where.device, sys=view.sys)
    reason = blocks.direct_reason(where, sys=view.sys, proc=view.proc)
    return {
        "path": path,
        "error": "",
        "files": len(files),
        "more": more,
        "bytes": sum(size for size, _ in files),
        "whole_blocks": sum(size // DIRECT_ALIGN * DIRECT_ALIGN for size, _ in files),
        "sample": os.path.relpath(sample, path) if sample != path else os.path.basename(path),
        "sample_size": size,
        "file_system": where.file_system,
        "mount_point": where.mount_point,
        "options": list(where.mount_options),
        "device": list(where.device),
        "dio": [where.dio_mem_align, where.dio_offset_align],
        "backing": [str(layer) for layer in stack],
        "reason": reason and str(reason),
        "nvme": blocks.on_nvme(stack),
        "o_direct": _unbuffered(sample, read=size > 0) if files else None,
    }


def _data_files(path: str) -> tuple[list[tuple[int, str]], bool]:
    """Size and path of the files that hold chunks, and whether there are more of them than were looked at."""
    if not os.path.isdir(path):
        return [(os.stat(path).st_size, path)], False
    found: list[tuple[int, str]] = []
    seen = 0
    for folder, _, names in os.walk(path, followlinks=False):
        for name in sorted(names):
            seen += 1
            if seen > _ENTRIES:
                return found, True
            if not name.endswith(_METADATA):
                with contextlib.suppress(OSError):  # a link to nowhere, or a file that has just gone
                    status = os.stat(f"{folder}/{name}")
                    if stat.S_ISREG(status.st_mode):
                        found.append((status.st_size, f"{folder}/{name}"))
    return found, False


STEPS = {"store": store, "mounts": mounts}
