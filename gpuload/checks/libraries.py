"""The vendors' libraries and the Python packages that call them: which were found, where, with which symbols."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from gpuload.checks.child import Answers
from gpuload.checks.gpu import Gpu, Vendor
from gpuload.checks.report import Check, failed, passed, unknown

STEPS = {
    Vendor.AMD: ("hip_runtime", "hipfile_library", "hip_python"),
    Vendor.NVIDIA: ("cuda_driver", "cufile_library", "cuda_bindings"),
}
_EXTRA = {Vendor.AMD: "gpuload[rocm]", Vendor.NVIDIA: "gpuload[cuda13]"}
_SWITCHES = {
    Vendor.AMD: ("HIPFILE_FORCE_COMPAT_MODE", "HIPFILE_ALLOW_COMPAT_MODE"),
    Vendor.NVIDIA: ("CUFILE_FORCE_COMPAT_MODE", "CUFILE_ALLOW_COMPAT_MODE"),
}
_WHEEL = re.compile(r"cupy-cuda(1[0-9])x")


def _hip_version(number: int) -> str:
    return f"HIP {number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def _cuda_version(number: int) -> str:
    return f"CUDA {number // 1000}.{number % 1000 // 10}"


_WORDS: dict[str, tuple[str, str, Callable[[Any], str] | None, str, bool]] = {
    # step: name of the check, what is missing, form of the version, fix, whether that needs root
    "hip_runtime": ("hip-runtime", "libamdhip64.so", _hip_version, "apt-get install amdrocm-runtime", True),
    "hipfile_library": ("hipfile-library", "libhipfile.so", str, "apt-get install amdrocm-core-sdk", True),
    "hip_python": ("hip-python", "rocm.bindings.hipfile", None, "python -m pip install 'hip-python[systems]'", False),
    "cuda_driver": ("cuda-driver", "libcuda.so.1", _cuda_version, "apt-get install nvidia-open", True),
    "cufile_library": ("cufile-library", "libcufile.so.0", _cuda_version, "python -m pip install nvidia-cufile", False),
    "cuda_bindings": ("cuda-bindings", "cuda.bindings.cufile", None, "python -m pip install cuda-bindings", False),
}


def checks(answers: Answers, gpus: tuple[Gpu, ...], vendors: frozenset[Vendor]) -> dict[Vendor, list[Check]]:
    """Check each vendor's libraries, packages and switches."""
    found: dict[Vendor, list[Check]] = {}
    for vendor in sorted(vendors):
        found[vendor] = [_library(step, answers) for step in STEPS[vendor]]
        if vendor is Vendor.AMD:
            found[vendor].append(_interop(gpus))
        found[vendor].append(_switches(vendor, os.environ))
    return found


def version(distribution: str) -> str | None:
    """The installed version of a distribution, or None; imports nothing of it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


_DISTRIBUTIONS = {"hip_python": "hip-python", "cuda_bindings": "cuda-bindings"}


def _library(step: str, answers: Answers) -> Check:
    name, what, form, fix, root = _WORDS[step]
    said = answers.get(step)
    if said is None:
        return unknown(name, answers.why(step), fix, root=root)
    if not said["found"]:
        return failed(name, f"{what}: {said['why']}", fix, root=root)
    number = said["version"]
    if step in _DISTRIBUTIONS:
        words = version(_DISTRIBUTIONS[step])
    else:
        words = form(number) if form and number is not None else None
    where = " ".join(part for part in (words or what, f"at {said['path']}" if said["path"] else "") if part)
    if said["missing"]:
        return failed(name, f"{where}, without {', '.join(said['missing'])}", f"{fix}  # a newer one", root=root)
    return passed(name, where)


def _interop(gpus: tuple[Gpu, ...]) -> Check:
    """hip-python-interop installs a `cuda.bindings` of its own, which is AMD's."""
    name = "hip-python-interop"
    installed = version("hip-python-interop")
    if installed is None:
        return passed(name, "not installed: `cuda.bindings`, where it is there, is NVIDIA's")
    if any(gpu.vendor is Vendor.NVIDIA for gpu in gpus):
        fix = "python -m pip uninstall -y hip-python-interop"
        return failed(name, f"{installed}: it puts AMD's `cuda.bindings` in the place of NVIDIA's", fix)
    return passed(name, f"{installed}: its `cuda.bindings` is AMD's; gpuload decides by the GPU's vendor")


def _switches(vendor: Vendor, environment: Mapping[str, str]) -> Check:
    """A vendor's own detour: gpuload switches it off, unless it was set otherwise before."""
    name = "hipfile-switches" if vendor is Vendor.AMD else "cufile-switches"
    force, allow = _SWITCHES[vendor]
    if environment.get(force, "").lower() in ("1", "true"):
        return failed(name, f"{force}={environment[force]}: the fastpath is switched off", f"unset {force}")
    if environment.get(allow, "false").lower() not in ("0", "false"):
        said = f"{allow}={environment[allow]}: a read may take a detour, so none counts as fastpath"
        return failed(name, said, f"unset {allow}")
    return passed(name, f"neither {force} nor {allow} gets in the way")


def cupy_check(answers: Answers, gpus: tuple[Gpu, ...]) -> Check:
    """Check that one CuPy is installed, that it is the vendor's, and that the driver is new enough for it."""
    name = "cupy"
    vendor = gpus[0].vendor if gpus else None
    extra = f"'{_EXTRA[vendor]}'" if vendor else "'gpuload[rocm]'  # AMD; NVIDIA: 'gpuload[cuda13]'"
    install = f"python -m pip install {extra}"
    wheels = sorted({d.name for d in metadata.distributions() if re.match(r"cupy(-(cuda|rocm)|$)", d.name or "")})
    if len(wheels) > 1:
        return failed(name, f"{' and '.join(wheels)} overwrite each other", f"python -m pip uninstall -y {wheels[0]}")
    said = answers.get("cupy")
    if said is None:
        return unknown(name, answers.why("cupy"), install)
    if not said["found"]:
        return failed(name, f"{wheels[0] if wheels else 'cupy'}: {said['why']}", install)
    label = f"{wheels[0]} {version(wheels[0])}" if wheels else "CuPy, not installed as a package"
    if vendor is not None and said["hip"] != (vendor is Vendor.AMD):
        swap = f"python -m pip uninstall -y {wheels[0] if wheels else 'cupy'} && {install}"
        return failed(name, f"{label} is made for {'AMD' if said['hip'] else 'NVIDIA'}, the GPU is {vendor}'s", swap)
    wheel = _WHEEL.match(wheels[0]) if wheels else None
    driver = (answers.get("cuda_driver") or {}).get("version")
    if wheel and driver and driver // 1000 < int(wheel[1]):
        fix = f"python -m pip uninstall -y {wheels[0]} && python -m pip install 'gpuload[cuda{driver // 1000}]'"
        return failed(name, f"{label} wants CUDA {wheel[1]}, the driver has {_cuda_version(driver)}", fix)
    if not said["gpus"]:
        return unknown(
            name, f"{label} sees no GPU: {said.get('why', 'none there')}", "python -c 'import cupy; cupy.show_config()'"
        )
    return passed(name, f"{label} sees {', '.join(said['gpus'])}")
