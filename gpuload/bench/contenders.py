"""The contenders: each reads a whole zarr array into one array in its final place, at its best setting.

A contender is a function that prepares itself and returns a function that reads once. It runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Read = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Contender:
    """One library, in one setting."""

    name: str
    package: str  # what must be importable
    prepare: Callable[[str, bool], Read]  # (path, whether to a GPU) -> one read
    gpu_only: bool = False

    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


def _to_device(host: Any) -> Any:
    import cupy

    return cupy.asarray(host)


def _host_then_copy(read: Read, gpu: bool) -> Read:
    return (lambda: _to_device(read())) if gpu else read


def _gpuload(path: str, gpu: bool) -> Read:
    import gpuload

    array = gpuload.open(path, device="cuda" if gpu else "cpu")
    return lambda: array[...]


def _gpuload_posix(path: str, gpu: bool) -> Read:
    import gpuload

    gpuload.config.set(backend="posix")
    return _gpuload(path, gpu)


def _zarr(path: str, gpu: bool) -> Read:
    import zarr

    array = zarr.open_array(path, mode="r")
    return _host_then_copy(lambda: array[...], gpu)


def _zarr_fused(path: str, gpu: bool) -> Read:
    import zarr
    from zarr.core import codec_pipeline

    if not hasattr(codec_pipeline, "FusedCodecPipeline"):
        raise ImportError("this zarr has no fused pipeline")
    zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"})
    return _zarr(path, gpu)


def _zarr_gpu(path: str, gpu: bool) -> Read:
    import zarr

    zarr.config.enable_gpu()
    array = zarr.open_array(path, mode="r")
    return lambda: array[...]


def _kvikio(path: str, gpu: bool) -> Read:
    import kvikio.defaults
    import kvikio.zarr
    import zarr

    kvikio.defaults.set({"num_threads": min(16, os.cpu_count() or 1)})
    zarr.config.enable_gpu()
    array = zarr.open_array(kvikio.zarr.GDSStore(path), mode="r")
    return lambda: array[...]


def _zarrs(path: str, gpu: bool) -> Read:
    import zarr
    import zarrs  # noqa: F401 - registers its pipeline

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    return _zarr(path, gpu)


def _tensorstore(path: str, gpu: bool) -> Read:
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    array = tensorstore.open(spec, read=True, open=True).result()
    return _host_then_copy(lambda: array.read().result(), gpu)


CONTENDERS = (
    Contender("gpuload", "gpuload", _gpuload),
    Contender("gpuload (posix)", "gpuload", _gpuload_posix),
    Contender("kvikio", "kvikio", _kvikio, gpu_only=True),
    Contender("zarr", "zarr", _zarr),
    Contender("zarr (fused)", "zarr", _zarr_fused),
    Contender("zarr (GPU buffers)", "zarr", _zarr_gpu, gpu_only=True),
    Contender("zarrs", "zarrs", _zarrs),
    Contender("tensorstore", "tensorstore", _tensorstore),
)
