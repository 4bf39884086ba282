"""Zip archives that are damaged, or made to do harm: an error that names the member, and everything else still read."""

from __future__ import annotations

import os
import tracemalloc
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr

import gpuload
from gpuload import config
from gpuload.errors import (
    ChunkDecodeError,
    ChunkError,
    ChunkReadError,
    ChunkSizeError,
    EscapesStoreError,
    NotZarrError,
    StoreError,
    UnsupportedArrayError,
)
from gpuload.zarr import VirtualStore

VALUES = np.arange(77, dtype="f4").reshape(7, 11)  # as `zips.fill` has it
MEMBER = "plain/c/1/1"


@pytest.fixture
def archive(tmp_path: Path, zips: ModuleType) -> Path:
    zips.fill(tmp_path / "x.zarr", 3)
    zips.write(tmp_path / "x.zip", zips.files_of(tmp_path / "x.zarr").items())
    return tmp_path / "x.zip"


@pytest.fixture
def deflated(archive: Path, zips: ModuleType) -> Path:
    members = zips.files_of(archive.with_name("x.zarr")).items()
    zips.write(archive.with_name("d.zip"), members, method=lambda _: zipfile.ZIP_DEFLATED)
    return archive.with_name("d.zip")


def read(path: Path, *key: Any) -> Any:
    """Of the array `plain`; MEMBER has its rows 2 and 3, columns 4 to 7."""
    return gpuload.open(path, device="cpu")["plain"][key]  # type: ignore[index]


def fails(path: Path, kind: type[ChunkError], message: str) -> None:
    """MEMBER cannot be read, and all others can."""
    with pytest.raises(kind, match=message) as caught:
        read(path, ...)
    assert caught.value.key == MEMBER
    assert str(caught.value).startswith(f"'{MEMBER}': ")
    assert np.array_equal(read(path, slice(0, 2)), VALUES[:2])
    assert np.array_equal(read(path, slice(2, 4), slice(0, 4)), VALUES[2:4, :4])


def test_cut_short(archive: Path) -> None:
    whole = archive.read_bytes()
    for cut in (0, 2, 10, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        archive.write_bytes(whole[:cut])
        with pytest.raises(NotZarrError, match=r"x\.zip.*zip archive.*cut short"):
            gpuload.open(archive)


def test_no_archive(tmp_path: Path) -> None:
    for content in (b"hello", b"PK\3\4" + bytes(1000), b"PK\5\6", b"\x89HDF\r\n", bytes(100)):
        (tmp_path / "x.zip").write_bytes(content)
        with pytest.raises(NotZarrError, match=r"x\.zip.*zip archive"):
            gpuload.open(tmp_path / "x.zip")


def test_every_byte_that_may_be_wrong(archive: Path) -> None:
    """Whatever the directory says: the values as written, or an error of the library; never others, or a crash."""
    whole = archive.read_bytes()
    begin = whole.index(b"PK\1\2")
    rng = np.random.default_rng(3)
    failed = 0
    for at in rng.choice(np.arange(begin, len(whole)), 80, replace=False).tolist():
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        archive.write_bytes(damaged)
        try:
            got = read(archive, ...)
        except (StoreError, ChunkError, KeyError):
            failed += 1
        else:  # with the fill value, where a name is not that of a chunk any more
            assert ((got == VALUES) | (got == -1)).all(), at
    assert failed > 5


@pytest.mark.parametrize("n", [0, 30])
def test_no_header_where_the_directory_says(archive: Path, zips: ModuleType, n: int) -> None:
    with zipfile.ZipFile(archive) as file:
        header = file.getinfo(MEMBER).header_offset
    content = bytearray(archive.read_bytes())
    content[header + n] ^= 1  # in its signature, or its name
    archive.write_bytes(content)
    fails(archive, ChunkDecodeError, "no member.*begins at" if n == 0 else "begins the member b'qlain/c/1/1'")


def test_a_header_of_somebody_else(archive: Path, zips: ModuleType) -> None:
    with zipfile.ZipFile(archive) as file:
        other = file.getinfo("plain/c/0/0").header_offset
    zips.change(archive, MEMBER, header=other)
    fails(archive, ChunkDecodeError, "begins the member b'plain/c/0/0'")


@pytest.mark.parametrize("fields", [{"header": 2**32 - 2}, {"stored": 2**31, "unpacked": 2**31}])
def test_outside_of_the_archive(archive: Path, zips: ModuleType, fields: dict[str, int]) -> None:
    zips.change(archive, MEMBER, **fields)
    fails(archive, ChunkDecodeError, "outside of the archive")


@pytest.mark.parametrize("neighbour", ["another", "plain/c/", "plain/c/1/2"])
def test_over_its_neighbour(archive: Path, zips: ModuleType, neighbour: str) -> None:
    """One byte more than there is, also before a directory, and before a member that another of its name replaced."""
    members = zips.files_of(archive.with_name("x.zarr"))
    first = (MEMBER, members.pop(MEMBER))
    with pytest.warns(UserWarning, match="Duplicate") if neighbour in members else nullcontext():
        zips.write(archive, [first, (neighbour, b""), *members.items()])
    zips.change(archive, MEMBER, stored=33, unpacked=33)
    fails(archive, ChunkDecodeError, "over what begins at")


def test_over_its_neighbour_by_what_is_extra(archive: Path) -> None:
    """A header that claims a longer extra field moves all of its bytes."""
    with zipfile.ZipFile(archive) as file:
        header = file.getinfo(MEMBER).header_offset
    content = bytearray(archive.read_bytes())
    content[header + 28] = 8
    archive.write_bytes(content)
    fails(archive, ChunkDecodeError, "over what begins at")


def test_two_sizes(archive: Path, zips: ModuleType) -> None:
    zips.change(archive, MEMBER, unpacked=31)
    fails(archive, ChunkSizeError, "expected 31 bytes, found 32")
    zips.change(archive, MEMBER, stored=31)
    fails(archive, ChunkSizeError, "expected 32 bytes, found 31; a chunk without codecs")


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"crc": 1}, ChunkDecodeError, "crc32"),
        ({"unpacked": 31}, ChunkDecodeError, "does not inflate to the 31 bytes"),
        ({"unpacked": 33}, ChunkDecodeError, "does not inflate to the 33 bytes"),
        ({"unpacked": 2**31}, ChunkSizeError, "found 2147483648"),
        ({"stored": 3}, ChunkDecodeError, "inflate"),
    ],
)
def test_deflated_and_damaged(
    deflated: Path, zips: ModuleType, fields: dict[str, int], kind: type[ChunkError], message: str
) -> None:
    zips.change(deflated, MEMBER, **fields)
    fails(deflated, kind, message)


def test_deflated_bytes_that_are_none(deflated: Path) -> None:
    with zipfile.ZipFile(deflated) as file:
        header = file.getinfo(MEMBER).header_offset
    content = bytearray(deflated.read_bytes())
    content[header + 30 + len(MEMBER)] = 0xFF
    deflated.write_bytes(content)
    fails(deflated, ChunkDecodeError, "cannot be inflated")


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"flags": 1}, "encrypted"), ({"method": 12}, "bzip2"), ({"method": 93}, "zstd"), ({"method": 77}, "method 77")],
)
@pytest.mark.parametrize("name", [MEMBER, "plain/zarr.json", "zarr.json"])
def test_what_is_not_read(archive: Path, zips: ModuleType, fields: dict[str, int], message: str, name: str) -> None:
    zips.change(archive, name, **fields)
    with pytest.raises(UnsupportedArrayError, match=rf"'{name}'.*{message}"):
        read(archive, ...)
    if name == MEMBER:
        assert np.array_equal(read(archive, 0), VALUES[0])


def test_bombs(tmp_path: Path, zips: ModuleType) -> None:
    """A chunk of 32 bytes that inflates to 70 MiB, whether its directory tells so or not."""
    zips.fill(tmp_path / "x.zarr", 3)
    members = zips.files_of(tmp_path / "x.zarr") | {MEMBER: bytes(70 << 20)}
    zips.write(tmp_path / "x.zip", members.items(), method=lambda _: zipfile.ZIP_DEFLATED)
    for message in ("far more than such a chunk", "does not inflate to the 32 bytes"):
        tracemalloc.start()
        try:
            fails(tmp_path / "x.zip", ChunkError, message)
            assert tracemalloc.get_traced_memory()[1] < 50 << 20
        finally:
            tracemalloc.stop()
        zips.change(tmp_path / "x.zip", MEMBER, unpacked=32)


def test_documents_that_are_bombs(tmp_path: Path, zips: ModuleType) -> None:
    zips.fill(tmp_path / "x.zarr", 3)
    members = zips.files_of(tmp_path / "x.zarr") | {"zarr.json": b" " * (70 << 20)}
    zips.write(tmp_path / "x.zip", members.items(), method=lambda _: zipfile.ZIP_DEFLATED)
    with pytest.raises(NotZarrError, match=r"zarr\.json.*has 73400320 bytes"):
        gpuload.open(tmp_path / "x.zip")
    with config.set({"references.limit": 1 << 20}), pytest.raises(ChunkSizeError, match=r"zarr\.json"):
        zarr.open_group(VirtualStore(tmp_path / "x.zip"), mode="r")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_document(tmp_path: Path, zips: ModuleType, method: int) -> None:
    zips.fill(tmp_path / "x.zarr", 3)
    members = zips.files_of(tmp_path / "x.zarr") | {"plain/zarr.json": b'{"zarr'}
    zips.write(tmp_path / "x.zip", members.items(), method=lambda _: method)
    with pytest.raises(NotZarrError, match=r"x\.zip.*'plain/zarr\.json' is not JSON"):
        read(tmp_path / "x.zip", ...)
    with zipfile.ZipFile(tmp_path / "x.zip") as file:
        header = file.getinfo("encoded/zarr.json").header_offset
    content = bytearray((tmp_path / "x.zip").read_bytes())
    content[header] ^= 1
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(ChunkDecodeError, match=r"encoded/zarr\.json.*no member"):
        gpuload.open(tmp_path / "x.zip")["encoded"]  # type: ignore[index]


async def test_more_than_deflated_bytes_can_become(deflated: Path, zips: ModuleType) -> None:
    zips.change(deflated, MEMBER, unpacked=2**31)
    with pytest.raises(ChunkSizeError, match=rf"{MEMBER}.*deflated bytes cannot become that many"):
        await VirtualStore(deflated).get(MEMBER)


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../b", "a//b", "a/./b"])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(".zgroup", '{"zarr_format": 2}')
        file.writestr(name, b"x")
    with pytest.raises(EscapesStoreError):
        gpuload.open(tmp_path / "a.zip")


def test_a_directory_beyond_the_limit(archive: Path) -> None:
    with config.set({"references.limit": 100}), pytest.raises(NotZarrError, match=r"references\.limit"):
        gpuload.open(archive)


def test_a_file_of_terabytes(tmp_path: Path) -> None:
    with open(tmp_path / "huge.zip", "wb") as file:
        file.write(b"PK\3\4")
        file.truncate(1 << 42)
    with pytest.raises(NotZarrError):
        gpuload.open(tmp_path / "huge.zip")


def test_no_file(tmp_path: Path) -> None:
    (tmp_path / "x.zip").mkdir()
    with pytest.raises(NotZarrError):
        gpuload.open(tmp_path / "x.zip")
    os.mkfifo(tmp_path / "fifo.zip")
    with pytest.raises(StoreError):
        gpuload.open(tmp_path / "fifo.zip")


def test_cut_while_it_is_open(archive: Path) -> None:
    array = gpuload.open(archive, device="cpu")["plain"]  # type: ignore[index]
    os.truncate(archive, 100)
    with pytest.raises(ChunkReadError, match=r"x\.zip"):
        array[...]  # type: ignore[index]
