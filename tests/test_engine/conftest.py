"""What the tests of the engine share: arrays written by hand as chunk files or shards, both backends, nothing left."""

from __future__ import annotations

import gc
import itertools
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuload import config, events
from gpuload.backends import registry
from gpuload.engine import reader, transfer
from gpuload.engine.reader import ReadRequest
from gpuload.files.root import Root
from gpuload.planning.grid import ChunkForm, cut
from gpuload.planning.selection import normalise
from gpuload.request import Filled, Served

FORKS = "ignore:This process:DeprecationWarning"  # since 3.12 of fork() beside threads, which these tests are about
REPOSITORY = Path(__file__).parents[2]


class Zlib:
    """The simplest decoder: no header, any size."""

    def __init__(self, decoded_size: int, capacity: int | None = None) -> None:
        self.decoded_size = decoded_size
        self.capacity = decoded_size + 64 if capacity is None else capacity

    def decode(self, encoded: Any, out: Any) -> None:
        decoded = zlib.decompress(encoded)
        if len(decoded) != len(out):
            raise ValueError(f"{len(decoded)} bytes, not {len(out)}")
        out[:] = np.frombuffer(decoded, np.uint8)


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any], order: Any = "C") -> np.ndarray:
    """An array of 0xA5 bytes."""
    nbytes = math.prod(shape) * dtype.itemsize
    return np.ndarray(shape, dtype, np.full(max(nbytes, 1), 0xA5, np.uint8), order=order)


class Stored:
    """An array on disk, in one of several shapes.

    ``raw``: a file a chunk. ``zlib``: the same, encoded. ``shard``: several chunks a file, raw; ``zshard``: encoded.
    Chunks in `missing` have no file (or no place in their shard).
    """

    def __init__(
        self,
        folder: Path,
        data: np.ndarray,
        chunks: tuple[int, ...],
        *,
        kind: str = "raw",
        order: str = "C",
        missing: tuple[int, ...] = (),
        per_shard: int = 3,
        capacity: int | None = None,
        write: bool = True,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.root, self.kind, self.order = Root(folder), kind, order
        self.folder, self.shape, self.dtype = folder, data.shape, data.dtype
        dims = range(data.ndim)
        self.form = ChunkForm(chunks, data.dtype.itemsize, tuple(dims if order == "C" else reversed(dims)))
        self.grid = tuple(-(-n // c) for n, c in zip(data.shape, chunks, strict=True))
        self.fill = np.frombuffer(bytes(range(1, data.dtype.itemsize + 1)), data.dtype)[0]
        self.full = data.copy()
        encoded = kind in ("zlib", "zshard")
        self.decoder = Zlib(self.form.nbytes, capacity) if encoded else None
        shards: dict[int, bytearray] = {}
        self.where: dict[tuple[int, ...], tuple[int, int, int]] = {}  # file, offset, size
        self.keys: list[str] = []
        for i, at in enumerate(itertools.product(*map(range, self.grid))):
            region = tuple(slice(a * c, (a + 1) * c) for a, c in zip(at, chunks, strict=True))
            if i in missing:
                self.full[region] = self.fill
            block = np.full(chunks, self.fill, data.dtype)
            part = data[region]
            block[tuple(slice(0, n) for n in part.shape)] = part
            stored = block.tobytes(order)
            stored = zlib.compress(stored, 1) if encoded else stored
            if kind in ("raw", "zlib"):
                key = "/".join(["c", *map(str, at)])
                self.where[at] = (len(self.keys), 0, len(stored) if kind == "raw" else -1)
                self.keys.append(key)
                if i not in missing and write:
                    path = folder / key
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(stored)
            else:
                number = i // per_shard
                shard = shards.setdefault(number, bytearray(b"head"))
                if i in missing:
                    self.where[at] = (-1, 0, 0)
                else:
                    self.where[at] = (number, len(shard), len(stored))
                    shard += stored + b"gap"
        for number, content in shards.items():
            self.keys.append(f"shard.{number}")
            if write:
                (folder / self.keys[-1]).write_bytes(content)

    def path(self, *at: int) -> Path:
        return self.folder / self.keys[self.where[at][0]]

    def request(self, selection: Any = ..., out: Any = None, *, swap: int = 0) -> tuple[ReadRequest, Any]:
        """The request that reads `selection`, and the array it fills."""
        chosen = normalise(selection, self.shape)
        if out is None:
            out = poisoned(chosen.shape, self.dtype)
        box = chosen.as_box(out)
        piece_bytes = None if self.decoder else config.get("piece_bytes")
        pieces = cut(chosen, self.shape, self.form, box.strides, piece_bytes=piece_bytes)
        where = np.array([self.where[tuple(at)] for at in pieces.chunks.tolist()], np.int64).reshape(-1, 3)
        request = ReadRequest(
            root=self.root,
            keys=self.keys,
            file=where[:, 0],
            offset=where[:, 1],
            size=where[:, 2],
            whole=self.kind in ("raw", "zlib"),
            pieces=pieces,
            itemsize=self.dtype.itemsize,
            swap=swap,
            decoder=self.decoder,
            fill=np.asarray(self.fill, self.dtype).tobytes(),
            out=box,
        )
        return request, out

    def read(self, selection: Any = ..., out: Any = None) -> Any:
        request, out = self.request(selection, out)
        reader.read(request)
        return out

    def check(self, selection: Any = ..., out: Any = None) -> None:
        got = self.read(selection, out)
        expected = self.full[selection]
        assert got.tobytes() == np.asarray(expected, self.dtype).tobytes()


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Callable[..., Stored]]:
    """Writes an array below the test's own folder."""
    made: list[Stored] = []

    def make(data: np.ndarray, chunks: tuple[int, ...], **how: Any) -> Stored:
        made.append(Stored(tmp_path / f"array{len(made)}", data, chunks, **how))
        return made[-1]

    yield make
    for one in made:
        one.root.close()


@pytest.fixture(scope="session", name="poisoned")
def poisoned_maker() -> Callable[..., np.ndarray]:
    return poisoned


@pytest.fixture(scope="session")
def zlib_decoder() -> type[Zlib]:
    return Zlib


@pytest.fixture(params=["io_uring", "posix"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each fallback backend in turn."""
    state = registry.available(request.param)
    if state.reason is not None:
        pytest.skip(f"{request.param} is not available here: {state.reason} {state.detail}")
    with config.set(backend=request.param):
        yield request.param


@pytest.fixture(params=["by way of slabs", "straight into place"])
def road(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways that uncompressed chunks can go into host arrays."""
    with config.set({"direct.host": "always" if request.param.startswith("straight") else "never"}):
        yield request.param


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Slabs are poisoned in every test, and after it no block is lent and no handle leased."""
    with config.set(poison=True):
        yield
    assert lent() == 0
    cache = reader.handle_cache()
    assert [handle for handle in cache._all() if handle.leases] == []


def replace_out(request: ReadRequest, out: Any) -> ReadRequest:
    return replace(request, out=out)


def lent() -> int:
    """Bytes of the pool in the hands of batches, once the GPU has done its copies too."""
    io = transfer.io_thread()

    def count() -> int:
        if io._copying:
            io._copying[-1][0].synchronize()
            io._reap_copies()
        return io.pool.lent

    return int(io.call(count))


@pytest.fixture(scope="session")
def lent_bytes() -> Callable[[], int]:
    """Bytes of the pool in the hands of batches, once the I/O thread has done all it was told."""
    return lent


@pytest.fixture
def fresh() -> Iterator[Callable[..., None]]:
    """Ends the I/O thread, so that the next read starts one with the configuration of then."""
    transfer.stop()
    yield transfer.stop
    transfer.stop()


@pytest.fixture
def served() -> Iterator[list[Any]]:
    """Every event from now on."""
    seen: list[Any] = []
    end = events.subscribe(seen.append)
    yield seen
    end()


@pytest.fixture(scope="session")
def totals() -> Callable[[list[Any]], dict[str, Any]]:
    """Sums of events."""

    def add(seen: list[Any]) -> dict[str, Any]:
        blocks = [event for event in seen if isinstance(event, Served)]
        filled = [event for event in seen if isinstance(event, Filled)]
        return {
            "rows": sum(map(len, blocks)),
            "size": sum(int(block.size.sum()) for block in blocks),
            "moved": sum(int(block.moved.sum()) for block in blocks),
            "filled": (sum(f.chunks for f in filled), sum(f.bytes for f in filled)),
            "backends": {block.backend for block in blocks},
        }

    return add


def open_descriptors() -> list[str]:
    """What this process has open, without eventual garbage and the look itself."""
    gc.collect()
    names = []
    for name in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    # Sockets are those of event loops that other tests left behind.
    return sorted(name for name in names if not name.endswith(f"/{os.getpid()}/fd") and not name.startswith("socket:"))


@pytest.fixture(scope="session")
def descriptors() -> Callable[[], list[str]]:
    return open_descriptors


@pytest.fixture
def python() -> Callable[..., str]:
    """Runs a script in a process of its own, which must succeed and say nothing on stderr; returns what it printed.

    Another user may not write what coverage measures into this one's folder; `measured=False` has it measure nothing.
    """

    def call(
        script: str,
        *arguments: Any,
        returncode: int = 0,
        other_user: bool = False,
        measured: bool = True,
        **environment: str,
    ) -> str:
        variables = {**os.environ, **environment}
        if other_user or not measured:
            variables = {name: value for name, value in variables.items() if not name.startswith("COVERAGE_")}
        done = subprocess.run(
            [sys.executable, "-W", FORKS, "-c", PRELUDE + script, *map(str, arguments)],
            cwd=REPOSITORY,
            env=variables,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == returncode, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.stderr == "", done.stderr
        return done.stdout.strip()

    return call


# Every script has this conftest's arrays, as module `t`.
PRELUDE = f"""
import faulthandler, importlib.util, os, signal, sys, threading
faulthandler.register(signal.SIGALRM, chain=True)  # not its own watchdog, which hangs at the end of forked children
signal.alarm(450)
specification = importlib.util.spec_from_file_location("t", {str(Path(__file__))!r})
t = importlib.util.module_from_spec(specification)
specification.loader.exec_module(t)
import numpy as np
from pathlib import Path
from gpuload import config
from gpuload.engine import reader, transfer
"""


@pytest.fixture(scope="session")
def grid_size() -> Callable[[tuple[int, ...], tuple[int, ...]], int]:
    return lambda shape, chunks: math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))
