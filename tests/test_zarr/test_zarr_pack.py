"""Packing: the same values in every reader, every byte aligned, and interruptions that cost no more than a shard."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from zarr.codecs import ZstdCodec

import gpuload
from gpuload.cli import main
from gpuload.errors import ChunkDecodeError, ChunkWriteError, ConfigError, ExistsError, NotZarrError
from gpuload.files.writer import Writer
from gpuload.zarr import Array, pack
from gpuload.zarr.pack import Progress
from gpuload.zarr.pack_journal import NAME

RNG = np.random.default_rng(17)
VALUES: dict[str, Any] = {
    "temperature": RNG.normal(size=(50, 37, 49)).astype("f4"),
    "big": RNG.integers(-9, 9, (13, 100)).astype(">i4"),
    "flags": RNG.integers(0, 2, (5000,)).astype(bool),
    "scalar": np.float64(2.5),
    "sparse": np.pad(np.ones((3, 3), "i2"), 40),
    "nothing": np.zeros((0, 4)),
    "time": np.arange(7).astype("M8[s]"),
    "names": np.array(["a", "bb", "ccc"]),
}


def source(path: Path, zarr_format: Any) -> dict[str, Any]:
    """A tree of many kinds of arrays; returns their values by path."""
    group = zarr.open_group(str(path), mode="w", zarr_format=zarr_format, attributes={"title": "source"})
    below = group.create_group("deep/er", attributes={"n": 1})
    for name, value in VALUES.items():
        v3 = {"dimension_names": [f"{name}{n}" for n in range(np.ndim(value))]} if zarr_format == 3 else {}
        attributes = {"of": name} | ({} if v3 else {"_ARRAY_DIMENSIONS": [f"{name}{n}" for n in range(np.ndim(value))]})
        chunks = tuple(max(1, min(n, 11)) for n in np.shape(value))
        for parent in (group, below):
            array = parent.create_array(
                name, shape=np.shape(value), dtype=value.dtype, chunks=chunks, attributes=attributes, **v3
            )
            array[...] = value
    strings = group.create_array("strings", shape=(3,), dtype=str, chunks=(2,))
    strings[...] = np.array(["x", "ä" * 50, ""], dtype=object)
    found = VALUES | {f"deep/er/{name}": value for name, value in VALUES.items()}
    return {**found, "strings": np.array(["x", "ä" * 50, ""], dtype=object)}


def aligned(path: Path, align: int = 4096) -> None:
    """Every shard below `path` ends at a multiple of `align`, and all its inner chunks start at one."""
    for at, _, names in os.walk(path):
        if "zarr.json" not in names:
            continue
        document = json.loads(Path(at, "zarr.json").read_text())
        if document["node_type"] != "array" or document["codecs"][0]["name"] != "sharding_indexed":
            continue
        inner = document["codecs"][0]["configuration"]["chunk_shape"]
        outer = document["chunk_grid"]["configuration"]["chunk_shape"]
        count = math.prod(n // m for n, m in zip(outer, inner, strict=True))
        shards = [path for path in Path(at).rglob("*") if path.is_file() and path.name != "zarr.json"]
        for shard in shards:
            raw = shard.read_bytes()
            assert len(raw) % align == 0
            index = np.frombuffer(raw[-16 * count - 4 : -4], "<u8").reshape(-1, 2)
            offsets = index[index[:, 0] != 2**64 - 1, 0]
            assert len(offsets)
            assert (offsets % align == 0).all()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore")
def test_a_tree_of_everything(tmp_path: Path, zarr_format: Any) -> None:
    expected = source(tmp_path / "src", zarr_format)
    done = pack(tmp_path / "src", tmp_path / "dst", verify=True)
    assert (done.arrays, done.groups, done.skipped) == (len(expected), 3, 0)
    assert done.verified == sum(np.size(value) for value in expected.values())
    plain = zarr.open_group(str(tmp_path / "dst"), mode="r")
    assert plain.metadata.zarr_format == 3
    assert (dict(plain.attrs), dict(plain["deep/er"].attrs)) == ({"title": "source"}, {"n": 1})
    for name, value in expected.items():
        array = plain[name]
        assert isinstance(array, zarr.Array)
        assert np.array_equal(np.asarray(array[...]), value)
        ours = gpuload.open(tmp_path / "dst", device="cpu")[name]  # type: ignore[index]
        assert isinstance(ours, Array)
        assert np.array_equal(ours[...], value)
        if name == "strings":
            continue
        assert ours.dims == tuple(f"{name.rpartition('/')[2]}{n}" for n in range(np.ndim(value)))
        assert dict(ours.attrs) == {"of": name.rpartition("/")[2]}
        assert ours.dtype == np.asarray(value).dtype.newbyteorder("<")
    assert not (tmp_path / "dst" / NAME).exists()
    aligned(tmp_path / "dst" / "temperature")
    aligned(tmp_path / "dst" / "deep")


@pytest.mark.parametrize("align", [512, 4096, 65536])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_alignment_and_other_chunks(tmp_path: Path, align: int, codec: str) -> None:
    value = VALUES["temperature"]
    zarr.create_array(str(tmp_path / "src"), data=value, chunks=(7, 37, 49), compressors=[ZstdCodec()])
    pack(tmp_path / "src", tmp_path / "dst", chunks=(3, 20, 49), shards=(6, 40, 49), align=align, codec=codec)
    array = zarr.open_array(str(tmp_path / "dst"), mode="r")
    assert (array.chunks, array.shards) == ((3, 20, 49), (6, 40, 49))
    assert np.array_equal(array[...], value)
    aligned(tmp_path / "dst", align)


def test_without_shards(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "src"), data=VALUES["temperature"], chunks=(7, 37, 49))
    pack(tmp_path / "src", tmp_path / "dst", shards=None, verify=True)
    array = zarr.open_array(str(tmp_path / "dst"), mode="r")
    assert (array.shards, array.chunks) == (None, (7, 37, 49))
    assert np.array_equal(array[...], VALUES["temperature"])


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack of eight shards that was refused the fifth."""
    zarr.create_array(str(tmp_path / "src"), data=np.arange(80.0).reshape(8, 10), chunks=(1, 10))
    write = Writer.write

    def refuse(self: Writer, key: str, *parts: Any) -> None:
        if key == "c/4/0":
            raise ChunkWriteError(key, 28, "full")
        write(self, key, *parts)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", refuse)
        with pytest.raises(ChunkWriteError):
            pack(tmp_path / "src", tmp_path / "dst", shards=(1, 10))
    with pytest.raises(NotZarrError):
        gpuload.open(tmp_path / "dst")
    return tmp_path


def times(path: Path) -> dict[str, int]:
    return {name: (path / name / "0").stat().st_mtime_ns for name in os.listdir(path)}


def test_an_interrupted_pack_goes_on(interrupted: Path) -> None:
    before = times(interrupted / "dst" / "c")
    assert "4" not in before
    assert len(before) >= 4
    # A shard that somebody changed, one whose source changed, and a journal that was cut off in the middle of a line.
    (interrupted / "dst" / "c" / "1" / "0").write_bytes(b"something else")
    zarr.open_array(str(interrupted / "src"))[2] = -1
    with open(interrupted / "dst" / NAME, "a") as journal:
        journal.write('["c/5/0", "cut o')
    done = pack(interrupted / "src", interrupted / "dst", shards=(1, 10), verify=True)
    assert done.shards == 8
    assert done.skipped == len(before) - 2
    after = times(interrupted / "dst" / "c")
    assert all((after[name] == before[name]) == (name not in "12") for name in before)
    expected = np.arange(80.0).reshape(8, 10)
    expected[2] = -1
    assert np.array_equal(zarr.open_array(str(interrupted / "dst"), mode="r")[...], expected)
    assert sorted(os.listdir(interrupted / "dst")) == ["c", "zarr.json"]


def test_other_options_do_not_go_on(interrupted: Path) -> None:
    with pytest.raises(ExistsError, match="other options"):
        pack(interrupted / "src", interrupted / "dst", shards=(2, 10))
    done = pack(interrupted / "src", interrupted / "dst", shards=(2, 10), overwrite=True)
    assert (done.shards, done.skipped) == (4, 0)
    with pytest.raises(ExistsError, match="overwrite"):
        pack(interrupted / "src", interrupted / "dst", shards=(2, 10))
    pack(interrupted / "src", interrupted / "dst", overwrite=True)


PACKING = """
import sys
from gpuload.zarr import pack

told = []

def progress(at):
    told.append(at)
    if len(told) == 6:
        print("in the middle", flush=True)
        sys.stdin.read()  # until it is killed

pack(*sys.argv[1:3], shards=(1, 1000), progress=progress)
"""


@pytest.mark.filterwarnings("ignore")
def test_kill_in_the_middle(tmp_path: Path) -> None:
    value = RNG.integers(0, 9, (3000, 1000), np.uint8)
    zarr.create_array(str(tmp_path / "src"), data=value, chunks=(100, 1000), compressors=None)
    arguments = [sys.executable, "-W", "ignore", "-c", PACKING, str(tmp_path / "src"), str(tmp_path / "dst")]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in the middle\n"
        with pytest.raises(ExistsError, match="another pack"):
            pack(tmp_path / "src", tmp_path / "dst", shards=(1, 1000))
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(NotZarrError):
        gpuload.open(tmp_path / "dst")
    assert pack(tmp_path / "src", tmp_path / "dst", shards=(1, 1000)).skipped >= 5
    assert np.array_equal(zarr.open_array(str(tmp_path / "dst"), mode="r")[...], value)


def test_verifying_finds_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr.create_array(str(tmp_path / "src"), data=np.arange(80.0).reshape(8, 10), chunks=(1, 10), compressors=None)
    write = Writer.write

    def wrong(self: Writer, key: str, *parts: Any) -> None:
        if key == "c/3/0":
            parts = (bytes([parts[0][0] ^ 1]) + bytes(parts[0][1:]),)
        write(self, key, *parts)

    monkeypatch.setattr(Writer, "write", wrong)
    with pytest.raises(ChunkDecodeError, match="c/3/0"):
        pack(tmp_path / "src", tmp_path / "dst", shards=(1, 10), verify=True)
    with pytest.raises(NotZarrError):
        gpuload.open(tmp_path / "dst")


def test_progress_and_refusals(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "src"), data=np.arange(80.0).reshape(8, 10), chunks=(1, 10))
    seen: list[Progress] = []
    pack(tmp_path / "src", tmp_path / "dst", shards=(1, 10), verify=True, progress=seen.append)
    assert [(p.done, p.total, p.verifying) for p in seen] == [
        (80 * (n + 1), 640, verifying) for verifying in (False, True) for n in range(8)
    ]
    for target in ("src", "src/inside", "."):
        with pytest.raises(ExistsError, match="inside"):
            pack(tmp_path / "src", tmp_path / target)
    with pytest.raises(ConfigError, match="power of two"):
        pack(tmp_path / "src", tmp_path / "other", align=3000)
    assert not (tmp_path / "other").exists()


def test_memory_is_that_of_a_few_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr.create_array(str(tmp_path / "src"), data=np.arange(6400).reshape(64, 100), chunks=(1, 100), compressors=None)
    asked, read = [], Array.__getitem__

    def noted(self: Array, selection: Any) -> Any:
        found = read(self, selection)
        asked.append(found.nbytes)
        return found

    monkeypatch.setattr(Array, "__getitem__", noted)
    pack(tmp_path / "src", tmp_path / "dst", shards=(4, 100))
    assert asked == [3200] * 16


def test_command(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "src"), data=np.arange(80.0).reshape(8, 10), chunks=(1, 10))
    run = CliRunner().invoke
    arguments = ["pack", str(tmp_path / "src"), str(tmp_path / "dst"), "--chunks", "2,10", "--shards", "4,10"]
    done = run(main, [*arguments, "--verify", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {
        "arrays": 1, "groups": 0, "shards": 2, "skipped": 0, "nbytes": 640, "verified": 80,
    }  # fmt: skip
    again = run(main, arguments)
    assert again.exit_code == 1
    assert "overwrite" in again.output
    words = run(main, [*arguments, "--overwrite", "--verify", "--codec", "zstd"])
    assert words.exit_code == 0, words.output
    assert "80 values read back: equal, bit for bit" in words.output
    for bad in (["--chunks", "2,x"], ["--shards", "0"], ["--codec", "lzma"]):
        assert run(main, [*arguments, *bad]).exit_code == 2


@pytest.mark.filterwarnings("ignore:.*dtype|.*data type")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shape", [(), (5, 4)])
def test_raw_bytes_stay_readable_by_zarr_python(tmp_path: Path, shape: tuple[int, ...], zarr_format: Any) -> None:
    values = np.arange(math.prod(shape) * 7, dtype="u1").view("V7").reshape(shape)
    array = zarr.create_array(
        tmp_path / "src", shape=shape, chunks=tuple(2 for _ in shape), dtype=values.dtype, zarr_format=zarr_format
    )
    array[...] = values if shape else values[()]
    pack(tmp_path / "src", tmp_path / "dst", verify=True)
    assert zarr.open_array(tmp_path / "dst", mode="r")[...].tobytes() == values.tobytes()


@pytest.mark.filterwarnings("ignore:.*dtype|.*data type")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("word", ["", "gr\u00fcn"], ids=["missing", "stored"])
def test_one_string(tmp_path: Path, word: str, zarr_format: Any) -> None:
    array = zarr.create_array(tmp_path / "src", shape=(), dtype=str, zarr_format=zarr_format)
    if word:
        array[...] = word
    pack(tmp_path / "src", tmp_path / "dst", verify=True)
    for path in ("src", "dst"):
        found = gpuload.open(tmp_path / path, mode="r+", device="cpu")
        assert isinstance(found, gpuload.Array)
        assert found[...] == np.array(word, found.dtype)
        found[...] = "blau"
        assert zarr.open_array(tmp_path / path, mode="r")[...] == "blau"


@pytest.mark.parametrize("journal", [b"\0\0\0\n", b"\xff\xfe\n"], ids=["zeros", "no text"])
def test_a_journal_that_was_lost(tmp_path: Path, journal: bytes) -> None:
    gpuload.save(tmp_path / "src", np.arange(5))
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst" / NAME).write_bytes(journal)
    with pytest.raises(ExistsError, match="is no journal of a pack"):
        pack(tmp_path / "src", tmp_path / "dst")
    pack(tmp_path / "src", tmp_path / "dst", overwrite=True, verify=True)


def test_shards_of_damaged_lines_of_a_journal_are_written_again(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done == progress.total:
            raise KeyboardInterrupt

    gpuload.save(tmp_path / "src", np.arange(8), chunks=2)
    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path / "src", tmp_path / "dst", shards=(2,), progress=interrupt)
    with (tmp_path / "dst" / NAME).open("r+") as file:
        first, *lines = file.readlines()
        assert len(lines) == 4
        file.seek(0)
        file.truncate()
        file.writelines([first, "\0\n", "7\n", "[[1], 2]\n", lines[-1]])
    assert pack(tmp_path / "src", tmp_path / "dst", shards=(2,), verify=True).skipped == 1
