"""Writes arrays into open files: whole blocks from device memory by a vendor's library, all else through host memory.

The blocks that lie inside the range go by the fastpath, from where they are if that is aligned, else from scratch they
are copied to on the device. What is in front of the first block and behind the last one is written through the page
cache, and so is what the library leaves; each says by an event who wrote it and why. Blocks are pages, so that no byte
is written by both.

Threads: safe, but who writes where is the callers' affair. Fork: a device's memory cannot be written in the child.
"""

from __future__ import annotations

import os
from errno import EIO
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload import events
from gpuload.backends import registry
from gpuload.backends.base import DirectBackend, Moved
from gpuload.bindings import runtime
from gpuload.config import config, integer
from gpuload.engine.calls import Calls, Round, calls
from gpuload.engine.direct import CALL_BYTES
from gpuload.engine.fastpath import scratch
from gpuload.errors import ChunkWriteError, StrictError, VendorError
from gpuload.files.handle import FileHandle
from gpuload.memory.device import GpuDevice, check_process, of
from gpuload.request import ReadPath, Reason, Written

_HOST_BYTES = 16 << 20  # of device memory that are copied to the host at a time


def write(handle: FileHandle, data: Any, file_offset: int, *, strict: bool) -> None:
    """Write all of an array into a leased file, from `file_offset` on.

    Parameters
    ----------
    handle
        Open for writing.
    data
        uint8 (bytes,), contiguous, on the host or on a device.

    Raises
    ------
    ChunkWriteError
        Names the file, and what the kernel or the library refused; what the range holds then is undefined.
    StrictError
        ``strict`` is on, and the fastpath does not take the blocks: nothing was written, unless it failed on the way.
    """
    device = of(data)
    if not isinstance(device, GpuDevice):
        road = registry.fastpath(device, config.get("backend"))
        _by_host(handle, data, file_offset, road, road.reason or Reason.NOT_DEVICE_MEMORY, strict=strict)
        return
    check_process(device.name)
    road = registry.fastpath(device, config.get("backend"))
    reason, doubt = _refusal(handle, data, device, road)
    if reason is not None or road.backend is None:
        why = reason or road.reason
        assert why is not None
        _by_host(handle, data, file_offset, road, why, strict=strict)
        return
    _DirectWrite(handle, data, file_offset, device, road.backend, doubt=doubt, strict=strict).run(road)


def _refusal(
    handle: FileHandle, data: Any, device: GpuDevice, road: registry.Fastpath
) -> tuple[Reason | None, Reason | None]:
    """Why the fastpath takes none of it, and why what it takes cannot be called direct."""
    if road.backend is None:
        return road.reason, None
    plain = runtime.is_plain_device_memory(device.xp, data.data.ptr)
    reason = road.backend.score(handle, device_memory=plain, gpu=device.index)
    if reason is not None:
        return reason, None
    if not road.backend.writes:
        return Reason.NO_LIBRARY, None
    opened = registry.open_driver(road.backend)
    return opened.refusal, opened.doubt


class _DirectWrite:
    """One write whose file is eligible."""

    def __init__(
        self,
        handle: FileHandle,
        data: Any,
        file_offset: int,
        device: GpuDevice,
        backend: DirectBackend,
        *,
        doubt: Reason | None,
        strict: bool,
    ) -> None:
        self._handle, self._data, self._offset = handle, data, file_offset
        self._device, self._backend, self._doubt, self._strict = device, backend, doubt, strict
        self._pool = scratch(device, backend)
        geometry = handle.geometry
        self._align = max(geometry.direct_offset_align, geometry.direct_mem_align)

    def run(self, road: registry.Fastpath) -> None:
        align, end = self._align, self._offset + len(self._data)
        start, stop = -(-self._offset // align) * align, end // align * align
        if self._strict and (stop <= start or self._doubt is not None):
            raise StrictError(self._doubt or Reason.UNALIGNED_SIZE, f"{self._handle.key!r} is written to")
        if stop <= start:
            _by_host(self._handle, self._data, self._offset, road, Reason.UNALIGNED_SIZE)
            return
        self._blocks(road, start, stop)
        for low, high, reason in ((self._offset, start, Reason.UNALIGNED_OFFSET), (stop, end, Reason.TAIL)):
            if low < high:
                part = self._data[low - self._offset : high - self._offset]
                _by_host(self._handle, part, low, road, reason)

    def _blocks(self, road: registry.Fastpath, start: int, stop: int) -> None:
        with self._device.handle:
            # The library knows of no streams: what the array will hold must be there.
            self._device.xp.cuda.get_current_stream().synchronize()
        pointer = int(self._data.data.ptr)
        shift = start - self._offset
        if (pointer + shift) % self._align == 0:
            self._write(road, pointer + shift, start, stop)
            return
        at = start
        while at < stop:
            try:
                slot = self._pool.take(wait=True)
            except MemoryError:
                part = self._data[at - self._offset : stop - self._offset]
                _by_host(self._handle, part, at, road, Reason.DRIVER_ERROR, strict=self._strict)
                return
            assert slot is not None
            try:
                n = min(slot.nbytes // self._align * self._align, stop - at)
                with self._device.handle, self._device.stream as stream:
                    slot.array[:n] = self._data[at - self._offset : at - self._offset + n]
                    stream.synchronize()
                self._write(road, slot.pointer, at, at + n)
            finally:
                self._pool.give(slot, None)
            at += n

    def _write(self, road: registry.Fastpath, pointer: int, start: int, stop: int) -> None:
        """Write the blocks ``start:stop`` of the file from `pointer` on, several at once."""
        edges = [*range(start, stop, CALL_BYTES), stop]
        results: list[tuple[Moved, float, float] | None] = [None] * (len(edges) - 1)

        def one(i: int) -> None:
            began = monotonic()
            with self._device.handle:
                moved = self._backend.write(
                    self._handle, pointer, edges[i + 1] - edges[i], edges[i], edges[i] - start, gpu=self._device.index
                )
            results[i] = moved, began, monotonic()

        work, threads = Round(one, len(results)), calls(integer("fastpath.threads"))
        try:
            threads.start(work)
            work.wait()
        except BaseException:
            work.cancelled = True
            _wait(threads, work)
            raise
        if work.error is not None:
            raise work.error
        for i, result in enumerate(results):
            assert result is not None
            moved, began, ended = result
            if moved.moved:
                path = ReadPath.FASTPATH if self._doubt is None else ReadPath.FALLBACK
                said = Written(
                    self._backend.name, path, self._doubt, self._handle.key, edges[i], moved.done, moved.moved,
                    ended - began,
                )  # fmt: skip
                events.publish(said)
            left = edges[i] + moved.done
            if left < edges[i + 1]:
                reason = self._why(moved.error)
                _by_host(
                    self._handle, self._data[left - self._offset : edges[i + 1] - self._offset], left, road, reason
                )

    def _why(self, error: Exception | None) -> Reason:
        reason = Reason.DRIVER_ERROR if error is None else self._backend.retry(error)
        if reason is None:
            assert error is not None
            number = error.errno if isinstance(error, VendorError) and error.errno else EIO
            raise ChunkWriteError(self._handle.key, number, f"{self._backend.name} cannot write it: {error}") from error
        if self._strict:
            raise StrictError(reason, f"{self._handle.key!r}: {error or 'the driver does not go on'}") from error
        return reason


def _wait(threads: Calls, work: Round) -> None:
    """Until nothing reads the memory any more, however often this is interrupted; the first time is raised already."""
    while True:
        try:
            threads.start(work)
            work.wait()
        except KeyboardInterrupt:
            continue
        return


def _by_host(
    handle: FileHandle, data: Any, offset: int, road: registry.Fastpath, reason: Reason, *, strict: bool = False
) -> None:
    """Write an array through the page cache."""
    if not len(data):
        return
    if strict:
        raise StrictError(reason, road.detail)
    started, done = monotonic(), 0
    while done < len(data):
        part = data[done : done + _HOST_BYTES]
        host: npt.NDArray[np.uint8] = part if isinstance(part, np.ndarray) else part.get()
        view = host.data
        at = 0
        while at < len(view):
            try:
                at += os.pwrite(handle.buffered_fd, view[at:], offset + done + at)
            except OSError as error:
                number = error.errno or EIO
                raise ChunkWriteError(handle.key, number, f"cannot be written: {os.strerror(number)}") from error
        done += len(view)
    _, declined = road.refusal(reason)
    seconds = monotonic() - started
    events.publish(Written("posix", ReadPath.FALLBACK, reason, handle.key, offset, done, done, seconds, declined))
