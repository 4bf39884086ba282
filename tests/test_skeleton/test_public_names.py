"""``import gpuload`` is light, and every public name is there once it is asked for."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest

import gpuload
from gpuload.config import DEFAULTS

HEAVY = {"cupy", "zarr", "numcodecs", "dask", "xarray", "pandas", "ipywidgets", "IPython", "rich", "click"}


def loaded_after(code: str) -> set[str]:
    """The top-level packages in a fresh interpreter after `code`."""
    program = f"{code}\nimport sys, json\nprint(json.dumps(sorted(m.partition('.')[0] for m in sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import gpuload",
        "import gpuload; gpuload.config, gpuload.errors, dir(gpuload)",
        "import gpuload; gpuload.trace, gpuload.report",
        "import gpuload; gpuload.RegisteredFile",
    ],
)
def test_light(code: str) -> None:
    assert loaded_after(code) & HEAVY == set()


def test_zarr_is_loaded_when_it_is_used() -> None:
    assert "zarr" in loaded_after("import gpuload; gpuload.zarr")


@pytest.mark.parametrize("command", ["--help", "--version", "read --help", "demo --help"])
def test_help_loads_nothing_heavy(command: str) -> None:
    code = f"import contextlib\nfrom gpuload.cli import main\nmain({command.split()!r}, standalone_mode=False)"
    assert loaded_after(code) & (HEAVY - {"click", "rich"}) == set()


def test_every_public_name_is_there() -> None:
    for name in gpuload.__all__:
        assert getattr(gpuload, name) is not None
        assert name in dir(gpuload)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="'gpuload' has no attribute 'nothing'"):
        gpuload.nothing


def test_config_is_the_configuration_whatever_is_imported() -> None:
    import gpuload.config
    from gpuload.config import config

    assert gpuload.config is config
    assert set(DEFAULTS) <= set(gpuload.config.to_dict())


def test_the_record_hears_of_reads_from_the_first_one() -> None:
    # Whoever reads without having asked for the report must still find its reads there.
    code = (
        "import os, tempfile, gpuload, numpy\n"
        "f = tempfile.NamedTemporaryFile(); f.write(b'x' * 100); f.flush()\n"
        "from gpuload.engine.plain import RegisteredFile\n"
        "with RegisteredFile(f.name) as r: assert r.read_into(numpy.empty(100, 'u1')) == 100\n"
        "assert gpuload.report().bytes == 100, gpuload.report()"
    )
    assert "gpuload" in loaded_after(code)


def test_version_is_the_distribution_s() -> None:
    assert importlib.metadata.version("gpuload") == gpuload.__version__
