"""Loaders as torch datasets: on a torch that is as much of it as they use, and on the real one where it is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuload
from gpuload.data import DataLoader
from gpuload.errors import AfterForkError

from .conftest import climate


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`from_dlpack` by NumPy's, an `IterableDataset` and the worker that one is in."""
    torch, utils, data = ModuleType("torch"), ModuleType("torch.utils"), ModuleType("torch.utils.data")
    torch.from_dlpack = np.from_dlpack  # type: ignore[attr-defined]
    torch.worker = None  # type: ignore[attr-defined]
    data.IterableDataset = type("IterableDataset", (), {})  # type: ignore[attr-defined]
    data.get_worker_info = lambda: torch.worker  # type: ignore[attr-defined]
    for module in (torch, utils, data):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "gpuload.data.torch", raising=False)
    yield torch
    sys.modules.pop("gpuload.data.torch", None)


def loader_of(store: Path, **options: Any) -> DataLoader:
    dataset = gpuload.open(store, device="cpu")
    assert isinstance(dataset, gpuload.Dataset)
    return DataLoader(dataset[["sp", "time"]], 4, dim="time", **options)


def test_tensors_are_the_batches(store: Path, fake_torch: ModuleType) -> None:
    dataset = loader_of(store, shuffle=True).as_torch()
    seen = []
    for tensors in dataset:
        assert set(tensors) == {"sp", "time"}
        rows = (tensors["time"] / 6).astype(int)
        assert np.array_equal(tensors["sp"], climate()["sp"][0][rows])
        seen += rows.tolist()
    assert sorted(seen) == list(range(23))


def test_workers_share_the_batches(store: Path, fake_torch: Any) -> None:
    for ranks in ([(0, 1)], [(0, 2), (1, 2)]):
        seen = []
        for rank, world in ranks:
            dataset = loader_of(store, rank=rank, world_size=world).as_torch()
            for number in range(3):
                fake_torch.worker = SimpleNamespace(id=number, num_workers=3)
                for tensors in dataset:
                    seen += (tensors["time"] / 6).astype(int).tolist()
        assert seen == list(range(23))


def test_forked_workers_for_a_device_say_what_to_do(
    store: Path, fake_torch: Any, fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuload.memory import device

    dataset = gpuload.open(store, device="cuda:0")
    assert isinstance(dataset, gpuload.Dataset)
    tensors = DataLoader(dataset, 4, dim="time").as_torch()
    monkeypatch.setattr(device, "_forked_with_gpu", True)
    with pytest.raises(AfterForkError, match="spawn"):
        next(iter(tensors))


def test_without_torch(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "gpuload.data.torch", raising=False)
    with pytest.raises(ModuleNotFoundError, match="as_torch\\(\\) needs torch"):
        loader_of(store).as_torch()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_with_torch(store: Path) -> None:
    import torch

    loader = torch.utils.data.DataLoader(loader_of(store).as_torch(), batch_size=None)
    for tensors in loader:
        assert isinstance(tensors["sp"], torch.Tensor)
        rows = (tensors["time"] / 6).long().numpy()
        assert np.array_equal(tensors["sp"].numpy(), climate()["sp"][0][rows])
