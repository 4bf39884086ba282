"""cufile alone: how it is known whether what cuFile serves is direct, and what happens where it is not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gpuload
from gpuload import config
from gpuload.backends import registry
from gpuload.bindings import cufile
from gpuload.errors import StrictError
from gpuload.request import Reason


def read(fake: ModuleType, path: Path, *, strict: bool = False) -> list[tuple[str, str, str | None]]:
    """Read a file of 640 bytes; the ways it came."""
    content = np.random.default_rng(0).integers(0, 256, 640, np.uint8)
    path.write_bytes(content.tobytes())
    out = fake.fake.cupy.empty((640,), "u1")
    with config.set(strict=strict), gpuload.trace() as trace, gpuload.RegisteredFile(path) as file:
        assert file.read_into(out) == 640
    assert (out.get() == content).all()
    return [(str(row.path), row.backend, row.reason and str(row.reason)) for row in trace.summary().rows]


@pytest.mark.parametrize("version", [1110, 1150, 1200])
def test_without_the_detour_it_is_the_fastpath(fake_cufile: ModuleType, tmp_path: Path, version: int) -> None:
    fake_cufile.bindings.version = version
    if version < 1150:
        del fake_cufile.bindings.symbols.cuFileSetParameterBool
    assert read(fake_cufile, tmp_path / "x") == [("fastpath", "cufile", None)]
    assert fake_cufile.bindings.compatible is False


@pytest.mark.parametrize("version", [1150, 1200])
def test_without_a_direct_path_the_fallback_serves_and_cufile_is_as_it_was(
    fake_cufile: ModuleType, tmp_path: Path, version: int
) -> None:
    fake_cufile.bindings.version, fake_cufile.bindings.direct = version, False
    for _ in range(2):
        ((path, backend, reason),) = read(fake_cufile, tmp_path / "x")
        assert (path, reason) == ("fallback", "no-driver")
        assert backend != "cufile"
    assert not fake_cufile.fake.calls["open_driver"]  # the fake counts those that open
    assert cufile.ALLOW not in os.environ
    # Others who open it now get what they would have got without gpuload.
    fake_cufile.bindings.driver_open()
    assert fake_cufile.bindings.compatible
    fake_cufile.bindings.driver_close()


def test_a_driver_that_does_not_open_is_asked_once(
    fake_cufile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse() -> None:
        asked.append(1)
        raise fake_cufile.cuFileError(5011)

    fake_cufile.cuFileError = fake_cufile.bindings.cuFileError
    monkeypatch.setattr(fake_cufile.bindings, "driver_open", refuse)
    for _ in range(3):
        assert {row[2] for row in read(fake_cufile, tmp_path / "x")} == {"no-driver"}
    assert asked == [1]
    assert "5011" in registry.available("cufile").detail
    with pytest.raises(StrictError, match="5011") as caught:
        read(fake_cufile, tmp_path / "x", strict=True)
    assert caught.value.reason is Reason.NO_DRIVER


def test_strict_says_why_at_the_first_read(fake_cufile: ModuleType, tmp_path: Path) -> None:
    fake_cufile.bindings.direct = False
    with pytest.raises(StrictError, match="no direct path"):
        read(fake_cufile, tmp_path / "x", strict=True)


def test_a_detour_that_the_open_library_admits_is_unverified(fake_cufile: ModuleType, tmp_path: Path) -> None:
    fake_cufile.bindings.set_parameter_bool = lambda parameter, value: None  # it does not listen
    assert read(fake_cufile, tmp_path / "x") == [("fallback", "cufile", "unverified")]


def test_a_library_that_others_opened_for_the_detour(fake_cufile: ModuleType, tmp_path: Path) -> None:
    fake_cufile.bindings.direct = False
    fake_cufile.bindings.driver_open()
    assert read(fake_cufile, tmp_path / "x") == [("fallback", "cufile", "unverified")]
    with pytest.raises(StrictError, match="unverified"):
        read(fake_cufile, tmp_path / "x", strict=True)
    from gpuload.engine import fastpath

    fastpath.stop()
    assert fake_cufile.fake.uses == 1  # theirs
    fake_cufile.bindings.driver_close()


def test_missing_bindings_are_named(fake_cufile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.cufile", None)
    ((path, _, reason),) = read(fake_cufile, tmp_path / "x")
    assert (path, reason) == ("fallback", "no-library")


def test_the_switch_that_forces_the_detour(
    fake_cufile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUFILE_FORCE_COMPAT_MODE", "true")
    ((path, _, reason),) = read(fake_cufile, tmp_path / "x")
    assert (path, reason) == ("fallback", "forced-off")
    assert not fake_cufile.fake.uses


class Neighbour:
    """What kvikio does with cuFile in the same process: a user of the driver, with files of its own."""

    def __init__(self, fake: ModuleType, path: Path) -> None:
        self.fake, self.bindings, self.path = fake, fake.bindings, path
        self.bindings.driver_open()
        self.fd = os.open(path, os.O_RDONLY)
        description = self.bindings.Descr()
        description.type = self.bindings.FileHandleType.OPAQUE_FD
        description.handle.fd, description.fs_ops = self.fd, 0
        self.handle = self.bindings.handle_register(description.ptr)
        self.out = fake.fake.cupy.empty((640,), "u1")

    def read(self) -> bytes:
        assert self.bindings.read(self.handle, self.out.data.ptr, 640, 0, 0) == 640
        return bytes(self.out.get())

    def close(self) -> None:
        self.bindings.handle_deregister(self.handle)
        os.close(self.fd)
        self.bindings.driver_close()


@pytest.mark.parametrize("first", ["gpuload", "kvikio"])
@pytest.mark.parametrize("direct", [True, False])
def test_another_user_in_the_process_is_undisturbed(
    fake_cufile: ModuleType, tmp_path: Path, first: str, direct: bool
) -> None:
    from gpuload.engine import fastpath, reader

    fake_cufile.bindings.direct = direct
    path = tmp_path / "x"
    expected = {
        ("gpuload", True): ("fastpath", None),
        ("gpuload", False): ("fallback", "no-driver"),
        ("kvikio", True): ("fallback", "unverified"),
        ("kvikio", False): ("fallback", "unverified"),
    }[first, direct]
    if first == "gpuload":
        assert [(row[0], row[2]) for row in read(fake_cufile, path)] == [expected]
    else:
        path.write_bytes(np.random.default_rng(0).integers(0, 256, 640, np.uint8).tobytes())
    other = Neighbour(fake_cufile, path)
    try:
        content = path.read_bytes()
        assert other.read() == content
        assert [(row[0], row[2]) for row in read(fake_cufile, path)] == [expected]  # the same file, registered twice
        assert other.read() == content
        reader.handle_cache().clear()
        fastpath.stop()
        assert fake_cufile.fake.uses == 1
        assert other.read() == content
    finally:
        other.close()
