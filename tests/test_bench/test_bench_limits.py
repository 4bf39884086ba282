"""The limits of the machine are measured on what was really moved, and refused where there is nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuload.backends import rings
from gpuload.bench import limits, machine
from gpuload.bench.cases import KIB, MIB, Case, write
from gpuload.errors import BackendUnavailableError
from gpuload.request import Reason


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("size", "total"), [(5 * MIB + 17, 1 << 30), (100, 1 << 30), (4 * MIB, 2 * MIB)])
def test_every_byte_is_read_once_a_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, size: int, total: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    moved: list[int] = []
    best = limits._best

    def watched(count: int, share: Any, tries: int) -> float | None:
        moved.append(sum(map(share, range(count))))
        return best(count, share, tries)

    monkeypatch.setattr(limits, "_best", watched)
    speed = limits.cached(str(path), threads, total)
    assert moved == [min(size, total)]
    assert speed is not None
    assert speed > 0


def test_nothing_to_read_has_no_speed(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert limits.cached(str(path), 2) is None
    assert limits.direct(str(path)) is None
    (tmp_path / "folder").mkdir()
    assert limits.Decoder(str(tmp_path / "folder")).measure() is None
    assert limits.Drive(str(tmp_path / "folder")).measure() is None


def test_direct_reads_or_says_that_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(MIB))
    speed = limits.direct(str(path))
    assert speed is None or speed > 0

    def refuse(*args: Any) -> int:
        raise OSError(22, "Invalid argument")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", refuse)
        assert limits.direct(str(path)) is None
        assert limits.Drive(str(tmp_path)).measure() is None


def test_the_decoder_decodes_all_chunks(
    tmp_path: Path, values: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a")
    write(Case("z", 64 * KIB, codec="zstd"), path, values)
    decoded: list[int] = []

    def count(threads: int, share: Any, tries: int) -> float:
        decoded.append(sum(share(i) for i in range(threads)))
        return 1.0

    monkeypatch.setattr(limits, "_best", count)
    decoder = limits.Decoder(path)
    assert decoder.measure() == decoder.measure() == 1.0
    assert decoded == 2 * [values.nbytes]


@pytest.mark.parametrize("sizes", [[100], [MIB + 17], [20 * MIB, 5], [4097] * 11])
def test_the_drive_gives_every_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    for i, size in enumerate(sizes):
        (tmp_path / str(i)).write_bytes(bytes(size))
    flags: list[int] = []
    opened, moved = os.open, []

    def plain(path: Any, mode: int, *args: Any) -> int:  # as a file system does that takes O_DIRECT
        flags.append(mode)
        return opened(path, mode & ~os.O_DIRECT, *args)

    def count(threads: int, share: Any, tries: int) -> float:
        moved.append(sum(share(i) for i in range(threads)))
        return 2.0

    monkeypatch.setattr(os, "open", plain)
    monkeypatch.setattr(limits, "_best", count)
    assert limits.Drive(str(tmp_path)).measure() == 2.0
    assert moved == [sum(sizes)]
    assert all(mode & os.O_DIRECT for mode in flags)


def test_why_there_is_no_ring_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise BackendUnavailableError("io_uring", Reason.SECCOMP, "a filter")

    assert machine.make_ring is rings.make_ring
    monkeypatch.setattr(machine, "make_ring", refuse)
    assert machine.ring().startswith("no ring: ")
    assert "seccomp" in machine.ring()
