"""The contenders: each reads a whole zarr array into one array in its final place, at its best setting.

A contender has one or more settings, each a function that prepares it and returns a function that reads once. Which of
them is best depends on the machine and on the chunks, so its process tries each and keeps the fastest. It runs in a
process of its own: settings of the process, thread pools and memory pools are nobody else's.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

Read = Callable[[], Any]
Prepare = Callable[[str, bool], Read]  # (path, whether the result goes to a GPU) -> one read


@dataclass(frozen=True, slots=True)
class Contender:
    """One library.

    Parameters
    ----------
    name
        As in tables.
    package
        What must be importable, and whose version is told.
    settings
        Name of each setting -> how to prepare it.
    gpu_only
        It cannot read into host memory.
    records
        Its reads are in gpuload's record.
    cold_only
        It is one of cold reads.
    since
        First version of `package` that has it.
    """

    name: str
    package: str
    settings: Mapping[str, Prepare]
    gpu_only: bool = False
    records: bool = False
    cold_only: bool = False
    since: tuple[int, int] = (0, 0)

    @property
    def version(self) -> str | None:
        """The version that is installed; None where nobody knows, or nothing is."""
        # The distribution may have another name than the package, by the CUDA it is for.
        for distribution in metadata.packages_distributions().get(self.package, [self.package]):
            try:
                return metadata.version(distribution)
            except metadata.PackageNotFoundError:
                continue
        return None

    def installed(self) -> bool:
        """Whether it is there, new enough."""
        if importlib.util.find_spec(self.package) is None:
            return False
        return self.since == (0, 0) or tuple(map(int, (self.version or "0.0").split(".")[:2])) >= self.since


def _then_copied(read: Read, gpu: bool) -> Read:
    """What a user of a library that knows no GPU does: read into host memory, then copy."""
    if not gpu:
        return read
    import cupy

    return lambda: cupy.asarray(read())


def _gpuload(**options: Any) -> Prepare:
    """gpuload with values of its configuration, ``__`` for dots."""

    def prepare(path: str, gpu: bool) -> Read:
        import gpuload

        gpuload.config.set({name.replace("__", "."): value for name, value in options.items()})
        array = gpuload.open(path, device="cuda" if gpu else "cpu")
        assert isinstance(array, gpuload.Array)
        return lambda: array[...]

    return prepare


_BATCHED = "zarr.core.codec_pipeline.BatchedCodecPipeline"
_FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"  # since zarr 3.3, not the default


def _zarr(**options: Any) -> Prepare:
    """zarr-python with values of its configuration, ``__`` for dots, on the host."""

    def prepare(path: str, gpu: bool) -> Read:
        import zarr

        zarr.config.set({name.replace("__", "."): value for name, value in options.items()})
        array = zarr.open_array(path, mode="r")
        return _then_copied(lambda: array[...], gpu)

    return prepare


def _fused(workers: int | None) -> Prepare:
    return _zarr(codec_pipeline__path=_FUSED, codec_pipeline__max_workers=workers)


def _zarr_gpu(concurrency: int) -> Prepare:
    """zarr-python with its buffers on the GPU."""

    def prepare(path: str, gpu: bool) -> Read:
        import zarr

        zarr.config.enable_gpu()
        zarr.config.set({"codec_pipeline.path": _BATCHED, "async.concurrency": concurrency})
        array = zarr.open_array(path, mode="r")
        return lambda: array[...]

    return prepare


def _kvikio(threads: int, concurrency: int) -> Prepare:
    """kvikio's store below zarr-python, as its documentation has it."""

    def prepare(path: str, gpu: bool) -> Read:
        import kvikio.defaults
        import kvikio.zarr
        import zarr

        if hasattr(kvikio.defaults, "set"):
            kvikio.defaults.set({"num_threads": threads})
        else:  # before 25.02
            kvikio.defaults.num_threads_reset(threads)
        zarr.config.enable_gpu()
        # Its store answers zarr's asynchronous calls only: the fused pipeline would read past it, through the host.
        zarr.config.set({"codec_pipeline.path": _BATCHED, "async.concurrency": concurrency})
        array = zarr.open_array(kvikio.zarr.GDSStore(root=path), mode="r")
        return lambda: array[...]

    return prepare


def _zarrs(**options: Any) -> Prepare:
    def prepare(path: str, gpu: bool) -> Read:
        import zarrs  # noqa: F401 - registers its pipeline

        return _zarr(codec_pipeline__path="zarrs.ZarrsCodecPipeline", **options)(path, gpu)

    return prepare


def _tensorstore(**limits: int) -> Prepare:
    """TensorStore with limits of its thread pools; it caches no chunk unless asked to."""

    def prepare(path: str, gpu: bool) -> Read:
        import tensorstore

        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": path},
            "context": {name: {"limit": limit} for name, limit in limits.items()},
        }
        array = tensorstore.open(spec, read=True, open=True).result()
        return _then_copied(lambda: array.read().result(), gpu)

    return prepare


_CORES = os.cpu_count() or 1
_MANY = max(32, 4 * _CORES)  # more than a default, for those who wait more than they compute

CONTENDERS = (
    Contender("gpuload", "gpuload", {"default": _gpuload()}, records=True),
    Contender("gpuload (posix)", "gpuload", {"default": _gpuload(backend="posix")}, records=True),
    Contender(
        "gpuload (O_DIRECT)", "gpuload", {"default": _gpuload(direct__cold="always")}, records=True, cold_only=True
    ),
    Contender(
        "kvikio",
        "kvikio",
        {
            "1 thread": _kvikio(1, 10),
            f"1 thread, {_MANY} chunks at once": _kvikio(1, _MANY),
            f"{min(16, _CORES)} threads": _kvikio(min(16, _CORES), 10),
        },
        gpu_only=True,
    ),
    Contender(
        "zarr",
        "zarr",
        {
            "default": _zarr(codec_pipeline__path=_BATCHED, async__concurrency=10),
            f"{_MANY} chunks at once": _zarr(codec_pipeline__path=_BATCHED, async__concurrency=_MANY),
        },
    ),
    # One worker is no pool at all: faster for small chunks.
    Contender("zarr (fused)", "zarr", {"a worker a core": _fused(None), "1 worker": _fused(1)}, since=(3, 3)),
    Contender(
        "zarr (GPU buffers)",
        "zarr",
        {"default": _zarr_gpu(10), f"{_MANY} chunks at once": _zarr_gpu(_MANY)},
        gpu_only=True,
    ),
    Contender(
        "zarrs",
        "zarrs",
        {"default": _zarrs(), "only chunks in parallel": _zarrs(codec_pipeline__chunk_concurrent_minimum=4 * _CORES)},
    ),
    Contender(
        "tensorstore",
        "tensorstore",
        {
            "default": _tensorstore(),
            f"{_CORES} threads": _tensorstore(data_copy_concurrency=_CORES, file_io_concurrency=_CORES),
        },
    ),
)


def named(name: str) -> Contender:
    """The contender of that name."""
    return next(contender for contender in CONTENDERS if contender.name == name)
