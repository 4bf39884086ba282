"""Batches on a device: a fake CuPy whose streams run as late as they may, the simulated ROCm, and a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gpuload
from gpuload.data import DataLoader
from gpuload.memory.device import gpu_count

from .conftest import climate, write

WISHES: list[dict[str, Any]] = [
    {"dim": "time"},
    {"dim": "time", "shuffle": True, "buffer": 2},
    {"dim": "time", "shuffle": "full"},
    {"window": {"time": 5}, "stride": {"time": 2}},
    {"window": {"time": 4, "lon": 3}, "stride": {"time": 3}, "shuffle": True, "buffer": 2},
    {"dim": "time", "crop": {"lat": 2, "lon": 4}, "shuffle": "full"},
]


@pytest.fixture
def any_gpu() -> Any:
    """CuPy, on whatever it is."""
    if gpu_count() == 0:
        pytest.skip("no GPU")
    import cupy

    return cupy


def check_on_device(store: Path, wish: dict[str, Any], prefetch: int, array_type: type) -> None:
    """Values are those of the host's loader, and every array is on the device."""
    on_host = list(DataLoader(opened(store, "cpu"), 4, **wish, seed=1))
    loader = DataLoader(opened(store, "cuda:0"), 4, **wish, seed=1, prefetch=prefetch)
    for _ in range(2):
        loader.set_epoch(0)
        number = 0
        for batch, right in zip(loader, on_host, strict=True):
            assert batch.keys() == right.keys()
            for name, array in batch.items():
                assert isinstance(array, array_type)
                assert array.dtype == right[name].dtype
                assert np.array_equal(array.get(), right[name], equal_nan=right[name].dtype.kind == "f"), name
            number += 1
        assert number == len(loader)


def opened(store: Path, device: str) -> gpuload.Dataset:
    dataset = gpuload.open(store, device=device)
    assert isinstance(dataset, gpuload.Dataset)
    return dataset


@pytest.mark.parametrize("wish", WISHES, ids=str)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_on_a_fake(store: Path, fake_cupy: ModuleType, wish: dict[str, Any], prefetch: int) -> None:
    check_on_device(store, wish, prefetch, fake_cupy.ndarray)


def test_short_runs_on_a_fake(store: Path, fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory goes from run to run, and chunks with it, while the consumer's stream is late."""
    from gpuload.data import sampling

    monkeypatch.setattr(sampling, "READ_BYTES", 1)
    monkeypatch.setattr(sampling, "_LEAST_BUFFER", 1)
    for wish in (WISHES[0], WISHES[3], {"window": {"time": 4, "lon": 3}, "stride": {"time": 1}}):
        check_on_device(store, wish, 2, fake_cupy.ndarray)


def test_what_the_consumer_still_uses_is_not_overwritten(store: Path, fake_cupy: ModuleType) -> None:
    """On a stream of the consumer's own that runs last of all: batches are looked at when all else is over."""
    stream = fake_cupy.cuda.Stream(non_blocking=True)
    right = list(DataLoader(opened(store, "cpu"), 3, dim="time", shuffle=True, buffer=1))
    with fake_cupy.cuda.Device(0), stream:
        batches = list(DataLoader(opened(store, "cuda:0"), 3, dim="time", shuffle=True, buffer=1))
        for other in [other for other in fake_cupy.cuda.Stream.all if other is not stream]:
            other.synchronize()  # memory that was given back is overwritten now, if nothing holds that up
        for batch, wanted in zip(batches, right, strict=True):
            assert np.array_equal(batch["sp"].get(), wanted["sp"])
            assert np.array_equal(batch["t2m"].get(), wanted["t2m"], equal_nan=True)


def test_leaving_early_on_a_fake(store: Path, fake_cupy: ModuleType) -> None:
    loader = DataLoader(opened(store, "cuda:0"), 2, dim="time", buffer=1)
    for batch in loader:
        kept = batch["sp"]
        break
    assert np.array_equal(kept.get(), climate()["sp"][0][:2])


def test_parts_and_joined_stores_on_a_fake(tmp_path: Path, fake_cupy: ModuleType) -> None:
    years = [climate(n, n) for n in (7, 9)]
    paths = [write(tmp_path / f"{i}", year) for i, year in enumerate(years)]
    dataset = gpuload.open(paths, device="cuda:0", concat="time")
    assert isinstance(dataset, gpuload.Dataset)
    whole = np.concatenate([year["t2m"][0] for year in years])
    view = dataset.isel(time=slice(None, None, -1), lon=[6, 0, 3])
    assert np.array_equal(view.variables["t2m"][...].get(), whole[::-1][:, :, [6, 0, 3]], equal_nan=True)
    assert np.array_equal(view.variables["t2m"].load_host(), whole[::-1][:, :, [6, 0, 3]], equal_nan=True)
    assert np.array_equal(dataset.sel(time=12.0).load()["t2m"].get(), years[0]["t2m"][0][2], equal_nan=True)
    for batch in DataLoader(view, 5, dim="time"):
        rows = batch.starts["time"]
        assert np.array_equal(batch["t2m"].get(), whole[::-1][:, :, [6, 0, 3]][rows], equal_nan=True)


def test_what_a_device_cannot_hold_comes_on_the_host(make_store: Callable[..., Path], fake_cupy: ModuleType) -> None:
    days = np.arange("2020-01-01", "2020-01-08", dtype="datetime64[D]").astype("datetime64[s]")
    names = np.array(["a", "bb", "c", "dd", "e", "f", "g"])
    path = make_store("mixed", {"day": (days, ["x"], (3,)), "name": (names, ["x"], (3,))})
    for batch in DataLoader(opened(path, "cuda:0"), 3, dim="x", shuffle=True):
        assert batch["day"].get().tolist() == days[batch.starts["x"]].astype(np.int64).tolist()
        assert batch["name"].tolist() == names[batch.starts["x"]].tolist()


@pytest.mark.rocm
@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_on_the_simulated_rocm(store: Path, rocm_sim: Any, any_gpu: Any, wish: dict[str, Any]) -> None:
    check_on_device(store, wish, 2, any_gpu.ndarray)


@pytest.mark.rocm
def test_the_report_on_the_simulated_rocm(tmp_path: Path, rocm_sim: Any, any_gpu: Any) -> None:
    """Its files lie where hipFile reads or does not; the shares are those of the record."""
    values = np.arange(64 * 2048, dtype="f4").reshape(64, 2048)
    path = write(tmp_path / "v", {"v": (values, ["time", "x"], (2, 2048))}, compressors=None)
    loader = DataLoader(opened(path, "cuda:0"), 8, dim="time", shuffle=True)
    with gpuload.trace() as trace:
        for batch in loader:
            assert np.array_equal(batch["v"].get(), values[batch.starts["time"]])
    rows = [row for row in trace.rows() if row.purpose]
    report = loader.report()
    assert report.bytes == sum(row.bytes for row in rows) == values.nbytes
    assert report.fastpath_bytes == sum(row.bytes for row in rows if row.read_path == "fastpath")


@pytest.mark.gpu
@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_on_a_gpu(store: Path, any_gpu: Any, wish: dict[str, Any]) -> None:
    check_on_device(store, wish, 2, any_gpu.ndarray)
