"""`DataLoader`: batches of samples on the device, read ahead, in an order that can be resumed."""

from __future__ import annotations

import copy
import itertools
import time
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from gpuload import events
from gpuload.data.ahead import Ahead
from gpuload.data.groups import Group, runs, staged
from gpuload.data.order import Order, Shuffle
from gpuload.data.report import LoaderReport
from gpuload.data.sampling import sampling_of
from gpuload.data.share import Share
from gpuload.errors import SampleError
from gpuload.memory.device import check_process, of, resolve
from gpuload.request import Int64, ReadPath, Served
from gpuload.zarr.array import Array
from gpuload.zarr.dataset import Dataset
from gpuload.zarr.variable import Variable
from gpuload.zarr.view import View

_numbers = itertools.count(1)
_OWN = frozenset({"name", "_tally", "_absent", "_running"})  # of a loader, not of its copies
_NAMED = 100  # errors that a report keeps


class Batch(dict[str, Any]):
    """Arrays of one batch by name, each with the samples along its first dimension; they are the caller's own.

    Attributes
    ----------
    epoch, number
        Which batch of which epoch.
    starts
        For each dimension that is sampled, int64 (samples,) in host memory: where each sample starts.
    """

    def __init__(self, arrays: Mapping[str, Any], epoch: int, number: int, starts: Mapping[str, Int64]) -> None:
        super().__init__(arrays)
        self.epoch = epoch
        self.number = number
        self.starts = dict(starts)


class DataLoader:
    """Batches of samples of a dataset, as dicts of arrays on its device.

    A sample is an element along `dim`, or a window along several dimensions; everything else of a variable belongs to
    it whole. Variables with none of these dimensions are left out. Every sample comes once an epoch; after a whole
    epoch the next one begins.

    Threads: one at a time iterates. Fork: iterating in a child works on the host, on a device it raises
    `AfterForkError`. Pickle: yes, with its place in the epoch.

    Parameters
    ----------
    dataset
        What `gpuload.open` gives, or a part of it; an array is a dataset of one variable.
    batch_size
        Samples of a batch.
    dim
        Each element along this dimension is a sample; batches do not have it.
    window
        For each dimension how many elements a sample has along it. Only whole windows are samples.
    stride
        For each of these from the start of one window to that of the next; by default the window's own length.
    crop
        For further dimensions how many elements are cut at a place by chance, another one each epoch.
    shuffle
        False: in order; of several dimensions chunk by chunk. ``"chunk"`` or True: chunks in a random order, the
        samples of `buffer` chunks mixed; every chunk is read once. ``"full"``: all samples mixed, which reads chunks
        many times.
    seed
        The order depends on it and on the epoch, not on ranks, prefetching or the machine.
    buffer
        Chunks that are mixed; None: at least 8, and about 64 MiB.
    rank, world_size
        Bring one of several parts of each epoch: a run of the common order, so that hardly a chunk is read by two.
    drop_last
        Leave out a last batch that is not whole; all ranks have the same number of batches then.
    prefetch
        Batches that are read ahead at least. Chunks are read in runs of about 64 MiB, or a whole `buffer`: in memory
        is the run in use, and so many more as hold these batches. 0: nothing is read ahead.
    on_error
        ``"raise"``, or ``"skip"``: leave out samples whose chunks cannot be read, and count them in the report.

    Raises
    ------
    SampleError
        Samples that this dataset does not have.
    """

    def __init__(
        self,
        dataset: Dataset | Array,
        batch_size: int,
        *,
        dim: str | None = None,
        window: Mapping[str, int] | None = None,
        stride: Mapping[str, int] | None = None,
        crop: Mapping[str, int] | None = None,
        shuffle: bool | Literal["chunk", "full"] | None = False,
        seed: int = 0,
        buffer: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        prefetch: int = 2,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise SampleError(f"on_error={on_error!r}: 'raise' or 'skip'")
        if prefetch < 0:
            raise SampleError(f"prefetch={prefetch}: how many batches to read ahead, 0 or more")
        self._view = _as_view(dataset)
        self.dataset = dataset
        self._shuffle = Shuffle.of(shuffle)
        self._sampling = sampling_of(
            self._view, dim, window or {}, stride or {}, crop or {}, reuse=self._shuffle is not Shuffle.FULL
        )
        self._seed = seed
        self._buffer = self._sampling.buffer if buffer is None else buffer
        self._share = Share(self._sampling.grid.n, batch_size, rank, world_size, drop_last)
        self._prefetch, self._skip = prefetch, on_error == "skip"
        self._epoch = self._next = 0
        self._resumed = False
        self._begin()
        self._order()  # refuses a seed or a buffer that is none

    def _begin(self) -> None:
        self.name = f"loader {next(_numbers)}"
        self._tally = _Tally(self.name, self._epoch)
        self._absent: set[tuple[str, str]] = set()
        self._running: weakref.ref[Ahead[Group]] | None = None

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._share.batches

    @property
    def epoch(self) -> int:
        """The epoch that comes, or that is being brought."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Bring this epoch next, from its start."""
        if epoch < 0:
            raise SampleError(f"epoch {epoch}: epochs count from 0")
        self._epoch, self._next, self._resumed = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Where it is, in plain values, as JSON has them: a loader that loads it goes on with the next batch."""
        return {"epoch": self._epoch, "batch": self._next, "order": self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the loader was that `state_dict` was called on.

        Raises
        ------
        SampleError
            That one brought other samples, or in another order; says what differs.
        """
        mine, theirs = self._identity(), dict(state["order"])
        wrong = [f"{name} {theirs.get(name)!r}, here {mine[name]!r}" for name in mine if mine[name] != theirs.get(name)]
        if wrong:
            raise SampleError(f"the state is of another loader: it had {'; '.join(wrong)}")
        self._epoch, self._next, self._resumed = int(state["epoch"]), int(state["batch"]), True

    def _identity(self) -> dict[str, Any]:
        share = self._share
        return {
            "samples": share.samples,
            "batch_size": share.batch_size,
            "shuffle": str(self._shuffle),
            "buffer": self._buffer if self._shuffle is Shuffle.CHUNK else None,
            "seed": self._seed,
            "rank": share.rank,
            "world_size": share.world_size,
            "drop_last": share.drop_last,
        }

    def __iter__(self) -> Iterator[Batch]:
        """Batches of the epoch, from its start, or after `load_state_dict` from there; ends an iteration before it."""
        self.close()
        if not self._resumed:
            self._next = 0
        self._resumed = False
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        device = resolve(self._view.device)
        if not device.is_host:
            check_process(device.name)
        order, share, sampling = self._order(), self._share, self._sampling
        first = share.first + self._next * share.batch_size
        groups = staged(sampling, order, share, first, device, skip=self._skip, loader=self.name, absent=self._absent)
        ahead = Ahead(groups, self._depth(order))
        self._running = weakref.ref(ahead)
        tally = self._tally = _Tally(self.name, self._epoch)
        unsubscribe = events.subscribe(tally.note)
        group: Group | None = None
        try:
            for number in range(self._next, share.batches):
                start, end = share.batch(number)
                parts = []
                while start < end:
                    if group is None:
                        group = tally.wait(ahead)
                        group.ready(device)
                    stop = min(end, group.last)
                    parts.append(_part(group, start, stop))
                    if stop == group.last:
                        group.release(device)
                        ahead.release()
                        group = None
                    start = stop
                self._next = number + 1
                samples = sum(len(starts) for _, starts in parts)
                tally.batch(samples, share.batch(number))
                if samples:
                    # Nothing here keeps it: what is handed out is the caller's alone.
                    yield self._batch([part for part in parts if len(part[1])], number, parts)
        finally:
            if group is not None:
                group.release(device)
            ahead.close()
            unsubscribe()
        self._epoch, self._next = self._epoch + 1, 0

    def _batch(self, parts: list[tuple[dict[str, Any], Int64]], number: int, to_empty: list[Any]) -> Batch:
        starts = np.concatenate([each for _, each in parts])
        arrays = _together([arrays for arrays, _ in parts])
        to_empty.clear()
        columns = dict(zip(self._sampling.columns, starts.T, strict=True))
        return Batch(self._view.transformed(arrays), self._epoch, number, columns)

    def _order(self) -> Order:
        return Order(self._sampling.grid, self._shuffle, self._buffer, self._seed, self._epoch)

    def _depth(self, order: Order) -> int:
        """Runs to read ahead so that they hold `prefetch` batches."""
        if not self._prefetch:
            return 0
        first, last = next(runs(order, self._share, self._share.first, self._sampling), (0, 1))
        return -(-self._prefetch * self._share.batch_size // (last - first))

    def report(self) -> LoaderReport:
        """Batches a second, the time they were waited for, the fastpath's share, what was skipped."""
        return self._tally.report()

    def as_torch(self) -> Any:
        """The same batches as a `torch.utils.data.IterableDataset` of dicts of tensors that share their memory.

        Raises
        ------
        ModuleNotFoundError
            torch is not installed.
        """
        from gpuload.data.torch import dataset_of

        return dataset_of(self)

    def part(self, rank: int, world_size: int) -> DataLoader:
        """The same loader for part `rank` of `world_size` parts of this one's own samples."""
        share = self._share
        new = copy.copy(self)
        new._share = Share(  # noqa: SLF001 - a loader as this one
            share.samples,
            share.batch_size,
            share.rank * world_size + rank,
            share.world_size * world_size,
            share.drop_last,
        )
        return new

    def close(self) -> None:
        """End the iteration that is going on, if any: its thread is over, its memory freed. Idempotent."""
        ahead = None if self._running is None else self._running()
        self._running = None
        if ahead is not None:
            ahead.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        share, sampling = self._share, self._sampling
        along = ", ".join(f"{axis.name}: {axis.count}" for axis in sampling.grid.axes)
        return (
            f"<gpuload.DataLoader of {', '.join(sampling.sampled)}: {share.samples} samples ({along}), "
            f"{share.batches} batches of {share.batch_size}, shuffle {self._shuffle}, on {self._view.device}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


class _Tally:
    """What one iteration did. Threads: `note` is called from any, the rest by the consumer."""

    def __init__(self, name: str, epoch: int) -> None:
        self._prefix = f"{name}: "
        self._epoch = epoch
        self._began = self._last = time.monotonic()
        self._batches = self._samples = 0
        self._waited = 0.0
        self._bytes = self._fastpath = 0
        self._errors: dict[str, None] = {}
        self._skipped = 0

    def note(self, event: events.Event) -> None:
        """Count what was read for this loader: always by its own thread's reads, one after the other."""
        if isinstance(event, Served) and event.purpose.startswith(self._prefix):
            size = int(event.size.sum())
            self._bytes += size
            if event.read_path is ReadPath.FASTPATH:
                self._fastpath += size

    def wait(self, ahead: Ahead[Group]) -> Group:
        """The next group."""
        began = time.monotonic()
        group = ahead.next()
        self._waited += time.monotonic() - began
        if group is None:
            raise RuntimeError("the loader was closed, or another iteration of it begun, while this one went on")
        for error in group.errors:
            if len(self._errors) < _NAMED:
                self._errors[str(error)] = None
        return group

    def batch(self, samples: int, places: tuple[int, int]) -> None:
        """Of the samples at some places so many are handed out."""
        self._batches += samples > 0
        self._samples += samples
        self._skipped += places[1] - places[0] - samples
        self._last = time.monotonic()

    def report(self) -> LoaderReport:
        return LoaderReport(
            epoch=self._epoch,
            batches=self._batches,
            samples=self._samples,
            skipped=self._skipped,
            errors=tuple(self._errors),
            seconds=self._last - self._began,
            waited=self._waited,
            bytes=self._bytes,
            fastpath_bytes=self._fastpath,
        )


def _as_view(dataset: Dataset | Array) -> View:
    if isinstance(dataset, View):
        return dataset
    if isinstance(dataset, Array):
        name = dataset.name.rpartition("/")[2] or "array"
        return View({name: Variable.of(name, dataset)}, dataset.attrs, dataset.device)
    if isinstance(dataset, Dataset):
        return dataset[list(dataset.variables)]
    raise TypeError(f"a loader takes what gpuload.open gives, not {type(dataset).__qualname__}")


def _part(group: Group, first: int, last: int) -> tuple[dict[str, Any], Int64]:
    """The arrays of the samples at places `first` to `last`, and where these start."""
    chosen = group.chosen(first, last)
    if not len(chosen):
        return {}, group.starts[chosen]
    return {name: stage.take(chosen) for name, stage in group.stages.items()}, group.starts[chosen]


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Arrays one behind the other."""
    if len(parts) == 1:
        return parts[0]
    together = {}
    for name, first in parts[0].items():
        arrays = [part[name] for part in parts]
        out = of(first).empty((sum(len(a) for a in arrays), *first.shape[1:]), first.dtype)
        row = 0
        for array in arrays:
            out[row : row + len(array)] = array
            row += len(array)
        together[name] = out
    return together
