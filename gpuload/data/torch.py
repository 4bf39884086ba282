"""`Batches`: a loader as a torch dataset; its tensors are the loader's arrays, handed over by DLPack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gpuload.data.loader import DataLoader

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ModuleNotFoundError(
        "as_torch() needs torch, which is not installed: pip install torch; without it, a loader's batches are arrays "
        "that torch.from_dlpack and others take",
        name="torch",
    ) from error


class Batches(IterableDataset):  # type: ignore[misc]
    """Dicts of tensors, whole batches: give it to a torch `DataLoader` with ``batch_size=None``, or iterate it.

    No workers are needed, for the loader reads ahead itself. With workers each brings its part of the batches; those
    that were forked raise `AfterForkError` where the loader is for a device.

    Threads, fork and pickle: as its loader.
    """

    def __init__(self, loader: DataLoader) -> None:
        super().__init__()
        self.loader = loader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        loader = self.loader if worker is None else self.loader.part(worker.id, worker.num_workers)
        for batch in loader:
            yield {name: torch.from_dlpack(_plain(array)) for name, array in batch.items()}


def _plain(array: Any) -> Any:
    """Of what torch has no dtype for, its numbers: dates as the int64 they are, other byte orders as the machine's."""
    if not isinstance(array, np.ndarray):
        return array
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return native.view(np.int64) if native.dtype.kind in "mM" else native


def dataset_of(loader: DataLoader) -> Batches:
    """The torch dataset of a loader."""
    return Batches(loader)
