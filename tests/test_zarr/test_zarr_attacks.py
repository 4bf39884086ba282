"""Stores that were made to do harm: an error of gpuload's, in memory that has a bound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from google_crc32c import value as crc32c
from hypothesis import example, given
from hypothesis import strategies as st

import gpuload
from gpuload.errors import ChunkDecodeError, ChunkError, EscapesStoreError, NotZarrError, SelectionError
from gpuload.zarr import Array
from gpuload.zarr.shards import IndexForm

BOUNDED = """
import resource, sys
sys.path[:0] = {path!r}
import zarr, numpy
import gpuload
from gpuload.errors import GpuloadError
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
try:
    {action}
except GpuloadError as error:
    print("refused:", type(error).__name__, error)
else:
    print("no error")
with open("/proc/self/status") as status:
    after = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print("grown by", (after - peak) >> 10)
"""


def grown(path: Path, action: str) -> tuple[str, int]:
    """What a new process says that does `action` with the array at `path`, and the MiB of memory it took for it."""
    script = BOUNDED.format(path=sys.path, action=action.format(path=str(path)))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=500)
    said, _, size = done.stdout.partition("grown by")
    assert size, done.stderr
    return said, int(size)


def opened(path: Path) -> Array:
    array = gpuload.open(path, device="cpu")
    assert isinstance(array, Array)
    return array


@pytest.mark.parametrize("name", ["zarr.json", ".zmetadata"])
def test_metadata_of_a_hundred_megabytes(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    if name == ".zmetadata":
        (folder / ".zgroup").write_text('{"zarr_format": 2}')
    with open(folder / name, "wb") as file:
        file.write(b'{"zarr_format": 3, "node_type": "group", "attributes": {"a": [')
        file.write(b"[1]," * (25 << 20))
        file.write(b"1]}}")
    said, mebibytes = grown(folder, "gpuload.open({path!r}, device='cpu')")
    assert "NotZarrError" in said
    assert name in said
    assert mebibytes < 100
    with pytest.raises(NotZarrError, match="at most"):
        gpuload.open(folder)


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_a_chunk_that_unpacks_to_half_a_gigabyte(tmp_path: Path, codec: str) -> None:
    import numcodecs

    codecs: Any = {"zstd": zarr.codecs.ZstdCodec(), "gzip": zarr.codecs.GzipCodec()}[codec]
    zarr.create_array(str(tmp_path / "a"), shape=(1024,), chunks=(1024,), dtype="u1", compressors=codecs)[:] = 1
    bomb = numcodecs.get_codec({"id": codec}).encode(np.zeros(1 << 29, np.uint8))
    (tmp_path / "a" / "c" / "0").write_bytes(bytes(bomb))
    said, mebibytes = grown(tmp_path / "a", "gpuload.open({path!r}, device='cpu')[...]")
    assert "ChunkDecodeError" in said
    assert mebibytes < 200


@pytest.mark.parametrize("name", ["../b/c/0", "/etc/passwd", "c/../../b/c/0"])
def test_a_key_that_leaves_the_store(tmp_path: Path, name: str) -> None:
    """However a key came about, the file it names is looked for below the root alone."""
    zarr.create_array(str(tmp_path / "a"), data=np.arange(4), chunks=(4,), compressors=None)
    zarr.create_array(str(tmp_path / "b"), data=np.arange(4) + 9, chunks=(4,), compressors=None)
    array = opened(tmp_path / "a")
    object.__setattr__(array.layout, "keys", lambda chunks: [name] * len(chunks))
    with pytest.raises((EscapesStoreError, ChunkError)):
        array[...]


@pytest.mark.parametrize("shape", [[2**63 - 1, 2**63 - 1], [2**62, 4], [2**63, 2**70]])
@pytest.mark.parametrize("chunk", [[1, 1], [2**31, 2**31], [2**62, 2]])
def test_counts_near_the_end_of_64_bits(tmp_path: Path, shape: list[int], chunk: list[int]) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(4, 4), chunks=(4, 4), dtype="u1", fill_value=7, compressors=None)
    document = tmp_path / "a" / "zarr.json"
    metadata = json.loads(document.read_text())
    metadata |= {"shape": shape}
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = chunk
    document.write_text(json.dumps(metadata))
    array = opened(tmp_path / "a")
    for keys in (..., slice(0, None, 3)):
        with pytest.raises((SelectionError, MemoryError, ChunkError)):
            array[keys]
    for read in (
        lambda: array[:2, :3],
        lambda: array[-1, -1],
        lambda: array.vindex[[0, -1], [0, 1]],
        lambda: array.oindex[[5, 0], [3, 1]],
        lambda: array.blocks[2**61, 2**61],
    ):
        try:
            assert (read() == 7).all()
        except (SelectionError, MemoryError):
            pass


@pytest.mark.parametrize("at", ["start", "end"])
@pytest.mark.parametrize("compressors", [None, "auto"])
@pytest.mark.parametrize("attack", ["each other", "the index", "same"])
def test_a_shard_whose_chunks_overlap(tmp_path: Path, at: Any, compressors: Any, attack: str) -> None:
    data = np.arange(64, dtype="<i4").reshape(8, 8)
    shards = {"shape": (8, 8), "index_location": at}
    zarr.create_array(str(tmp_path / "a"), data=data, chunks=(2, 2), shards=shards, compressors=compressors)  # type: ignore[arg-type]
    file = tmp_path / "a" / "c" / "0" / "0"
    stored = bytearray(file.read_bytes())
    begin = 0 if at == "start" else len(stored) - 260
    index = np.frombuffer(bytes(stored[begin : begin + 256]), "<u8").reshape(16, 2).copy()
    index[5] = {
        "each other": (index[3, 0] + 4, index[3, 1]),
        "the index": (begin + 8, index[5, 1]),
        "same": index[3],
    }[attack]
    stored[begin : begin + 256] = index.tobytes()
    stored[begin + 256 : begin + 260] = crc32c(index.tobytes()).to_bytes(4, "little")
    file.write_bytes(stored)
    array = opened(tmp_path / "a")
    if attack == "same":  # a writer may have stored equal chunks once
        assert np.array_equal(array[2:4, 2:4], data[:2, 6:])
        return
    with pytest.raises(ChunkDecodeError, match=r"overlap|itself"):
        array[...]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), min_size=1, max_size=6))
@example([(3, 4), (3, 4), (7, 1)])
@example([(0, 8), (9, 1), (2, 1)])
def test_chunks_that_overlap_are_told_from_those_apart(entries: list[tuple[int, int]]) -> None:
    ranges = {(offset, offset + size) for offset, size in entries if size}
    overlap = any(a < d and c < b for a, b in ranges for c, d in ranges if (a, b) != (c, d))
    form = IndexForm((len(entries),), checksum=False)
    index = np.array(entries, "<u8")
    raw = np.frombuffer(index.tobytes(), np.uint8)
    if overlap:
        with pytest.raises(ChunkDecodeError, match="overlap"):
            form.parse("c/0", raw, 1000)
    else:
        assert np.array_equal(form.parse("c/0", raw, 1000), index)
