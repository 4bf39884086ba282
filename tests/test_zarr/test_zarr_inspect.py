"""What `inspect` says of stores, against figures that follow from their sizes."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from zarr.codecs import BytesCodec, ShardingCodec

import gpuload.zarr
from gpuload import events
from gpuload.cli import main
from gpuload.errors import ChunkSizeError, NotRegularFileError, NotZarrError
from gpuload.request import Reason, Served
from gpuload.zarr import inspect as module_function
from gpuload.zarr.inspect import ArrayInspection


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> list[Reason | None]:
    """Whatever these tests run on, its file system takes the fastpath, unless the list says otherwise."""
    said: list[Reason | None] = [None]
    import sys

    monkeypatch.setattr(sys.modules["gpuload.zarr.inspect"], "direct_reason", lambda geometry: said[-1])
    return said


def one(path: Path) -> ArrayInspection:
    (found,) = module_function(path)
    return found


VALUE = np.arange(1, 1 + 10 * 37 * 49, dtype="f4").reshape(10, 37, 49)  # 7252 bytes a row


def test_chunk_files_have_tails(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a b.zarr"), data=VALUE, chunks=(1, 37, 49), compressors=None)
    found = one(tmp_path / "a b.zarr")
    assert (found.fastpath_bytes, found.fallback_bytes) == (40960, 31560)
    assert found.reasons == {Reason.TAIL: 31560}
    assert found.pack is not None
    assert shlex.split(found.pack) == ["gpuload", "pack", f"{tmp_path}/a b.zarr", f"{tmp_path}/a b.packed.zarr"]
    assert found.to_dict() == {
        "name": "",
        "shape": [10, 37, 49],
        "chunks": [1, 37, 49],
        "shards": None,
        "codecs": ["bytes"],
        "fastpath_bytes": 40960,
        "fallback_bytes": 31560,
        "reasons": {"tail": 31560},
        "pack": found.pack,
    }


@pytest.mark.parametrize("where", ["start", "end"])
def test_shards_of_other_writers(tmp_path: Path, where: str) -> None:
    serializer = ShardingCodec(chunk_shape=(1, 37, 49), codecs=[BytesCodec()], index_location=where)
    zarr.create_array(str(tmp_path / "a"), data=VALUE, chunks=(5, 37, 49), serializer=serializer, compressors=None)
    found = one(tmp_path / "a")
    # 36344 bytes a shard: 8 blocks and 3576 bytes, of which 84 are the index where that is at the end.
    tail = 2 * (3576 if where == "start" else 3576 - 84)
    assert found.reasons == {Reason.TAIL: tail}
    assert found.fastpath_bytes + tail == VALUE.nbytes
    assert (found.shards, found.codecs) == ((5, 37, 49), ("bytes",))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_is_decoded_or_no_number(tmp_path: Path, zarr_format: Any) -> None:
    group = zarr.open_group(str(tmp_path / "g"), mode="w", zarr_format=zarr_format)
    group.create_array("zstd", data=VALUE, chunks=(1, 37, 49))
    group.create_array("dates", data=np.arange(9).astype("M8[s]"), chunks=(4,), compressors=None)
    group.create_array("missing", shape=(10, 10), dtype="i4", chunks=(5, 5))
    dates, missing, zstd = module_function(tmp_path / "g")
    assert [found.name for found in (dates, missing, zstd)] == ["dates", "missing", "zstd"]
    files = [path for path in (tmp_path / "g" / "zstd").rglob("*") if path.is_file() and path.name[0].isdigit()]
    stored = sum(path.stat().st_size for path in files)
    assert zstd.reasons == {Reason.HOST_CODEC: stored}
    assert zstd.pack
    assert (dates.reasons, dates.pack) == ({Reason.HOST_DTYPE: 96}, None)
    assert (missing.reasons, missing.fastpath_bytes, missing.share, missing.pack) == ({}, 0, 1.0, None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["b1", "i2", "f4", ">f8", "c16"])
@pytest.mark.parametrize("shape", [(), (1,), (5000,), (70, 90), (3, 40, 50), (0, 4)])
@pytest.mark.parametrize("compressors", ["auto", None])
def test_all_of_what_is_packed(tmp_path: Path, dtype: str, shape: tuple[int, ...], compressors: Any) -> None:
    chunks = tuple(max(1, n // 3) for n in shape)
    array = zarr.create_array(
        str(tmp_path / "a"), shape=shape, dtype=dtype, chunks=chunks, compressors=compressors, zarr_format=2
    )
    array[...] = np.ones(shape, dtype)
    gpuload.zarr.pack(tmp_path / "a", tmp_path / "b")
    found = one(tmp_path / "b")
    assert (found.fallback_bytes, found.reasons, found.pack) == (0, {}, None)
    stored = np.prod([-(-n // m) * m for n, m in zip(shape, chunks, strict=True)], dtype=int) * np.dtype(dtype).itemsize
    assert found.fastpath_bytes == stored


def test_the_storage_has_a_say(tmp_path: Path, direct: list[Reason | None]) -> None:
    zarr.create_array(str(tmp_path / "a"), data=VALUE, chunks=(1, 37, 49), compressors=None)
    direct.append(Reason.BLOCK_LAYER)
    found = one(tmp_path / "a")
    assert found.reasons == {Reason.TAIL: 31560, Reason.BLOCK_LAYER: 40960}
    assert (found.fastpath_bytes, found.fallback_bytes) == (0, 72520)
    gpuload.zarr.pack(tmp_path / "a", tmp_path / "b")
    assert one(tmp_path / "b").pack is None  # written anew it would be stopped all the same


def test_other_files_are_no_chunks(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), data=np.ones((4, 4)), chunks=(2, 2), compressors=None)
    for name in ("c/0/2", "c/x/0", "c/0/0.partial", "c/0/.gpuload-0123456789abcdef-0.tmp", "notes", "c/0/0/0/0/0"):
        path = tmp_path / "a" / name
        if name.endswith("0/0/0/0"):
            path = tmp_path / "a" / "c" / "9" / "0" / "0" / "0"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    os.symlink("c", tmp_path / "a" / "loop")
    os.symlink(".", tmp_path / "a" / "c" / "1" / "self")
    assert one(tmp_path / "a").fallback_bytes == 4 * 32


def test_no_chunk_is_read(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), data=VALUE, chunks=(1, 37, 49), shards=(5, 37, 49), compressors=None)
    sizes: list[int] = []

    def note(event: events.Event) -> None:
        if isinstance(event, Served):
            chosen = [event.keys[i] != "zarr.json" for i in event.key_index.tolist()]
            sizes.extend(event.size[chosen].tolist())

    unsubscribe = events.subscribe(note)
    try:
        one(tmp_path / "a")
    finally:
        unsubscribe()
    assert sum(sizes) == 2 * 84


def test_an_index_that_cannot_be_right(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), data=VALUE, chunks=(1, 37, 49), shards=(5, 37, 49), compressors=None)
    shard = tmp_path / "a" / "c" / "0" / "0" / "0"
    raw = shard.read_bytes()
    shard.write_bytes(raw[:40])
    with pytest.raises(ChunkSizeError, match="c/0/0/0"):
        one(tmp_path / "a")
    shard.write_bytes(raw[-84:])
    with pytest.raises(ChunkSizeError, match="beyond the end"):
        one(tmp_path / "a")
    with pytest.raises(NotZarrError):
        module_function(tmp_path)


LAYOUTS: list[tuple[dict[str, Any], str]] = [
    ({}, "c/1/0/0"),
    ({"chunk_key_encoding": {"name": "default", "separator": "."}}, "c.1.0.0"),
    ({"chunk_key_encoding": {"name": "v2", "separator": "/"}}, "1/0/0"),
    ({"zarr_format": 2}, "1.0.0"),
    ({"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}}, "1/0/0"),
]


@pytest.mark.parametrize(("options", "key"), LAYOUTS)
@pytest.mark.parametrize("chunks", [(1, 4, 4), (1, 4, 2), (1, 2, 4), (2, 4, 4)])
def test_chunks_in_directories_of_their_own(tmp_path: Path, options: Any, key: str, chunks: Any) -> None:
    made = {"shape": (5, 4, 4), "chunks": chunks, "dtype": "f4", "compressors": None, "fill_value": 0, **options}
    array = zarr.create_array(str(tmp_path / "g"), name="a", **made)
    array[:2] = 1
    array[4:] = 1  # the chunks between are missing
    assert one(tmp_path / "g").fallback_bytes == {1: 3 * 64, 2: 2 * 128}[chunks[0]]


@pytest.mark.parametrize(("options", "key"), LAYOUTS)
@pytest.mark.parametrize("special", ["fifo", "directory"])
def test_what_is_no_file_where_a_chunk_should_be(tmp_path: Path, options: Any, key: str, special: str) -> None:
    made = {"shape": (5, 4, 4), "chunks": (1, 4, 4), "dtype": "f4", "compressors": None, **options}
    array = zarr.create_array(str(tmp_path / "a"), **made)
    array[...] = 1
    path = tmp_path / "a" / key
    path.unlink()
    if special == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(NotRegularFileError, match=key):
        one(tmp_path / "a")
    with pytest.raises(NotRegularFileError, match=key):
        gpuload.open(tmp_path / "a", device="cpu")[...]  # type: ignore[index]


@pytest.mark.parametrize("change", [-4, 4])
def test_a_file_of_another_size(tmp_path: Path, change: int) -> None:
    zarr.create_array(str(tmp_path / "a"), data=VALUE, chunks=(1, 37, 49), compressors=None)
    path = tmp_path / "a" / "c" / "3" / "0" / "0"
    path.write_bytes((path.read_bytes() + bytes(4))[: 7252 + change])
    with pytest.raises(ChunkSizeError, match=rf"c/3/0/0.*expected 7252 bytes, found {7252 + change}"):
        one(tmp_path / "a")
    with pytest.raises(ChunkSizeError):
        gpuload.open(tmp_path / "a", device="cpu")[...]  # type: ignore[index]


def test_an_inner_chunk_of_another_size(tmp_path: Path) -> None:
    serializer = ShardingCodec(chunk_shape=(1, 37, 49), codecs=[BytesCodec()], index_codecs=[BytesCodec()])
    zarr.create_array(str(tmp_path / "a"), data=VALUE, chunks=(5, 37, 49), serializer=serializer, compressors=None)
    path = tmp_path / "a" / "c" / "0" / "0" / "0"
    raw = bytearray(path.read_bytes())
    raw[-8:] = (7248).to_bytes(8, "little")
    path.write_bytes(raw)
    with pytest.raises(ChunkSizeError, match=r"c/0/0/0.*expected 7252 bytes, found 7248; in the index"):
        one(tmp_path / "a")
    with pytest.raises(ChunkSizeError):
        gpuload.open(tmp_path / "a", device="cpu")[...]  # type: ignore[index]


def test_no_directory_is_listed_for_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr.create_array(str(tmp_path / "a"), data=np.ones((30, 4, 4)), chunks=(1, 4, 4), compressors=None)
    listed, scandir = [], os.scandir

    def counted(place: Any) -> Any:
        listed.append(place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", counted)
    assert one(tmp_path / "a").fallback_bytes == 30 * 128
    assert len(listed) == 2


def test_command(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "g"), mode="w")
    group.create_array("[red]x[/red]", data=VALUE, chunks=(1, 37, 49), compressors=None)
    group.create_array("empty", shape=(3,), dtype="i4", chunks=(2,))
    run = CliRunner(env={"COLUMNS": "200"}).invoke
    found = run(main, ["inspect", str(tmp_path / "g"), "--json"])
    assert json.loads(found.output) == {"arrays": [array.to_dict() for array in module_function(tmp_path / "g")]}
    words = run(main, ["inspect", str(tmp_path / "g")])
    assert words.exit_code == 0
    for part in ("[red]x[/red]", "56.5 %", "tail: 31,560", "100 %", f"gpuload pack {tmp_path}/g"):
        assert part in words.output
    wrong = run(main, ["inspect", str(tmp_path)])
    assert (wrong.exit_code, wrong.output.count("\n")) == (1, 1)
