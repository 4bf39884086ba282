"""What the doctor says of a vendor's backend is what reads into a GPU say: on fakes, and on the simulated ROCm."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gpuload
from gpuload import config
from gpuload.backends import registry
from gpuload.checks import examine as examine_module
from gpuload.checks.child import Answers, Job
from gpuload.checks.probes import transport
from gpuload.checks.view import View
from gpuload.engine import fastpath
from gpuload.request import Reason

Break = Callable[[ModuleType, pytest.MonkeyPatch], None]


def read(fake: ModuleType, path: Path) -> str | None:
    """Read whole blocks of a file into the device; why the fastpath did not serve them."""
    content = np.random.default_rng(0).integers(0, 256, 640, np.uint8)
    path.write_bytes(content.tobytes())
    out = fake.fake.cupy.empty((640,), "u1")
    with gpuload.trace() as trace, gpuload.RegisteredFile(path) as file:
        assert file.read_into(out) == 640
    assert (out.get() == content).all()
    (row,) = trace.summary().rows
    assert (str(row.path) == "fastpath") == (row.reason is None)
    return row.reason and str(row.reason)


def as_new() -> None:
    """Let go of the driver, and forget what was found of it: the doctor looks from another process."""
    fastpath.stop()
    registry.forget()


def nothing(fake: ModuleType, patch: pytest.MonkeyPatch) -> None:
    pass


def no_direct_path(fake: ModuleType, patch: pytest.MonkeyPatch) -> None:
    fake.bindings.direct = False


def deaf(fake: ModuleType, patch: pytest.MonkeyPatch) -> None:
    fake.bindings.set_parameter_bool = lambda parameter, value: None


def detour_wanted(fake: ModuleType, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(fake.allow, "true")


def detour_forced(fake: ModuleType, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(f"{fake.name.upper()}_FORCE_COMPAT_MODE", "true")


def no_bindings(fake: ModuleType, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "cuda.bindings.cufile", None)


def no_open(fake: ModuleType, patch: pytest.MonkeyPatch) -> None:
    fake.fake.faults["open_driver"] = fake.always(fake.error(code=5011, call="open"))


def no_calls_of_the_runtime(fake: ModuleType, patch: pytest.MonkeyPatch) -> None:
    from gpuload.bindings import runtime

    patch.setattr(runtime, "has_call", lambda name: False)


CUFILE: list[tuple[Break, str | None]] = [
    (nothing, None),
    (no_direct_path, "no-driver"),
    (no_open, "no-driver"),
    (deaf, "unverified"),
    (detour_wanted, "unverified"),
    (detour_forced, "forced-off"),
    (no_bindings, "no-library"),
]
HIPFILE: list[tuple[Break, str | None]] = [
    (nothing, None),
    (no_open, "driver-error"),
    (detour_wanted, "unverified"),
    (detour_forced, "forced-off"),
    (no_calls_of_the_runtime, "no-driver"),
]


def agree(fake: ModuleType, path: Path, reason: str | None) -> dict[str, Any]:
    assert read(fake, path) == reason
    as_new()
    said = transport.STEPS[fake.name]()
    assert (said["usable"], said["reason"]) == (reason is None, reason)
    assert bool(said["detail"]) == (reason is not None)
    assert not fake.fake.uses  # what was opened to look is closed
    return said


@pytest.mark.parametrize(("broken", "reason"), CUFILE)
def test_cufile(
    fake_cufile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Break, reason: str | None
) -> None:
    broken(fake_cufile, monkeypatch)
    agree(fake_cufile, tmp_path / "x", reason)


@pytest.mark.parametrize(("broken", "reason"), HIPFILE)
def test_hipfile(
    fake_hipfile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Break, reason: str | None
) -> None:
    broken(fake_hipfile, monkeypatch)
    agree(fake_hipfile, tmp_path / "x", reason)


def test_a_backend_by_name(fake_vendor: ModuleType, tmp_path: Path) -> None:
    with config.set(backend="posix"):
        assert "posix" in agree(fake_vendor, tmp_path / "x", "forced-off")["detail"]


def test_what_the_driver_said_is_told(fake_cufile: ModuleType, tmp_path: Path) -> None:
    fake_cufile.bindings.direct = False
    assert "5001" in agree(fake_cufile, tmp_path / "x", "no-driver")["detail"]


def test_without_a_device_no_driver_is_opened(fake_vendor: ModuleType) -> None:
    fake_vendor.fake.cupy.devices = 0
    said = transport.STEPS[fake_vendor.name]()
    assert (said["usable"], said["reason"]) == (False, "no-device")
    assert "CuPy sees no GPU" in said["detail"]
    assert not fake_vendor.fake.calls["open_driver"]


def test_nor_that_of_another_vendor(fake_cufile: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_cufile.fake.cupy.cuda.runtime, "is_hip", True)
    said = transport.STEPS["cufile"]()
    assert (said["usable"], said["reason"]) == (False, "no-device")
    assert "hipfile" in said["detail"]
    assert not fake_cufile.fake.calls["open_driver"]


def test_a_driver_that_hangs_is_no_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = Answers({})
    answers.take(Job("transport", ("cufile",)), b'{"step": "cufile"}\n', "gave no answer within 20 s")
    monkeypatch.setattr(examine_module, "ask", lambda jobs, timeout: answers)
    state = examine_module.examine(None, View(str(tmp_path))).backends["cufile"]
    assert (state.usable, state.reason) == (False, Reason.DRIVER_ERROR)
    assert "20 s" in state.detail


DOCTOR = """
import sys
import gpuload
print(gpuload.doctor(sys.argv[1], timeout=300).to_json())
"""


@pytest.mark.rocm
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("variant", "reason"), [("full", None), ("no-ais", "no-driver")])
def test_on_the_simulated_rocm(
    rocm_python: Callable[..., str], tmp_path: Path, variant: str, reason: str | None
) -> None:
    """Its probes in their processes; what reads say beside them: `test_fastpath_rocm.py`."""
    import zarr

    array = zarr.create_array(tmp_path / "a", shape=(4096,), dtype="i4", chunks=(4096,), compressors=None)
    array[:] = np.arange(4096)
    switch = {"HIPFILE_UNSUPPORTED_FILE_SYSTEMS": "true"}
    report = json.loads(rocm_python(DOCTOR, tmp_path / "a", variant=variant, **switch))
    state = report["backends"]["hipfile"]
    assert (state["usable"], state["reason"]) == (reason is None, reason)
    verdict = report["path"]["fastpath"]
    assert "file-system" not in verdict["reasons"] or reason
    assert reason is None or f"hipfile: {reason}" in verdict["reasons"]
    checks = {check["name"]: check["status"] for check in report["checks"]}
    assert (checks["hipfile-library"], checks["hip-python"], checks["cupy"]) == ("pass", "pass", "pass")
    assert checks["hip-runtime"] == ("pass" if reason is None else "fail")
