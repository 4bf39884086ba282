"""What is made of the answers about libraries, CuPy, io_uring and a store."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpuload.checks import environment, libraries, limits, store, uring
from gpuload.checks.child import Answers, Job
from gpuload.checks.gpu import Gpu, Vendor
from gpuload.checks.report import BackendState, Check, Status, failed
from gpuload.config import config
from gpuload.request import Reason

Make = Callable[..., Answers]
AMD = Gpu(Vendor.AMD, "0000:c1:00.0", "MI300X", False)
NVIDIA = Gpu(Vendor.NVIDIA, "0000:0a:00.0", "H200", False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The distributions that are installed, as the test says."""
    found: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [SimpleNamespace(name=name) for name in found])
    return found


def library(path: str = "/opt/rocm/lib/x.so", version: Any = None, missing: list[str] | None = None) -> dict[str, Any]:
    return {"found": True, "path": path, "version": version, "missing": missing or []}


def named(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_libraries(answers: Make, installed: dict[str, str]) -> None:
    installed["hip-python"] = "10.0.0.0.1.2"
    given = answers(
        hip_runtime=library("/opt/rocm/lib/libamdhip64.so.7", 71_526_015, ["hipAmdFileRead", "hipAmdFileWrite"]),
        hipfile_library=library("/opt/rocm/lib/libhipfile.so.0", "0.4.0"),
        hip_python=library(""),
    )
    found = libraries.checks(given, (AMD,), frozenset({Vendor.AMD}))
    assert list(found) == [Vendor.AMD]
    runtime = named(found[Vendor.AMD], "hip-runtime")
    assert runtime.status is Status.FAIL
    assert runtime.value == "HIP 7.15.26015 at /opt/rocm/lib/libamdhip64.so.7, without hipAmdFileRead, hipAmdFileWrite"
    hipfile = named(found[Vendor.AMD], "hipfile-library")
    assert (hipfile.status, hipfile.value) == (Status.PASS, "0.4.0 at /opt/rocm/lib/libhipfile.so.0")
    assert named(found[Vendor.AMD], "hip-python").value == "10.0.0.0.1.2"


def test_libraries_that_are_not_there_or_could_not_be_asked(answers: Make, installed: dict[str, str]) -> None:
    given = answers(cuda_driver={"found": False, "why": "not found"})
    given.take(Job("libraries", ("cufile_library",)), b'{"step": "cufile_library"}\n', "was killed by SIGSEGV")
    found = libraries.checks(given, (NVIDIA,), frozenset({Vendor.NVIDIA}))[Vendor.NVIDIA]
    driver = named(found, "cuda-driver")
    assert (driver.status, driver.value, driver.needs_root) == (Status.FAIL, "libcuda.so.1: not found", True)
    crashed = named(found, "cufile-library")
    assert crashed.status is Status.UNKNOWN
    assert "killed by SIGSEGV" in crashed.value
    assert named(found, "cuda-bindings").value == "it was not asked"


def test_the_interop_package_is_a_trap_on_nvidia_only(answers: Make, installed: dict[str, str]) -> None:
    def check(gpu: Gpu) -> Check:
        return named(libraries.checks(answers(), (gpu,), frozenset({Vendor.AMD}))[Vendor.AMD], "hip-python-interop")

    assert check(AMD).status is Status.PASS
    installed["hip-python-interop"] = "10.0"
    assert check(AMD).status is Status.PASS
    assert (check(NVIDIA).status, check(NVIDIA).fix) == (
        Status.FAIL,
        "python -m pip uninstall -y hip-python-interop",
    )


@pytest.mark.parametrize(
    ("environment", "fix"),
    [
        ({}, None),
        ({"HIPFILE_ALLOW_COMPAT_MODE": "false"}, None),
        ({"HIPFILE_ALLOW_COMPAT_MODE": "true"}, "unset HIPFILE_ALLOW_COMPAT_MODE"),
        ({"HIPFILE_FORCE_COMPAT_MODE": "TRUE"}, "unset HIPFILE_FORCE_COMPAT_MODE"),
        ({"HIPFILE_FORCE_COMPAT_MODE": "false"}, None),
        ({"CUFILE_FORCE_COMPAT_MODE": "true"}, None),
    ],
)
def test_switches_that_turn_the_fastpath_off(environment: dict[str, str], fix: str | None) -> None:
    check = libraries._switches(Vendor.AMD, environment)
    assert (check.status, check.fix) == (Status.PASS if fix is None else Status.FAIL, fix)


SEES = {"found": True, "hip": False, "gpus": ["NVIDIA H200"], "pinned": ""}


@pytest.mark.parametrize(
    ("wheels", "said", "driver", "gpus", "status", "words"),
    [
        ([], {"found": False, "why": "not installed"}, None, (), Status.FAIL, "cupy: not installed"),
        (["cupy-cuda13x"], SEES, 13_000, (NVIDIA,), Status.PASS, "cupy-cuda13x 14.2 sees NVIDIA H200"),
        (["cupy-cuda12x"], SEES, 13_000, (NVIDIA,), Status.PASS, "sees NVIDIA H200"),
        (["cupy-cuda13x"], SEES, 12_080, (NVIDIA,), Status.FAIL, "wants CUDA 13, the driver has CUDA 12.8"),
        (["cupy-cuda13x"], SEES, 13_000, (AMD,), Status.FAIL, "is made for NVIDIA, the GPU is AMD's"),
        (["cupy-rocm-7-0"], {**SEES, "hip": True}, None, (NVIDIA,), Status.FAIL, "made for AMD, the GPU is NVIDIA's"),
        (["cupy-cuda13x", "cupy-rocm-7-0"], SEES, 13_000, (NVIDIA,), Status.FAIL, "overwrite each other"),
        (["cupy-cuda13x"], {**SEES, "gpus": [], "why": "no driver"}, None, (NVIDIA,), Status.UNKNOWN, "no driver"),
        (["cupy-cuda13x"], None, None, (NVIDIA,), Status.UNKNOWN, "not asked"),
    ],
)
def test_cupy(
    answers: Make,
    installed: dict[str, str],
    wheels: list[str],
    said: Any,
    driver: int | None,
    gpus: tuple[Gpu, ...],
    status: Status,
    words: str,
) -> None:
    installed.update(dict.fromkeys(wheels, "14.2"))
    values: dict[str, Any] = {} if said is None else {"cupy": said}
    if driver:
        values["cuda_driver"] = library(version=driver)
    check = libraries.cupy_check(answers(**values), gpus)
    assert check.status is status
    assert words in check.value


def test_pinned_memory(answers: Make) -> None:
    assert limits._pinned(answers()).status is Status.UNKNOWN
    assert limits._pinned(answers(cupy={"found": False})).status is Status.UNKNOWN
    assert limits._pinned(answers(cupy=SEES)).status is Status.PASS
    assert limits._pinned(answers(cupy={**SEES, "pinned": "no memory"})).status is Status.FAIL


RING = {
    "made": True,
    "flags": ["CLAMP", "DEFER_TASKRUN"],
    "features": ["NODROP"],
    "ops": 60,
    "direct_open": True,
    "files": "",
    "buffers": "",
}


@pytest.mark.parametrize(
    ("reason", "fix", "root"),
    [
        ("seccomp", "docker run --security-opt seccomp=", True),
        ("forced-off", "sysctl -w kernel.io_uring_disabled=0", True),
        ("kernel-too-old", "boot Linux 6.1", True),
        ("memlock", "ulimit -l unlimited", True),
        ("fd-limit", "ulimit -n", False),
    ],
)
def test_why_there_is_no_ring(answers: Make, reason: str, fix: str, root: bool) -> None:
    check, *others = uring.checks(answers(ring={"made": False, "reason": reason, "why": "because"}))
    assert (check.status, check.value, check.needs_root) == (Status.FAIL, "because", root)
    assert (check.fix or "").startswith(fix)
    assert {other.status for other in others} == {Status.UNKNOWN}


def test_what_a_ring_can_and_cannot(answers: Make) -> None:
    assert {check.status for check in uring.checks(answers(ring=RING))} == {Status.PASS}
    poor = {**RING, "direct_open": False, "files": "too many", "buffers": "RLIMIT_MEMLOCK"}
    by_name = {check.name: check for check in uring.checks(answers(ring=poor))}
    failed_names = {name for name, check in by_name.items() if check.status is Status.FAIL}
    assert failed_names == {"io_uring-direct-open", "io_uring-files", "io_uring-buffers"}


def test_a_filter_that_kills_is_named(answers: Make) -> None:
    given = answers()
    given.take(Job("transport", ("ring", "posix")), b'{"step": "ring"}\n', "was killed by SIGSYS")
    check = uring.checks(given)[0]
    assert check.status is Status.FAIL
    assert "SIGSYS" in check.value
    given = answers()
    given.take(Job("transport", ("ring", "posix")), b'{"step": "ring"}\n', "gave no answer within 20 s")
    assert uring.checks(given)[0].status is Status.UNKNOWN


STORE: dict[str, Any] = {
    "path": "/data/a b.zarr",
    "error": "",
    "files": 10,
    "more": False,
    "bytes": 10_000_000,
    "whole_blocks": 9_980_000,
    "sample": "c/0",
    "sample_size": 1_000_000,
    "file_system": "xfs",
    "mount_point": "/data",
    "device": [259, 1],
    "dio": [4, 512],
    "backing": ["nvme0n1p1 (partition)", "nvme0n1 (NVMe)"],
    "reason": None,
    "nvme": True,
    "o_direct": "",
}
USABLE = {"hipfile": BackendState(True, None), "cufile": BackendState(False, Reason.NO_LIBRARY)}
CUFILE = {"hipfile": BackendState(False, Reason.NO_LIBRARY), "cufile": BackendState(True, None)}
NONE = {"hipfile": BackendState(False, Reason.NO_DRIVER), "cufile": BackendState(False, Reason.NO_LIBRARY)}


@pytest.mark.parametrize(
    ("change", "backends", "eligible", "reasons"),
    [
        ({}, USABLE, True, []),
        ({}, NONE, False, ["hipfile: no-driver", "cufile: no-library"]),
        ({"reason": "file-system", "o_direct": "refused"}, USABLE, False, ["file-system", "odirect-refused"]),
        ({"reason": "ext4-journal-mode"}, USABLE, False, ["ext4-journal-mode"]),
        ({"reason": "block-layer", "nvme": None}, USABLE, False, ["block-layer"]),
        ({"nvme": False}, USABLE, False, ["p2p-route"]),
        ({"nvme": None, "backing": []}, USABLE, None, []),
        ({"files": 0, "bytes": 0, "o_direct": None}, USABLE, None, []),
    ],
)
def test_the_verdict_on_a_store(
    answers: Make, change: dict[str, Any], backends: Any, eligible: bool | None, reasons: list[str]
) -> None:
    verdict, checks = store.examined(answers(store={**STORE, **change}), STORE["path"], backends, [])
    assert (verdict.eligible, list(verdict.reasons)) == (eligible, reasons)
    assert verdict.backend == ("hipfile" if eligible is not False else None)
    last = checks[-1]
    assert last.name == "store-fastpath"
    expected = {True: Status.PASS, False: Status.FAIL, None: Status.UNKNOWN}[eligible]
    assert last.status is expected
    for reason in reasons:
        assert reason in last.value
    for check in checks:
        assert check.status is not Status.FAIL or check.fix
    if change.get("reason") == "file-system":
        assert "'/data/a b.zarr'" in (last.fix or "")


def test_a_file_system_that_the_user_lets_hipfile_try(answers: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = {**STORE, "reason": "file-system", "file_system": "overlay", "nvme": None, "backing": []}
    monkeypatch.setenv("HIPFILE_UNSUPPORTED_FILE_SYSTEMS", "true")
    verdict, _ = store.examined(answers(store=overlay), "/data", USABLE, [])
    assert (verdict.eligible, verdict.backend) == (None, "hipfile")  # tried, and what is below it is not seen
    verdict, _ = store.examined(answers(store=overlay), "/data", CUFILE, [])
    assert verdict.reasons == ("file-system",)


def test_a_drive_that_udev_does_not_know_is_none_for_cufile(answers: Make) -> None:
    others = [failed("udev-database", "not there", "udevadm trigger", root=True)]
    verdict, checks = store.examined(answers(store=STORE), "/data", CUFILE, others)
    assert (verdict.eligible, verdict.reasons) == (False, ("cufile: driver-error",))
    assert (checks[-1].status, checks[-1].fix) == (Status.FAIL, "udevadm trigger")
    assert store.examined(answers(store=STORE), "/data", USABLE, others)[0].eligible


def test_what_the_machine_lacks_is_mended_first_where_the_store_is_well(answers: Make) -> None:
    others = [failed("hipfile-library", "not found", "install it", root=True)]
    _, checks = store.examined(answers(store=STORE), "/data", NONE, others)
    assert (checks[-1].fix, checks[-1].needs_root) == ("install it", True)


def test_small_files_are_named(answers: Make) -> None:
    small = {**STORE, "bytes": 10_000, "whole_blocks": 4096}
    verdict, checks = store.examined(answers(store=small), "/data", USABLE, [])
    alignment = next(check for check in checks if check.name == "store-alignment")
    assert (alignment.status, alignment.fix) == (
        Status.FAIL,
        "gpuload pack '/data/a b.zarr' '/data/a b.zarr'.packed  # into shards",
    )
    assert verdict.eligible is True  # what lies in whole blocks goes direct all the same


def test_a_journal_is_put_in_order_on_its_very_drive(answers: Make) -> None:
    wrong = {**STORE, "file_system": "ext4", "reason": "ext4-journal-mode"}
    _, checks = store.examined(answers(store=wrong), "/data", USABLE, [])
    journal = next(check for check in checks if check.name == "store-file-system")
    assert journal.needs_root
    assert journal.fix == (
        "umount /data && tune2fs -o journal_data_ordered /dev/nvme0n1p1 && mount -o data=ordered /dev/nvme0n1p1 /data"
    )


def test_a_store_that_could_not_be_looked_at(answers: Make) -> None:
    verdict, checks = store.examined(answers(), "/data", USABLE, [])
    assert (verdict.eligible, checks[0].status) == (None, Status.UNKNOWN)
    refused = {"path": "/data", "error": "c/0: Permission denied"}
    verdict, checks = store.examined(answers(store=refused), "/data", USABLE, [])
    assert (verdict.eligible, checks[0].status) == (None, Status.FAIL)
    assert "chmod" in (checks[0].fix or "")


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("3.1.6", Status.PASS),
        ("3.2.0rc1", Status.PASS),
        ("3.1.5", Status.FAIL),
        ("2.18.7", Status.FAIL),
        ("4.0", Status.FAIL),
        ("unknown", Status.UNKNOWN),
        (None, Status.FAIL),
    ],
)
def test_versions_of_zarr(installed: dict[str, str], version: str | None, status: Status) -> None:
    if version:
        installed["zarr"] = version
    assert environment._zarr().status is status


def test_a_configuration_that_cannot_be_used_is_found_and_does_not_stop_the_rest() -> None:
    assert environment._configuration().status is Status.PASS
    with config.set({"slab.limit": "much", "uring.slots": 16}):
        check = environment._configuration()
        assert check.status is Status.FAIL
        assert "slab.limit" in check.value
        assert environment.setting("slab.limit") == 512 << 20
        assert environment.setting("uring.slots") == 16
    with config.set({"uring.slots": 16}):
        assert environment._configuration().value == "changed: uring.slots=16"
