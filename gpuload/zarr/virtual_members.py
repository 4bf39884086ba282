"""`Members`: the members of one zip archive, each found by its own header when it is first asked for, and unpacked."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.errors import ChunkDecodeError, ChunkSizeError, UnsupportedArrayError
from gpuload.files.geometry import Identity
from gpuload.request import Int64

UNKNOWN = -1  # in place of where a member's bytes begin: nobody has asked yet
PLAIN, DEFLATED, SECRET = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, -1  # ways to store; SECRET: encrypted

_HEADER = struct.Struct("<4s22xHH")  # of a member: signature, and the lengths of its name and of what is extra
_SIGNATURE = b"PK\3\4"
_EXPANSION = 1032  # times, at most, that what is deflated grows
_SPARE = 64  # bytes more, for an empty stream's sake
_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz", 98: "ppmd"}


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Of n members of an archive, what its directory tells; and where their bytes are, as far as that is known.

    The directory tells where a member's own header is. How long that is, and so where the bytes begin, only the header
    itself tells: writers may put other extra fields there than in the directory. It is read when the member is first
    asked for, not when the archive is opened: that would be a read all over the file for each of what may be millions.

    Threads: safe, whoever looks finds the same. Fork: safe. Pickle: none, it is made anew with its store.

    Parameters
    ----------
    identity
        Of the archive that the directory was read of.
    directory
        With its slash, what all names begin with and keys leave out; "" for nothing.
    header
        int64 (n,): where each one's own header begins.
    room
        int64 (n,): where the next header, or the directory, begins.
    method
        int64 (n,): how it is stored: `PLAIN`, `DEFLATED`, `SECRET` or another number of the format.
    unpacked
        int64 (n,): bytes that it has when it is unpacked.
    checksum
        int64 (n,): CRC-32 of these.
    begin
        int64 (n,): where its bytes begin, or `UNKNOWN`: filled in by `find`.
    stored
        int64 (n,): bytes that it has in the archive.
    spelled
        Names as the members' own headers have them, where these differ from their keys.
    """

    identity: Identity
    directory: str
    header: Int64
    room: Int64
    method: Int64
    unpacked: Int64
    checksum: Int64
    begin: Int64
    stored: Int64
    spelled: Mapping[int, str]

    def is_packed(self, row: Int64 | slice) -> npt.NDArray[np.bool_]:
        """Whether each member has to be unpacked."""
        return np.asarray(self.method[row] != PLAIN, np.bool_)

    def is_unknown(self, row: Int64) -> npt.NDArray[np.bool_]:
        """Whether it has to be found out where each member begins."""
        return np.asarray(self.begin[row] == UNKNOWN, np.bool_)

    def find(self, fd: int, row: Int64, keys: Sequence[str]) -> None:
        """Fill in where the members of `row`, int64 (m,), begin, whose keys are `keys`.

        Raises
        ------
        ChunkDecodeError, ChunkSizeError
            One of them is not where the directory says, or lies over what follows it; names it.
        """
        unknown = np.flatnonzero(self.is_unknown(row)).tolist()
        rows, headers = row[unknown].tolist(), self.header[row[unknown]].tolist()
        if len(unknown) > 1:  # all are on their way before the first is waited for
            for header in headers:
                if header >= 0:
                    os.posix_fadvise(fd, header, _HEADER.size, os.POSIX_FADV_WILLNEED)
        for i, number, header in zip(unknown, rows, headers, strict=True):
            self.begin[number] = self._begin(fd, number, header, keys[i])

    def _begin(self, fd: int, number: int, header: int, key: str) -> int:
        room, stored = int(self.room[number]), int(self.stored[number])
        name = self.spelled.get(number, self.directory + key)
        if self.method[number] == PLAIN and stored != self.unpacked[number]:
            raise ChunkSizeError(
                key, int(self.unpacked[number]), stored, "the archive's directory has both as its size, uncompressed"
            )
        if header < 0 or header + _HEADER.size + stored > room:
            raise ChunkDecodeError(
                key,
                f"the archive's directory has its header at {header} and {stored} bytes of it: outside of the archive, "
                f"or over what begins at {room}",
            )
        found = os.pread(fd, _HEADER.size + 4 * len(name), header)
        if len(found) < _HEADER.size or not found.startswith(_SIGNATURE):
            raise ChunkDecodeError(key, f"no member of the archive begins at {header}, where its directory says")
        _, length, extra = _HEADER.unpack_from(found)
        there = found[_HEADER.size : _HEADER.size + length]
        if there not in (name.encode("utf-8", "replace"), name.encode("cp437", "replace")):
            raise ChunkDecodeError(
                key, f"at {header}, where the archive's directory says that it is, begins the member {there[:200]!r}"
            )
        begin: int = header + _HEADER.size + length + extra
        if begin + stored > room:
            raise ChunkDecodeError(key, f"its bytes {begin} to {begin + stored} lie over what begins at {room}")
        return begin

    def check(self, number: int, key: str, most: int | None = None) -> None:
        """Refuse to read a member that is not what it should be.

        Parameters
        ----------
        most
            Bytes that it may have when it is unpacked.

        Raises
        ------
        UnsupportedArrayError
            It is encrypted, or compressed in another way than deflate.
        ChunkSizeError
            It would be larger than that, or than what is stored can become.
        """
        method, stored, unpacked = int(self.method[number]), int(self.stored[number]), int(self.unpacked[number])
        if method == SECRET:
            raise UnsupportedArrayError(f"the member {key!r} of the archive is encrypted")
        if method not in (PLAIN, DEFLATED):
            name = _METHODS.get(method, f"method {method}")
            raise UnsupportedArrayError(
                f"the member {key!r} of the archive is compressed by {name}: gpuload reads members that are stored as "
                "they are, or deflated; make the archive anew without compression (zip -0 -r): chunks have codecs"
            )
        if most is not None and unpacked > most:
            raise ChunkSizeError(key, most, unpacked, "far more than such a chunk may take")
        if method == DEFLATED and unpacked > _EXPANSION * stored + _SPARE:
            raise ChunkSizeError(key, unpacked, stored, "deflated bytes cannot become that many")

    def unpack(self, number: int, key: str, data: Any) -> npt.NDArray[np.uint8]:
        """What is stored of a deflated member, inflated.

        Raises
        ------
        ChunkDecodeError
            It is damaged, or has another size or checksum than the archive's directory says.
        """
        size, checksum = int(self.unpacked[number]), int(self.checksum[number])
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            found = stream.decompress(memoryview(data), size + 1)
        except zlib.error as error:
            raise ChunkDecodeError(key, f"cannot be inflated: {error}") from error
        if len(found) != size or not stream.eof:
            raise ChunkDecodeError(key, f"does not inflate to the {size} bytes that the archive's directory says")
        if (computed := zlib.crc32(found)) != checksum:
            raise ChunkDecodeError(
                key, f"has crc32 {checksum:#010x} in the archive's directory, and inflates to one of {computed:#010x}"
            )
        return np.frombuffer(found, np.uint8)
