"""The examination of this very machine, as it is and with one thing or another taken away."""

from __future__ import annotations

import json
import os
import resource
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import gpuload
from gpuload.backends import registry
from gpuload.checks import examine as examine_module
from gpuload.checks import mounts as mounts_checks
from gpuload.checks import store as store_checks
from gpuload.checks.child import Answers
from gpuload.checks.examine import examine
from gpuload.checks.report import Check, Report, Status
from gpuload.checks.view import View
from gpuload.errors import NotFoundError, NotLocalError

ROOT = Path(__file__).parents[2]
LONG = 100.0  # for a busy machine
SCRIPT = Path(examine_module.__file__).with_name("probes") / "files.py"
FILES = runpy.run_path(str(SCRIPT))["STEPS"]

# What a report of any machine has.
NAMES = {
    "gpu", "gpu-device-files", "virtual-function", "cupy", "p2pdma", "mounts", "io_uring", "io_uring-features",
    "io_uring-direct-open", "io_uring-files", "io_uring-buffers", "memlock", "descriptors", "pinned-memory", "cores",
    "slabs", "python", "zarr", "configuration",
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checks") / "air.zarr"
    (path / "c").mkdir(parents=True)
    (path / "zarr.json").write_text("{}" * 100_000)
    for number, size in enumerate((40_960, 8192, 100)):
        (path / "c" / str(number)).write_bytes(os.urandom(size))
    return path


@pytest.fixture(scope="module")
def here(store: Path) -> Report:
    return examine(store, View(), LONG)


def test_every_check_is_there_and_every_failure_has_its_fix(here: Report) -> None:
    names = [check.name for check in here.checks]
    assert len(names) == len(set(names))
    assert set(names) >= NAMES
    for check in here.checks:
        assert check.value
        assert check.status is not Status.FAIL or check.fix
        assert "could not be found out" not in check.value, check


def test_backends_are_those_of_the_registry(here: Report) -> None:
    assert list(here.backends)[:2] == ["hipfile", "cufile"]
    for entry in registry.ENTRIES:
        state = registry.available(entry.name)
        assert (here.backends[entry.name].usable, here.backends[entry.name].reason) == (state.usable, state.reason)
    assert here["io_uring"].status is (Status.PASS if here.backends["io_uring"].usable else Status.FAIL)


def test_the_store_is_the_very_one(here: Report, store: Path) -> None:
    assert here.store is not None
    assert here.store.path == os.path.realpath(store)
    assert here["store"].value == "3 data files, 49,252 bytes; looked at: c/0 (40,960 bytes)"
    assert "99.8% of the bytes" in here["store-alignment"].value
    with open("/proc/self/mountinfo") as table:
        assert any(line.split()[4] == here.store.mount_point for line in table)


def test_the_kernel_is_told_as_its_own_files_do(here: Report) -> None:
    if os.path.exists("/proc/config.gz"):
        import gzip

        with gzip.open("/proc/config.gz") as config:
            on = b"\nCONFIG_PCI_P2PDMA=y\n" in config.read()
        assert here["p2pdma"].status is (Status.PASS if on else Status.FAIL)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert here["descriptors"].value.startswith(f"{soft:,}")


def test_nothing_of_the_process_is_changed(store: Path) -> None:
    program = """
import json, os, sys, threading
import gpuload
def state():
    return [sorted(os.listdir("/proc/self/fd")), dict(os.environ), os.getcwd(), threading.active_count(),
            sorted({name.partition(".")[0] for name in sys.modules} & {"cupy", "cuda", "rocm", "zarr", "rich"}),
            [line.split()[-1] for line in open("/proc/self/maps") if ".so" in line and "hip" in line]]
gpuload.doctor
before = state()
gpuload.doctor(sys.argv[1], timeout=500)
assert state() == before, (before, state())
print("same")
"""
    done = subprocess.run([sys.executable, "-c", program, store], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr


def test_it_may_be_asked_from_threads(store: Path) -> None:
    found: list[Report] = []
    threads = [threading.Thread(target=lambda: found.append(examine(store, View(), LONG))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {tuple((c.name, c.status) for c in report.checks) for report in found} == {
        tuple((c.name, c.status) for c in found[0].checks)
    }


@pytest.mark.parametrize(
    ("hip", "there", "absent"), [(True, "hip-runtime", "cuda-driver"), (False, "cuda-driver", "hip-python")]
)
def test_a_gpu_that_only_cupy_sees_has_a_vendor_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hip: bool, there: str, absent: str
) -> None:
    said = {"found": True, "hip": hip, "gpus": ["Simulated"], "pinned": ""}
    monkeypatch.setattr(examine_module, "ask", lambda jobs, timeout: Answers({"cupy": said}))
    report = examine(None, View(str(tmp_path)))  # no bus, no kernel, nothing
    names = {check.name for check in report.checks}
    assert there in names
    assert absent not in names
    assert report["gpu"].status is Status.PASS
    assert report["io_uring"].status is Status.UNKNOWN
    assert not any(state.usable for state in report.backends.values())


def test_paths_as_open_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a b").mkdir()
    assert (
        examine_module._located("~/a b")
        == examine_module._located((tmp_path / "a b").as_uri())
        == str(tmp_path / "a b")
    )


def test_paths_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        gpuload.doctor(tmp_path / "nowhere")
    with pytest.raises(NotLocalError, match="s3://bucket/x"):
        gpuload.doctor("s3://bucket/x")


def test_stores_of_awkward_kinds(tmp_path: Path) -> None:
    def verdict(path: Path) -> dict[str, Check]:
        found = Answers({"store": FILES["store"]("", str(path))})
        return {check.name: check for check in store_checks.examined(found, str(path), {}, [])[1]}

    empty = verdict(tmp_path)
    assert (empty["store"].status, empty["store-o-direct"].status) == (Status.UNKNOWN, Status.UNKNOWN)
    odd = tmp_path / "odd\n[red]"
    odd.mkdir()
    os.mkfifo(odd / "pipe")
    (odd / "gone").symlink_to("/nowhere")
    (odd / "loop").symlink_to(odd)
    (odd / "data").write_bytes(b"x" * 5000)
    assert "1 data file, 5,000 bytes" in verdict(odd)["store"].value
    assert "1 data file, 5,000 bytes; looked at: data" in verdict(odd / "data")["store"].value


# ---------------------------------------------------------------------------- with something taken away

ASK = """
from gpuload.checks.examine import examine
from gpuload.checks.view import View
report = examine(sys.argv[2] if len(sys.argv) > 2 else None, View(), 100.0)
print(report.to_json())
"""


def _filter(action: str) -> str:
    """A program's beginning that installs a seccomp filter for the system calls in its first argument."""
    text = (ROOT / "tests/test_bindings/conftest.py").read_text()
    body = text.partition('FILTERED = """')[2].partition('"""')[0]
    return body.replace("ERRNO | code", action).replace("from gpuload.bindings.uring import Ring, UringUnavailable", "")


def _asked(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _named(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(check for check in found["checks"] if check["name"] == name)


def test_io_uring_forbidden_by_seccomp() -> None:
    found = _asked([sys.executable, "-c", _filter("ERRNO | code") + ASK, "425=1"])  # EPERM, as in a container
    check = _named(found, "io_uring")
    assert (check["status"], check["needs_root"]) == ("fail", True)
    assert "seccomp" in check["value"]
    assert "seccomp=" in check["fix"]
    assert found["backends"]["io_uring"]["reason"] == "seccomp"
    assert found["backends"]["posix"]["usable"]
    assert _named(found, "io_uring-buffers")["status"] == "unknown"


def test_a_filter_that_kills_takes_the_one_who_looks_only() -> None:
    found = _asked([sys.executable, "-c", _filter("0x80000000") + ASK, "425=0"])
    check = _named(found, "io_uring")
    assert check["status"] == "fail"
    assert "SIGSYS" in check["value"]
    assert not found["backends"]["io_uring"]["usable"]
    assert _named(found, "mounts")["value"]


def test_small_limits() -> None:
    program = """
import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_IPC_LOCK: root is not exempt after the next exec
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
os.execv(sys.executable, [sys.executable, "-c", "import sys\\n" + sys.argv[1]])
"""
    found = _asked([sys.executable, "-c", program, ASK])
    memlock = _named(found, "memlock")
    assert memlock["status"] == "fail"
    assert memlock["value"].startswith("64 KiB; ")
    assert memlock["needs_root"]
    assert _named(found, "descriptors")["status"] == "fail"
    buffers = _named(found, "io_uring-buffers")
    assert (buffers["status"], "RLIMIT_MEMLOCK is 65536" in buffers["value"]) == ("fail", True)
    assert found["backends"]["io_uring"]["usable"]


LOOK = """
import json, runpy, sys
steps = runpy.run_path(sys.argv[1])["STEPS"]
print(json.dumps({"mounts": steps["mounts"](""), **{path: steps["store"]("", path) for path in sys.argv[2:]}}))
"""


@pytest.fixture(scope="module")
def looked(mounts: Any) -> dict[str, Any]:
    """What the script finds of a store on each mount."""
    paths = [str(mounts.scratch / name / "store") for name in (*mounts.said, "ext4-link")]
    done = mounts.run(sys.executable, "-c", LOOK, str(SCRIPT), *(path for path in paths if mounts.said))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "reason", "o_direct"),
    [
        ("tmpfs", "file-system", None),
        ("overlay", "file-system", None),
        ("ext4", "block-layer", True),
        ("ext4-link", "block-layer", True),
        ("ext4-writeback", "ext4-journal-mode", True),
        ("ext4-superblock", "ext4-journal-mode", True),
        ("read-only", "block-layer", True),
        ("xfs", "block-layer", True),
    ],
)
def test_the_verdict_on_real_mounts(mounts: Any, request: Any, name: str, reason: str, o_direct: bool | None) -> None:
    path = str(mounts.need(name) / "store")
    looked = request.getfixturevalue("looked")
    found = Answers({"store": looked[path], "mounts": looked["mounts"]})
    verdict, checks = store_checks.examined(found, path, {}, [])
    assert [r for r in verdict.reasons if r != "odirect-refused"] == [reason]  # a tmpfs may take O_DIRECT, or not
    assert verdict.eligible is False
    if o_direct is not None:
        assert verdict.o_direct is o_direct
    row = next(row for row in mounts_checks.rows(found) if row.mount_point == verdict.mount_point)
    assert row.fastpath == reason
    assert row.o_direct in (verdict.o_direct, None)
    assert checks[-1].status is Status.FAIL
    assert reason in checks[-1].value


def test_the_command_on_a_real_mount(mounts: Any) -> None:
    path = mounts.need("ext4-writeback") / "store"
    done = mounts.run(sys.executable, "-m", "gpuload", "doctor", str(path), "--json", "--timeout=500")
    assert done.returncode == 0, done.stderr
    assert "ext4-journal-mode" in json.loads(done.stdout)["path"]["fastpath"]["reasons"]
