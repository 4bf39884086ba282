"""``gpuload doctor``: forms, exit codes, and what a bug report leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import gpuload
from gpuload.checks.report import BackendState, Report, Section, Verdict, failed, passed, unknown
from gpuload.cli import main
from gpuload.request import Reason


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, args)])


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the examination was asked for; it finds the same each time."""
    asked: list[Any] = []
    checks = (passed("good", "well"), failed("bad", "ill", "mend"), unknown("dim", "who knows"))
    backends = {"hipfile": BackendState(False, Reason.NO_LIBRARY), "posix": BackendState(True, None)}

    def doctor(path: Any = None, timeout: float = 1.0) -> Report:
        asked.append(path)
        return Report((Section("all", checks),), backends, (), None if path is None else Verdict(path))

    monkeypatch.setattr(gpuload, "doctor", doctor)
    return asked


def test_for_people(found: list[Any]) -> None:
    done = run("some.zarr")
    assert done.exit_code == 0, done.output
    assert found == ["some.zarr"]
    assert done.stdout == gpuload.doctor("some.zarr").to_text(80) + "\n"


def test_as_json(found: list[Any]) -> None:
    assert json.loads(run("--json").stdout) == gpuload.doctor().to_dict()


def test_as_a_bug_report(found: list[Any]) -> None:
    done = run("--report")
    assert done.exit_code == 0
    assert done.stdout.startswith("### Versions\n- gpuload ")
    assert "✗ fail" in done.stdout


@pytest.mark.parametrize(
    ("names", "code", "words"),
    [
        (["good"], 0, ""),
        (["posix", "good"], 0, ""),
        (["bad"], 1, "required, and not so: bad"),
        (["dim"], 1, "required, and not so: dim"),  # unknown is no pass
        (["hipfile", "good", "bad"], 1, "required, and not so: hipfile, bad"),
        (["nothing"], 2, "no backend or check named 'nothing': there are bad, dim, good, hipfile, posix"),
    ],
)
def test_what_is_required_decides_the_exit_code(found: list[Any], names: list[str], code: int, words: str) -> None:
    done = run("--json", *(part for name in names for part in ("--require", name)))
    assert done.exit_code == code
    assert words in " ".join(done.stderr.split())
    if code < 2:
        assert json.loads(done.stdout)["checks"]


def test_wrong_usage() -> None:
    assert run("--json", "--report").exit_code == 2


def test_a_path_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path / "nowhere", "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert "nowhere" in done.stderr


def test_the_machine_itself(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"x" * 8192)
    done = run(tmp_path, "--json", "--timeout", 500)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert {check["status"] for check in answer["checks"]} <= {"pass", "fail", "unknown"}
    assert answer["path"]["path"] == str(tmp_path)
    assert set(answer["backends"]) >= {"hipfile", "cufile", "io_uring", "posix"}
