"""Runs of samples whose chunks are read together, one behind the other: what the reading thread does.

Threads: `staged` runs in one thread; a `Group` is the consumer's when it is made. Fork and pickle: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.data.lost import Watch
from gpuload.data.order import Order, Shuffle
from gpuload.data.sampling import READ_BYTES, Sampling
from gpuload.data.share import Share
from gpuload.data.stage import Stage
from gpuload.errors import ChunkError
from gpuload.memory.device import Device, GpuDevice
from gpuload.request import Int64, reading_for


@dataclass(eq=False)
class Group:
    """Samples at places `first` to `last` of an epoch, and their chunks in memory.

    Attributes
    ----------
    starts
        int64 (last - first, columns): where the samples start.
    good
        bool (last - first,): those whose chunks could be read.
    errors
        Of the chunks that could not.
    """

    first: int
    last: int
    starts: Int64
    good: npt.NDArray[np.bool_]
    errors: list[ChunkError]
    stages: dict[str, Stage]
    read_on: Any  # the stream that the chunks were read on, and its event then; None on the host
    read: Any

    def ready(self, device: Device) -> None:
        """From now on the caller's current stream sees the chunks."""
        if self.read is not None and isinstance(device, GpuDevice):
            for stream in device.caller_streams():
                stream.wait_event(self.read)

    def chosen(self, first: int, last: int) -> Int64:
        """Which of the samples at places `first` to `last` can be had, by number in this group."""
        return np.flatnonzero(self.good[first - self.first : last - self.first]) + (first - self.first)

    def release(self, device: Device) -> None:
        """Give the chunks' memory back to the stream that reads, once the caller's has done with it."""
        if self.read_on is not None and isinstance(device, GpuDevice):
            for stream in device.caller_streams():
                done = device.xp.cuda.Event(disable_timing=True)
                done.record(stream)
                self.read_on.wait_event(done)
        self.stages.clear()


def runs(order: Order, share: Share, first: int, sampling: Sampling) -> Iterator[tuple[int, int]]:
    """From and up to which places samples are read together, from place `first` on to the end of the share."""
    some = max(1, READ_BYTES // max(1, sampling.sample_bytes * share.batch_size)) * share.batch_size
    while first < share.last:
        end = first + some if order.shuffle is Shuffle.FULL else order.end_of_buffer(first)
        last = min(end, share.last)
        yield first, last
        first = last


@contextmanager
def on_stream(device: Device) -> Iterator[Any]:
    """The current stream for the time of a block is the one for reading ahead; None on the host."""
    if isinstance(device, GpuDevice):
        with device.handle, device.loading_stream as stream:
            yield stream
    else:
        yield None


def staged(
    sampling: Sampling,
    order: Order,
    share: Share,
    first: int,
    device: Device,
    *,
    skip: bool,
    loader: str,
    absent: set[tuple[str, str]],
) -> Iterator[Group]:
    """Read run after run.

    Parameters
    ----------
    sampling, order, share, first
        What.
    device
        Where results are made.
    skip
        Leave out samples whose chunks cannot be read.
    loader
        The loader's name in the record.
    absent
        What `Watch` keeps of earlier epochs.

    Raises
    ------
    ChunkError, ChangedError
        Something cannot be read, or is not any more what it was.
    """
    before: dict[str, Stage] = {}
    watch = Watch((sampled.variable for sampled in sampling.sampled.values()), absent)
    try:
        for start, end in runs(order, share, first, sampling):
            batches = [(place - share.first) // share.batch_size for place in (start, end - 1)]
            what = f"{loader}: epoch {order.epoch}, batches {batches[0]}-{batches[1]}"
            with reading_for(what), on_stream(device) as stream:
                watch.check()
                starts = sampling.starts(order, start, end)
                floor = None
                if order.shuffle is Shuffle.NONE:
                    bounds = sampling.grid.axes[0].bounds
                    floor = int(bounds[np.searchsorted(bounds, starts[-1, 0], side="right") - 1])
                stages = {
                    name: sampled.stage(starts, before.get(name), watch, skip=skip, floor=floor)
                    for name, sampled in sampling.sampled.items()
                }
                read = None
                if isinstance(device, GpuDevice):
                    read = device.xp.cuda.Event(disable_timing=True)
                    read.record(stream)
            good = np.logical_and.reduce([stage.good for stage in stages.values()])
            errors = [error for stage in stages.values() for error in stage.errors]
            before = stages
            yield Group(start, end, starts, good, errors, dict(stages), stream, read)
            del stages
    finally:
        watch.close()
