"""Processes that look: what crashes, hangs or talks nonsense there leaves this one as it was."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuload.checks import child
from gpuload.checks.child import Job, ask

PROBES = Path(child.__file__).with_name("probes")
LONG = 100.0  # for a busy machine


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script ``made.py`` where the scripts are looked for."""
    folder = tmp_path / "probes"
    folder.mkdir()
    shutil.copy(PROBES / "run.py", folder)
    monkeypatch.setattr(child, "_PROBES", folder)
    return lambda text: (folder / "made.py").write_text(text) and None


CRASHES = """
import ctypes, os, signal, sys, time
def well(): return {"a": [1, "ä"]}
def noisy():
    print("no answer"); os.write(1, b'{"step": "noisy", "value": "from a library"}\\n'); return "mine"
def crash(): ctypes.string_at(0)
def killed(): os.kill(os.getpid(), signal.SIGSYS)
def leaves(): os._exit(3)
def hangs(): time.sleep(1000)
def raises(): raise RuntimeError("not today")
def unsayable(): return object()
def where(): return [os.getcwd(), sys.flags.safe_path, "gpuload" in sys.modules]
STEPS = {name: value for name, value in globals().items() if callable(value)}
"""


def test_values_come_back_and_what_libraries_print_does_not(script: Callable[[str], None]) -> None:
    script(CRASHES)
    answers = ask([Job("made", ("well", "noisy", "where"))], LONG)
    assert answers.values == {"well": {"a": [1, "ä"]}, "noisy": "mine", "where": ["/proc", True, False]}
    assert answers.ended == {}


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("crash", "the process that was to find out was killed by SIGSEGV"),
        ("killed", "the process that was to find out was killed by SIGSYS"),
        ("leaves", "the process that was to find out ended with exit code 3"),
        ("raises", "could not be found out: RuntimeError: not today"),
        ("unsayable", "could not be found out: TypeError: Object of type object is not JSON serializable"),
        ("unknown", "could not be found out: KeyError: 'unknown'"),
    ],
)
def test_what_was_said_before_the_end_is_kept(script: Callable[[str], None], step: str, why: str) -> None:
    script(CRASHES)
    answers = ask([Job("made", ("well", step, "noisy"))], LONG)
    assert answers.get("well") == {"a": [1, "ä"]}
    assert answers.get(step) is None
    assert answers.why(step) == why
    if "killed" in why or "exit" in why:
        assert answers.get("noisy") is None
        assert answers.why("noisy") == f"{why} at {step}"
        assert answers.killed(step, "SIGSEGV", "SIGSYS") == ("killed" in why)
        assert not answers.killed("noisy", "SIGSEGV", "SIGSYS")
    else:
        assert answers.get("noisy") == "mine"


def test_one_that_hangs_is_ended(script: Callable[[str], None]) -> None:
    script(CRASHES)
    answers = ask([Job("made", ("hangs",))], 0.5)
    assert answers.values == {}
    assert answers.why("hangs") == "the process that was to find out gave no answer within 0.5 s"


def test_a_script_that_is_broken_or_cannot_be_started(
    script: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    script("this is no Python")
    assert "ended with exit code 1" in ask([Job("made", ("well",))], LONG).why("well")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "could not be started" in ask([Job("made", ("well",))], LONG).why("well")
    monkeypatch.setattr(sys, "executable", None)
    assert "could not be started" in ask([Job("made", ("well",))], LONG).why("well")


def test_the_script_sees_the_packages_of_this_process_and_not_those_of_a_folder(
    script: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, name in ((here, "in_the_working_folder"), (there, "on_the_path")):
        folder.mkdir()
        (folder / f"{name}.py").write_text("")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(there)])
    script(
        "import importlib.util as u\n"
        "STEPS = {n: (lambda n=n: u.find_spec(n) is not None) for n in ('in_the_working_folder', 'on_the_path')}"
    )
    answers = ask([Job("made", ("in_the_working_folder", "on_the_path"))], LONG)
    assert answers.values == {"in_the_working_folder": False, "on_the_path": True}


# ---------------------------------------------------------------------------------------- libraries


@pytest.fixture(scope="module")
def probe() -> dict[str, Any]:
    return runpy.run_path(str(PROBES / "libraries.py"))


def test_symbols_and_places_of_a_library_that_every_system_has(probe: dict[str, Any]) -> None:
    found = probe["_describe"](probe["_load"]("libnowhere.so", "libc.so.6"), "libc.so.6", ("read", "no_such_call"))
    assert (found["found"], found["missing"]) == (True, ["no_such_call"])
    assert os.path.samefile(found["path"], next(p for p in _maps() if os.path.basename(p) == "libc.so.6"))
    assert probe["_describe"](probe["_load"]("libnowhere.so"), "libnowhere", ()) == {"found": False, "why": "not found"}


def test_a_library_that_is_there_but_broken_says_so(probe: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "libbroken.so").write_bytes(b"no ELF file")
    said = probe["_load"]("libbroken.so", folders=(str(tmp_path),))
    assert "file too short" in said or "invalid ELF header" in said


def _maps() -> list[str]:
    with open("/proc/self/maps") as lines:
        return [line.split()[-1] for line in lines if "/" in line]


RUNTIME = """
int hipRuntimeGetVersion(int *v) { *v = 71526015; return 0; }
int hipAmdFileRead(void) { return 0; }
static int by_address(void) { return 0; }
int hipGetProcAddress(const char *name, void **out, int version, unsigned long flags, int *state) {
    *out = version == 71526015 && !__builtin_strcmp(name, "hipAmdFileWrite") ? (void *)by_address : 0;
    return *out ? 0 : 500;
}
"""
HIPFILE = """
int hipFileGetVersion(unsigned *a, unsigned *b, unsigned *c) { *a = 0; *b = 4; *c = 1; return 0; }
int hipFileRead(void) { return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_libraries_are_found_where_rocm_is_and_asked_in_their_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    for name, source in (("libamdhip64.so.7", RUNTIME), ("libhipfile.so", HIPFILE)):
        (tmp_path / "x.c").write_text(source)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", lib / name, tmp_path / "x.c"], check=True)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    answers = ask([Job("libraries", ("hip_runtime", "hipfile_library"))], LONG)
    assert answers.get("hip_runtime") == {
        "found": True,
        "path": str(lib / "libamdhip64.so.7"),
        "version": 71526015,
        "missing": [],
    }
    hipfile = answers.get("hipfile_library")
    assert (hipfile["version"], hipfile["path"]) == ("0.4.1", str(lib / "libhipfile.so"))
    assert "hipFileWrite" in hipfile["missing"]
    assert "hipFileRead" not in hipfile["missing"]
    assert "libamdhip64" not in " ".join(_maps())


def test_cupy_is_asked_in_its_own_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "cupy.py"
    package.write_text(
        "class cuda:\n"
        "    class runtime:\n"
        "        is_hip = True\n"
        "        getDeviceCount = staticmethod(lambda: 2)\n"
        "        getDeviceProperties = staticmethod(lambda index: {'name': b'GPU %d' % index})\n"
        "    @staticmethod\n"
        "    def alloc_pinned_memory(size): raise MemoryError('none left')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    said = ask([Job("libraries", ("cupy",))], LONG).get("cupy")
    assert said == {"found": True, "hip": True, "gpus": ["GPU 0", "GPU 1"], "pinned": "none left"}
    assert "cupy" not in sys.modules
    package.write_text("raise OSError('libcudart is not there')")
    said = ask([Job("libraries", ("cupy",))], LONG).get("cupy")
    assert said == {"found": False, "why": "OSError: libcudart is not there"}
