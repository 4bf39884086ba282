"""A FIFO in a chunk's place is named, whatever is in it, and nothing waits for its writer."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import zarr

import gpuload
from gpuload.engine import transfer
from gpuload.errors import NotRegularFileError


@pytest.fixture(params=[True, False], ids=["checked", "unchecked"])
def checked(request: pytest.FixtureRequest) -> bool:
    """Whether the ring looks at what it opened, as kernels do that link an open to what follows."""
    return bool(request.param)


@pytest.mark.parametrize("backend", ["io_uring", "posix"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("side", [10, 200])  # through the window, and in chains
@pytest.mark.parametrize("much", [-1, 0, 1])
def test_a_fifo_is_no_chunk(
    tmp_path: Path, backend: str, codec: str, side: int, much: int, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"compressors": None} if codec == "none" else {}
    path = tmp_path / "a"
    array = zarr.create_array(path, shape=(3 * side, 2 * side), chunks=(side, side), dtype="<i4", **options)
    array[...] = np.arange(array.size).reshape(array.shape)
    chunk = path / "c" / "1" / "1"
    stored = chunk.read_bytes()
    chunk.unlink()
    os.mkfifo(chunk)
    writer = os.open(chunk, os.O_RDWR | os.O_NONBLOCK)
    try:
        with gpuload.config.set(backend=backend):
            opened = gpuload.open(path, device="cpu")
            opened[:side]
            if backend == "io_uring" and not checked:
                if much == 0 and codec == "none" and len(stored) < 65536:
                    pytest.skip("without a look, a FIFO that holds just what a chunk has cannot be told from one")
                monkeypatch.setattr(transfer.io_thread()._backends["io_uring"], "linked", False)
            os.write(writer, (stored + b"more")[: min(len(stored) + much, 60000)])
            with pytest.raises(NotRegularFileError, match="FIFO") as raised:
                opened[...]
            assert raised.value.key == "c/1/1"
            np.testing.assert_array_equal(opened[:side], array[:side])
    finally:
        os.close(writer)
