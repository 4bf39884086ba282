"""Every contender that is installed reads the right values, in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from gpuload.bench.cases import KIB, Case, write
from gpuload.bench.contenders import CONTENDERS, Contender, named
from gpuload.bench.process import Worker
from gpuload.bench.runner import present

HERE = present(gpu=False)
CASES = (Case("raw", 64 * KIB), Case("zstd", 64 * KIB, codec="zstd"), Case("shard", 16 * KIB, shard_bytes=256 * KIB))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray[Any, Any]) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("stores")
    for case in CASES:
        write(case, str(folder / case.name), values)
    return {case.name: str(folder / case.name) for case in CASES}


@pytest.mark.parametrize("case", [case.name for case in CASES])
@pytest.mark.parametrize("contender", HERE, ids=lambda contender: contender.name)
def test_a_contender_reads_right_values(
    stores: dict[str, str], values: np.ndarray[Any, Any], contender: Contender, case: str
) -> None:
    with Worker(contender, stores[case], len(values), gpu=False) as worker:
        assert worker.error is None
        assert worker.equal
        assert worker.setting in contender.settings
        worker.read()
        worker.read()
        worker.end()
    assert worker.error is None
    assert worker.equal
    assert len(worker.seconds) == len(worker.cpu) == 2
    assert all(seconds > 0 for seconds in worker.seconds)
    assert (worker.served is not None) == contender.records
    if worker.served is not None:
        assert sum(way["share"] for way in worker.served) == pytest.approx(1)
        most = max(worker.served, key=lambda way: way["share"])
        assert most["path"] == "fallback"
        assert most["decode"] == ("host" if case == "zstd" else "none")
        assert most["backend"] == "posix" or contender.name != "gpuload (posix)"


@pytest.mark.parametrize("contender", HERE[:4:3], ids=lambda contender: contender.name)
def test_a_chunk_that_changed_is_seen(tmp_path: Path, values: np.ndarray[Any, Any], contender: Contender) -> None:
    path = tmp_path / "a"
    write(CASES[0], str(path), values)
    chunk = path / "c" / "1" / "1"
    content = bytearray(chunk.read_bytes())
    content[100] ^= 0x40
    chunk.write_bytes(content)
    with Worker(contender, str(path), len(values), gpu=False) as worker:
        assert worker.error == "it read wrong values"
        worker.read()
    assert worker.seconds == []
    assert not worker.equal


@pytest.mark.parametrize("contender", HERE[:4:3], ids=lambda contender: contender.name)
def test_an_array_that_is_not_there_is_an_error(
    tmp_path: Path, values: np.ndarray[Any, Any], contender: Contender
) -> None:
    with Worker(contender, str(tmp_path / "nothing"), len(values), gpu=False) as worker:
        assert worker.error is not None
        assert not worker.equal
        worker.read()
        worker.end()
    assert worker.seconds == []


def test_names_are_distinct_and_found() -> None:
    names = [contender.name for contender in CONTENDERS]
    assert len(set(names)) == len(names)
    assert [named(name).name for name in names] == names
    assert all(contender.settings for contender in CONTENDERS)


def test_who_is_present() -> None:
    names = [contender.name for contender in HERE]
    assert names[:3] == ["gpuload", "gpuload (posix)", "gpuload (O_DIRECT)"]
    assert "zarr" in names
    assert not any(contender.gpu_only for contender in HERE)
    assert "zarr (GPU buffers)" in [contender.name for contender in present(gpu=True)]
    assert [contender.name for contender in present(gpu=False, only=["zarr"])] == ["zarr"]
    newest = tuple(map(int, zarr.__version__.split(".")[:2])) >= (3, 3)
    assert ("zarr (fused)" in names) == newest
    assert not Contender("no", "no_such_package", {}).installed()
    assert Contender("no", "no_such_package", {}).version is None
    assert not Contender("future", "zarr", {}, since=(99, 0)).installed()
    assert named("zarr").version == zarr.__version__


@pytest.mark.skipif(not named("zarr (fused)").installed(), reason="this zarr has no fused pipeline")
def test_the_fused_pipeline_is_the_one_that_reads(stores: dict[str, str]) -> None:
    from zarr.core.codec_pipeline import BatchedCodecPipeline, FusedCodecPipeline

    with zarr.config.set({}):
        for name, kind in (("zarr", BatchedCodecPipeline), ("zarr (fused)", FusedCodecPipeline)):
            for prepare in named(name).settings.values():
                read = prepare(stores["raw"], False)
                assert isinstance(zarr.open_array(stores["raw"], mode="r")._async_array.codec_pipeline, kind)
                assert read().shape == (512, 512)
    zarr.config.reset()
