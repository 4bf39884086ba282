"""Arrays that other implementations wrote, on the simulated ROCm: equal to zarr-python, every direct byte counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpuload
from gpuload.errors import UnsupportedArrayError
from gpuload.zarr import Array, DeviceStore
from gpuload.zarr.dataset import node_at
from gpuload.zarr.source import Source

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"
FORMATS = {".zarray": 2, "zarr.json": 3}
DOCUMENTS = sorted(
    path.relative_to(CORPUS).as_posix() for name in FORMATS for path in CORPUS.rglob(name) if CORPUS.is_dir()
)

pytestmark = [
    pytest.mark.rocm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not DOCUMENTS, reason=f"the arrays of other implementations are not at {CORPUS}"),
]


@pytest.fixture(autouse=True)
def any_file_system(rocm_sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPFILE_UNSUPPORTED_FILE_SYSTEMS", "true")


def written(document: str) -> Any:
    """What zarr-python reads; None where it refuses."""
    path = CORPUS / document
    try:
        return zarr.open_array(str(path.parent), mode="r", zarr_format=FORMATS[path.name])[...]
    except Exception:  # noqa: BLE001 - whatever zarr-python says
        return None


def opened(document: str) -> Any:
    path = CORPUS / document
    store = DeviceStore(path.parent, read_only=True)
    return node_at(Source(store, "", zarr_format=FORMATS[path.name], device="cuda:0", strict=None))


def agree(array: Any, right: Any, rocm_sim: Any, same: Callable[[Any, Any], bool]) -> tuple[int, set[str]]:
    """Compare some selections; bytes of the fastpath, which are those that the simulator counted, and the reasons."""
    before = rocm_sim.stats()
    with gpuload.trace() as trace:
        for selection in (..., *(np.s_[::-1], np.s_[1::2]) * bool(right.ndim)):
            got, expected = array[selection], np.asarray(right[selection])
            if not isinstance(got, np.ndarray):  # else of a dtype that no device holds
                got, expected = got.get(), expected.astype(expected.dtype.newbyteorder("="))
            assert same(got, expected)
    rows = trace.summary().rows
    direct = sum(row.moved for row in rows if (str(row.path), row.backend) == ("fastpath", "hipfile"))
    assert direct == rocm_sim.stats()["fast_read"] - before["fast_read"]
    assert rocm_sim.stats()["fallback_read"] == 0
    return direct, {str(row.reason) for row in rows if str(row.path) == "fallback"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_as_zarr_python_reads_it(rocm_sim: Any, same: Callable[[Any, Any], bool], document: str) -> None:
    right = written(document)
    if right is None:
        with pytest.raises(UnsupportedArrayError):
            opened(document)
        return
    array = opened(document)
    assert isinstance(array, Array)
    direct, reasons = agree(array, right, rocm_sim, same)
    assert direct == 0  # no file of them is one block long
    assert reasons <= {"host-codec", "host-dtype", "tail"}
    assert len(reasons) == 1


@pytest.mark.parametrize("document", DOCUMENTS)
def test_their_values_many_times_over(
    rocm_sim: Any, tmp_path: Path, same: Callable[[Any, Any], bool], document: str
) -> None:
    """The same elements as chunks that are long enough for the fastpath, in their byte order."""
    right = written(document)
    if right is None or right.dtype.kind not in "biufc":
        pytest.skip("nothing that a device holds")
    many = np.resize(right.reshape(-1), 3 * 4096 + 7)
    stored = zarr.create_array(
        tmp_path / "a", shape=many.shape, dtype=right.dtype, chunks=(8200,), compressors=None, filters=None
    )
    stored[:] = many
    direct, reasons = agree(gpuload.open(tmp_path / "a", device="cuda:0"), many, rocm_sim, same)
    assert direct >= 3 * 4096 * right.dtype.itemsize // 4096 * 4096 // 2
    assert reasons <= {"tail"}
    assert rocm_sim.count("hipFileRead") > 0
