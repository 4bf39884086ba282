"""Which ROCm libraries are simulated, of which sources, and what the installed wheels ask of each."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from . import symbols

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Library:
    """A shared object of ROCm.

    `owns` are the prefixes of its symbols; `refusal` is what a stub answers, that library's own "not supported".
    `sources` is the folder of what is simulated of it, if anything.
    """

    soname: str
    owns: tuple[str, ...]
    refusal: int = 0
    sources: str = ""
    needs: tuple[str, ...] = ()

    @property
    def link_name(self) -> str:
        """The name a linker, and hip-python, look for."""
        return self.soname.split(".so")[0] + ".so"


HIP = Library("libamdhip64.so.7", ("hip", "__hip"), 801, "hip")
HIPFILE = Library("libhipfile.so.0", ("hipFile",), 5030, "hipfile", (HIP.soname,))
HIPRTC = Library("libhiprtc.so.7", ("hiprtc",), 11, "hiprtc")
LIBRARIES = (
    HIP,
    HIPFILE,
    HIPRTC,
    Library("libhipblas.so.3", ("hipblas",), 7),
    Library("libhipsparse.so.4", ("hipsparse",), 10),
    Library("libhiprand.so.1", ("hiprand",), 999),
    Library("libhipfft.so.0", ("hipfft",), 16),
    Library("librocfft.so.0", ("rocfft",), 1),
    Library("librocblas.so.5", ("rocblas",), 2),
    Library("librocsolver.so.0", ("rocsolver",), 2),
    Library("libroctracer64.so.4", ("roctracer",), -1),
    Library("libroctx64.so.4", ("roctx",), 0),
    Library("librccl.so.1", ("nccl",), 3),
)


def owner(name: str) -> Library | None:
    """The library that defines `name`: that of the longest prefix. HIP's own go on with a capital."""
    best, found = "", None
    for library in LIBRARIES:
        for prefix in library.owns:
            fits = re.match(r"hip[A-Z]", name) if prefix == "hip" else name.startswith(prefix)
            if fits and len(prefix) > len(best):
                best, found = prefix, library
    return found


def _folder(package: str) -> Path:
    """Where `package` is installed, without importing it."""
    specification = importlib.util.find_spec(package)
    if specification is None or not specification.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{package} is not installed: the simulated ROCm is made for the wheels of gpuload[rocm]"
        )
    return Path(next(iter(specification.submodule_search_locations)))


def _declared(bindings: Path, name: str, returns: str) -> list[str]:
    """C functions that a .pxd of hip-python declares. It loads each by name: one that is missing is undefined there."""
    return re.findall(rf"^cdef {returns} (\w+)\(", (bindings / name).read_text(), re.MULTILINE)


def wanted() -> dict[Library, dict[str, str]]:
    """Library -> name -> version of all symbols that CuPy and hip-python can ask for."""
    want: dict[Library, dict[str, str]] = {library: {} for library in LIBRARIES}
    for package in ("cupy", "cupy_backends"):
        for path in sorted(_folder(package).rglob("*.so")):
            for symbol in symbols.undefined(path):
                library = owner(symbol.name)
                if library is not None:
                    want[library].setdefault(symbol.name, symbol.version)
    bindings = _folder("rocm") / "bindings"
    for name in _declared(bindings, "cyhip.pxd", "hipError_t"):
        want[HIP].setdefault(name, "")
    for name in _declared(bindings, "cyhipfile.pxd", "hipFileError"):
        want[HIPFILE].setdefault(name, "")
    return want


def defined(sources: list[Path]) -> set[str]:
    """Functions that C or C++ sources define outside of any other."""
    pattern = re.compile(r"^[\w ]+?[ *](\w+)\([^;{}]*\)\s*\{", re.MULTILINE)
    return {name for source in sources for name in pattern.findall(source.read_text())}
