"""Files that come and go leave nothing with the library, the process or memory: few times, or 100 000 times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from gpuload.backends import registry
from gpuload.backends.vendor import VendorBackend
from gpuload.files.handle import FileHandle
from gpuload.memory.device import resolve

DEEP = settings().max_examples > 100  # make test-deep; make test-rocm ARGS="--hypothesis-profile=deep"
CYCLES = 100_000 if DEEP else 500
ROOM = 16 << 20  # bytes the process may grow: 180 of each cycle would be more

pytestmark = pytest.mark.timeout(3600 if DEEP else 600)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "x").write_bytes(bytes(8192))
    return tmp_path / "x"


def backend() -> VendorBackend:
    found = registry.fastpath(resolve("cuda")).backend
    assert isinstance(found, VendorBackend)
    found.open()
    return found


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cycle(found: VendorBackend, path: Path, times: int) -> None:
    for _ in range(times):
        with FileHandle.open_path(path) as handle:
            assert found.attach(handle) is not None


def run(found: VendorBackend, path: Path) -> Iterator[None]:
    """Cycles; yields where what lives is to be looked at, before and behind most of them."""
    cycle(found, path, CYCLES // 10)
    descriptors, memory = len(os.listdir("/proc/self/fd")), resident()
    yield
    cycle(found, path, CYCLES)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert not DEEP or resident() - memory < ROOM
    yield


def test_on_fakes(fake_vendor: ModuleType, path: Path) -> None:
    for _ in run(backend(), path):
        assert not fake_vendor.fake.files
    assert fake_vendor.fake.calls["register_file"] == CYCLES + CYCLES // 10
    registry.fastpath(resolve("cuda")).backend.close()  # type: ignore[union-attr]


@pytest.mark.rocm
def test_on_the_simulated_rocm(rocm_sim: Any, path: Path) -> None:
    found = backend()
    for _ in run(found, path):
        assert rocm_sim.live()["files"] == 0
    assert rocm_sim.count("hipFileHandleRegister") == CYCLES + CYCLES // 10
    found.close()
