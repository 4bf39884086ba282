"""Stores that gpuload wrote, read by every other implementation at hand: whole, in part, and after a partial write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpuload
from gpuload.zarr import Array, pack

READERS: dict[str, Callable[[str, Any], Any]] = {}
RNG = np.random.default_rng(23)


def reader(function: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    READERS[function.__name__] = function
    return function


@reader
def zarr_batched(path: str, selection: Any) -> Any:
    return zarr.open_array(path, mode="r")[selection]


@reader
def zarr_fused(path: str, selection: Any) -> Any:
    pipelines = zarr.core.codec_pipeline
    if not hasattr(pipelines, "FusedCodecPipeline"):
        pytest.skip("this zarr-python has no fused pipeline")
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"}):
        return zarr.open_array(path, mode="r")[selection]


@reader
def zarrs(path: str, selection: Any) -> Any:
    pytest.importorskip("zarrs", reason="no zarrs for this Python")
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return zarr.open_array(path, mode="r")[selection]


@reader
def tensorstore(path: str, selection: Any) -> Any:
    ts = pytest.importorskip("tensorstore", reason="no tensorstore for this Python")
    kind = json.loads(Path(path, "zarr.json").read_text())["zarr_format"]
    assert kind == 3
    return ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}).result()[selection].read().result()


FORMS: dict[str, dict[str, Any]] = {
    "aligned shards": {"chunks": (2, 70, 30), "shards": (4, 140, 60)},
    "small shards": {"chunks": (2, 35, 15), "shards": (6, 70, 60)},
    "zstd shards": {"chunks": (2, 35, 15), "shards": (6, 70, 30), "codecs": "zstd"},
    "chunks": {"chunks": (3, 50, 60)},
}
SELECTIONS = [np.s_[...], np.s_[3:8, ::5, 7:31], np.s_[10], np.s_[0:1, 69:71, 29:31]]


def written(path: Path, form: str, dtype: str = "f4") -> Any:
    """Saved, appended to, and assigned to in part, with inner chunks that are empty; returns the values."""
    model = RNG.normal(size=(8, 140, 60)).astype(dtype)
    model[:2, :70] = 0
    array = gpuload.save(path, model, **FORMS[form])
    assert isinstance(array, Array)
    more = RNG.normal(size=(3, 140, 60)).astype(dtype)
    array.append(more)
    model = np.concatenate([model, more])
    array[1:9:2, 60:80] = model[1:9:2, 60:80] = 7
    return model


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("name", list(READERS))
def test_written(tmp_path: Path, name: str, form: str) -> None:
    model = written(tmp_path / "a", form)
    for selection in SELECTIONS:
        assert np.array_equal(READERS[name](str(tmp_path / "a"), selection), model[selection])


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("dtype", ["u1", ">i2", "f8", "b1"])
@pytest.mark.parametrize("name", list(READERS))
def test_packed(tmp_path: Path, name: str, dtype: str, codec: str) -> None:
    model = RNG.integers(0, 2, (11, 140, 60)).astype(dtype)
    model[:4] = 0
    zarr.create_array(str(tmp_path / "a"), data=model, chunks=(1, 140, 60), zarr_format=2)
    pack(tmp_path / "a", tmp_path / "b", shards=(4, 140, 60), codec=codec)
    for selection in SELECTIONS:
        assert np.array_equal(READERS[name](str(tmp_path / "b"), selection), model[selection])


@pytest.mark.parametrize("name", [name for name in READERS if name != "zarrs"])
def test_a_packed_scalar(tmp_path: Path, name: str) -> None:
    zarr.create_array(str(tmp_path / "a"), data=np.float64(2.5))
    pack(tmp_path / "a", tmp_path / "b")
    assert READERS[name](str(tmp_path / "b"), ...) == 2.5
