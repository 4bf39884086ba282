"""Loads vendor libraries and asks them for symbols and versions; knows nothing of gpuload, so that it starts fast."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any


def _load(*names: str, folders: tuple[str, ...] = ()) -> ctypes.CDLL | str:
    """The first of the libraries that loads, or why the first that is there does not."""
    why = "not found"
    for name in (*(path for folder in folders for n in names if os.path.exists(path := f"{folder}/{n}")), *names):
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            if "cannot open shared object file" not in str(error) or name not in str(error):
                why = str(error)
    return why


def _describe(library: ctypes.CDLL | str, stem: str, symbols: tuple[str, ...], version: Any = None) -> dict[str, Any]:
    if isinstance(library, str):
        return {"found": False, "why": library}
    return {
        "found": True,
        "path": _mapped(stem),
        "version": version(library) if version else None,
        "missing": [symbol for symbol in symbols if not _has(library, symbol)],
    }


def _mapped(stem: str) -> str:
    """The file that the library was loaded from."""
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            path = line.rstrip("\n").split(maxsplit=5)[-1]
            if os.path.basename(path).startswith(stem):
                return path
    return ""


def _has(library: ctypes.CDLL, symbol: str) -> bool:
    try:
        getattr(library, symbol)
    except AttributeError:
        return _through_runtime(library, symbol)
    return True


def _through_runtime(library: ctypes.CDLL, symbol: str) -> bool:
    """HIP gives some calls by hipGetProcAddress only."""
    ask = getattr(library, "hipGetProcAddress", None)
    if ask is None:
        return False
    pointer, state = ctypes.c_void_p(), ctypes.c_int()
    version = ctypes.c_int()
    library.hipRuntimeGetVersion(ctypes.byref(version))
    answer = ask(symbol.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(0), ctypes.byref(state))
    return answer == 0 and bool(pointer.value)


def _number(call: str) -> Callable[[ctypes.CDLL], int | None]:
    def ask(library: ctypes.CDLL) -> int | None:
        number = ctypes.c_int()
        function = getattr(library, call, None)
        return number.value if function is not None and function(ctypes.byref(number)) == 0 else None

    return ask


def _rocm() -> tuple[str, ...]:
    roots = [os.environ.get(name) for name in ("ROCM_PATH", "ROCM_HOME")]
    return tuple(f"{root}/lib" for root in (*roots, "/opt/rocm") if root)


def _cuda(name: str) -> tuple[str, ...]:
    """Where NVIDIA's wheels have the library, as their own finder says, or by looking."""
    with contextlib.suppress(Exception):
        finder = importlib.import_module("cuda.pathfinder")
        return (os.path.dirname(str(finder.load_nvidia_dynamic_lib(name).abs_path)),)
    return tuple(
        folder
        for entry in sys.path
        for folder in sorted(glob.glob(f"{entry}/nvidia/*/lib"))
        if glob.glob(f"{folder}/lib{name}.so*")
    )


def hip_runtime() -> dict[str, Any]:
    """HIP's runtime, which must have the calls that read and write files."""
    library = _load("libamdhip64.so.7", "libamdhip64.so", "libamdhip64.so.6", folders=_rocm())
    return _describe(library, "libamdhip64", ("hipAmdFileRead", "hipAmdFileWrite"), _number("hipRuntimeGetVersion"))


def hipfile_library() -> dict[str, Any]:
    """hipFile's library."""
    library = _load("libhipfile.so", "libhipfile.so.0", folders=_rocm())

    def version(library: ctypes.CDLL) -> str | None:
        numbers = [ctypes.c_uint() for _ in range(3)]
        ask = getattr(library, "hipFileGetVersion", None)
        if ask is None:
            return None
        ask(*map(ctypes.byref, numbers))
        return ".".join(str(number.value) for number in numbers)

    symbols = ("hipFileRead", "hipFileWrite", "hipFileHandleRegister", "hipFileBufRegister", "hipFileDriverOpen")
    return _describe(library, "libhipfile", symbols, version)


def hip_python() -> dict[str, Any]:
    """The bindings of hipFile for Python."""
    if importlib.util.find_spec("rocm") is None:
        return {"found": False, "why": "not installed"}
    try:
        module = importlib.import_module("rocm.bindings.hipfile")
    except Exception as error:  # noqa: BLE001 - whatever a generated extension raises
        return {"found": False, "why": f"{type(error).__name__}: {error}"}
    # Without this call the bindings answer garbage where the library is missing.
    has = bool(module.has_symbol("hipFileRead"))
    return {"found": True, "path": "", "version": None, "missing": [] if has else ["hipFileRead"]}


def cuda_driver() -> dict[str, Any]:
    """The user's side of NVIDIA's driver."""
    return _describe(_load("libcuda.so.1"), "libcuda.so", ("cuInit",), _number("cuDriverGetVersion"))


def cufile_library() -> dict[str, Any]:
    """cuFile's library."""
    library = _load("libcufile.so.0", "libcufile.so", folders=_cuda("cufile"))
    return _describe(
        library, "libcufile.so", ("cuFileRead", "cuFileWrite", "cuFileHandleRegister"), _number("cuFileGetVersion")
    )


def cuda_bindings() -> dict[str, Any]:
    """The bindings of cuFile for Python."""
    if importlib.util.find_spec("cuda") is None:
        return {"found": False, "why": "not installed"}
    try:
        importlib.import_module("cuda.bindings.cufile")
    except Exception as error:  # noqa: BLE001 - the same
        return {"found": False, "why": f"{type(error).__name__}: {error}"}
    return {"found": True, "path": "", "version": None, "missing": []}


def cupy() -> dict[str, Any]:
    """What CuPy sees, and whether memory can be pinned for it."""
    if importlib.util.find_spec("cupy") is None:
        return {"found": False, "why": "not installed"}
    try:
        module = importlib.import_module("cupy")
    except Exception as error:  # noqa: BLE001 - CuPy without its libraries raises whatever its loader meets
        return {"found": False, "why": f"{type(error).__name__}: {error}"}
    runtime = module.cuda.runtime
    found: dict[str, Any] = {"found": True, "hip": bool(runtime.is_hip), "gpus": [], "pinned": None}
    try:
        for index in range(runtime.getDeviceCount()):
            name = runtime.getDeviceProperties(index)["name"]
            found["gpus"].append(name.decode() if isinstance(name, bytes) else str(name))
    except Exception as error:  # noqa: BLE001 - no driver, no GPU
        return {**found, "why": str(error)}
    if found["gpus"]:
        try:
            module.cuda.alloc_pinned_memory(1 << 20)
            found["pinned"] = ""
        except Exception as error:  # noqa: BLE001 - what is wanted is what it says
            found["pinned"] = str(error) or type(error).__name__
    return found


STEPS = {
    function.__name__: function
    for function in (hip_runtime, hipfile_library, hip_python, cuda_driver, cufile_library, cuda_bindings, cupy)
}
