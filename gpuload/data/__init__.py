"""Batches of samples from datasets: their order, what of it is whose, and the reading ahead."""

from __future__ import annotations

from gpuload.data.loader import Batch, DataLoader
from gpuload.data.report import LoaderReport

__all__ = ["Batch", "DataLoader", "LoaderReport"]

for _public in (Batch, DataLoader, LoaderReport):
    _public.__module__ = __name__
del _public
