"""A run: medians, ratios, settings, and contenders that fail without stopping the others."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuload.bench import runner, worker
from gpuload.bench.cases import KIB, MIB, Case, Mode, data, side_of
from gpuload.bench.contenders import Contender, named
from gpuload.bench.process import Worker
from gpuload.bench.runner import present, run, run_case, steps

RAW, ZSTD = Case("64 KiB", 64 * KIB), Case("64 KiB zstd", 64 * KIB, codec="zstd")
Fake = Callable[..., list[Contender]]


def case_of(fake: Fake, folder: Path, values: np.ndarray[Any, Any], *names: str) -> dict[str, dict[str, Any]]:
    found = run_case(RAW, str(folder), values, fake(*names), gpu=False, repeats=3)
    assert [row["contender"] for row in found["results"]] == list(names)
    return {row["contender"]: row for row in found["results"]}


def test_one_that_fails_does_not_stop_the_others(fake: Fake, tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    names = ("refuses", "wrong", "dies", "right", "fails", "turns", "shape", "dtype", "chatty")
    rows = case_of(fake, tmp_path, values, *names)
    errors = {name: row["error"] for name, row in rows.items()}
    assert errors == {
        "refuses": "OSError: no such luck [here]",
        "wrong": "it read wrong values",
        "dies": "its process ended with code 7: out of luck",
        "right": None,
        "fails": "ValueError: later",
        "turns": "it read wrong values",
        "shape": "it read wrong values",
        "dtype": "it read wrong values",
        "chatty": None,
    }
    for row in rows.values():
        well = row["error"] is None
        assert row["equal"] is (well or row["contender"] in ("dies", "fails"))  # they did so later
        assert (row["gb_per_s"] is not None) is well
        assert (row["cpu_s_per_gb"] is not None) is well
        assert len(row["seconds"]) == (3 if well else 0)
        assert row["gpuload_is_times"] is None  # gpuload was not among them
    json.dumps(rows)


def test_the_fastest_setting_is_taken(fake: Fake, tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    rows = case_of(fake, tmp_path, values, "picks", "forgets", "half")
    assert rows["picks"]["setting"] == rows["forgets"]["setting"] == "quick"
    assert rows["picks"]["error"] is None
    assert rows["half"]["error"] == "it read wrong values"  # whichever of its settings it was


def test_one_that_never_answers_is_ended(fake: Fake, tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    (hangs,) = fake("hangs")
    with Worker(hangs, str(tmp_path), len(values), gpu=False, patience=3) as worker:
        assert worker.error == "no answer in 3 s"
    assert worker._process.returncode is not None
    worker.close()


def test_medians_and_ratios(values: np.ndarray[Any, Any]) -> None:
    class Done:
        def __init__(self, name: str, seconds: list[float]) -> None:
            self.contender, self.seconds, self.cpu = Contender(name, "numpy", {}), seconds, [2 * s for s in seconds]
            self.setting, self.equal, self.error, self.served = "default", bool(seconds), None, None
            self.beside: list[float] = [s / 2 for s in seconds] if name == "peer" else []
            self.beside_cpu: list[float] = [s - 1e-3 for s in self.cpu] if name == "peer" else []

    workers: Any = [Done("peer", [3, 8, 4]), Done("gpuload", [9, 2, 1]), Done("failed", [])]
    peer, own, failed = runner.rows(workers, 10**9, 10**6, 0.5)
    assert peer["of_limit"] == 0.5
    assert own["of_limit"] == 1
    assert peer["kept"] == 0.5
    assert peer["kept_interval"] is None  # three pairs are too few
    assert peer["beside_gb_per_s"] == 0.5
    assert peer["cpu_us_a_chunk"] == pytest.approx(1)
    assert own["kept"] is own["beside_gb_per_s"] is own["cpu_us_a_chunk"] is failed["of_limit"] is None
    assert peer["gb_per_s"] == 0.25
    assert peer["gpuload_is_times"] == 2
    assert peer["cpu_s_per_gb"] == 8
    assert own["gpuload_is_times"] == 1
    assert own["gb_per_s"] == 0.5
    assert failed["gpuload_is_times"] is failed["gb_per_s"] is failed["cpu_s_per_gb"] is None


def test_a_report(tmp_path: Path) -> None:
    said: list[str] = []
    contenders = present(gpu=False, only=["gpuload", "zarr"])
    folder = tmp_path / "not" / "there"
    report = run(str(folder), [RAW, ZSTD], contenders, gpu=False, nbytes=MIB, repeats=2, progress=said.append)
    assert json.loads(json.dumps(report)) == report
    assert len(said) == steps(2, 2, 2)
    assert said[:3] == ["64 KiB: writing", "64 KiB: gpuload", "64 KiB: zarr"]
    machine = report["machine"]
    assert machine["bytes"] == MIB
    assert machine["repeats"] == 2
    assert machine["gpu"] is None
    assert set(machine["versions"]) == {"gpuload", "zarr"}
    assert machine["ring"].startswith(("io_uring: ", "no ring: "))
    assert machine["file_system"]
    assert [case["name"] for case in report["cases"]] == ["64 KiB", "64 KiB zstd"]
    for case in report["cases"]:
        assert [row["contender"] for row in case["results"]] == ["gpuload", "zarr"]
        assert all(row["equal"] for row in case["results"])
        own, peer = case["results"]
        assert own["gpuload_is_times"] == 1
        ratio = statistics.median(peer["seconds"]) / statistics.median(own["seconds"])
        assert peer["gpuload_is_times"] == pytest.approx(ratio)
        assert own["served"]
        assert peer["served"] is None
        assert case["cached_share"] == 1  # they have just been read
        assert (case["limit"] is not None) == (case["codec"] == "zstd")
        if case["limit"] is not None:
            assert case["limit"]["what"] == "decoder alone"
            assert own["of_limit"] == pytest.approx(own["gb_per_s"] / case["limit"]["gb_per_s"])
    assert set(report["limits"]) >= {"cached_preadv_1_thread", "o_direct"}
    assert not (folder / "limits.bin").exists()
    assert np.array_equal(data(side_of(MIB)).shape, (512, 512))


def test_a_cold_case_drops_the_files_before_each_read(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    case = Case("64 KiB cold", 64 * KIB, mode=Mode.COLD)
    contenders = [named("gpuload"), named("gpuload (O_DIRECT)")]
    found = run_case(case, str(tmp_path), values, contenders, gpu=False, repeats=2)
    assert (tmp_path / "64_KiB" / "zarr.json").exists()
    for row in found["results"]:
        assert row["error"] is None
        assert len(row["seconds"]) == 2
        assert (row["of_limit"] is None) == (found["limit"] is None)
    if found["limit"] is not None:
        assert found["limit"]["what"] == "raw O_DIRECT"
    assert found["cached_share"] in (0, 1)  # 1 where the cache is all there is


def test_who_is_for_cold_reads_alone_takes_no_part_in_others(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    found = run_case(RAW, str(tmp_path), values, [named("gpuload (O_DIRECT)")], gpu=False, repeats=1)
    assert found["results"] == []


def test_a_busy_case_reads_alone_and_beside_a_thread(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    case = Case("64 KiB busy", 64 * KIB, mode=Mode.BUSY)
    found = run_case(case, str(tmp_path), values, [named("gpuload")], gpu=False, repeats=2)
    (row,) = found["results"]
    assert row["error"] is None
    assert len(row["seconds"]) == 4
    assert row["kept"] > 0
    assert row["beside_gb_per_s"] > 0
    assert row["cpu_s_per_gb"] is row["cpu_us_a_chunk"] is None  # they would be those of the other thread, too


def test_the_record_is_compared_with_none(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    case = Case("64 KiB record", 64 * KIB, mode=Mode.RECORD)
    found = run_case(case, str(tmp_path), values, [named("zarr"), named("gpuload")], gpu=False, repeats=1)
    (row,) = found["results"]  # who has no record has nothing to compare
    assert row["contender"] == "gpuload"
    assert len(row["seconds"]) == worker.RECORD_PAIRS
    low, high = row["kept_interval"]
    assert 0 < low <= row["kept"] <= high
    assert row["cpu_us_a_chunk"] is not None


def test_workers_are_gone_when_a_run_is_interrupted(
    fake: Fake, tmp_path: Path, values: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Worker] = []

    class Watched(Worker):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    def interrupt(what: str) -> None:
        if "round" in what:
            raise KeyboardInterrupt

    monkeypatch.setattr(runner, "Worker", Watched)
    with pytest.raises(KeyboardInterrupt):
        run_case(RAW, str(tmp_path), values, fake("right", "dies"), gpu=False, repeats=1, progress=interrupt)
    assert len(started) == 2
    assert all(worker._process.poll() is not None for worker in started)


def test_a_contender_without_gpu_copies_to_it_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import SimpleNamespace

    copies: list[Any] = []
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=lambda host: copies.append(host) or host))
    from gpuload.bench.contenders import _then_copied

    assert _then_copied(lambda: 5, True)() == 5
    assert copies == [5]
    assert named("kvikio").gpu_only
