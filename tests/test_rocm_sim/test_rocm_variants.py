"""Installations that lack something, each in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.rocm

SYMBOLS = """
from rocm.bindings import hip, hipfile
print(*(int(m.has_symbol(n)) for m, n in [
    (hip, "hipMalloc"), (hip, "hipAmdFileRead"), (hipfile, "hipFileRead"), (hipfile, "hipFileReadAsync"),
    (hipfile, "hipFileBatchIOSetUp"), (hipfile, "hipFileStreamRegister")]))
"""
READ = """
import os, sys, cupy
from rocm_sim.simulator import Simulator
from rocm import hipfile
array = cupy.zeros(8192, "u1")
buffer = hipfile.Buffer(array.data.ptr, 8192, 0)
with buffer, hipfile.FileHandle(sys.argv[1], os.O_RDONLY) as file:
    print(file.read(buffer, 8192, 0, 0), hipfile.get_version()[1], *Simulator().stats().values())
"""


@pytest.mark.parametrize(
    ("variant", "symbols"),
    [
        ("full", "1 1 1 1 1 1"),
        ("no-hipfile", "1 1 0 0 0 0"),
        ("old-hipfile", "1 1 1 0 0 0"),
        ("no-ais", "1 0 1 1 1 1"),
    ],
)
def test_symbols(rocm_python: Any, variant: str, symbols: str) -> None:
    assert rocm_python(SYMBOLS, variant=variant) == symbols


@pytest.mark.parametrize(("variant", "minor"), [("full", 4), ("old-hipfile", 2), ("no-ais", 4)])
def test_who_serves(rocm_python: Any, tmp_path: Any, variant: str, minor: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    got = rocm_python(READ, path, variant=variant, HIPFILE_UNSUPPORTED_FILE_SYSTEMS="true").split()
    assert got[:2] == ["8192", str(minor)]
    if variant == "no-ais":
        assert got[2:] == ["0", "0", "8192", "0"]
    else:
        assert sum(map(int, got[2:])) == 8192


def test_no_rocm_at_all(rocm_python: Any) -> None:
    script = """
try:
    import cupy
except ImportError as error:
    print("libamdhip64" in str(error))
"""
    assert rocm_python(script, variant="no-rocm") == "True"


def test_a_variant_that_is_none(rocm_python: Any) -> None:
    with pytest.raises(ValueError, match=r"no variant 'new'.*no-hipfile"):
        rocm_python("", variant="new")
