"""What all tests share: how many examples hypothesis tries.

``default`` for every run, ``deep`` for ``make test-deep``. No deadlines: the tests assert no times. And a GPU that is
none, for machines without one.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

_SLOW_DATA = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]

settings.register_profile("default", deadline=None, max_examples=100, suppress_health_check=_SLOW_DATA)
settings.register_profile("deep", deadline=None, max_examples=2000, suppress_health_check=_SLOW_DATA)
settings.load_profile("default")


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`tests/fake_cupy` in place of CuPy, with two devices, for the time of a test; its I/O thread is ended with it."""
    from gpuload.engine import reader, scatter, transfer
    from gpuload.memory import device

    path = Path(__file__).parent / "fake_cupy" / "cupy.py"
    specification = importlib.util.spec_from_file_location("cupy", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    caches: list[Callable[[], None]] = [device._gpu.cache_clear, device._cupy_missing.cache_clear]
    caches.append(scatter._kernel.cache_clear)
    transfer.stop()
    for clear in caches:
        clear()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(device, "_gpus_seen", None)
    specification.loader.exec_module(module)
    yield module
    transfer.stop()
    reader.handle_cache().clear()  # the files of hundreds of tests need not stay open
    module.check_freed()
    assert module.pinned == {}
    for clear in caches:
        clear()
