"""``gpuload bench`` as one types it: table, JSON, progress, choices and refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuload.bench import process, runner
from gpuload.bench.cases import CASES
from gpuload.bench.contenders import CONTENDERS
from gpuload.cli import bench, main

SMALL = ("--device", "cpu", "--size", "1", "--repeats", "1")


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, args)], env={"COLUMNS": "160"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


def test_json(folder: Path) -> None:
    chosen = ("--case", "256 KiB", "--case", "1 MiB zstd", "--contender", "gpuload", "--contender", "zarr")
    done = run(folder, *SMALL, *chosen, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert done.stderr == ""
    assert list(report) == ["machine", "limits", "cases"]
    assert [case["name"] for case in report["cases"]] == ["256 KiB", "1 MiB zstd"]
    for case in report["cases"]:
        assert [row["contender"] for row in case["results"]] == ["gpuload", "zarr"]
        for row in case["results"]:
            assert row["equal"] is True
            assert row["gb_per_s"] > 0
            assert row["cpu_s_per_gb"] >= 0
            assert row["gpuload_is_times"] > 0
    assert (folder / "256_KiB" / "zarr.json").exists()  # kept
    assert (folder / "256_KiB.written").exists()


def test_table(folder: Path) -> None:
    chosen = ("--case", "1 MiB zstd", "--contender", "gpuload", "--contender", "gpuload (posix)", "--contender", "zarr")
    done = run(folder, *SMALL, *chosen)
    assert done.exit_code == 0, done.output
    text = done.stdout
    for said in ("1 MiB zstd (×", "gpuload (posix)", "zarr", "gpuload is", "× 1.00", "CPU s/GB", "decoded on the host"):
        assert said in text
    assert "limit: decoder alone" in text
    assert "limit cached preadv 1 thread: " in text
    assert "limit o direct: " in text
    assert "1 MiB, medians of 1 reads" in text
    assert "kernel " in text
    assert "page cache warm: at least 100% of each array found in it" in text
    assert "into host memory" in text
    assert "no-library" not in text  # what serves the metadata is below what the table tells


def test_the_stores_are_temporary_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[str] = []

    def note(folder: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        folders.append(folder)
        assert Path(folder).is_dir()
        return {"machine": {}, "limits": {}, "cases": []}

    monkeypatch.setattr(runner, "run", note)
    assert run(*SMALL, "--json").exit_code == 0
    assert len(folders) == 1
    assert not Path(folders[0]).exists()


def test_progress_names_what_runs_and_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    seen: list[tuple[str, float, float]] = []
    update = Progress.update

    def watched(self: Progress, task: Any, **kwargs: Any) -> None:
        update(self, task, **kwargs)
        seen.append((self.tasks[0].description, self.tasks[0].completed, self.tasks[0].total or 0))

    monkeypatch.setattr(Progress, "update", watched)
    done = run(*SMALL, "--case", "16 MiB", "--contender", "gpuload", "--json")
    assert done.exit_code == 0, done.output
    assert [name for name, _, _ in seen] == [
        "16 MiB: writing",
        "16 MiB: gpuload",
        "16 MiB: round 1",
        "the machine's limits",
    ]
    assert [completed for _, completed, _ in seen] == [0, 1, 2, 3]
    assert {total for _, _, total in seen} == {4}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--case", "3 MiB"), "no case named '3 MiB': there are 64 KiB, 256 KiB"),
        (("--contender", "hdf5"), "no contender named 'hdf5': there are gpuload, gpuload (posix), gpuload (O_DIRECT)"),
        (("--contender", "zarr (GPU buffers)"), "zarr (GPU buffers) is not installed here, or reads to a GPU only"),
        (("--size", "0"), "--size"),
        (("--repeats", "0"), "--repeats"),
        (("--device", "tpu"), "'tpu' is not 'auto', 'cpu' or 'cuda:N'"),
    ],
)
def test_refusals(args: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, ["bench", "--device", "cpu", "--size", "1", "--repeats", "1", *args])
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_help_names_cases_and_contenders() -> None:
    text = " ".join(run("--help").stdout.split())
    assert all(case.name in text for case in CASES)
    assert all(contender.name in text for contender in CONTENDERS)


def report_of(**row: Any) -> dict[str, Any]:
    result = {
        "contender": "gpuload",
        "setting": "default",
        "equal": True,
        "error": None,
        "gb_per_s": 2.0,
        "seconds": [1.0],
        "cpu_s_per_gb": 0.5,
        "gpuload_is_times": 1.0,
        "of_limit": None,
        "beside_gb_per_s": None,
        "kept": None,
        "kept_interval": None,
        "cpu_us_a_chunk": None,
        "served": None,
        **row,
    }
    case = {"name": "c", "stored_ratio": 1.0, "codec": "none", "cached_share": None, "limit": None, "mode": "warm"}
    machine = {
        "kernel": "6.1",
        "architecture": "x86_64",
        "python": "3.11",
        "cores": 2,
        "ring": "no ring: [seccomp]",
        "file_system": "ext4",
        "gpu": {"name": "A [GPU]", "driver": 1, "cupy": "14"},
        "versions": {"gpuload": "0.1", "cupy": None},
        "bytes": 1 << 20,
        "repeats": 1,
    }
    return {"machine": machine, "limits": {"o_direct": None}, "cases": [{**case, "results": [result]}]}


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_gpuload_that_fails_ends_in_an_error_after_the_report(
    monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    failed = report_of(error="OSError: [no] luck", equal=False, gb_per_s=None, gpuload_is_times=None, cpu_s_per_gb=None)
    monkeypatch.setattr(runner, "run", lambda *args, **kwargs: failed)
    done = run(*SMALL, *form)
    assert done.exit_code == 1
    assert "gpuload failed: c: OSError: [no] luck" in done.stderr
    assert "OSError: [no] luck" in done.stdout
    if form:
        assert json.loads(done.stdout) == failed
    else:
        assert "–" in done.stdout
        assert "no ring: [seccomp]" in done.stdout
        assert "A [GPU], driver 1" in done.stdout
        assert "limit o direct: not to be had" in done.stdout
        assert "cupy ?" in done.stdout


def test_a_peer_that_fails_is_said_and_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import sys; sys.stdin.readline(); sys.exit('it [broke] here')")
    monkeypatch.setattr(process, "COMMAND", [sys.executable, str(script)])
    done = run(tmp_path, *SMALL, "--case", "16 MiB", "--contender", "zarr")
    assert done.exit_code == 0, done.output
    assert "its process ended with code 1: it [broke] here" in done.stdout


def test_shares_of_paths_are_told() -> None:
    ways = [
        {"share": 0.8, "path": "fastpath", "backend": "cufile", "reason": None, "decode": "none"},
        {"share": 0.2, "path": "fallback", "backend": "io_uring", "reason": "tail", "decode": "host"},
        {"share": 0.001, "path": "fallback", "backend": "posix", "reason": None, "decode": "none"},
    ]
    row = report_of(served=ways)["cases"][0]["results"][0]
    said = "80% fastpath by cufile; 20% fallback by io_uring (tail), decoded on the host"
    assert bench._how({**row, "of_limit": 0.913}) == f"91% of the limit; {said}"
    assert bench._how(row) == said


def test_what_a_speed_is_compared_with_is_told() -> None:
    kept = {"kept": 0.5, "beside_gb_per_s": 4.0}
    row = report_of(**kept)["cases"][0]["results"][0]
    assert bench._how(row) == "50.0% of 4.00 GB/s; default"
    row = report_of(**kept, kept_interval=[0.45, 0.5512], cpu_us_a_chunk=-0.05)["cases"][0]["results"][0]
    assert bench._how(row) == "50.0% of 4.00 GB/s (95 %: 45.0% to 55.1%); -0.05 µs of CPU a chunk; default"


@pytest.mark.parametrize(
    ("share", "label"),
    [(0.0, "c"), (0.01, "c"), (0.5, "c (not cold: 50% cached)"), (None, "c (not cold)")],
)
def test_a_case_that_was_not_cold_is_not_called_so(share: float | None, label: str) -> None:
    report = report_of()
    report["cases"][0] |= {"mode": "cold", "cached_share": share}
    assert bench._label(report["cases"][0]) == label
    assert "found in it" not in bench._conditions(report)[0]
