"""Arrays that zarr-python writes here, of every kind: each equals zarr-python's own read, bit for bit."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

import gpuload
from gpuload import events
from gpuload.request import Filled, Served
from gpuload.zarr import Array
from gpuload.zarr.layout import Road

# Random bits are compared by zarr-python when it writes them; signalling NaN are among them.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")

RNG = np.random.default_rng(7)
Same = Callable[[Any, Any], bool]
HAS_RECTILINEAR = hasattr(zarr.core.metadata.v3, "RectilinearChunkGridMetadata")
SHAPE, CHUNKS = (7, 9, 5), (3, 4, 2)


def values(dtype: str, shape: tuple[int, ...] = SHAPE) -> Any:
    """Random bits: NaN payloads, infinities and denormal numbers are among them."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return RNG.integers(0, 2, shape).astype(bool)
    if kind.kind == "U":
        return RNG.choice(np.array(["", "a", "änder", "longer than it"]), shape).astype(kind)
    size = int(np.prod(shape, dtype=int))
    return np.frombuffer(RNG.bytes(size * kind.itemsize), kind).reshape(shape)


def check(path: Path, same: Same, *more: Any) -> Array:
    """Whole, and some selections, against zarr-python."""
    right = zarr.open_array(str(path), mode="r")[...]
    array = gpuload.open(str(path), device="cpu")
    assert isinstance(array, Array)
    assert same(array[...], right)
    last = (slice(None, None, -2),) * min(1, array.ndim) + (...,)
    for selection in (last, (..., None), *more):
        assert same(array[selection], np.asarray(right[selection], array.dtype))
    return array


DTYPES = ["b1", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "m8[ns]", "S5", "U9"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("order", "endian"), list(itertools.product("CF", "<>")))
def test_v2(tmp_path: Path, same: Same, dtype: str, order: str, endian: str) -> None:
    written = values(np.dtype(dtype).newbyteorder(endian).str)
    for name, options in {"raw": {"compressors": None}, "zstd": {}}.items():
        array = zarr.create_array(
            str(tmp_path / name),
            shape=SHAPE,
            chunks=CHUNKS,
            dtype=written.dtype,
            order=order,
            zarr_format=2,
            **options,
        )
        array[...] = written
        read = check(tmp_path / name, same, (slice(2, 6), 3))
        assert read.layout.road is (Road.RAW if name == "raw" else Road.ENCODED)
        assert same(read[...], written)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("endian", ["little", "big"])
def test_v3(tmp_path: Path, same: Same, dtype: str, endian: str) -> None:
    written = values(dtype)
    kinds: dict[str, dict[str, Any]] = {
        "raw": {"compressors": None},
        "encoded shards": {"shards": (6, 8, 4)},
    }
    if dtype in ("f4", "c8"):
        kinds |= {
            "zstd": {},
            "shards": {"compressors": None, "shards": (6, 8, 4)},
            "transposed": {"compressors": None, "filters": [TransposeCodec(order=(2, 0, 1))]},
            "transposed shards": {"shards": (6, 8, 4), "filters": [TransposeCodec(order=(1, 2, 0))]},
        }
    for name, options in kinds.items():
        array = zarr.create_array(
            str(tmp_path / name),
            shape=SHAPE,
            chunks=CHUNKS,
            dtype=written.dtype,
            serializer=BytesCodec(endian=endian),
            **options,
        )
        array[...] = written
        read = check(tmp_path / name, same, (slice(2, 6), 3), (slice(None), slice(8, 0, -3)))
        assert read.layout.road is not Road.FOREIGN
        assert same(read[...], written)


COMPRESSORS: dict[str, Any] = {
    "zstd": ZstdCodec(level=3),
    "zstd checksum": ZstdCodec(level=1, checksum=True),
    "gzip": GzipCodec(level=1),
    "crc32c": Crc32cCodec(),
    "zstd crc32c": [ZstdCodec(), Crc32cCodec()],
    "crc32c zstd crc32c": [Crc32cCodec(), ZstdCodec(), Crc32cCodec()],
    **{
        f"blosc {cname} {shuffle}": BloscCodec(cname=cname, shuffle=shuffle)
        for cname, shuffle in itertools.product(
            ["lz4", "lz4hc", "zstd", "zlib", "blosclz"], ["noshuffle", "shuffle", "bitshuffle"]
        )
    },
}
ZARR_NUMCODECS = ["LZ4", "Zlib", "BZ2", "LZMA", "Blosc", "Zstd", "GZip", "CRC32", "Adler32", "CRC32C", "Fletcher32"]


@pytest.mark.parametrize("name", [*COMPRESSORS, *ZARR_NUMCODECS, "Shuffle", "Shuffle Zstd"])
def test_v3_codecs(tmp_path: Path, same: Same, name: str) -> None:
    from zarr.codecs import numcodecs as wrapped

    if name == "Shuffle":
        codecs: Any = [wrapped.Shuffle(elementsize=4)]
    elif name == "Shuffle Zstd":
        codecs = [wrapped.Shuffle(elementsize=4), ZstdCodec()]
    elif name in ZARR_NUMCODECS:
        codecs = [getattr(wrapped, name)()]
    else:
        codecs = COMPRESSORS[name]
    written = np.arange(315, dtype="f4").reshape(SHAPE)
    for kind, options in {"plain": {}, "shards": {"shards": (6, 8, 4)}}.items():
        array = zarr.create_array(
            str(tmp_path / kind), shape=SHAPE, chunks=CHUNKS, dtype="f4", compressors=codecs, **options
        )
        array[...] = written
        assert check(tmp_path / kind, same).layout.road is Road.ENCODED


@pytest.mark.parametrize("codec", ["zstd", "blosc", "lz4", "zlib", "gzip", "bz2", "lzma", "shuffle", "crc32"])
def test_v2_codecs(tmp_path: Path, same: Same, codec: str) -> None:
    array = zarr.create_array(
        str(tmp_path / "a"),
        shape=SHAPE,
        chunks=CHUNKS,
        dtype="i4",
        zarr_format=2,
        compressors=numcodecs.get_codec({"id": codec}),
    )
    array[...] = np.arange(315, dtype="i4").reshape(SHAPE)
    assert check(tmp_path / "a", same).layout.road is Road.ENCODED


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("f4", np.nan),
        ("f4", -0.0),
        ("f8", np.inf),
        ("f8", -np.inf),
        ("i2", -7),
        ("u8", 2**64 - 1),
        ("c8", 1 - 2j),
        ("b1", True),
        ("M8[D]", np.datetime64("NaT", "D")),
        ("S3", b"ab"),
        ("U3", "äb"),
    ],
)
def test_what_was_never_written_is_the_fill_value(
    tmp_path: Path, same: Same, zarr_format: int, dtype: str, fill: Any
) -> None:
    for name, options in {"plain": {}, **({"shards": {"shards": (6, 8, 4)}} if zarr_format == 3 else {})}.items():
        array = zarr.create_array(
            str(tmp_path / name),
            shape=SHAPE,
            chunks=CHUNKS,
            dtype=dtype,
            fill_value=fill,
            zarr_format=zarr_format,
            **options,
        )
        array[4:6, 5:8, 1] = values(dtype, (2, 3))
        check(tmp_path / name, same)


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC01234, 0xFFC00001, 0x7F800001])
def test_nan_payload_as_fill_value(tmp_path: Path, same: Same, bits: int) -> None:
    array = zarr.create_array(str(tmp_path / "a"), shape=(4,), chunks=(2,), dtype="f4", fill_value=1.0)
    document = tmp_path / "a" / "zarr.json"
    document.write_text(document.read_text().replace('"fill_value": 1.0', f'"fill_value": "{bits:#010x}"'))
    check(tmp_path / "a", same)
    assert array.shape == (4,)


def test_v2_null_fill_value(tmp_path: Path, same: Same) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(5,), chunks=(2,), dtype=">i4", fill_value=None, zarr_format=2)
    document = tmp_path / "a" / ".zarray"
    document.write_text(document.read_text().replace('"fill_value": 0', '"fill_value": null'))
    assert '"fill_value": null' in document.read_text()
    check(tmp_path / "a", same)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["<f8", "U3", str])
def test_scalars_and_nothing(tmp_path: Path, same: Same, zarr_format: int, dtype: Any) -> None:
    for shape in ((), (0,), (3, 0, 2)):
        array = zarr.create_array(
            str(tmp_path / f"{len(shape)}"),
            shape=shape,
            chunks=tuple(max(1, size) for size in shape),
            dtype=dtype,
            zarr_format=zarr_format,
        )
        if not shape:
            array[...] = 5 if dtype == "<f8" else "x"
        read = gpuload.open(tmp_path / f"{len(shape)}", device="cpu")
        right = np.asarray(array[...], array.dtype)
        assert isinstance(read, Array)
        assert same(read[...], right)
        assert same(read[..., None], right[..., None])
    scalar = gpuload.open(tmp_path / "0", device="cpu")
    assert scalar[()].shape == ()  # type: ignore[index]


def test_a_sharded_scalar(tmp_path: Path, same: Same) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(), chunks=(), shards=(), dtype="<i4", compressors=None)
    # Not every zarr-python can write one: the chunk, its offset and size, and the checksum of these.
    index = np.array([0, 4], "<u8").tobytes()
    (tmp_path / "a" / "c").write_bytes(
        np.array(3, "<i4").tobytes() + index + google_crc32c.value(index).to_bytes(4, "little")
    )
    assert check(tmp_path / "a", same)[()] == 3


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("index_codecs", [[BytesCodec()], [BytesCodec(endian="big"), Crc32cCodec()]])
@pytest.mark.parametrize("codecs", [[BytesCodec()], [BytesCodec(), ZstdCodec()]])
def test_shard_indexes(tmp_path: Path, same: Same, location: str, index_codecs: Any, codecs: Any) -> None:
    sharding = ShardingCodec(chunk_shape=(2, 2), codecs=codecs, index_codecs=index_codecs, index_location=location)
    array = zarr.create(
        store=str(tmp_path / "a"), shape=(9, 8), chunks=(8, 8), dtype="i4", fill_value=-1, codecs=[sharding]
    )
    array[0:2, 0:2] = 1
    array[6:8, 4:6] = 2
    array[8, :] = 3
    read = check(tmp_path / "a", same, (slice(5, None), slice(5, None)), (7, 5), (slice(None, None, -3), 4))
    assert read.layout.index is not None
    assert read.chunks == (2, 2)
    assert read.shards == (8, 8)


def test_two_inner_chunks_written_of_sixteen(tmp_path: Path) -> None:
    array = zarr.create_array(
        str(tmp_path / "a"), shape=(8, 8), chunks=(2, 2), shards=(8, 8), dtype="i4", fill_value=-1, compressors=None
    )
    array[0:2, 0:2] = 1
    array[6:8, 6:8] = 2
    read = gpuload.open(tmp_path / "a", device="cpu")
    expected = np.full((3, 3), -1, "i4")
    expected[1:, 1:] = 2
    assert np.array_equal(read[5:, 5:], expected)  # type: ignore[index]


def foreign_arrays(path: Path) -> dict[str, Any]:
    """Arrays that only zarr-python's own pipeline decodes."""
    from zarr.codecs import numcodecs as wrapped

    text = np.array(["", "a", "ä long one", "b"] * 7 + ["c", "d"], dtype=object).reshape(6, 5)
    numbers = np.arange(30, dtype="i4").reshape(6, 5)
    structured = np.zeros((6, 5), [("flux", "<f4"), ("mask", "<i2")])
    structured["flux"], structured["mask"] = numbers, -numbers
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "string": (text, {"dtype": str}),
        "string v2": (text, {"dtype": str, "zarr_format": 2}),
        "base64 of structures v2": (structured, {"zarr_format": 2, "filters": [numcodecs.Base64()]}),
        "delta": (numbers, {"filters": [wrapped.Delta(dtype="<i4")]}),
        "delta v2": (numbers, {"zarr_format": 2, "filters": [numcodecs.Delta(dtype="<i4")]}),
        "scale": (
            numbers.astype("f8"),
            {"filters": [wrapped.FixedScaleOffset(offset=1, scale=2, dtype="<f8", astype="<i4")]},
        ),
        "two compressors": (numbers, {"compressors": [ZstdCodec(), GzipCodec()]}),
        "nested shards": (
            numbers,
            {
                "serializer": ShardingCodec(
                    chunk_shape=(2, 2), codecs=[ShardingCodec(chunk_shape=(1, 2), codecs=[BytesCodec(), ZstdCodec()])]
                ),
                "chunks": (4, 4),
                "compressors": None,
            },
        ),
        "compressed shards": (
            numbers,
            {
                "serializer": ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec()]),
                "chunks": (4, 4),
                "compressors": [ZstdCodec()],
            },
        ),
    }
    written = {}
    for name, (data, options) in kinds.items():
        settings_ = {"chunks": (4, 2), "dtype": data.dtype, "shape": data.shape, **options}
        array = zarr.create_array(str(path / name), **settings_)
        array[:5] = data[:5]  # a row of chunks with and one without its end
        written[name] = array
    return written


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_only_zarr_decodes(tmp_path: Path, same: Same) -> None:
    for name, array in foreign_arrays(tmp_path).items():
        read = gpuload.open(tmp_path / name, device="cpu")
        assert isinstance(read, Array)
        assert read.layout.road is Road.FOREIGN, name
        right = np.asarray(array[...], array.dtype)
        for selection in (..., slice(None, None, -2), (slice(4, 0, -3), ...), 3, (..., None, slice(1, 1))):
            assert same(read[selection], np.asarray(right[selection], read.dtype)), (name, selection)
        out = np.empty(right.shape, right.dtype)
        assert read.read(out=out) is out
        assert same(out, right), name


@pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr-python has no rectilinear chunk grids")
@pytest.mark.parametrize("dtype", ["<i4", str])
def test_rectilinear_chunks(tmp_path: Path, same: Same, dtype: Any) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(
            str(tmp_path / "a"),
            shape=(9, 7),
            chunks=[[2, 4, 3], [1, 6]],
            dtype=dtype,
            fill_value="-" if dtype is str else -1,
        )
        array[:6] = np.arange(42).reshape(6, 7).astype(array.dtype)
        read = check(tmp_path / "a", same, (slice(1, 8, 3), slice(None, None, -1)), (5, 6), (slice(8, 1, -2), 0))
        assert read.chunks is None
        assert "chunks=None" in repr(read)


def test_missing_chunks_are_not_read(tmp_path: Path) -> None:
    array = zarr.create_array(str(tmp_path / "a"), shape=(8, 4), chunks=(2, 4), dtype="i4", fill_value=9)
    array[2:4] = 1
    seen: list[events.Event] = []
    unsubscribe = events.subscribe(seen.append)
    try:
        read = gpuload.open(tmp_path / "a", device="cpu")
        seen.clear()
        assert read[...].sum() == 8 + 24 * 9  # type: ignore[index]
    finally:
        unsubscribe()
    assert [event.keys[i] for event in seen if isinstance(event, Served) for i in event.key_index] == ["c/1/0"]
    filled = [event for event in seen if isinstance(event, Filled)]
    assert sum(event.chunks for event in filled) == 3
    assert sum(event.bytes for event in filled) == 3 * 32


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=ndim, max_size=ndim)))
    chunks = tuple(draw(st.lists(st.integers(1, 5), min_size=ndim, max_size=ndim)))
    options: dict[str, Any] = {
        "shape": shape,
        "chunks": chunks,
        "dtype": draw(st.sampled_from(["u1", "<i2", "<f4", "<f8", "<c16", "<M8[s]", "<U2"])),
        "zarr_format": draw(st.sampled_from([2, 3])),
        "compressors": draw(st.sampled_from([None, "auto"])),
    }
    if options["zarr_format"] == 3:
        if draw(st.booleans()):
            options["shards"] = tuple(chunk * draw(st.integers(1, 3)) for chunk in chunks)
        if draw(st.booleans()):
            options["filters"] = [TransposeCodec(order=draw(st.permutations(range(ndim))))]
        options["serializer"] = BytesCodec(endian=draw(st.sampled_from(["little", "big"])))
    else:
        options["order"] = draw(st.sampled_from("CF"))
        options["dtype"] = options["dtype"].replace("<", draw(st.sampled_from("<>")))
    return options


@settings(max_examples=max(60, settings().max_examples // 2))
@given(data=st.data(), options=arrays())
def test_any_array(data: st.DataObject, options: dict[str, Any], same: Same, selections: Any) -> None:

    with tempfile.TemporaryDirectory() as folder:
        array = zarr.create_array(f"{folder}/a", **options)
        shape = options["shape"]
        part = tuple(slice(0, data.draw(st.integers(0, size))) for size in shape)
        array[part] = values(options["dtype"], tuple(index.stop for index in part))
        right = np.asarray(array[...], array.dtype)
        read = gpuload.open(f"{folder}/a", device="cpu")
        for _ in range(4):
            selection = data.draw(selections(shape))
            with gpuload.config.set({"direct.host": data.draw(st.sampled_from(["always", "never"]))}):
                assert same(read[selection], np.asarray(right[selection], right.dtype))  # type: ignore[index]


def test_a_chunk_of_just_the_expected_size_is_read_once(tmp_path: Path) -> None:
    data = np.arange(64, dtype="<i4").reshape(8, 8)
    zarr.create_array(tmp_path / "a", data=data, chunks=(4, 4), compressors=zarr.codecs.Crc32cCodec())
    array = gpuload.open(tmp_path / "a", device="cpu")
    with gpuload.trace() as trace:
        assert np.array_equal(array[...], data)
    served = trace.summary().to_dict()
    assert (served["requests"], served["moved"]) == (4, 4 * (64 + 4))
