"""Decoders give exactly what is asked for or raise, and never allocate for what does not fit."""

from __future__ import annotations

import lzma
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.zarr.codecs import ChainDecoder, Crc32c, Stage, stage_for

DATA = np.frombuffer(np.arange(4096, dtype="<u2").tobytes(), np.uint8)
CODECS = ["zstd", "blosc", "lz4", "zlib", "gzip", "bz2", "lzma", "shuffle", "crc32", "crc32c", "adler32", "fletcher32"]


def encode(codec_id: str, data: Any, **configuration: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytes(numcodecs.get_codec({"id": codec_id, **configuration}).encode(data)), np.uint8)


def stage(codec_id: str, **configuration: Any) -> Stage:
    found = stage_for(codec_id, configuration)
    assert found is not None
    return found


def decoded(stages: list[Stage], encoded: Any, size: int = len(DATA)) -> np.ndarray[Any, Any]:
    out = np.full(size + 16, 0xA5, np.uint8)  # what lies beside must stay
    ChainDecoder(stages, size).decode(encoded, out[8:-8])
    assert (out[:8] == 0xA5).all()
    assert (out[-8:] == 0xA5).all()
    return out[8:-8]


def unsized_frame(data: bytes) -> bytes:
    """A zstd frame of one raw block whose header does not state the size."""
    block = (len(data) << 3 | 1).to_bytes(3, "little")
    return (0xFD2FB528).to_bytes(4, "little") + bytes([0, 0x48]) + block + data


@pytest.mark.parametrize("codec", CODECS)
def test_exact(codec: str) -> None:
    encoded = encode(codec, DATA)
    assert np.array_equal(decoded([stage(codec)], encoded), DATA)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("change", [-1, 1, -len(DATA) + 1, len(DATA)])
def test_another_size_than_expected(codec: str, change: int) -> None:
    encoded = encode(codec, DATA)
    with pytest.raises(Exception, match=r"\d"):
        decoded([stage(codec)], encoded, len(DATA) + change)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "change",
    {
        "nothing": lambda e: e[:0],
        "one byte": lambda e: e[:1],
        "five bytes": lambda e: e[:5],
        "half": lambda e: e[: len(e) // 2],
        "one less": lambda e: e[:-1],
        "eight more": lambda e: np.concatenate((e, np.zeros(8, np.uint8))),
    }.items(),
    ids=lambda item: item[0],
)
def test_other_bytes_than_were_encoded(codec: str, change: tuple[str, Callable[[Any], Any]]) -> None:
    with pytest.raises(Exception):
        decoded([stage(codec)], change[1](encode(codec, DATA)))


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("size", [1, 255, 256, 300, 65791, 65792, 70000])
def test_zstd_sizes(size: int, checksum: bool) -> None:
    data = np.resize(DATA, size)
    assert np.array_equal(decoded([stage("zstd")], encode("zstd", data, checksum=checksum), size), data)


def test_zstd_frames() -> None:
    a, b = DATA[:100].tobytes(), DATA[100:300].tobytes()
    sized_a, sized_b = encode("zstd", a).tobytes(), encode("zstd", b).tobytes()
    skippable = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
    for frames in (
        unsized_frame(a + b),
        sized_a + sized_b,
        unsized_frame(a) + unsized_frame(b),
        unsized_frame(a) + sized_b,
        sized_a + unsized_frame(b),
        encode("zstd", a + b).tobytes() + skippable,
        skippable + encode("zstd", a + b).tobytes(),
    ):
        encoded = np.frombuffer(frames, np.uint8)
        assert decoded([stage("zstd")], encoded, 300).tobytes() == a + b
        for size in (1, 100, 299, 301, 1000):
            with pytest.raises((ValueError, RuntimeError)):
                decoded([stage("zstd")], encoded, size)


def test_members_one_after_the_other() -> None:
    for codec in ("gzip", "bz2", "lzma"):
        encoded = np.concatenate((encode(codec, DATA[:1000]), encode(codec, DATA[1000:])))
        assert np.array_equal(decoded([stage(codec)], encoded), DATA), codec


def test_lzma_formats() -> None:
    alone = np.frombuffer(lzma.compress(DATA.tobytes(), format=lzma.FORMAT_ALONE), np.uint8)
    assert np.array_equal(decoded([stage("lzma", format=lzma.FORMAT_ALONE)], alone), DATA)
    assert stage_for("lzma", {"format": lzma.FORMAT_RAW}) is None
    assert stage_for("quantize", {}) is None


def bomb(codec: str) -> np.ndarray[Any, Any]:
    """What unpacks to, or says it has, a thousand times the memory that its decoding may take."""
    if codec == "zstd claim":
        frame = (0xFD2FB528).to_bytes(4, "little") + bytes([0b11100000]) + (1 << 40).to_bytes(8, "little")
        return np.frombuffer(frame + b"\1\0\0", np.uint8)
    if codec == "lz4 claim":
        return np.frombuffer((2**31 - 1).to_bytes(4, "little") + bytes(20), np.uint8)
    return encode(codec, np.zeros(64 << 20, np.uint8))


@pytest.mark.parametrize("codec", ["zstd", "zstd claim", "gzip", "zlib", "bz2", "lzma", "blosc", "lz4 claim"])
def test_bombs_take_no_memory(codec: str) -> None:
    encoded = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, RuntimeError)):
            decoded([stage(codec.split(maxsplit=1)[0])], encoded, 64 << 10)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_chains() -> None:
    shuffled = encode("shuffle", DATA, elementsize=2)
    crc = Crc32c()

    def with_crc(data: Any) -> Any:
        import google_crc32c

        return np.frombuffer(bytes(data) + google_crc32c.value(bytes(data)).to_bytes(4, "little"), np.uint8)

    shuffle = stage("shuffle", elementsize=2)
    assert np.array_equal(decoded([stage("zstd"), shuffle], encode("zstd", shuffled)), DATA)
    assert np.array_equal(decoded([crc, stage("zstd"), shuffle], with_crc(encode("zstd", shuffled))), DATA)
    assert np.array_equal(decoded([stage("zstd"), crc], encode("zstd", with_crc(DATA))), DATA)
    assert np.array_equal(decoded([crc, crc], with_crc(with_crc(DATA))), DATA)
    with pytest.raises(ValueError, match="not known"):
        ChainDecoder([stage("zstd"), stage("gzip")], len(DATA))


def test_capacity() -> None:
    assert ChainDecoder([Crc32c()], 100).capacity == 104
    assert ChainDecoder([stage("zstd")], 100).capacity > 100


@pytest.mark.parametrize("position", [0, 100, -1])
def test_every_flipped_bit_of_a_checksummed_chunk_is_seen(position: int) -> None:
    for codec in ("crc32", "crc32c", "adler32", "fletcher32"):
        encoded = encode(codec, DATA).copy()
        encoded[position] ^= 0x10
        with pytest.raises((ValueError, RuntimeError)):
            decoded([stage(codec)], encoded)


@given(st.sampled_from(CODECS), st.binary(max_size=200), st.integers(1, 64))
def test_noise_is_refused_or_decodes_to_the_size(codec: str, noise: bytes, size: int) -> None:
    try:
        out = decoded(
            [stage(codec, **({"elementsize": 2} if codec == "shuffle" else {}))], np.frombuffer(noise, np.uint8), size
        )
    except Exception:  # noqa: BLE001 - refused, by whatever name
        return
    assert len(out) == size


def test_threads_share_a_decoder() -> None:
    for codec in CODECS:
        encoded = encode(codec, DATA)
        decoder = ChainDecoder([stage(codec)], len(DATA))

        def once(_: int, decoder: ChainDecoder = decoder, encoded: Any = encoded) -> bool:
            out = np.zeros(len(DATA), np.uint8)
            decoder.decode(encoded, out)
            return bool(np.array_equal(out, DATA))

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(once, range(32))), codec
