"""hipFile's bindings: nothing is called before it was asked for by name; answers become numbers or errors."""

from __future__ import annotations

import errno
import os
import sys
import threading
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuload.bindings import hipfile, runtime
from gpuload.errors import BackendUnavailableError, DeviceError, VendorError
from gpuload.request import Reason


class OpError(IntEnum):
    hipFileSuccess = 0
    hipFileHipDriverError = 5011
    hipFileInternalError = 5030


class Bindings(ModuleType):
    """`rocm.bindings.hipfile` with the symbols that a library has; a call to another is a crash, as in the real one."""

    hipFileOpError = OpError

    def __init__(self, *symbols: str) -> None:
        super().__init__("rocm.bindings.hipfile")
        self.symbols, self.log = symbols, []
        self.answers: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.asking = 0

    def has_symbol(self, name: str) -> bool:
        with self.lock:
            self.asking += 1
            assert self.asking == 1, "asked from two threads at once"
            self.asking -= 1
        self.log.append(f"has {name}")
        return name in self.symbols

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("hipFile"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            assert f"has {name}" in self.log, f"{name} was called before it was asked for"
            assert name in self.symbols, f"{name} is a null pointer"
            self.log.append(name)
            return self.answers[name]

        return call


NEEDED = hipfile._NEEDED
ERROR = SimpleNamespace(err=0, hip_drv_err=0)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a module in the place of `rocm.bindings.hipfile`; what was found is forgotten behind the test."""
    hipfile.forget()

    def put(module: ModuleType | None) -> None:
        package = ModuleType("rocm.bindings")
        package.__path__ = []
        monkeypatch.setitem(sys.modules, "rocm", ModuleType("rocm"))
        monkeypatch.setitem(sys.modules, "rocm.bindings", package)
        monkeypatch.setitem(sys.modules, "rocm.bindings.hipfile", module)
        if module is not None:
            package.hipfile = module

    yield put
    hipfile.forget()


def test_a_whole_library(install: Any) -> None:
    bindings = Bindings(*NEEDED, "hipFileGetVersion", "hipFileWrite", "hipFileReadAsync")
    bindings.answers["hipFileGetVersion"] = (ERROR, 0, 4, 1)
    install(bindings)
    library = hipfile.load()
    assert library.version == (0, 4, 1)
    assert library.features == {"version", "write"}  # of async two calls are missing
    assert hipfile.load() is library


def test_an_old_one_is_never_asked_for_what_it_lacks(install: Any) -> None:
    bindings = Bindings(*NEEDED)
    install(bindings)
    library = hipfile.load()
    assert (library.version, library.features) == (None, frozenset())
    assert {entry for entry in bindings.log if not entry.startswith("has ")} == set()


def test_a_version_that_is_not_told(install: Any) -> None:
    bindings = Bindings(*NEEDED, "hipFileGetVersion")
    bindings.answers["hipFileGetVersion"] = (SimpleNamespace(err=5030, hip_drv_err=0), 32631, 131539800, 32766)
    install(bindings)
    assert hipfile.load().version is None


@pytest.mark.parametrize(
    ("symbols", "words"), [((), "was not found"), (NEEDED[:-1], f"lacks {NEEDED[-1]}"), (NEEDED[-1:], NEEDED[0])]
)
def test_a_library_that_is_missing_or_lacks_calls(install: Any, symbols: tuple[str, ...], words: str) -> None:
    bindings = Bindings(*symbols)
    install(bindings)
    for _ in range(2):
        with pytest.raises(BackendUnavailableError, match=words) as caught:
            hipfile.load()
        assert caught.value.reason is Reason.NO_LIBRARY
    assert len(bindings.log) == len(NEEDED)  # looked at once
    install(Bindings(*NEEDED))
    hipfile.forget()
    assert hipfile.load().features == frozenset()


def test_hip_python_is_not_installed(install: Any) -> None:
    install(None)
    with pytest.raises(BackendUnavailableError, match=r"hip-python\[systems\]") as caught:
        hipfile.load()
    assert caught.value.reason is Reason.NO_LIBRARY


def test_sixteen_at_once_look_one_after_the_other_and_once(install: Any) -> None:
    bindings = Bindings(*NEEDED)
    install(bindings)
    start, found = threading.Barrier(16), []

    def load() -> None:
        start.wait()
        found.append(hipfile.load())

    threads = [threading.Thread(target=load) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(library) for library in found}) == 1
    assert len(bindings.log) == len({*bindings.log})


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((4096, 0, 0), 4096),
        ((0, 5, 7), 0),  # what is beside a success means nothing
        ((-1, errno.ENODEV, 0), ("hipFileRead", -1, errno.ENODEV, "errno 19")),
        ((-5030, 0, 0), ("hipFileRead", 5030, 0, "hipFileInternalError")),
        ((-5011, 0, 719), ("hipFileRead", 5011, 0, "hipFileHipDriverError, HIP error 719")),
        ((-2, 0, 0), ("hipFileRead", 2, 0, "error 2")),  # a bare HIP error, which the bindings' own class chokes on
    ],
)
def test_answers_of_a_read(install: Any, answer: tuple[int, int, int], expected: Any) -> None:
    bindings = Bindings(*NEEDED)
    bindings.answers["hipFileRead"] = answer
    install(bindings)
    library = hipfile.load()
    if isinstance(expected, int):
        assert library.read(1, 2, 3, 4, 5) == expected
        return
    with pytest.raises(VendorError) as caught:
        library.read(1, 2, 3, 4, 5)
    call, code, number, words = expected
    assert (caught.value.call, caught.value.code, caught.value.errno) == (call, code, number)
    assert words in str(caught.value)


def test_answers_of_the_other_calls(install: Any) -> None:
    bindings = Bindings(*NEEDED)
    install(bindings)
    library = hipfile.load()
    bindings.answers["hipFileUseCount"] = (3,)
    assert library.use_count() == 3
    for name, call in {
        "hipFileDriverOpen": library.open_driver,
        "hipFileDriverClose": library.close_driver,
        "hipFileBufRegister": lambda: library.register_buffer(4096, 8192),
        "hipFileBufDeregister": lambda: library.deregister_buffer(4096),
    }.items():
        bindings.answers[name] = (ERROR,)
        call()
        bindings.answers[name] = (SimpleNamespace(err=5011, hip_drv_err=100),)
        with pytest.raises(VendorError, match="HIP error 100") as caught:
            call()
        assert (caught.value.call, caught.value.code, caught.value.errno) == (name, 5011, 0)


class Hip(SimpleNamespace):
    HIP_VERSION_MAJOR, HIP_VERSION_MINOR = 7, 15

    def has_symbol(self, name: str) -> bool:
        return hasattr(self, name)


@pytest.mark.parametrize(
    ("answer", "there"), [((0, 4096, 1), True), ((0, None, 0), False), ((0, 0, 0), False), ((500, 4096, 0), False)]
)
def test_a_call_of_the_runtime_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[Any, ...], there: bool
) -> None:
    asked: list[Any] = []

    def find(*arguments: Any) -> tuple[Any, ...]:
        asked.append(arguments)
        return answer

    monkeypatch.setattr(runtime, "hip", lambda: Hip(hipGetProcAddress=find))
    assert runtime.has_call("hipAmdFileRead") is there
    assert asked == [(b"hipAmdFileRead", 715, 0)]
    monkeypatch.setattr(runtime, "hip", Hip)  # a runtime that has no way to look up
    assert not runtime.has_call("hipAmdFileRead")
    monkeypatch.setattr(runtime, "hip", lambda: None)
    assert not runtime.has_call("hipAmdFileRead")


def amd() -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(is_hip=True)))


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ((0, SimpleNamespace(type=2, isManaged=0)), True),
        ((0, SimpleNamespace(type=2, isManaged=1)), False),
        ((0, SimpleNamespace(type=1, isManaged=0)), False),  # pinned memory, which CuPy's wheel calls the device's
        ((0, SimpleNamespace(type=0, isManaged=0)), False),
        ((1, SimpleNamespace(type=2, isManaged=0)), False),
    ],
)
def test_what_is_memory_of_a_device(monkeypatch: pytest.MonkeyPatch, answer: tuple[Any, ...], plain: bool) -> None:
    monkeypatch.setattr(runtime, "hip", lambda: Hip(hipPointerGetAttributes=lambda pointer: answer))
    assert runtime.is_plain_device_memory(amd(), 4096) is plain


@pytest.mark.parametrize(("kind", "plain"), [(0, False), (1, False), (2, True), (3, False)])
def test_what_is_memory_of_nvidias(kind: int, plain: bool) -> None:
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(
            runtime=SimpleNamespace(is_hip=False, pointerGetAttributes=lambda pointer: SimpleNamespace(type=kind))
        )
    )
    assert runtime.is_plain_device_memory(cupy, 4096) is plain


def test_page_locking_without_hip_python_and_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "hip", lambda: None)
    with pytest.raises(DeviceError, match=r"hipHostRegister.*gpuload\[rocm\]"):
        runtime.host_register(amd(), 4096, 4096)
    refused = Hip(hipHostRegister=lambda *a: (2,), hipHostUnregister=lambda *a: (OpError.hipFileInternalError,))
    monkeypatch.setattr(runtime, "hip", lambda: refused)
    with pytest.raises(DeviceError, match="hipHostRegister failed: 2"):
        runtime.host_register(amd(), 4096, 4096)
    with pytest.raises(DeviceError, match="hipHostUnregister failed: hipFileInternalError"):
        runtime.host_unregister(amd(), 4096)


@pytest.mark.rocm
def test_on_the_simulated_rocm(rocm_sim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real bindings answer as the ones above are made to."""
    import cupy

    monkeypatch.setenv("HIPFILE_UNSUPPORTED_FILE_SYSTEMS", "true")
    monkeypatch.setenv("HIPFILE_ALLOW_COMPAT_MODE", "false")
    content = np.random.default_rng(0).integers(0, 256, 8192, np.uint8)
    path = tmp_path / "x"
    path.write_bytes(content.tobytes())
    library, out = hipfile.load(), cupy.zeros(8192 + 4096, "u1")
    cupy.cuda.get_current_stream().synchronize()  # hipFile knows nothing of streams
    pointer = -(-int(out.data.ptr) // 4096) * 4096
    at = pointer - int(out.data.ptr)
    assert library.version == (0, 4, 0)
    assert library.features == {"version", "write", "async", "batch"}
    assert library.use_count() == 0
    library.open_driver()
    fd = os.open(path, os.O_RDONLY)
    handle = library.register_file(fd)
    with pytest.raises(VendorError) as caught:
        library.register_file(fd)
    assert (caught.value.code, caught.value.errno) == (5028, 0)
    library.register_buffer(pointer, 8192)
    with pytest.raises(VendorError, match=r"5013|MemoryTypeInvalid"):
        library.register_buffer(content.ctypes.data, 4096)
    assert library.read(handle, pointer, 8192, 0, 0) == 8192
    assert (out.get()[at : at + 8192] == content).all()
    for fault, code, number in [
        ("hipFileRead:errno=5", -1, errno.EIO),
        ("hipAmdFileRead:status=-121", -1, errno.EREMOTEIO),
        ("hipFileRead:ret=5011", 5011, 0),
        ("hipFileRead:decline=1", 5030, 0),
    ]:
        rocm_sim.fault(fault)
        with pytest.raises(VendorError) as caught:
            library.read(handle, pointer, 8192, 0, 0)
        assert (caught.value.code, caught.value.errno) == (code, number)
        rocm_sim.fault()
    library.deregister_file(handle)
    os.close(fd)
    library.deregister_buffer(pointer)
    library.close_driver()
    assert library.use_count() == 0
    assert runtime.has_call("hipAmdFileRead")
    assert not runtime.has_call("hipAmdFileTeleport")
    assert runtime.is_plain_device_memory(cupy, int(out.data.ptr))
    assert not runtime.is_plain_device_memory(cupy, content.ctypes.data)
    assert not runtime.is_plain_device_memory(cupy, int(cupy.cuda.alloc_pinned_memory(4096).ptr))
    assert not runtime.is_plain_device_memory(cupy, int(cupy.cuda.malloc_managed(4096).ptr))
