"""cuFile's bindings: each trap of `cuda.bindings.cufile`, on a fake that has them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuload.bindings import cufile
from gpuload.errors import BackendUnavailableError, VendorError
from gpuload.request import Reason


@pytest.fixture
def library(fake_cufile: ModuleType) -> cufile.Library:
    return cufile.load()


def test_the_count_of_users_is_the_librarys(fake_cufile: ModuleType, library: cufile.Library) -> None:
    assert library.use_count() == 0
    library.open_driver()
    assert library.use_count() == 1
    library.close_driver()


def test_version_and_features(library: cufile.Library) -> None:
    assert library.version == (1, 20)
    assert library.features == {"write", "parameters", "stats"}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.EREMOTEIO])
def test_what_the_kernel_refuses_has_its_errno(
    fake_cufile: ModuleType, library: cufile.Library, tmp_path: Path, number: int
) -> None:
    (tmp_path / "x").write_bytes(bytes(64))
    out = fake_cufile.fake.cupy.empty((64,), "u1")
    library.open_driver()
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    handle = library.register_file(fd)
    fake_cufile.fake.faults["read"] = fake_cufile.at(1, fake_cufile.error(number))
    with pytest.raises(VendorError) as caught:
        library.read(handle, out.data.ptr, 64, 0, 0)
    assert (caught.value.call, caught.value.code, caught.value.errno) == ("cuFileRead", -1, number)
    assert library.read(handle, out.data.ptr, 64, 0, 0) == 64
    fake_cufile.fake.faults["read"] = fake_cufile.at(3, fake_cufile.error(code=5020))
    with pytest.raises(VendorError) as caught:
        library.read(handle, out.data.ptr, 64, 0, 0)
    assert (caught.value.code, caught.value.errno) == (5020, 0)
    library.deregister_file(handle)
    os.close(fd)
    library.close_driver()


def test_another_value_error_stays_one(library: cufile.Library, fake_cufile: ModuleType) -> None:
    def read(*arguments: Any) -> int:
        raise ValueError("an integer is required")

    fake_cufile.bindings.read = read
    with pytest.raises(ValueError, match="integer"):
        library.read(1, 2, 3, 4, 5)


@pytest.mark.parametrize("how", ["missing", "broken", "not NVIDIA's"])
def test_bindings_that_cannot_be_used(fake_cufile: ModuleType, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "missing":
        monkeypatch.setitem(sys.modules, cufile_name, None)
    elif how == "broken":

        def broken(name: str) -> ModuleType:
            raise RuntimeError("no NVIDIA here")

        monkeypatch.setattr(cufile.importlib, "import_module", broken)
    else:
        monkeypatch.setitem(sys.modules, cufile_name, ModuleType(cufile_name))
    with pytest.raises(BackendUnavailableError, match=r"cuda\.bindings\.cufile") as caught:
        cufile.load()
    assert caught.value.reason is Reason.NO_LIBRARY
    with pytest.raises(BackendUnavailableError):
        cufile.load()


cufile_name = "cuda.bindings.cufile"


def test_a_library_that_is_missing_or_lacks_calls(fake_cufile: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Any:
        raise OSError("libcufile.so.0: cannot open shared object file")

    with monkeypatch.context() as patch:
        patch.setattr(cufile, "_symbols", absent)
        with pytest.raises(BackendUnavailableError, match=r"libcufile\.so\.0 was not found"):
            cufile.load()
    cufile.forget()
    del fake_cufile.bindings.symbols.cuFileRead
    with pytest.raises(BackendUnavailableError, match="lacks cuFileRead"):
        cufile.load()


def test_an_old_library_knows_the_variable_alone(fake_cufile: ModuleType) -> None:
    fake_cufile.bindings.version = 1110
    del fake_cufile.bindings.symbols.cuFileSetParameterBool
    library = cufile.load()
    assert library.features == {"write", "stats"}
    assert library.forbid_detour()
    assert os.environ[cufile.ALLOW] == "false"
    library.allow_detour()
    assert cufile.ALLOW not in os.environ


def test_a_newer_one_without_the_parameter_cannot_be_relied_on(fake_cufile: ModuleType) -> None:
    del fake_cufile.bindings.symbols.cuFileSetParameterBool
    assert not cufile.load().forbid_detour()


def test_what_it_counts_itself(fake_cufile: ModuleType, library: cufile.Library) -> None:
    library.open_driver()
    assert library.count()
    assert fake_cufile.bindings.level == 1
    assert library.counted() == (0, 0)
    fake_cufile.fake.moved, fake_cufile.fake.written = 640, 64
    assert library.count()  # it does already, and goes on from where it is
    assert library.counted() == (640, 64)
    library.close_driver()


def test_a_level_of_the_users_stays(fake_cufile: ModuleType, library: cufile.Library) -> None:
    fake_cufile.bindings.level = 3
    library.open_driver()
    assert library.count()
    assert fake_cufile.bindings.level == 3
    library.close_driver()


def test_one_that_cannot_count(fake_cufile: ModuleType) -> None:
    fake_cufile.bindings.set_stats_level = lambda level: None  # it does not listen
    library = cufile.load()
    library.open_driver()
    assert not library.count()
    library.close_driver()
    cufile.forget()
    del fake_cufile.bindings.symbols.cuFileGetStatsL1
    assert not cufile.load().count()


def test_the_users_own_prohibition_stays(library: cufile.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cufile.ALLOW, "false")
    assert library.forbid_detour()
    library.allow_detour()
    assert os.environ[cufile.ALLOW] == "false"


def test_no_log_is_begun_in_the_working_directory(
    fake_cufile: ModuleType, library: cufile.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.open_driver()
    library.close_driver()
    assert not fake_cufile.bindings.wrote_log
    assert cufile.LOG not in os.environ
    monkeypatch.setenv("CUFILE_ENV_PATH_JSON", "/etc/mine.json")  # the user's own configuration may say where to
    library.open_driver()
    library.close_driver()
    assert fake_cufile.bindings.wrote_log


KEPT = """
import os, sys
from gpuload.bindings.cufile import _descriptor_0_kept
if sys.argv[1] == "open":
    with _descriptor_0_kept():
        os.close(0)
    print(os.read(0, 10))
else:
    os.close(0)
    with _descriptor_0_kept():
        pass
    try:
        os.fstat(0)
    except OSError as error:
        print(error.errno)
print(sorted(os.listdir("/proc/self/fd"))[:3])
"""


@pytest.mark.parametrize(("how", "said"), [("open", "b'typed'"), ("closed", str(errno.EBADF))])
def test_descriptor_0_is_as_it_was(how: str, said: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", KEPT, how], input="typed", capture_output=True, text=True, check=True, timeout=500
    )
    first, descriptors = run.stdout.splitlines()
    assert first == said
    assert "3" not in descriptors or how == "closed"
