"""Builds the simulated ROCm into a cache: a folder as ROCm installs itself, and variants that lack something.

The folder's name is a hash of the sources, the wheels and the compiler. It is made under another name and renamed, so
parallel starts are safe: the first to finish wins.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import libraries, stubs
from .libraries import HERE, HIP, HIPFILE, LIBRARIES, Library

WHEELS = ("cupy-rocm-7-0", "rocm-bindings-hip", "rocm-bindings-systems")
KERNEL_FLAGS = ("-x", "c++", "-std=c++17", "-O1", "-w", "-fPIC", "-fpermissive")
C_FLAGS = ("-O2", "-g", "-fPIC", "-pthread")
FULL = "full"
# hipFile before 0.4 has none of these.
LATER_THAN_0_2 = ("hipFileBatch", "hipFileReadAsync", "hipFileWriteAsync", "hipFileStream", "hipFileGetStats")

# What CuPy asks hipcc: where it finds headers.
_HIPCC = "#!/bin/sh\nexec ${CXX:-g++} -x c++ -E -v /dev/null\n"


class ToolMissing(RuntimeError):
    """There is no C or C++ compiler."""


def compilers() -> tuple[str, str]:
    """The C and the C++ compiler: $CC and $CXX, or gcc and g++.

    Raises
    ------
    ToolMissing
        One of them is not there; says what installs it.
    """
    found = os.environ.get("CC", "gcc"), os.environ.get("CXX", "g++")
    for name in found:
        if shutil.which(name) is None:
            raise ToolMissing(f"the simulated ROCm is C and C++, and {name} is not there: apt-get install g++")
    return found


def root() -> Path:
    """The folder of the simulated ROCm for the installed wheels; builds it where it is not there yet.

    Raises
    ------
    ToolMissing
        No compiler.
    importlib.metadata.PackageNotFoundError
        A wheel of ``gpuload[rocm]`` is not installed.
    """
    tools = compilers()
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(os.environ.get("ROCM_SIM_CACHE") or Path(home, "gpuload", "rocm_sim"))
    folder = cache / _key(tools)
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=cache) as scratch:
        made = Path(scratch, "rocm")
        _build(made, Path(scratch), tools)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else somebody else was first
                raise
    return folder


def _key(tools: tuple[str, str]) -> str:
    key = hashlib.sha256()
    for path in sorted(HERE.rglob("*")):
        if path.suffix in (".c", ".cpp", ".h", ".py"):
            key.update(f"{path.relative_to(HERE)} ".encode() + path.read_bytes())
    for wheel in WHEELS:
        key.update(f"{wheel} {importlib.metadata.version(wheel)} ".encode())
    for tool in tools:
        key.update(subprocess.run([tool, "--version"], check=True, capture_output=True).stdout)
    return key.hexdigest()[:16]


def _build(folder: Path, scratch: Path, tools: tuple[str, str]) -> None:
    want = libraries.wanted()
    lib = folder / FULL / "lib"
    old = folder / "old-hipfile" / "lib"
    no_ais = folder / "no-ais" / "lib"
    for made in (lib, old, no_ais, folder / "no-hipfile" / "lib", folder / "no-rocm" / "lib"):
        made.mkdir(parents=True)
    headers = folder / FULL / "include"
    shutil.copytree(HERE / "device", headers)
    shutil.copy(HERE / "hip" / "kernel.h", headers)
    _build_library(HIP, want[HIP], lib, scratch, tools)  # others are linked against it
    before_0_4 = {name: "" for name in want[HIPFILE] if not name.startswith(LATER_THAN_0_2)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(_precompile, headers, tools)]
        jobs += [
            pool.submit(_build_library, library, want[library], lib, scratch, tools)
            for library in LIBRARIES
            if library is not HIP
        ]
        jobs.append(pool.submit(_build_library, HIP, want[HIP], no_ais, scratch, tools, ("storage.c",)))
        jobs.append(
            pool.submit(_build_library, HIPFILE, before_0_4, old, scratch, tools, ("async.c",), minor=2, against=lib)
        )
        for job in jobs:
            job.result()
    _finish(folder)


def _build_library(
    library: Library,
    want: Mapping[str, str],
    lib: Path,
    scratch: Path,
    tools: tuple[str, str],
    without: tuple[str, ...] = (),
    *,
    minor: int = 4,
    against: Path | None = None,
) -> None:
    sources = sorted((HERE / library.sources).glob("*.c*")) if library.sources else []
    here = libraries.defined(sources)
    sources = [path for path in sources if path.name not in without]
    work = Path(tempfile.mkdtemp(dir=scratch))
    (work / "stubs.c").write_text(stubs.source(library, set(want) - here))
    (work / "versions").write_text(stubs.version_script(library, want))
    cc, cxx = tools
    is_cxx = any(path.suffix == ".cpp" for path in sources)
    flags = ["-std=c++17", *_kernel_flags()] if is_cxx else ["-std=gnu11", "-D_GNU_SOURCE", f"-DHIPFILE_MINOR={minor}"]
    generated = [] if is_cxx else [str(work / "stubs.c")]
    linked = [str((against or lib) / name) for name in library.needs]
    command = [cxx if is_cxx else cc, *C_FLAGS, *flags, "-shared", f"-Wl,-soname,{library.soname}"]
    command += [f"-Wl,--version-script={work / 'versions'}", "-Wl,-rpath,$ORIGIN", "-o", str(lib / library.soname)]
    _run([*command, *map(str, sources), *generated, *linked, "-ldl"])
    (lib / library.link_name).symlink_to(library.soname)


def _kernel_flags() -> list[str]:
    quoted = ", ".join(f'"{flag}"' for flag in KERNEL_FLAGS)
    return [f"-DROCMSIM_KERNEL_FLAGS={quoted}"]


def _precompile(headers: Path, tools: tuple[str, str]) -> None:
    """The header of every kernel: compiled once, a kernel takes half as long."""
    flags = [flag if flag != "c++" else "c++-header" for flag in KERNEL_FLAGS]
    _run([tools[1], *flags, "-I", str(headers), str(headers / "device.h"), "-o", str(headers / "device.h.gch")])


def _finish(folder: Path) -> None:
    """What ROCm has beside libraries; and every variant gets the files that it has in common with the full one."""
    full = folder / FULL
    (full / "bin").mkdir()
    (full / "bin" / "hipcc").write_text(_HIPCC)
    (full / "bin" / "hipcc").chmod(0o755)
    (full / ".info").mkdir()
    (full / ".info" / "version").write_text("7.0.2\n")
    for variant in folder.iterdir():
        if variant == full:
            continue
        for name in ("bin", "include", ".info"):
            (variant / name).symlink_to(Path("..", FULL, name))
        lacks = {"no-hipfile": {HIPFILE}, "no-rocm": set(LIBRARIES)}.get(variant.name, set())
        for library in LIBRARIES:
            for name in (library.soname, library.link_name):
                if library not in lacks and not os.path.lexists(variant / "lib" / name):
                    (variant / "lib" / name).symlink_to(Path("..", "..", FULL, "lib", name))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
