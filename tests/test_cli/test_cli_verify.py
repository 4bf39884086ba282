"""`gpuload verify`: both ways are tried and told, nothing is left, and a difference is seen."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from gpuload.cli import main
from gpuload.engine.plain import RegisteredFile


def verify(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["verify", *arguments])


def test_on_the_host(tmp_path: Path) -> None:
    run = verify(str(tmp_path), "--device", "cpu", "--size", "100001", "--json")
    assert run.exit_code == 0, run.output
    found = json.loads(run.output)
    assert (found["device"], found["size"], found["equal"]) == ("cpu", 100001, True)
    (row,) = found["written"]
    assert (row["path"], row["backend"], row["bytes"], row["moved"]) == ("fallback", "posix", 100001, 100001)
    assert found["read"]["bytes"] == 100001
    assert found["counted"] is None
    assert os.listdir(tmp_path) == []


def test_by_the_fastpath(fake_vendor: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vendor.fake.cupy.ndarray.__eq__ = lambda self, other: self.get() == other.get()
    run = verify(str(tmp_path), "--device", "cuda:0", "--size", "1000", "--json")
    assert run.exit_code == 0, run.output
    found = json.loads(run.output)
    name = fake_vendor.name
    rows = [(row["path"], row["backend"], row["reason"], row["bytes"]) for row in found["written"]]
    assert rows == [("fastpath", name, None, 960), ("fallback", "posix", "tail", 40)]
    first = found["read"]["rows"][0]
    assert (first["path"], first["backend"], first["bytes"]) == ("fastpath", name, 960)
    text = verify(str(tmp_path), "--device", "cuda:0", "--size", "1000").output
    assert "equal" in text
    assert f"written: 960 bytes, fastpath by {name}" in text
    assert "written: 40 bytes, fallback by posix (tail)" in text
    assert os.listdir(tmp_path) == []


@pytest.fixture
def comparing(fake_vendor: ModuleType) -> ModuleType:
    """The fake GPU compares on the host."""
    fake_vendor.fake.cupy.ndarray.__eq__ = lambda self, other: self.get() == other.get()
    return fake_vendor


def test_the_librarys_own_count_is_shown_beside_the_record(comparing: ModuleType, tmp_path: Path) -> None:
    name = comparing.name
    for _ in range(2):  # the second time it has counted the first
        found = json.loads(verify(str(tmp_path), "--device", "cuda:0", "--size", "1000", "--json").output)["counted"]
        claimed = {"read": 960, "written": 960}
        assert (found["backend"], found["claimed"]) == (name, claimed)
        counts = name == "cufile"
        assert found["counted"] == (claimed if counts else None)
        assert found["agrees"] is (True if counts else None)
    text = verify(str(tmp_path), "--device", "cuda:0", "--size", "1000").output.splitlines()[-1]
    said = f"claimed for {name}: 960 bytes written, 960 read; "
    assert text == said + (
        "counted by cufile itself: 960 and 960: agrees"
        if name == "cufile"
        else "not verified: it tells no statistics of its own"
    )


def test_a_count_that_is_not_the_records(
    fake_cufile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cufile.fake.cupy.ndarray.__eq__ = lambda self, other: self.get() == other.get()
    fake_cufile.bindings.miscounts = 64
    text = verify(str(tmp_path), "--device", "cuda:0", "--size", "1000").output.splitlines()[-1]
    assert text.endswith("counted by cufile itself: 960 and 1,024: DIFFERENT")


def test_nothing_is_claimed_where_another_served(comparing: ModuleType, tmp_path: Path) -> None:
    from gpuload.errors import VendorError

    comparing.fake.faults["read"] = comparing.fake.faults["write"] = lambda n: VendorError(
        "read", -1, "no way", errno=comparing.ENODEV
    )
    found = json.loads(verify(str(tmp_path), "--device", "cuda:0", "--size", "1000", "--json").output)
    assert found["counted"] is None
    assert not comparing.fake.moved


def test_a_difference_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_into = RegisteredFile.read_into

    def wrong(self: RegisteredFile, buf: Any, *arguments: Any) -> int:
        n = read_into(self, buf, *arguments)
        buf[-1] ^= 1
        return n

    monkeypatch.setattr(RegisteredFile, "read_into", wrong)
    run = verify(str(tmp_path), "--device", "cpu", "--size", "1000")
    assert run.exit_code == 1
    assert "DIFFERENT" in run.output
    assert os.listdir(tmp_path) == []


def test_what_fails_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: Any, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    run = verify(str(tmp_path), "--device", "cpu", "--size", "1000")
    assert run.exit_code == 1
    assert "No space left on device" in run.output
    assert len(run.output.splitlines()) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("arguments", [["--size", "0"], ["--size", "x"]])
def test_sizes_that_are_none(tmp_path: Path, arguments: list[str]) -> None:
    assert verify(str(tmp_path), *arguments).exit_code == 2
