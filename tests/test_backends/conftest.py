"""What the tests of the backends share: batches made by hand, over files of awkward sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuload.backends import posix, registry, uring
from gpuload.backends.base import Batch
from gpuload.files.root import Root
from gpuload.memory.slabs import SlabPool


@pytest.fixture(params=["io_uring", "io_uring, polled", "posix"])
def serving(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each backend in turn, owned by the test's own thread."""
    name = request.param.removesuffix(", polled")
    state = registry.available(name)
    if state.reason is not None:
        pytest.skip(f"{name} is not available here: {state.reason} {state.detail}")
    backend: uring.UringBackend | posix.PosixBackend
    if name == "posix":
        backend = posix.PosixBackend(3)
    else:
        backend = uring.UringBackend(slots=256, mode="auto" if name == request.param else "polled", pollers=3)
    yield backend
    backend.close()


@pytest.fixture
def pool() -> Iterator[SlabPool]:
    made = SlabPool(4 << 20, 64 << 20, poison=True)
    made.grow()
    yield made
    made.close()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with Root(tmp_path) as made:
        yield made


@pytest.fixture
def make_batch(root: Root) -> Callable[..., Batch]:
    """A batch of (key, offset, want, surplus) rows into one block, rows of a file side by side."""

    def make(block: Any, rows: list[tuple[str, int, int, int]], **how: Any) -> Batch:
        keys = list(dict.fromkeys(key for key, *_ in rows))
        want = np.array([want for _, _, want, _ in rows], np.int64)
        room = -(-(want + 64) // 64) * 64
        return Batch(
            root=root,
            keys=keys,
            handles=how.pop("handles", None),
            block=block,
            file=np.array([keys.index(key) for key, *_ in rows], np.int64),
            file_offset=np.array([offset for _, offset, _, _ in rows], np.int64),
            want=want,
            ask=want + np.array([surplus for *_, surplus in rows], np.int64),
            address=block.address + np.cumsum(room) - room,
            piece=np.arange(len(rows), dtype=np.int64),
            sizes=np.full(len(rows), -1, np.int64),
            **how,
        )

    return make


@pytest.fixture
def finish() -> Callable[..., list[Batch]]:
    """Drives a backend until all its batches are done."""

    def run(backend: Any) -> list[Batch]:
        done: list[Batch] = []
        while backend.active:
            done += backend.advance(1.0)
        return done

    return run
