"""Zip archives for tests: of any writer's habits, and damaged on purpose."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

VALUES = np.arange(7 * 11, dtype="f4").reshape(7, 11)


def fill(store: Any, zarr_format: int) -> None:
    """A group of arrays with and without codecs, in a group of it, and sharded where there are shards."""
    group = zarr.create_group(store, zarr_format=zarr_format, attributes={"title": "zipped"})  # type: ignore[arg-type]
    group.create_array("plain", data=VALUES, chunks=(2, 4), compressors=None, fill_value=-1)
    group.create_array("encoded", data=VALUES, chunks=(2, 4))
    group.create_group("deep").create_array("scalar", data=np.array(5, "i8"), compressors=None)
    if zarr_format == 3:
        group.create_array("sharded", data=VALUES, chunks=(1, 2), shards=(4, 4), compressors=None)


def files_of(directory: Path) -> dict[str, bytes]:
    """What is in a directory, by key."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


class Stream(io.RawIOBase):
    """A pipe's end: who writes an archive to it cannot go back to a header, and puts the sizes behind each member."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed in `close`

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def write(
    path: Path,
    members: Iterable[tuple[str, bytes]],
    *,
    method: Callable[[str], int] = lambda _: zipfile.ZIP_STORED,
    local_extra: Callable[[str], bytes] = lambda _: b"",
    streamed: bool = False,
    zip64: bool = False,
) -> None:
    """An archive of `members`; `local_extra` is in their own headers only, and the directory has another one."""
    with Stream(path) if streamed else open(path, "wb") as file, zipfile.ZipFile(file, "w") as archive:  # type: ignore[arg-type]
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = method(name)
            info.extra = local_extra(name)
            with archive.open(info, "w", force_zip64=zip64) as member:
                member.write(data)
            info.extra = b"\x77\x77\x01\x00-"


def change(path: Path, name: str, **fields: int) -> None:
    """Write other values for `fields` into the directory's entry of a member: what damage, or malice, does."""
    content = bytearray(path.read_bytes())
    places = {"flags": (8, "<H"), "method": (10, "<H"), "crc": (16, "<I"), "stored": (20, "<I"), "unpacked": (24, "<I"),
              "header": (42, "<I")}  # fmt: skip
    at = -1
    while (at := content.index(b"PK\1\2", at + 1)) >= 0:
        length = struct.unpack_from("<H", content, at + 28)[0]
        if content[at + 46 : at + 46 + length] == name.encode():
            break
    for field, value in fields.items():
        offset, form = places[field]
        struct.pack_into(form, content, at + offset, value)
    path.write_bytes(content)
