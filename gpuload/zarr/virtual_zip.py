"""The directory of a zip archive, as references to the ranges of it that its members are."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from typing import Any

import numpy as np

from gpuload.errors import NotZarrError
from gpuload.files.geometry import Identity
from gpuload.request import Int64
from gpuload.zarr.keys import DOCUMENTS
from gpuload.zarr.virtual_members import SECRET, UNKNOWN, Members
from gpuload.zarr.virtual_refs import References, check_keys

_ENCRYPTED, _PATCHED = 1 << 0, 1 << 5
_LARGEST = 2**62  # what is larger is outside of any file all the same, and two of them still add up


def directory_of(file: io.BufferedReader, path: str, limit: int) -> References:
    """The members of an archive; without the directory that holds them all, where there is just that one.

    Of several with the same name the last counts, as it does for zarr-python's ZipStore. Members themselves are not
    looked at yet: what is wrong with one is an error when it is read, and keeps no other from being read.

    Parameters
    ----------
    limit
        Bytes that the directory of the archive may have.

    Raises
    ------
    NotZarrError
        It is no archive, is cut short, or its directory is too large or damaged.
    EscapesStoreError
        A name with ``..``, or an absolute one.
    """
    status = os.fstat(file.fileno())
    try:
        with zipfile.ZipFile(_Bounded(file, status.st_size, limit)) as archive:
            infos, end = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, struct.error, OSError, ValueError, OverflowError) as error:
        raise NotZarrError(
            f"cannot be read as a zip archive: {error}; its directory is at its end, so it may be cut short, or still "
            "being written"
        ) from error
    return _references(infos, min(end, status.st_size), path, Identity.of(status))


def _references(infos: list[zipfile.ZipInfo], end: int, path: str, identity: Identity) -> References:
    last = {info.filename: info for info in infos if not info.is_dir()}
    names = list(last)
    check_keys(names)
    directory = _common(names)
    header = _column(info.header_offset for info in last.values())
    # Of directories and of members that another one of their name replaced there are bytes, too.
    every = np.unique(np.append(_column(info.header_offset for info in infos), end))
    following = np.minimum(np.searchsorted(every, header, side="right"), len(every) - 1)
    n = len(names)
    begin, stored = np.full(n, UNKNOWN, np.int64), _column(info.compress_size for info in last.values())
    members = Members(
        identity=identity,
        directory=directory,
        header=header,
        room=np.minimum(every[following], end),
        method=_column(_method(info) for info in last.values()),
        unpacked=_column(info.file_size for info in last.values()),
        checksum=_column(info.CRC for info in last.values()),
        begin=begin,
        stored=stored,
        spelled={i: each.orig_filename for i, each in enumerate(last.values()) if each.orig_filename != each.filename},
    )
    return References(
        rows={name[len(directory) :]: number for number, name in enumerate(names)},
        file=np.zeros(n, np.int64),
        offset=begin,
        size=stored,
        paths=(path,),
        inline=b"",
        members=members,
    )


def _method(info: zipfile.ZipInfo) -> int:
    return SECRET if info.flag_bits & (_ENCRYPTED | _PATCHED) else info.compress_type


def _column(values: Any) -> Int64:
    return np.array([min(value, _LARGEST) for value in values], np.int64)


def _common(names: list[str]) -> str:
    """The directory which all of `names` are in, with its slash, if no node is above it; else nothing."""
    head = names[0].partition("/")[0] + "/" if names else ""
    return "" if any(name in DOCUMENTS or not name.startswith(head) for name in names) else head


class _Bounded(io.RawIOBase):
    """A file whose reader cannot ask for more than `limit` bytes at once: an archive's directory is read in one go."""

    def __init__(self, file: io.BufferedReader, size: int, limit: int) -> None:
        self._file, self._size, self._limit = file, size, limit

    def read(self, size: int | None = -1, /) -> Any:
        rest = max(0, self._size - self._file.tell())
        wanted = rest if size is None or size < 0 else min(size, rest)
        if wanted > self._limit:
            raise zipfile.BadZipFile(f"its directory has more than {self._limit} bytes (references.limit)")
        return self._file.read(wanted)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True
