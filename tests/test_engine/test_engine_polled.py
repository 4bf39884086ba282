"""Reads by rings that a kernel thread each works off: the same bytes, the same errors, another way where they fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpuload import config
from gpuload.backends import lanes, pollers, registry
from gpuload.backends import polled as polled_module
from gpuload.backends.uring import UringBackend
from gpuload.engine import reader, transfer
from gpuload.errors import BackendUnavailableError, ChunkSizeError, EscapesStoreError, NotRegularFileError
from gpuload.request import Reason

SELECTIONS = [..., np.s_[::-1, 5::7], np.s_[2, 40_000:50_000], np.s_[-1]]


@pytest.fixture(autouse=True)
def polled(fresh: Any) -> Iterator[None]:
    state = registry.available("io_uring")
    if state.reason is not None:
        pytest.skip(f"io_uring is not available here: {state.reason} {state.detail}")
    with config.set({"backend": "io_uring", "uring.mode": "polled", "uring.pollers": 3, "direct.host": "never"}):
        yield


def serving() -> Any:
    return transfer.io_thread()._backends["io_uring"]


def given() -> int:
    """Submissions that pollers were given so far."""
    rings = serving().polled.pollers
    return 0 if rings is None else sum(rings._pushed)


def numbers(n: int = 300_000) -> np.ndarray:
    return np.arange(n, dtype="<i8").reshape(3, -1)


@pytest.mark.parametrize("piece_bytes", [16 << 10, 1 << 20], ids=["many pieces", "whole"])
@pytest.mark.parametrize("kind", ["raw", "zlib", "shard", "zshard"])
def test_every_kind(kind: str, piece_bytes: int, stored: Any, descriptors: Callable[[], list[str]]) -> None:
    with config.set({"batch_bytes": 64 << 10, "piece_bytes": piece_bytes}):
        array = stored(numbers(), (1, 9_000), kind=kind, missing=(1, 7))
        before = None
        for selection in SELECTIONS * 2:
            array.check(selection)
            before = before or descriptors()
    assert given() > 100
    assert descriptors() == before  # what was opened for several rings was closed


def test_no_file_is_there(stored: Any) -> None:
    array = stored(numbers(), (1, 9_000), missing=tuple(range(36)))
    array.check()
    array.check()


@pytest.mark.parametrize("piece_bytes", [16 << 10, 1 << 20], ids=["many pieces", "whole"])
def test_files_that_are_none(piece_bytes: int, stored: Any, tmp_path: Path) -> None:
    with config.set({"piece_bytes": piece_bytes}):
        array = stored(numbers(), (1, 9_000))
        path = array.path(1, 3)
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(ChunkSizeError, match="expected 72000 bytes, found 71999"):
            array.check()
        path.write_bytes(content + b"!")
        with pytest.raises(ChunkSizeError, match="expected 72000 bytes, found 72001"):
            array.check()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(NotRegularFileError):
            array.check()
        path.unlink()
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(EscapesStoreError):
            array.check()
        path.unlink()
        path.write_bytes(content)
        array.check()


def test_a_chunk_that_is_replaced_is_one_or_the_other(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chunk in many pieces every ring reads the same file, whatever its name has come to mean since."""
    array = stored(np.zeros((1, 90_000), "<i8"), (1, 90_000))
    path = array.path(0, 0)
    submit = pollers.Pollers.submit

    def replaced(self: Any, *how: Any) -> list[int]:
        other = path.with_suffix(".new")
        other.write_bytes(np.ones(90_000, "<i8").tobytes())
        other.replace(path)
        return submit(self, *how)

    monkeypatch.setattr(pollers.Pollers, "submit", replaced)
    with config.set({"piece_bytes": 16 << 10}):
        for expected in (0, 1):
            request, out = array.request()
            reader.read(request)
            assert (out == expected).all()


def test_no_descriptors_left(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*how: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(lanes, "openat2", refuse)
    with config.set({"piece_bytes": 16 << 10}):
        stored(numbers(), (1, 9_000)).check()
    assert given() == 0


def test_no_room_in_the_rings(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pollers, "ENTRIES", 8)
    with config.set({"batch_bytes": 64 << 10, "piece_bytes": 4 << 10}):
        array = stored(numbers(), (1, 9_000))
        array.check()
        array.check(np.s_[:, ::3])


def test_no_pollers_to_be_had(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*how: Any) -> None:
        raise BackendUnavailableError("io_uring", Reason.MEMLOCK, "no memory for a ring")

    monkeypatch.setattr(polled_module, "Pollers", refuse)
    stored(numbers(), (1, 9_000)).check()
    assert given() == 0


@pytest.mark.parametrize(
    ("cores", "mode", "expected"),
    [(1, "auto", 0), (7, "auto", 0), (8, "auto", 6), (16, "auto", 12), (64, "auto", 15), (1, "polled", 1)],
)
def test_how_many(cores: int, mode: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polled_module, "usable_cores", lambda: cores)
    backend = UringBackend(slots=64, mode=mode)
    assert backend.polled.n == expected
    backend.close()


def test_auto_polls_for_what_goes_to_a_gpu_as_it_is(stored: Any, fake_cupy: ModuleType) -> None:
    with config.set({"uring.mode": "auto", "batch_bytes": 256 << 10}):
        array = stored(numbers(), (1, 9_000))
        array.check()
        stored(numbers(), (1, 9_000), kind="zlib").check()
        assert given() == 0
        for kind in ("raw", "shard"):
            array, before = stored(numbers(), (1, 9_000), kind=kind), given()
            out = fake_cupy.empty(array.shape, array.dtype)
            request, _ = array.request(..., out)
            reader.read(request)
            assert out.get().tobytes() == array.full.tobytes()
            assert given() > before


def test_shares_are_even_over_time() -> None:
    """With a few more reads than rings it is another ring each time that has two."""
    with_two = np.zeros(3, int)
    rings = pollers.Pollers(3, 8)
    try:
        shares = pollers.share(4, 3, opened=True)
        for _ in range(30):
            before = np.array(rings._pushed)
            rows = pollers.abi.nop_rows(np.arange(4))
            rings.submit(rows, shares)
            with_two += np.array(rings._pushed) - before == 2
        while sum(rings._reaped) < 120:
            rings.wait(rings._pushed, 1.0)
            rings.reap()
    finally:
        rings.close()
    assert with_two.tolist() == [10, 10, 10]
