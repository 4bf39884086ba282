"""Bad input: each a clear error that names the key and the sizes, and nothing is returned."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import gpuload
from gpuload import config
from gpuload.errors import (
    ChunkDecodeError,
    ChunkError,
    ChunkReadError,
    ChunkSizeError,
    DestinationError,
    EscapesStoreError,
    NotFoundError,
    NotLocalError,
    NotRegularFileError,
    NotZarrError,
    SelectionError,
    StrictError,
    UnsupportedArrayError,
)
from gpuload.request import Reason
from gpuload.zarr import Array, shards
from gpuload.zarr.layout import Road

DATA = np.arange(32, dtype="<i4").reshape(8, 4)
KINDS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {"compressors": ZstdCodec()},
    "gzip": {"compressors": GzipCodec()},
    "blosc": {"compressors": BloscCodec()},
    "crc32c": {"compressors": Crc32cCodec()},
    "v2 zlib": {"zarr_format": 2, "compressors": numcodecs.Zlib()},
    "v2 lz4": {"zarr_format": 2, "compressors": numcodecs.LZ4()},
    "foreign": {"compressors": [ZstdCodec(), GzipCodec()]},
}


def write(path: Path, kind: str) -> tuple[Array, Path, str]:
    """An array of four chunks, the file of the third and its key."""
    zarr.create_array(str(path), data=DATA, chunks=(2, 4), **KINDS[kind])
    key = "2.0" if kind.startswith("v2") else "c/2/0"
    array = gpuload.open(path, device="cpu")
    assert isinstance(array, Array)
    return array, path / key, key


@pytest.fixture(params=KINDS)
def broken(request: pytest.FixtureRequest, tmp_path: Path, backend: str) -> tuple[Array, Path, str]:
    return write(tmp_path / "a", request.param)


def refused(array: Array, key: str, *selection: Any) -> ChunkError:
    with pytest.raises((ChunkSizeError, ChunkDecodeError)) as caught:
        array[selection or ...]
    assert caught.value.key == key
    assert repr(key) in str(caught.value)
    return caught.value


@pytest.mark.parametrize("change", ["empty", "five bytes", "eight more"])
def test_a_chunk_file_of_a_wrong_size(broken: tuple[Array, Path, str], change: str) -> None:
    array, file, key = broken
    stored = file.read_bytes()
    changed = {"empty": b"", "five bytes": stored[:5], "eight more": stored + bytes(8)}[change]
    if change == "eight more" and array.layout.road is Road.FOREIGN:
        changed = stored[8:]  # what follows a stream is zarr-python's own business there
    file.write_bytes(changed)
    error = refused(array, key)
    if isinstance(error, ChunkSizeError):
        assert (error.expected, error.actual) == (32, len(changed))
    else:
        assert str(len(changed)) in str(error)
    assert np.array_equal(array[:4], DATA[:4])  # the others are still there


def test_a_raw_chunk_cut_beyond_what_is_read(tmp_path: Path, backend: str) -> None:
    array, file, key = write(tmp_path / "a", "raw")
    file.write_bytes(file.read_bytes()[:20])
    error = refused(array, key, 4, slice(0, 2))
    assert isinstance(error, ChunkSizeError)
    assert error.actual == 20


def test_a_file_replaced_by_a_shorter_one_between_two_reads(broken: tuple[Array, Path, str]) -> None:
    array, file, key = broken
    assert np.array_equal(array[...], DATA)
    other = file.with_name("new")
    other.write_bytes(file.read_bytes()[:7])
    other.replace(file)
    refused(array, key)


def test_a_flipped_bit_is_seen_by_the_checksum(tmp_path: Path) -> None:
    array, file, key = write(tmp_path / "a", "crc32c")
    stored = bytearray(file.read_bytes())
    stored[3] ^= 1
    file.write_bytes(stored)
    assert "crc32c" in str(refused(array, key))


@pytest.mark.parametrize("what", ["fifo", "directory", "socket"])
def test_no_regular_file_and_no_hang(broken: tuple[Array, Path, str], what: str) -> None:
    array, file, key = broken
    file.unlink()
    if what == "fifo":
        os.mkfifo(file)
    elif what == "directory":
        file.mkdir()
    else:
        listener = socket.socket(socket.AF_UNIX)
        folder = os.open(file.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{folder}/{file.name}")  # a path of a socket is 107 bytes at most
        os.close(folder)
        listener.close()
    with pytest.raises(NotRegularFileError, match=key):
        array[...]


def test_a_device_as_a_chunk(tmp_path: Path, backend: str) -> None:
    zarr.create_array(str(tmp_path / "a"), data=DATA, chunks=(2, 4), compressors=None)
    (tmp_path / "a" / "c/2/0").unlink()
    (tmp_path / "a" / "c/2/0").symlink_to("/dev/zero")
    with pytest.raises(NotRegularFileError, match="c/2/0"):
        gpuload.open(tmp_path / "a", device="cpu", follow_links=True)[...]  # type: ignore[index]


@pytest.mark.parametrize("kind", ["raw", "zstd", "foreign"])
def test_links_out_of_the_store(tmp_path: Path, kind: str, backend: str) -> None:
    array, file, _ = write(tmp_path / "a", kind)
    file.rename(tmp_path / "outside")
    file.symlink_to("../../../outside")
    with pytest.raises(EscapesStoreError, match="c/2/0"):
        array[...]
    followed = gpuload.open(tmp_path / "a", device="cpu", follow_links=True)
    assert np.array_equal(followed[...], DATA)  # type: ignore[index]
    file.unlink()
    (file.parent / "inside").write_bytes((tmp_path / "outside").read_bytes())
    file.symlink_to("inside")
    assert np.array_equal(array[...], DATA)


def test_metadata_behind_a_link_that_leaves(tmp_path: Path) -> None:
    write(tmp_path / "a", "raw")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "zarr.json").symlink_to("../a/zarr.json")
    with pytest.raises(EscapesStoreError):
        gpuload.open(tmp_path / "b")
    assert gpuload.open(tmp_path / "b", follow_links=True, device="cpu") is not None


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    write(tmp_path / "a", "raw")
    (tmp_path / "link").symlink_to("a")
    assert np.array_equal(gpuload.open(tmp_path / "link", device="cpu")[...], DATA)  # type: ignore[index]


UNREADABLE = """
import os, sys
sys.path[:0] = {path!r}
import numpy, zarr
import gpuload
from gpuload.errors import ChunkReadError
array = gpuload.open({root!r}, device="cpu")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    open({file!r}, "rb")
except PermissionError:
    pass
else:
    sys.exit("the file can be read all the same")
try:
    array[...]
except ChunkReadError as error:
    assert error.errno == 13 and error.key == {key!r}, error
    print("refused", error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_an_unreadable_chunk_file(tmp_path: Path) -> None:
    _, file, key = write(tmp_path / "a", "raw")
    file.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    script = UNREADABLE.format(path=sys.path, root=str(tmp_path / "a"), file=str(file), key=key)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=500)
    assert "refused" in done.stdout, done.stderr


# Shards


def sharded(path: Path, **options: Any) -> tuple[Array, Path]:
    zarr.create_array(str(path), data=np.arange(64, dtype="<i4").reshape(8, 8), chunks=(2, 2), shards=(8, 8), **options)
    array = gpuload.open(path, device="cpu")
    assert isinstance(array, Array)
    return array, path / "c/0/0"


def rewrite_index(file: Path, entry: int, offset: int, size: int) -> None:
    """Change one entry of the index at the end of a shard of 16 chunks, with a right checksum."""
    from google_crc32c import value

    stored = bytearray(file.read_bytes())
    index = np.frombuffer(bytes(stored[-260:-4]), "<u8").reshape(16, 2).copy()
    index[entry] = offset, size
    stored[-260:-4] = index.tobytes()
    stored[-4:] = value(index.tobytes()).to_bytes(4, "little")
    file.write_bytes(stored)


@pytest.mark.parametrize("compressors", [None, "auto"])
@pytest.mark.parametrize("size", [0, 5, 100])
def test_a_shard_shorter_than_its_index(tmp_path: Path, compressors: Any, size: int, backend: str) -> None:
    array, file = sharded(tmp_path / "a", compressors=compressors)
    file.write_bytes(file.read_bytes()[:size])
    error = refused(array, "c/0/0")
    assert isinstance(error, ChunkSizeError)
    assert (error.expected, error.actual) == (260, size)


@pytest.mark.parametrize("change", ["cut", "longer", "bit"])
def test_a_shard_whose_index_is_elsewhere(tmp_path: Path, change: str) -> None:
    array, file = sharded(tmp_path / "a", compressors=None)
    stored = bytearray(file.read_bytes())
    if change == "bit":
        stored[-100] ^= 4
    file.write_bytes({"cut": stored[:-8], "longer": stored + bytes(8), "bit": stored}[change])
    assert isinstance(refused(array, "c/0/0"), ChunkDecodeError)


@pytest.mark.parametrize(
    ("offset", "size"), [(10**6, 16), (2**63, 16), (2**64 - 2, 16), (16, 2**64 - 16), (2**64 - 1, 16)]
)
@pytest.mark.parametrize("compressors", [None, "auto"])
def test_an_index_that_points_outside(tmp_path: Path, offset: int, size: int, compressors: Any) -> None:
    array, file = sharded(tmp_path / "a", compressors=compressors)
    rewrite_index(file, 3, offset, size)
    error = refused(array, "c/0/0")
    assert isinstance(error, ChunkSizeError)
    assert error.actual == file.stat().st_size
    assert array[0, 0] == 0  # inner chunk 3 is not needed for this


def test_a_raw_inner_chunk_of_a_wrong_size(tmp_path: Path) -> None:
    array, file = sharded(tmp_path / "a", compressors=None)
    rewrite_index(file, 0, 0, 12)
    error = refused(array, "c/0/0")
    assert isinstance(error, ChunkSizeError)
    assert (error.expected, error.actual) == (16, 12)


def test_a_replaced_shard_is_read_by_its_own_index(tmp_path: Path) -> None:
    array, file = sharded(tmp_path / "a")
    before = array[...]
    sharded(
        tmp_path / "b",
    )
    zarr.open_array(str(tmp_path / "b"), mode="r+")[:4] = 77  # other chunks at other places
    (tmp_path / "b" / "c/0/0").replace(file)
    after = array[...]
    assert (after[:4] == 77).all()
    assert np.array_equal(after[4:], before[4:])


def test_a_shard_that_changes_during_the_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array, file = sharded(tmp_path / "a", compressors=None)
    changes = iter([True])
    found = shards.changed

    def rewritten(handles: Any) -> str | None:
        if next(changes, False):
            file.write_bytes(bytes(256) + file.read_bytes()[256:])
        return found(handles)

    monkeypatch.setattr("gpuload.zarr.reader.changed", rewritten)
    assert array[:2].sum() == 0  # read again, by the index of what is there now
    monkeypatch.setattr("gpuload.zarr.reader.changed", lambda handles: "c/0/0")
    with pytest.raises(ChunkReadError, match="c/0/0"):
        array[...]


def test_a_shard_that_is_gone_is_missing(tmp_path: Path) -> None:
    array, file = sharded(tmp_path / "a", fill_value=5)
    assert array[1, 1] == 9
    file.unlink()
    assert (array[...] == 5).all()


# Nodes


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="absent"):
        gpuload.open(tmp_path / "absent")


@pytest.mark.parametrize("what", ["empty", "file", "no json", "number"])
def test_no_zarr_node(tmp_path: Path, what: str) -> None:
    path = tmp_path / "thing"
    if what == "file":
        path.write_bytes(b"x")
    else:
        path.mkdir()
    if what == "no json":
        (path / "zarr.json").write_bytes(b"{")
    if what == "number":
        (path / "zarr.json").write_bytes(b"1")
    with pytest.raises((NotZarrError, UnsupportedArrayError), match="thing"):
        gpuload.open(path)


def edit(path: Path, **changes: Any) -> None:
    document = path / "zarr.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"codecs": [{"name": "bytes"}, {"name": "my-codec", "configuration": {}}]}, "my-codec"),
        ({"codecs": [{"name": "numcodecs.zfpy", "configuration": {}}]}, "zfpy"),
        ({"data_type": "int7"}, "int7"),
        ({"data_type": {"name": "optional", "configuration": {}}}, "optional"),
    ],
)
def test_an_unknown_codec_or_dtype(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    write(tmp_path / "a", "raw")
    edit(tmp_path / "a", **changes)
    with pytest.raises(UnsupportedArrayError, match=name):
        gpuload.open(tmp_path / "a")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"attributes": [1]}, "attributes|dictionary"),  # ours, and what the newest zarr says
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 4]}}}, "chunks"),
    ],
)
def test_metadata_that_zarr_does_not_check(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    write(tmp_path / "a", "raw")
    edit(tmp_path / "a", **changes)
    with pytest.raises(UnsupportedArrayError, match=name):
        gpuload.open(tmp_path / "a")


@pytest.mark.parametrize("length", [2**62, 2**70])
def test_more_elements_than_memory_has_addresses(tmp_path: Path, length: int) -> None:
    write(tmp_path / "a", "raw")
    edit(tmp_path / "a", shape=[length, 4])
    array = gpuload.open(tmp_path / "a", device="cpu")
    with pytest.raises(MemoryError):
        array[...]
    assert np.array_equal(array[:2], DATA[:2])


@pytest.mark.parametrize("url", ["s3://bucket/a.zarr", "https://host/a.zarr", "simplecache::s3://b/a", "file://host/a"])
def test_what_is_not_local(url: str) -> None:
    with pytest.raises(NotLocalError, match=url.split(":", maxsplit=1)[0]) as caught:
        gpuload.open(url)
    assert caught.value.reason is Reason.NOT_LOCAL


def test_a_store_that_is_not_local(tmp_path: Path) -> None:
    memory = zarr.create_array(zarr.storage.MemoryStore(), data=DATA)
    with pytest.raises(NotLocalError, match="MemoryStore"):
        gpuload.open(memory)
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        array = zarr.create_array(store, data=DATA)
        with pytest.raises(NotZarrError, match=r"a\.zip.*still being written"):
            gpuload.open(array)


def test_only_reading() -> None:
    with pytest.raises(ValueError, match="mode 'w'"):
        gpuload.open("a.zarr", mode="w")


# Selections and destinations


@pytest.mark.parametrize("selection", [8, -9, (0, 4), (0, 0, 0), 1.5, "x", [0, 1.0], slice(0, 4, 0), (..., ...), True])
def test_no_selection(tmp_path: Path, selection: Any) -> None:
    array, _, _ = write(tmp_path / "a", "raw")
    with pytest.raises(SelectionError):
        array[selection]


def test_destinations(tmp_path: Path, backend: str) -> None:
    for kind in KINDS:
        array, _, _ = write(tmp_path / kind, kind)
        big = np.full((16, 12), -1, "<i4")
        for out in (
            np.empty((8, 4), "<i4"),
            np.empty((8, 4), "<i4", order="F"),
            big[::2, 2:10:2],
            big[::-2, 10:2:-2],
            np.empty((4, 8), "<i4").T,
        ):
            assert array.read(out=out) is out
            assert np.array_equal(out, DATA)
        out = np.empty((1, 3), "<i4")
        array.read((None, 2, slice(3, 0, -1)), out=out)
        assert np.array_equal(out, DATA[None, 2, 3:0:-1])
        readonly = np.empty((8, 4), "<i4")
        readonly.flags.writeable = False
        for wrong in (
            np.empty((8, 5), "<i4"),
            np.empty((8, 4), ">i4"),
            np.empty((8, 4), "f4"),
            readonly,
            [0],
            np.lib.stride_tricks.as_strided(np.empty(4, "<i4"), (8, 4), (0, 4)),
            np.lib.stride_tricks.as_strided(np.empty(40, "<i4"), (8, 4), (4, 4)),
        ):
            with pytest.raises(DestinationError):
                array.read(out=wrong)
        assert np.array_equal(array.read(), DATA)


@pytest.mark.parametrize("big", [False, True])
def test_byte_order_of_a_destination(tmp_path: Path, big: bool) -> None:
    dtype = ">i4" if big else "<i4"
    zarr.create_array(str(tmp_path / "a"), data=DATA.astype(dtype), zarr_format=2)
    array = gpuload.open(tmp_path / "a", device="cpu")
    out = np.zeros((8, 8), dtype)
    array.read(out=out[:, ::2])  # type: ignore[union-attr]
    assert np.array_equal(out[:, ::2], DATA)
    assert not out[:, 1::2].any()


# Strict


@pytest.mark.parametrize("kind", ["raw", "zstd", "foreign"])
@pytest.mark.parametrize("how", ["argument", "configuration"])
def test_strict(tmp_path: Path, kind: str, how: str) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(8, 4), dtype="i4", chunks=(2, 4), fill_value=6, **KINDS[kind])
    zarr.open_array(str(tmp_path / "a"))[:2] = 1
    array = gpuload.open(tmp_path / "a", device="cpu", strict=True if how == "argument" else None)
    with config.set(strict=how == "configuration"):
        with pytest.raises(StrictError) as caught:
            array[...]  # type: ignore[index]
        assert caught.value.reason in tuple(Reason)
        if kind != "raw":
            assert caught.value.reason is Reason.HOST_CODEC
        assert (array[2:] == 6).all()  # type: ignore[index] # nothing is read for these
        assert array[1:1].size == 0  # type: ignore[index,union-attr]
    assert gpuload.open(tmp_path / "a", device="cpu", strict=False)[0, 0] == 1  # type: ignore[index]
