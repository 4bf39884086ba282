"""Any array, any selection: what gpuload reads, by both backends into poisoned memory, equals zarr-python bit for bit.

A case is a selection of an array; every example of hypothesis makes one array and ten selections of it. So the profile
``deep`` (``make test-deep``) has 20 000 cases, and ``--hypothesis-seed=N`` repeats them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, note, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as wrapped

import gpuload
from gpuload import config
from gpuload.backends import registry
from gpuload.zarr import Array

EXAMPLES = settings().max_examples if settings().max_examples > 100 else 33
pytestmark = [
    pytest.mark.timeout(600 if EXAMPLES == 33 else 4 * 3600),  # a whole array an example: long on a loaded machine
    # Random bits are compared by zarr-python when it writes them; signalling NaN are among them.
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
BACKENDS = [entry.name for entry in registry.ENTRIES if registry.available(entry.name).reason is None]
SELECTIONS = 10
IS_OLD = zarr.__version__ == "3.1.6"

DTYPES = ["b1", "i1", "u1", "<i2", "<u4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16", "<M8[s]", "<m8[25us]", "S5", "<U2"]
DTYPES += ["structure", "string"]
STRUCTURE = np.dtype([("flux", "<f4"), ("mask", "<i2"), ("name", "S3")])
#: Of numcodecs: each by its v2 name and with what it needs, and what kinds of elements it is for.
COMPRESSORS: list[tuple[str, dict[str, Any]]] = [
    ("zstd", {"level": 1}),
    ("zstd", {"level": 1, "checksum": True}),
    ("blosc", {"cname": "lz4", "shuffle": 1}),
    ("blosc", {"cname": "zstd", "shuffle": 2}),
    ("lz4", {}),
    ("zlib", {}),
    ("gzip", {}),
    ("bz2", {}),
    ("lzma", {}),
]
CHECKSUMS = ["crc32", "crc32c", "adler32", "fletcher32"]
FILTERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "delta": lambda dtype: {"dtype": dtype},
    "fixedscaleoffset": lambda dtype: {"dtype": dtype, "astype": dtype, "offset": 3, "scale": 1},
    "quantize": lambda dtype: {"dtype": dtype, "digits": 2},
    "bitround": lambda _: {"keepbits": 4},
    "astype": lambda dtype: {"encode_dtype": "<f8", "decode_dtype": dtype},
    "packbits": lambda _: {},
}
FOR = {"delta": "iu", "fixedscaleoffset": "f", "quantize": "f", "bitround": "f", "astype": "f", "packbits": "b"}
WRAPPED = {
    "delta": wrapped.Delta,
    "fixedscaleoffset": wrapped.FixedScaleOffset,
    "quantize": wrapped.Quantize,
    "bitround": wrapped.BitRound,
    "astype": wrapped.AsType,
    "packbits": wrapped.PackBits,
    "blosc": wrapped.Blosc,
    "zstd": wrapped.Zstd,
    "lz4": wrapped.LZ4,
    "zlib": wrapped.Zlib,
    "gzip": wrapped.GZip,
    "bz2": wrapped.BZ2,
    "lzma": wrapped.LZMA,
    "crc32": wrapped.CRC32,
    "crc32c": wrapped.CRC32C,
    "adler32": wrapped.Adler32,
    "fletcher32": wrapped.Fletcher32,
    "shuffle": wrapped.Shuffle,
}
V3_COMPRESSORS: list[Any] = [ZstdCodec(level=1), GzipCodec(level=1), BloscCodec(), Crc32cCodec()]
V3_COMPRESSORS += [BloscCodec(cname="lz4", shuffle="bitshuffle"), ZstdCodec(level=1, checksum=True)]


def fills(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    match dtype.kind:
        case "f":
            return st.sampled_from([None, 0, -0.0, np.nan, np.inf, -np.inf, 1.5])
        case "c":
            return st.sampled_from([None, 1 - 2j, complex(np.nan, -0.0), complex(-np.inf, 1)])
        case "b":
            return st.sampled_from([None, False, True])
        case "i" | "u":
            info = np.iinfo(dtype)
            return st.sampled_from([None, 0, info.min, info.max, 7])
        case "m" | "M":
            return st.sampled_from([None, np.array("NaT", dtype)[()], np.array(5, dtype)[()]])
        case "S":
            return st.sampled_from([None, b"", b"ab"])
        case "U" | "T" | "O":
            return st.sampled_from([None, "", "äb"])
    return st.none()


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    """What `zarr.create_array` or, with a codec of its own, `zarr.create` is asked for."""
    ndim = draw(st.sampled_from([0, 1, 1, 2, 2, 3]))
    shape = tuple(draw(st.lists(st.integers(0, 9) | st.integers(3, 12), min_size=ndim, max_size=ndim)))
    chunks = tuple(draw(st.lists(st.integers(1, 5), min_size=ndim, max_size=ndim)))
    name = draw(st.sampled_from(DTYPES))
    dtype: Any = {"structure": STRUCTURE, "string": str}.get(name) or np.dtype(name)
    flat = name not in ("structure", "string")
    options: dict[str, Any] = {"shape": shape, "chunks": chunks, "zarr_format": draw(st.sampled_from([2, 3, 3]))}
    v2 = options["zarr_format"] == 2
    filters: list[Any] = []
    usable = [
        key for key, kinds in FOR.items() if flat and dtype.kind in kinds and dtype.itemsize > (key == "bitround")
    ]
    if usable and draw(st.integers(0, 5)) == 0:
        key = draw(st.sampled_from(usable))
        configuration = FILTERS[key](dtype.str)
        filters.append(numcodecs.get_codec({"id": key, **configuration}) if v2 else WRAPPED[key](**configuration))
    compressor = draw(st.sampled_from(["none", "none", "codec", "numcodecs", "checksum", "shuffle", "two"]))
    codec_id, configuration = draw(st.sampled_from(COMPRESSORS))
    if v2:
        options["order"] = draw(st.sampled_from("CF"))
        options["chunk_key_encoding"] = {"name": "v2", "separator": draw(st.sampled_from("./"))}
        if flat and draw(st.booleans()):
            dtype = dtype.newbyteorder(">")
            filters = []
        if name != "string":
            options["filters"] = filters or None
        wanted = codec_id if compressor in ("codec", "numcodecs", "two") else draw(st.sampled_from(CHECKSUMS))
        options["compressors"] = (
            None
            if compressor == "none" or (name == "string" and wanted == "fletcher32")
            else numcodecs.get_codec({"id": wanted, **(configuration if wanted == codec_id else {})})
        )
    else:
        options["chunk_key_encoding"] = {
            "name": draw(st.sampled_from(["default", "v2"])),
            "separator": draw(st.sampled_from("./")),
        }
        if ndim and not filters and draw(st.booleans()):
            filters.append(TransposeCodec(order=draw(st.permutations(range(ndim)))))
        options["filters"] = filters or None
        options["compressors"] = {
            "none": None,
            "codec": [draw(st.sampled_from(V3_COMPRESSORS))],
            "numcodecs": [WRAPPED[codec_id](**configuration)],
            "checksum": [ZstdCodec(level=1), WRAPPED[draw(st.sampled_from(CHECKSUMS))]()],
            "shuffle": [WRAPPED["shuffle"](elementsize=dtype.itemsize if flat else 1), GzipCodec(level=1)],
            "two": [ZstdCodec(level=1), GzipCodec(level=1)],
        }[compressor]
        if flat and dtype.itemsize > 1 and dtype.kind != "S":
            options["serializer"] = BytesCodec(endian=draw(st.sampled_from(["little", "big"])))
        if ndim and name != "string" and not (IS_OLD and name == "structure") and draw(st.booleans()):
            shards = tuple(chunk * draw(st.integers(1, 3)) for chunk in chunks)
            options["shards"] = {"shape": shards, "index_location": draw(st.sampled_from(["start", "end"]))}
    options["dtype"] = dtype
    if name != "structure":
        fill = draw(fills(np.dtype(dtype) if flat else np.dtype("U")))
        options |= {} if fill is None else {"fill_value": fill}
    return options


def nested(path: str) -> Any:
    """An array with shards in its shards."""
    inner = ShardingCodec(chunk_shape=(1, 2), codecs=[BytesCodec(), ZstdCodec(level=1)])
    codecs = [ShardingCodec(chunk_shape=(2, 2), codecs=[inner])]
    return zarr.create(store=path, shape=(7, 9), chunks=(4, 4), dtype="<i4", fill_value=-1, codecs=codecs)


def values(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Any:
    """Random bits: NaN payloads, infinities and denormal numbers are among them."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "UTO":
        return rng.choice(np.array(["", "a", "än"]), shape).astype(dtype)
    size = int(np.prod(shape, dtype=int))
    return np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).reshape(shape)


def orthogonal(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    def along(size: int) -> st.SearchStrategy[Any]:
        if size == 0:
            return st.just(slice(None))
        index = st.integers(-size, size - 1)
        mask = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda bits: np.array(bits, bool))
        return st.one_of(index, st.lists(index, max_size=8), mask, st.just(slice(None)), st.just(slice(None, None, -2)))

    return st.tuples(*map(along, shape))


def outer(array: Any, keys: tuple[Any, ...]) -> Any:
    picked = [np.arange(n)[np.array(k, int) if isinstance(k, list) else k] for k, n in zip(keys, array.shape)]
    whole = array[np.ix_(*map(np.atleast_1d, picked))] if keys else array
    return whole[(*(0 if isinstance(key, int) else slice(None) for key in keys), ...)]


def points(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Several arrays, or one mask of all elements."""
    masks = st.tuples(st.integers(0, 99), st.sampled_from([0, 0.1, 0.6])).map(
        lambda given: np.random.default_rng(given[0]).random(shape) < given[1]
    )
    if 0 in shape:
        return masks
    forms = st.sampled_from([(1,), (6,), (2, 3)])
    lists = st.tuples(
        *(
            st.tuples(forms, st.lists(st.integers(-n, n - 1), min_size=1, max_size=6)).map(
                lambda given: np.resize(given[1], given[0] if given[0] != (6,) else (1,))
            )
            for n in shape
        )
    )
    return masks | lists | lists


def check(array: Array, right: Any, same: Callable[[Any, Any], bool], selection: Any, data: st.DataObject) -> None:
    """One selection, by each backend."""
    ndim = right.ndim
    way = data.draw(st.sampled_from(["basic", "basic", "oindex", "points", "points"] if ndim else ["basic"]), "way")
    if way == "basic":
        keys = data.draw(selection(right.shape), "keys")
        expected, read = np.asarray(right[keys], right.dtype), array.read
    elif way == "oindex":
        keys = data.draw(orthogonal(right.shape), "keys")
        expected, read = outer(right, keys), array.oindex.read
    else:
        keys = data.draw(points(right.shape), "keys")
        expected, read = right[keys], data.draw(st.sampled_from([array.read, array.vindex.read]))
    piece_bytes = data.draw(st.sampled_from([1 << 20, 24, 100]), "piece_bytes")
    for backend in BACKENDS:
        with config.set(backend=backend, piece_bytes=piece_bytes, poison=True):
            assert same(read(keys), expected)
    if expected.dtype.names:
        for field in expected.dtype.names:
            assert same(array.fields[field][...], np.array(right[field], order="C"))


@settings(max_examples=EXAMPLES)
@given(data=st.data(), options=arrays(), seed=st.integers(0, 2**32 - 1))
def test_any_array(
    data: st.DataObject,
    options: dict[str, Any],
    seed: int,
    same: Callable[[Any, Any], bool],
    selections: Callable[[tuple[int, ...]], st.SearchStrategy[Any]],
) -> None:
    note(f"zarr.create_array('a', **{options!r})")
    with tempfile.TemporaryDirectory() as folder:
        array = zarr.create_array(f"{folder}/a", **options)
        written = tuple(slice(0, data.draw(st.integers(0, n), "written")) for n in array.shape)
        part = values(np.dtype(array.dtype), tuple(index.stop for index in written), seed)
        if array.filters and part.dtype.kind == "f":
            part = np.nan_to_num(part.astype("f8"), posinf=1, neginf=-1).clip(-1e3, 1e3).round(3).astype(part.dtype)
        array[written] = part
        right = np.asarray(array[...], array.dtype)
        read = gpuload.open(f"{folder}/a", device="cpu")
        assert isinstance(read, Array)
        assert same(read[...], right)
        for _ in range(SELECTIONS):
            check(read, right, same, selections, data)


@settings(max_examples=max(3, EXAMPLES // 20))
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_nested_shards(
    data: st.DataObject,
    seed: int,
    same: Callable[[Any, Any], bool],
    selections: Callable[[tuple[int, ...]], st.SearchStrategy[Any]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        array = nested(f"{folder}/a")
        array[:5, :3] = values(np.dtype("<i4"), (5, 3), seed)
        right = np.asarray(array[...])
        read = gpuload.open(f"{folder}/a", device="cpu")
        assert isinstance(read, Array)
        for _ in range(SELECTIONS):
            check(read, right, same, selections, data)
