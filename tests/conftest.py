"""What all tests share: how many examples hypothesis tries.

``default`` for every run, ``deep`` for ``make test-deep``. No deadlines: the tests assert no times. And two GPUs that
are none, for machines without one: a fake CuPy, and under ``make test-rocm`` the simulated ROCm; and mounts of many
kinds, where the machine lets one mount.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

_SLOW_DATA = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]

settings.register_profile("default", deadline=None, max_examples=100, suppress_health_check=_SLOW_DATA)
settings.register_profile("deep", deadline=None, max_examples=2000, suppress_health_check=_SLOW_DATA)
settings.load_profile("default")


def pytest_configure() -> None:
    """What children of the tests inherit: gpuload from here, before what is there already, and a SIGINT that strikes.

    A shell without job control starts what it runs in the background with SIGINT ignored.
    """
    found = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(found)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], bool]:
    """Whether two arrays are equal in shape, dtype and every bit (NaN payloads too); objects and strings by value."""
    return _same


def _same(got: Any, expected: Any) -> bool:
    got, expected = np.asarray(got), np.asarray(expected)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    if got.dtype.kind in "OT" or got.dtype.hasobject:
        return bool(np.array_equal(got, expected))
    return got.tobytes() == expected.tobytes()


@pytest.fixture
def rocm_sim(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The simulated ROCm: `count`, `fault`, `stats` and more (tests/rocm_sim/README.md), as new; skips without it."""
    plugin = request.config.pluginmanager.get_plugin("rocm_sim")
    if plugin is None:
        pytest.skip("needs the simulated ROCm, which `make test-rocm` runs on")
    _let_go()
    plugin.simulator.reset()
    yield plugin.simulator
    _let_go()
    plugin.simulator.reset()


def _let_go() -> None:
    """End gpuload's threads, and take from the libraries what it keeps with them between reads."""
    from gpuload.engine import fastpath, reader, transfer

    fastpath.stop()
    transfer.stop()
    reader.handle_cache().clear()
    _forget_switches()


def _forget_switches() -> None:
    """Whoever opens hipFile leaves its switches in the environment, where the next test would find them."""
    for name in [name for name in os.environ if name.startswith("HIPFILE_")]:
        del os.environ[name]


@pytest.fixture
def rocm_python(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Runs a script in a process of its own on a variant of the simulated ROCm (tests/rocm_sim/README.md)."""
    plugin = request.config.pluginmanager.get_plugin("rocm_sim")
    if plugin is None:
        pytest.skip("needs the simulated ROCm, which `make test-rocm` runs on")
    _forget_switches()
    run: Callable[..., str] = plugin.python
    return run


def _module(name: str, path: Path) -> ModuleType:
    """The module in a file, made anew."""
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`tests/fake_cupy` in place of CuPy, with two devices, for the time of a test; its I/O thread is ended with it."""
    from gpuload.engine import fastpath, reader, scatter, transfer
    from gpuload.memory import device

    path = Path(__file__).parent / "fake_cupy" / "cupy.py"
    caches: list[Callable[[], None]] = [device._gpu.cache_clear, device._cupy_missing.cache_clear]
    caches.append(scatter._kernel.cache_clear)
    fastpath.stop()
    transfer.stop()
    for clear in caches:
        clear()
    monkeypatch.setattr(device, "_gpus_seen", None)
    module = _module("cupy", path)
    monkeypatch.setitem(sys.modules, "cupy", module)
    yield module
    fastpath.stop()
    transfer.stop()
    reader.handle_cache().clear()  # the files of hundreds of tests need not stay open
    module.check_freed()
    assert module.pinned == {}
    for clear in caches:
        clear()


@pytest.fixture
def zarr_on_gpu(fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The fake CuPy, also for zarr-python's buffers of device memory."""
    from zarr.core.buffer import gpu

    monkeypatch.setattr(gpu, "cp", fake_cupy)
    return fake_cupy


@pytest.fixture
def fake_hipfile(fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`fake_cupy` as CuPy for ROCm, with a hipFile beside it that reads blocks of 64 bytes; see `fake_cupy/hipfile.py`.

    Every file system is good enough for it.
    """
    yield from _fake_vendor(fake_cupy, monkeypatch, "hipfile")


@pytest.fixture
def fake_cufile(fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`fake_hipfile` in NVIDIA's dress, behind the calls of cuda.bindings.cufile; see `fake_cupy/cufile.py`."""
    yield from _fake_vendor(fake_cupy, monkeypatch, "cufile")


@pytest.fixture(params=["hipfile", "cufile"])
def fake_vendor(
    request: pytest.FixtureRequest, fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """`fake_hipfile`, then `fake_cufile`."""
    yield from _fake_vendor(fake_cupy, monkeypatch, request.param)


def _fake_vendor(fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[ModuleType]:
    from gpuload.backends import cufile, hipfile, registry, vendor
    from gpuload.bindings import cufile as cufile_bindings
    from gpuload.bindings import hipfile as hipfile_bindings
    from gpuload.bindings import runtime
    from gpuload.engine import fastpath
    from gpuload.files.geometry import Geometry
    from gpuload.files.handle import FileHandle

    folder = Path(__file__).parent / "fake_cupy"
    module = _module("fake_hipfile", folder / "hipfile.py")
    library = module.Library(fake_cupy)
    module.fake, module.name = library, name
    monkeypatch.setattr(runtime, "is_plain_device_memory", lambda cupy, pointer: not library.managed)
    monkeypatch.setattr(vendor, "direct_reason", lambda geometry: library.file_system)
    monkeypatch.setattr(vendor, "reopen_unbuffered", module.reopen_unbuffered)
    monkeypatch.setattr(Geometry, "direct_offset_align", module.BLOCK)
    monkeypatch.setattr(Geometry, "direct_mem_align", module.BLOCK)
    for variable in (hipfile.ALLOW, cufile.ALLOW, cufile_bindings.LOG):
        monkeypatch.delenv(variable, raising=False)
    forgetting = [registry.forget, hipfile.backend.forget, cufile.backend.forget, cufile_bindings.forget]
    if name == "hipfile":
        module.allow = hipfile.ALLOW
        monkeypatch.setattr(fake_cupy.cuda.runtime, "is_hip", True)
        monkeypatch.setattr(hipfile_bindings, "load", lambda: library)
        monkeypatch.setattr(runtime, "hip", lambda: None)
        monkeypatch.setattr(runtime, "has_call", lambda name: True)
    else:
        module.allow = cufile.ALLOW
        module.bindings = _module("fake_cufile", folder / "cufile.py").Module(library)
        monkeypatch.setitem(sys.modules, "cuda.bindings.cufile", module.bindings)
        monkeypatch.setattr(cufile_bindings, "_symbols", lambda: module.bindings.symbols)
        # Blocks of 64 bytes cannot be read past the page cache.
        monkeypatch.setattr(FileHandle, "unbuffered_fd", property(lambda self: self.buffered_fd))
    for forget in forgetting:
        forget()
    yield module
    fastpath.stop()
    for forget in forgetting:
        forget()
    library.check_closed()


# What a kernel or a container answers that lets nobody mount this; everything else is a fault of ours on CI.
_REFUSED = re.compile(
    r"operation not permitted|permission denied|must be superuser|unknown filesystem type|no such device"
    r"|failed to set ?up loop device|cannot find a loop device|could not find any free loop|unshare failed",
    re.IGNORECASE,
)
_OPTIONAL = ("mkfs.xfs",)  # tools that not every system has


class Mounts:
    """Mounts that `tests/mounts/keep.sh` holds in a mount namespace of its own: nobody else sees them.

    Each has a file ``store/c`` of 8292 bytes.
    """

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.said: dict[str, str] = {}
        self._whole = ""
        if shutil.which("unshare") is None or shutil.which("nsenter") is None:
            self._whole = "unshare and nsenter (util-linux) are not installed"
            return
        self._user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        script = str(Path(__file__).parent / "mounts" / "keep.sh")
        namespace = ["unshare", "--mount", "--propagation", "private", *self._user]
        self._keeper = subprocess.Popen(
            [*namespace, "bash", script, str(scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "LC_ALL": "C", "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        )
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            if line == "ready\n":
                return
            name, _, said = line.rstrip("\n").partition("\t")
            self.said[name] = said
        self._whole = f"no mount namespace: {list(self.said)}"

    def need(self, name: str) -> Path:
        """The mount's directory; where the machine refuses it, the test is skipped, with what it said."""
        said = self._whole or self.said.get(name.removesuffix("-link").removesuffix("-bound"), "no such mount")
        if said == "ok":
            return self.scratch / name
        ours = not _REFUSED.search(said) and not any(tool in said for tool in _OPTIONAL)
        if ours and os.environ.get("CI") == "true":
            pytest.fail(f"{name} could not be mounted: {said}")
        pytest.skip(f"{name} cannot be mounted here: {said}")

    def run(self, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command where the mounts are seen."""
        enter = ["nsenter", f"--target={self._keeper.pid}", "--mount"]
        if self._user:
            enter += ["--user", "--preserve-credentials"]
        return subprocess.run(
            [*enter, *command],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=500,
            **options,  # type: ignore[call-overload]
        )

    def close(self) -> None:
        """End the namespace, and with it the mounts and their loop devices."""
        if not self._whole.startswith("unshare"):
            assert self._keeper.stdin is not None
            assert self._keeper.stdout is not None
            self._keeper.stdin.close()
            self._keeper.wait(60)
            self._keeper.stdout.close()


@pytest.fixture(scope="session")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounts]:
    """tmpfs, overlay, xfs and ext4 in several modes on loop devices, a link into one and a second place for it."""
    found = Mounts(tmp_path_factory.mktemp("mounts"))
    yield found
    found.close()
