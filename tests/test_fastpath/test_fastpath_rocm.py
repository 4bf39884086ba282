"""The fastpath on the simulated ROCm: the real CuPy and hip-python wheels, and what the simulator counts beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import settings

import gpuload
from gpuload import config
from gpuload.errors import ChunkReadError

pytestmark = [pytest.mark.rocm, pytest.mark.timeout(600)]  # compilers on a machine with much else to do
DEEP = settings().max_examples > 100  # make test-rocm ARGS="--hypothesis-profile=deep"
FORMS: dict[str, dict[str, Any]] = {
    "aligned": {"chunks": (16, 64, 64)},
    "odd": {"chunks": (19, 33, 31)},
    "sharded": {"chunks": (8, 16, 15), "shards": (32, 32, 30)},
}
SELECTIONS: list[Any] = [np.s_[:], np.s_[3:50:3, ::-1, 5:60], np.s_[10]]


@pytest.fixture(autouse=True)
def any_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run wherever their folder is, on overlay for one."""
    monkeypatch.setenv("HIPFILE_UNSUPPORTED_FILE_SYSTEMS", "true")
    monkeypatch.delenv("HIPFILE_ALLOW_COMPAT_MODE", raising=False)


def make(folder: Path, form: str, dtype: str = "i4") -> tuple[str, np.ndarray[Any, Any]]:
    values = np.random.default_rng(0).integers(0, 100, (64, 64, 64)).astype(dtype)
    array = zarr.create_array(
        folder / form, shape=values.shape, dtype=dtype, compressors=None, filters=None, **FORMS[form]
    )
    array[:] = values
    return str(folder / form), values


def moved(trace: Any) -> int:
    return sum(row.moved for row in trace.summary().rows if (str(row.path), row.backend) == ("fastpath", "hipfile"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["i4", ">f8"])
def test_arrays_are_right_and_every_byte_is_counted(rocm_sim: Any, tmp_path: Path, form: str, dtype: str) -> None:
    path, values = make(tmp_path, form, dtype)
    array = gpuload.open(path, device="cuda:0")
    with gpuload.trace() as trace:
        for selection in SELECTIONS:
            got = array[selection].get()
            assert (got == values[selection]).all()
    assert rocm_sim.count("hipFileRead") > 0
    assert moved(trace) == rocm_sim.stats()["fast_read"] > 0
    assert rocm_sim.stats()["fallback_read"] == 0


def test_an_aligned_store_needs_one_read_a_chunk_and_no_copy(rocm_sim: Any, tmp_path: Path) -> None:
    path, values = make(tmp_path, "aligned")
    array = gpuload.open(path, device="cuda:0")
    with gpuload.trace() as trace:
        got = array[:]
    assert rocm_sim.count("hipFileRead") == 4
    assert rocm_sim.count("hipModuleLaunchKernel") == 0
    assert rocm_sim.copied()["device_to_device"] == 0
    assert [(str(row.path), row.requests) for row in trace.summary().rows] == [("fastpath", 4)]
    assert (got.get() == values).all()


def test_nearly_all_of_an_odd_file_and_of_odd_inner_chunks(rocm_sim: Any, tmp_path: Path) -> None:
    import cupy

    content = np.random.default_rng(1).integers(0, 256, (1 << 20) + 777, np.uint8)
    (tmp_path / "x").write_bytes(content.tobytes())
    out = cupy.zeros(len(content), "u1")
    with gpuload.trace() as trace, gpuload.RegisteredFile(tmp_path / "x") as file:
        assert file.read_into(out) == len(content)
        assert file.read_into(out[: 1 << 19], 4099) == 1 << 19
    assert (out.get()[: 1 << 19] == content[4099 : 4099 + (1 << 19)]).all()
    assert (out.get()[1 << 19 :] == content[1 << 19 :]).all()
    summary = trace.summary()
    assert moved(trace) > 0.99 * summary.moved
    assert moved(trace) == rocm_sim.stats()["fast_read"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("hipAmdFileRead:status=-19@2", "p2p-route"),
        ("hipAmdFileRead:status=-121@1+", "p2p-route"),
        ("hipFileRead:decline=1@2", "driver-error"),
        ("hipFileHandleRegister:ret=5030@2", "driver-error"),
        ("hipFileHandleRegister:ret=5031@1+", "fd-limit"),
        ("hipAmdFileRead:short=8192@1+", None),
        ("hipFileBufRegister:ret=5013@1+", None),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_what_fails_is_served_another_way(
    rocm_sim: Any, tmp_path: Path, form: str, fault: str, reason: str | None
) -> None:
    path, values = make(tmp_path, form)
    array = gpuload.open(path, device="cuda:0")
    rocm_sim.fault(fault)
    with gpuload.trace() as trace:
        got = array[:]
    rocm_sim.fault()
    assert (got.get() == values).all()
    assert moved(trace) == rocm_sim.stats()["fast_read"]
    assert reason is None or reason in {row.reason for row in trace.summary().rows}


@pytest.mark.parametrize("fault", ["hipFileRead:errno=5@3", "hipAmdFileRead:status=-5@3", "hipAmdFileRead:err=719@3"])
def test_any_other_failure_names_the_chunk(rocm_sim: Any, tmp_path: Path, fault: str) -> None:
    path, values = make(tmp_path, "odd")
    array = gpuload.open(path, device="cuda:0")
    rocm_sim.fault(fault)
    with gpuload.trace() as trace, pytest.raises(ChunkReadError, match="c/"):
        array[:]
    assert moved(trace) == rocm_sim.stats()["fast_read"]
    rocm_sim.fault()
    assert (array[:].get() == values).all()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (None, None),
        ("hipAmdFileWrite:status=-19@1", "p2p-route"),
        ("hipFileWrite:decline=1@1", "driver-error"),
        ("hipAmdFileWrite:short=8192@1+", None),
    ],
)
@pytest.mark.parametrize("shift", [0, 8])
def test_what_is_written_is_right_and_counted(
    rocm_sim: Any, tmp_path: Path, fault: str | None, reason: str | None, shift: int
) -> None:
    import cupy

    from gpuload import events
    from gpuload.request import Written

    content = np.random.default_rng(1).integers(0, 256, (1 << 20) + 777, np.uint8)
    source = cupy.zeros(len(content) + shift, "u1")
    source[shift:] = cupy.asarray(content)
    written: list[Written] = []
    end = events.subscribe(lambda event: written.append(event) if isinstance(event, Written) else None)
    rocm_sim.fault(fault) if fault else None
    with gpuload.RegisteredFile(tmp_path / "x", "w") as file:
        assert file.write_from(source[shift:]) == len(content)
    rocm_sim.fault()
    end()
    assert (tmp_path / "x").read_bytes() == content.tobytes()
    assert sum(event.size for event in written) == len(content)
    direct = sum(event.moved for event in written if (event.read_path, event.backend) == ("fastpath", "hipfile"))
    assert direct == rocm_sim.stats()["fast_write"]
    assert rocm_sim.stats()["fallback_write"] == 0
    assert reason in {event.reason for event in written}
    assert reason is not None or direct >= 1 << 20


def test_nothing_is_left(rocm_sim: Any, tmp_path: Path) -> None:
    from gpuload.engine import fastpath, reader, transfer

    path, _ = make(tmp_path, "odd")
    before = rocm_sim.live()
    array = gpuload.open(path, device="cuda:0")
    array[:]
    assert rocm_sim.live()["files"] > 0
    reader.handle_cache().clear()
    assert rocm_sim.live()["files"] == 0
    fastpath.stop()
    transfer.stop()
    after = rocm_sim.live()
    assert [after[kind] for kind in ("files", "buffers", "registered_memory")] == [
        before[kind] for kind in ("files", "buffers", "registered_memory")
    ]


READ = """
import json, os, sys
import numpy as np, gpuload
from gpuload.backends import registry
from gpuload.checks.probes import transport
from gpuload.engine import fastpath
array = gpuload.open(sys.argv[1], device="auto")
with gpuload.trace() as trace:
    got = array[:]
got = got if isinstance(got, np.ndarray) else got.get()
rows = [(str(r.path), r.backend, r.reason and str(r.reason)) for r in trace.summary().rows]
# The doctor's probe, as in a process where nothing was read yet.
fastpath.stop()
registry.forget()
print(json.dumps([int(got.astype("i8").sum()), rows, transport.STEPS["hipfile"]()["reason"]]))
"""


@pytest.mark.parametrize(
    ("variant", "more", "reason"),
    [
        ("full", {}, None),
        ("old-hipfile", {}, None),
        ("no-hipfile", {}, "no-library"),
        ("no-ais", {}, "no-driver"),
        ("no-rocm", {}, "no-device"),
        ("full", {"ROCM_SIM_DEVICES": "0"}, "no-device"),
        ("full", {"HIPFILE_FORCE_COMPAT_MODE": "true"}, "forced-off"),
        ("full", {"HIPFILE_ALLOW_COMPAT_MODE": "true"}, "unverified"),
        ("full", {"ROCM_SIM_FAULT": "hipFileDriverOpen:ret=5011"}, "driver-error"),
    ],
)
def test_what_is_missing_is_named_by_reads_and_by_the_doctor(
    rocm_python: Callable[..., str], tmp_path: Path, variant: str, more: dict[str, str], reason: str | None
) -> None:
    path, values = make(tmp_path, "aligned")
    total, rows, said = json.loads(rocm_python(READ, path, variant=variant, **more))
    assert total == int(values.sum())
    # Which library is missing is more than that there is no GPU without it.
    assert said == ("no-library" if variant == "no-rocm" else reason)
    assert {row[2] for row in rows} == {reason}
    assert all((row[0] == "fastpath") == (reason is None) for row in rows)


def test_without_hip_python(rocm_python: Callable[..., str], tmp_path: Path) -> None:
    """CuPy alone: reads come by the fallback, through memory that nobody can page-lock."""
    path, values = make(tmp_path, "odd")
    absent = "import sys\nsys.modules['rocm'] = None\n"
    total, rows, said = json.loads(rocm_python(absent + READ, path))
    assert total == int(values.sum())
    assert {row[0] for row in rows} == {"fallback"}
    assert {row[2] for row in rows} == {said} == {"no-library"}


def test_a_library_that_somebody_else_opened_is_unverified(rocm_python: Callable[..., str], tmp_path: Path) -> None:
    path, values = make(tmp_path, "aligned")
    first = "from rocm.hipfile import Driver\ndriver = Driver()\ndriver.open()\n"
    total, rows, said = json.loads(rocm_python(first + READ, path))
    assert total == int(values.sum())
    assert said == "unverified"
    assert rows == [["fallback", "hipfile", "unverified"]]
    strict = (
        first
        + """
import sys, gpuload
from gpuload.errors import StrictError
try:
    gpuload.open(sys.argv[1], device="cuda:0", strict=True)[:]
except StrictError as error:
    print(error.reason)
"""
    )
    assert rocm_python(strict, path) == "unverified"


COLD = """
import sys, threading
import gpuload
start, failures = threading.Barrier(16), []
def run():
    try:
        start.wait()
        got = gpuload.open(sys.argv[1], device="cuda:0")[:]
        assert int(got.get().astype("i8").sum()) == int(sys.argv[2])
    except BaseException as error:
        failures.append(repr(error))
threads = [threading.Thread(target=run) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(failures)
"""


@pytest.mark.timeout(7200 if DEEP else 600)
def test_sixteen_threads_on_a_cold_process(rocm_python: Callable[..., str], tmp_path: Path) -> None:
    path, values = make(tmp_path, "odd")
    for _ in range(50 if DEEP else 2):
        assert rocm_python(COLD, path, int(values.sum())) == "[]"


FEW_DESCRIPTORS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import gpuload
array = gpuload.open(sys.argv[1], device="cuda:0")
with gpuload.trace() as trace:
    print(int(array[:].get().astype("i8").sum()))
print(*{(str(row.path), row.backend, row.reason, row.requests) for row in trace.summary().rows})
"""


def test_more_files_than_descriptors(rocm_python: Callable[..., str], tmp_path: Path) -> None:
    values = np.arange(5000 * 1024, dtype="i4")
    folder = tmp_path / "a"
    array = zarr.create_array(folder, shape=values.shape, dtype="i4", chunks=(1024,), compressors=None, filters=None)
    for i, part in enumerate(values.reshape(5000, 1024)):
        path = folder / "c" / str(i)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(part.tobytes())
    total, row = rocm_python(FEW_DESCRIPTORS, array.store.root).splitlines()
    assert int(total) == int(values.astype("i8").sum())
    assert row == "('fastpath', 'hipfile', None, 5000)"


def test_the_demo(rocm_python: Callable[..., str]) -> None:
    pytest.importorskip("iris_sample_data", reason="the demo's data is not installed")
    run = "import sys; sys.argv = ['gpuload', 'demo', '--json']; from gpuload.cli import main; main()"
    found = json.loads(rocm_python(run))
    first = found["served"]["rows"][0]
    assert (first["path"], first["backend"], first["reason"]) == ("fastpath", "hipfile", None)


def test_backend_by_name(rocm_sim: Any, tmp_path: Path) -> None:
    path, values = make(tmp_path, "aligned")
    array = gpuload.open(path, device="cuda:0")
    with config.set(backend="posix"), gpuload.trace() as trace:
        assert (array[:].get() == values).all()
    assert {(row.backend, row.reason) for row in trace.summary().rows} == {("posix", "forced-off")}
    assert rocm_sim.count("hipFileRead") == 0
