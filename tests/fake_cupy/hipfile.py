"""A hipFile that is none, beside the fake CuPy: the calls of `bindings.hipfile.Library`, the driver's rules, faults.

Its blocks are 64 bytes long, so that small arrays have whole ones. It reads at once and knows nothing of streams, as
the real one; a read that is not aligned, crosses the end of its file, names a file that is not registered or memory
that is not the device's fails as the driver has it fail.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections import Counter

from gpuload.errors import VendorError

BLOCK = 64
EIO, ENODEV, EREMOTEIO = errno.EIO, errno.ENODEV, errno.EREMOTEIO


def reopen_unbuffered(fd, flags):
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


class Library:
    version = (0, 0, 0)
    features = frozenset({"write"})

    def __init__(self, cupy):
        self.cupy = cupy
        self.lock = threading.Lock()
        self.uses = 0
        self.files = {}  # token -> our own descriptor
        self.buffers = {}
        self.calls = Counter()
        self.moved = self.written = 0
        self.spans = []  # (inode, start, stop) of every read
        self.faults = {}  # name of a call -> function of its number: an error, bytes to be short of, or None
        self.managed = False
        self.file_system = None

    def _called(self, name):
        with self.lock:
            self.calls[name] += 1
            fault = self.faults.get(name)
            what = None if fault is None else fault(self.calls[name])
        if isinstance(what, Exception):
            raise what
        return what

    def use_count(self):
        return self.uses

    def open_driver(self):
        self._called("open_driver")
        self.uses += 1

    def close_driver(self):
        assert self.uses > 0
        if self.uses == 1:  # files and buffers may be those of other users
            assert not self.files
            assert not self.buffers
        self.uses -= 1

    def register_file(self, fd):
        assert self.uses
        self._called("register_file")
        own = os.open(f"/proc/self/fd/{fd}", fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_CLOEXEC)  # with all its flags
        token = object()
        with self.lock:
            assert all(fd != other for other, _ in self.files.values()), "registered twice"
            self.files[token] = fd, own
        return token

    def deregister_file(self, token):
        fd, own = self.files.pop(token)
        assert os.path.sameopenfile(fd, own), "its descriptor was closed before"
        os.close(own)

    def register_buffer(self, pointer, nbytes):
        self._called("register_buffer")
        self.buffers[pointer] = nbytes

    def deregister_buffer(self, pointer):
        del self.buffers[pointer]

    def read(self, token, pointer, size, file_offset, buffer_offset):
        short = self._called("read")
        _, own = self.files[token]
        address = pointer + buffer_offset
        if file_offset % BLOCK or size % BLOCK or address % BLOCK:
            raise VendorError("hipFileRead", -1, "not aligned", errno=errno.EINVAL)
        status = os.fstat(own)
        if file_offset + size > status.st_size:
            raise VendorError("hipFileRead", -1, "behind the end of the file", errno=EIO)
        data = os.pread(own, size if short is None else min(short, size), file_offset)
        with self.cupy.lock:
            room, start = self.cupy._bytes_at(address, address + len(data))
            room[address - start : address - start + len(data)] = memoryview(data)
        with self.lock:
            self.moved += len(data)
            self.spans.append((status.st_ino, file_offset, file_offset + len(data)))
        return len(data)

    def write(self, token, pointer, size, file_offset, buffer_offset):
        short = self._called("write")
        _, own = self.files[token]
        address = pointer + buffer_offset
        if file_offset % BLOCK or size % BLOCK or address % BLOCK:
            raise VendorError("hipFileWrite", -1, "not aligned", errno=errno.EINVAL)
        n = size if short is None else min(short, size)
        with self.cupy.lock:
            room, start = self.cupy._bytes_at(address, address + n)
            data = room[address - start : address - start + n].tobytes()
        assert os.pwrite(own, data, file_offset) == n
        with self.lock:
            self.written += n
        return n

    def count(self):
        return False

    def counted(self):
        raise AssertionError("it does not count")

    def check_closed(self):
        assert not self.uses
        assert not self.files
        assert not self.buffers


def error(number=0, code=-1, call="hipFileRead"):
    return VendorError(call, code, f"injected {number or code}", errno=number)


def at(n, what):
    """A fault of the n-th call."""
    return lambda number: what if number == n else None


def always(what):
    return lambda number: what
