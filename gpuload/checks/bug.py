"""The text for a bug report: versions, checks, variables that matter, and nothing that names a person or a host."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
from collections.abc import Mapping
from importlib import metadata

from gpuload.checks.kernel import release
from gpuload.checks.libraries import version
from gpuload.checks.report import Report

_PACKAGES = ("zarr", "numcodecs", "numpy", "hip-python", "cuda-bindings", "nvidia-cufile", "kvikio", "dask", "xarray")
_VARIABLES = re.compile(
    r"(GPULOAD|HIPFILE|CUFILE|KVIKIO|ROCM|HIP|HSA|AMD|CUDA|CUPY|NVIDIA)_[A-Z0-9_]+|LD_LIBRARY_PATH|PYTHONPATH"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|KEY$|KEY_ID$")


def bug_report(report: Report) -> str:
    """The report as Markdown for an issue tracker.

    Home directories become ``~``, the user's and the host's name ``USER`` and ``HOST``, wherever they occur as a word.
    """
    python = f"{platform.python_implementation()} {platform.python_version()}"
    lines = ["### Versions", f"- gpuload {version('gpuload') or '(no package)'}, {python}, {release()}"]
    cupy = sorted({d.name for d in metadata.distributions() if re.match(r"cupy(-(cuda|rocm)|$)", d.name or "")})
    known = ((name, version(name)) for name in (*_PACKAGES, *cupy))
    lines.append("- " + ", ".join(f"{name} {found}" for name, found in known if found))
    found = [f"- `{name}={value}`" for name, value in variables(os.environ)]
    lines += ["", "### Environment", *(found or ["- none of the variables that matter is set"])]
    lines += ["", "### Checks", "```text", report.to_text(110), "```", ""]
    return private("\n".join(lines))


def variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variables that decide how gpuload and the vendors' libraries work; none that looks like a secret."""
    return sorted(
        (name, value) for name, value in environment.items() if _VARIABLES.fullmatch(name) and not _SECRET.search(name)
    )


def private(text: str) -> str:
    """`text` without home directories, user names and host names."""
    text = re.sub(r"(?<![\w/.])/(home|Users)/[^/\s'\",:;)]+", "~", text)
    home = os.path.expanduser("~")
    if len(home) > 1 and home != "~":
        text = re.sub(rf"(?<![\w/.]){re.escape(home)}(?![\w.-])", "~", text)
    for word, name in (("USER", _user()), ("HOST", socket.gethostname()), ("HOST", socket.gethostname().split(".")[0])):
        if len(name) > 2 and name not in ("root", "localhost"):
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", word, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return ""
