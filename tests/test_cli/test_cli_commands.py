"""The commands as one types them: what they print, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner, Result

import gpuload
from gpuload.cli import main
from gpuload.cli.digest import sha256

ROW = {"path", "backend", "reason", "decode", "declined", "requests", "bytes", "moved", "seconds"}


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "store.zarr"
    root = zarr.create_group(path)
    values = np.arange(30 * 4 * 6, dtype="float32").reshape(30, 4, 6)
    root.create_array("air", data=values, chunks=(10, 4, 6), compressors=None)
    inner = root.create_group("inner")
    inner.create_array("packed", data=values.astype(">i2"), chunks=(10, 4, 6))
    inner.create_array("empty", shape=(4,), dtype="int8", chunks=(2,), fill_value=7)
    return path


def values_of(store: Path, name: str) -> np.ndarray[Any, Any]:
    return np.asarray(zarr.open_array(store / name, mode="r")[...])


def check_served(served: dict[str, Any]) -> None:
    assert {"requests", "bytes", "moved", "filled", "rows"} <= set(served)
    assert set(served["filled"]) == {"chunks", "bytes"}
    for row in served["rows"]:
        assert set(row) >= ROW
    assert sum(row["bytes"] for row in served["rows"]) == served["bytes"]


@pytest.mark.parametrize("backend", [None, "io_uring", "posix"])
@pytest.mark.parametrize("name", ["air", "inner/packed"])
@pytest.mark.parametrize("text", ["...", "0:24,:,::2", "-1,None,::-1"])
def test_read_as_json(store: Path, name: str, text: str, backend: str | None) -> None:
    forced = ["--backend", backend] if backend else []
    done = run("read", store, "--array", name, "--select", text, "--device", "cpu", "--json", *forced)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    expected = eval(f"values[{text}]", {"values": values_of(store, name)})
    assert list(answer) == ["shape", "dtype", "sha256", "served"]
    assert answer["shape"] == list(expected.shape)
    assert answer["dtype"] == str(expected.dtype)
    assert answer["sha256"] == sha256(expected)
    check_served(answer["served"])
    assert answer["served"]["requests"] > 0
    if backend:
        assert {row["backend"] for row in answer["served"]["rows"]} == {backend}


def test_the_backend_is_forced_for_one_command_only(store: Path) -> None:
    before = gpuload.config.get("backend")
    assert run("read", store / "air", "--backend", "posix", "--json", "--device", "cpu").exit_code == 0
    assert gpuload.config.get("backend") == before


def test_missing_chunks_are_filled_not_served(store: Path) -> None:
    done = run("read", store / "inner" / "empty", "--device", "cpu", "--json")
    answer = json.loads(done.stdout)
    assert answer["sha256"] == sha256(np.full(4, 7, "int8"))
    assert answer["served"]["filled"] == {"chunks": 2, "bytes": 4}
    assert answer["served"]["requests"] == 0


def test_strings_of_any_length(tmp_path: Path) -> None:
    # `object` in zarr v2: what every version of zarr-python calls a string of any length.
    array = zarr.create_array(tmp_path / "s", shape=(2,), dtype=str, chunks=(2,), zarr_format=2)
    array[...] = np.array(["a", "äöü"], dtype=object)
    done = run("read", tmp_path / "s", "--json", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["sha256"] == sha256(np.array(["a", "äöü"], dtype=object))


def test_read_for_people(store: Path) -> None:
    done = run("read", store / "air", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "float32 (30, 4, 6) in host memory" in done.stdout
    assert f"sha256 {sha256(values_of(store, 'air'))}" in done.stdout
    assert "fallback" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{store}"], "is a group; choose an array of it with --array. It holds: air, inner"),
        (["{store}", "--array", "nothing"], "has no 'nothing'. It holds: air, inner"),
        (["{store}", "--array", "inner"], "is a group; choose an array of it with --array inner/NAME. It holds: "),
        (["{store}/air", "--array", "air"], "is an array; --array is for groups"),
        (["{store}/air", "--select", "0:x"], "'x' in '0:x' is not an integer"),
        (["{store}/air", "--device", "gpu"], "'gpu' is not 'auto', 'cpu' or 'cuda:N'"),
        ([], "Missing argument 'PATH'"),
    ],
)
def test_wrong_usage_ends_with_2(store: Path, args: list[str], message: str) -> None:
    done = run("read", *(arg.format(store=store) for arg in args))
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{store}/nowhere"], "Error: no such directory: '"),
        (["{store}/air/c"], "c"),
        (["{store}/air", "--select", "30"], "30"),
        (["{store}/air", "--select", "0,0,0,0"], ""),
        (["{store}/air", "--backend", "pigeon"], "pigeon"),
        (["{store}/air", "--device", "cuda:99"], "cuda:99"),
    ],
)
def test_errors_end_as_one_line_with_1(store: Path, args: list[str], message: str) -> None:
    done = run("read", *(arg.format(store=store) for arg in args))
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=np.arange(8, dtype="int32"), chunks=(4,), compressors=None)
    (tmp_path / "a" / "c" / "1").write_bytes(b"12345")
    done = run("read", tmp_path / "a", "--json", "--device", "cpu")
    assert done.exit_code == 1
    assert "c/1" in done.stderr
    assert "16" in done.stderr
    assert "5" in done.stderr
    assert done.stdout == ""


def test_demo_as_json(tmp_path: Path) -> None:
    done = run("demo", "--json", "--device", "cpu", "--dir", tmp_path / "new" / "folder")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert list(answer) == ["equal", "device", "served", "warming"]
    assert answer["equal"] is True
    assert answer["device"] == "cpu"
    check_served(answer["served"])
    assert answer["served"]["bytes"] >= 2 * 240 * 37 * 49 * 4
    assert 0 < answer["warming"]["E1"]["warming"] < answer["warming"]["A1B"]["warming"] < 10
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["uncompressed.zarr", "zstd.zarr"]


def test_demo_for_people() -> None:
    done = run("demo", "--device", "cpu", "--backend", "posix")
    assert done.exit_code == 0, done.output
    for words in ("1860-1869", "2090-2099", "A1B", "cos(latitude)", "equal, bit for bit", "fallback", "posix"):
        assert words in done.stdout


def test_demo_ends_with_1_on_one_wrong_value(monkeypatch: pytest.MonkeyPatch) -> None:
    real = gpuload.Array.__getitem__

    def wrong(self: Any, selection: Any) -> Any:
        values = real(self, selection)
        if values.shape == (240, 37, 49):
            values[0, 0, 0] += 1
        return values

    monkeypatch.setattr(gpuload.Array, "__getitem__", wrong)
    done = run("demo", "--json", "--device", "cpu")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["equal"] is False
    assert "zstd.zarr/E1/air_temperature: 1 of 435120 values" in done.stderr


def test_demo_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("demo", "--dir", tmp_path / "file" / "below", "--device", "cpu")
    assert done.exit_code == 1
    assert "cannot make" in done.stderr


def test_help_version_and_unknown_commands() -> None:
    listed = run("--help")
    assert listed.exit_code == 0
    assert "demo" in listed.stdout
    assert "read" in listed.stdout
    assert run("--version").stdout == f"gpuload, version {gpuload.__version__}\n"
    assert run("walk").exit_code == 2


def test_python_m_gpuload() -> None:
    done = subprocess.run([sys.executable, "-m", "gpuload", "read", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: gpuload read")


def test_into_a_pipe_no_line_ends_in_blanks(store: Path) -> None:
    done = run("read", store / "air", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


def test_the_demo_says_what_it_kept(tmp_path: Path) -> None:
    done = run("demo", "--dir", tmp_path, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == f"kept: {tmp_path / 'uncompressed.zarr'}, {tmp_path / 'zstd.zarr'}"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_that_cannot_be_written_ends_as_one_line_with_1(store: Path, options: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpuload", "read", store, "--array", "air", *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_to_read_the_output_is_no_traceback(store: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "gpuload", "read", store, "--array", "air"], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_working_directory_that_is_gone_ends_as_one_line_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = run("read", "relative.zarr")
    assert result.exit_code == 1
    assert "No such file or directory" in result.stderr
    assert len(result.stderr.splitlines()) == 1
