"""Codecs that decode on the host, from bytes to bytes, into memory that is already there.

A stage gives exactly the bytes it is asked for or raises, and never allocates more than that: what a chunk decodes
to is known from the metadata, so neither a truncated chunk nor one that claims or unpacks to terabytes gets through.
Stages keep no state between calls. Threads: safe. Fork: safe. Pickle: none, they are rebuilt from an array's metadata.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpuload.zarr import _compat

Bytes = npt.NDArray[np.uint8]

_ZSTD_MAGIC = 0xFD2FB528
_UNSTATED = -1


class Stage(Protocol):
    """One codec of a chain."""

    def encoded_size(self, size: int) -> int | None:
        """Encoded bytes of `size` decoded ones; None where the data decide."""

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        """Fill `out` exactly, from all of `encoded`."""


class ChainDecoder:
    """Decodes one chunk through all its stages.

    Parameters
    ----------
    stages
        In the order of decoding: the codec that was applied last comes first.
    decoded_size
        Bytes of a decoded chunk.

    Raises
    ------
    ValueError
        A chain whose intermediate sizes are not known beforehand.
    """

    def __init__(self, stages: Sequence[Stage], decoded_size: int) -> None:
        self.stages = tuple(stages)
        self.decoded_size = decoded_size
        sizes: list[int | None] = [decoded_size]
        for stage in reversed(self.stages):
            known = sizes[0]
            sizes.insert(0, None if known is None else stage.encoded_size(known))
        #: What each stage gives; None: a checksum, which gives what it gets less its own bytes.
        self._sizes = sizes[1:]
        for stage, size in zip(self.stages, self._sizes, strict=True):
            if size is None and not isinstance(stage, Checksum):
                raise ValueError(f"{stage} decodes to a size that is not known beforehand")
        exact = sizes[0]
        self.capacity = decoded_size + decoded_size // 16 + 4096 if exact is None else exact

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        """Decode one chunk: `encoded` holds all its bytes, `out` is uint8 (decoded_size,). Thread-safe."""
        data = encoded
        last = len(self.stages) - 1
        for i, (stage, size) in enumerate(zip(self.stages, self._sizes, strict=True)):
            if size is None:
                assert isinstance(stage, Checksum)
                data = stage.verify(data)
                continue
            target = out if i == last else np.empty(size, np.uint8)
            stage.decode(data, target)
            data = target


def stage_for(codec_id: str, configuration: Mapping[str, Any]) -> Stage | None:
    """The stage of a numcodecs codec (without its ``numcodecs.`` prefix in v3); None: none here."""
    if codec_id in ("zstd", "blosc", "lz4", "shuffle"):
        kinds: dict[str, Callable[[Any], Stage]] = {"zstd": Zstd, "blosc": Blosc, "lz4": Lz4, "shuffle": Shuffle}
        return kinds[codec_id](_compat.numcodec(codec_id, configuration))
    if codec_id == "gzip":
        return Members("gzip", lambda: zlib.decompressobj(16 + zlib.MAX_WBITS))
    if codec_id == "zlib":
        return Members("zlib", zlib.decompressobj, single=True)
    if codec_id == "bz2":
        return Members("bz2", bz2.BZ2Decompressor)
    if codec_id == "lzma":
        form, filters = configuration.get("format", lzma.FORMAT_XZ), configuration.get("filters")
        if form == lzma.FORMAT_RAW:  # has no end mark: where it ends is a guess
            return None
        return Members("lzma", lambda: lzma.LZMADecompressor(format=form, filters=filters))
    if codec_id in ("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"):
        return Checksum(_compat.numcodec(codec_id, configuration))
    return None


@dataclass(frozen=True)
class Zstd:
    """zstd frames: one or several, with or without their size in the header."""

    codec: Any

    def encoded_size(self, size: int) -> int | None:
        return None

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        stated = _zstd_content_size(encoded)
        if stated is not None and stated > len(out):
            raise ValueError(f"a zstd frame states {stated} bytes where a chunk has {len(out)}")
        # Into `out` the library never writes more than fits, and refuses more. Less it refuses only where the frames
        # do not state their size.
        self.codec.decode(encoded, out)
        if stated not in (len(out), _UNSTATED):
            got = len(self.codec.decode(encoded))
            if got != len(out):
                raise ValueError(f"decodes to {got} bytes where a chunk has {len(out)}")


def _zstd_content_size(encoded: Bytes) -> int | None:
    """Content size in the header of the first frame (RFC 8878, 3.1.1.1): -1 if it states none, None if it is odd."""
    head = encoded[:18].tobytes()
    if len(head) < 6 or int.from_bytes(head[:4], "little") != _ZSTD_MAGIC:
        return None
    descriptor = head[4]
    flag, single_segment, dictionary = descriptor >> 6, descriptor >> 5 & 1, descriptor & 3
    width = (single_segment, 2, 4, 8)[flag]
    if width == 0:
        return _UNSTATED
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[dictionary]
    size = int.from_bytes(head[start : start + width], "little")
    return size + 256 if width == 2 else size


@dataclass(frozen=True)
class Blosc:
    """One blosc buffer. Its own library believes the header, also beyond the end of the buffer: checked here."""

    codec: Any

    def encoded_size(self, size: int) -> int | None:
        return None

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        if len(encoded) < 16:
            raise ValueError(f"{len(encoded)} bytes are too few for a blosc buffer")
        stated, _, compressed = np.frombuffer(encoded[4:16].tobytes(), "<u4").tolist()
        if compressed != len(encoded):
            raise ValueError(f"a blosc buffer states {compressed} bytes, there are {len(encoded)}")
        if stated != len(out):
            raise ValueError(f"a blosc buffer states {stated} decoded bytes where a chunk has {len(out)}")
        if len(out):
            self.codec.decode(encoded, out)


@dataclass(frozen=True)
class Lz4:
    """An LZ4 block behind its decoded size, as numcodecs writes it."""

    codec: Any

    def encoded_size(self, size: int) -> int | None:
        return None

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        stated = int.from_bytes(encoded[:4].tobytes(), "little")
        if len(encoded) < 5 or stated != len(out):
            raise ValueError(f"an LZ4 block of {len(encoded)} bytes states {stated} where a chunk has {len(out)}")
        self.codec.decode(encoded, out)


class _Decompressor(Protocol):
    eof: bool
    unused_data: bytes

    def decompress(self, data: Any, max_length: int, /) -> bytes: ...


@dataclass(frozen=True)
class Members:
    """Streams of the standard library's decompressors, one after the other unless `single`."""

    name: str
    make: Callable[[], Any]
    single: bool = False

    def encoded_size(self, size: int) -> int | None:
        return None

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        data: Any = encoded
        done = 0
        while True:
            decompressor: _Decompressor = self.make()
            part = decompressor.decompress(data, len(out) - done + 1)  # one byte more shows what is too long
            if done + len(part) > len(out):
                raise ValueError(f"decodes to more than the {len(out)} bytes of a chunk")
            out[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
            if not decompressor.eof:
                raise ValueError(f"a {self.name} stream of {len(encoded)} bytes is cut off after {done} decoded ones")
            data = decompressor.unused_data
            if not data:
                break
            if self.single:
                raise ValueError(f"{len(data)} bytes follow the {self.name} stream")
        if done != len(out):
            raise ValueError(f"decodes to {done} bytes where a chunk has {len(out)}")


@dataclass(frozen=True)
class Shuffle:
    """Bytes of equal significance put together."""

    codec: Any

    def encoded_size(self, size: int) -> int | None:
        return size

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        if len(encoded) != len(out):
            raise ValueError(f"{len(encoded)} shuffled bytes where a chunk has {len(out)}")
        self.codec.decode(encoded, out)


class Checksum:
    """A checksum beside the bytes it is of; the codec verifies it."""

    def __init__(self, codec: Any) -> None:
        self.codec = codec

    def __repr__(self) -> str:
        return f"Checksum({self.codec!r})"

    def encoded_size(self, size: int) -> int | None:
        return size + 4

    def verify(self, encoded: Bytes) -> Bytes:
        """The bytes without their checksum, not copied where that can be."""
        if len(encoded) < 4:
            raise ValueError(f"{len(encoded)} bytes are too few to hold a checksum")
        return np.frombuffer(self.codec.decode(encoded), np.uint8)

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        if len(encoded) != len(out) + 4:
            raise ValueError(f"expected {len(out) + 4} bytes with their checksum, found {len(encoded)}")
        out[:] = self.verify(encoded)


class Crc32c(Checksum):
    """CRC-32C behind the bytes, little-endian: the checksum of the zarr v3 specification."""

    def __init__(self) -> None:
        super().__init__("crc32c")

    def verify(self, encoded: Bytes) -> Bytes:
        if len(encoded) < 4:
            raise ValueError(f"{len(encoded)} bytes are too few to hold a checksum")
        payload = encoded[:-4]
        stored = int.from_bytes(encoded[-4:].tobytes(), "little")
        computed = _compat.crc32c(payload)
        if stored != computed:
            raise ValueError(f"the stored crc32c {stored:#010x} is not the computed {computed:#010x}")
        return payload
