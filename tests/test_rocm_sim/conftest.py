"""What the tests of the simulated ROCm share: the wheels that run on it, and files of random bytes.

Every test is marked `rocm`, and skips where the simulated ROCm is not loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def cupy(rocm_sim: Any) -> Iterator[ModuleType]:
    """CuPy's wheel for ROCm, with a memory pool of its own: no memory that other tests used, nor GPUs they counted."""
    import cupy

    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
        yield cupy


@pytest.fixture
def hip(rocm_sim: Any) -> ModuleType:
    """hip-python's bindings of HIP."""
    from rocm.bindings import hip

    return hip


@pytest.fixture
def hipfile(rocm_sim: Any) -> ModuleType:
    """hip-python's bindings of hipFile, which is as if just loaded."""
    from rocm.bindings import hipfile

    return hipfile


@pytest.fixture
def random_file(tmp_path: Path) -> Callable[[int], tuple[Path, np.ndarray]]:
    """Writes a file of so many random bytes; its path and what it holds."""

    def write(size: int) -> tuple[Path, np.ndarray]:
        content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        path = tmp_path / f"file{size}"
        path.write_bytes(content.tobytes())
        return path, content

    return write


class Opened:
    """A file that is registered with hipFile: calls answer (bytes, errno, HIP error) as the bindings do."""

    def __init__(self, hipfile: ModuleType, path: Path, flags: int = os.O_RDWR) -> None:
        self.hipfile = hipfile
        self.descriptor = os.open(path, flags | os.O_CREAT, 0o600)
        description = hipfile.hipFileDescr()
        description.type = hipfile.hipFileFileHandleType.hipFileHandleTypeOpaqueFD
        description.handle.fd = self.descriptor
        error, self.handle = hipfile.hipFileHandleRegister(description)
        self.error = int(error.err)

    def read(self, array: Any, size: int, file_offset: int = 0, buffer_offset: int = 0) -> tuple[int, int, int]:
        answer = self.hipfile.hipFileRead(self.handle, array.data.ptr, size, file_offset, buffer_offset)
        return tuple(map(int, answer))  # type: ignore[return-value]

    def write(self, array: Any, size: int, file_offset: int = 0, buffer_offset: int = 0) -> tuple[int, int, int]:
        answer = self.hipfile.hipFileWrite(self.handle, array.data.ptr, size, file_offset, buffer_offset)
        return tuple(map(int, answer))  # type: ignore[return-value]

    def close(self) -> None:
        if self.error == 0:
            self.hipfile.hipFileHandleDeregister(self.handle)
        os.close(self.descriptor)


@pytest.fixture
def opened(hipfile: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Opened]]:
    """Opens and registers a file, on whatever file system the tests run; closed with the test."""
    monkeypatch.setenv("HIPFILE_UNSUPPORTED_FILE_SYSTEMS", "true")
    made: list[Opened] = []

    def make(path: Path, flags: int = os.O_RDWR) -> Opened:
        made.append(Opened(hipfile, path, flags))
        return made[-1]

    yield make
    for one in made:
        one.close()
