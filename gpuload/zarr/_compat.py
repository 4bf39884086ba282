"""Every name of zarr-python that is private, or differs between its generations, ends here.

Two generations are supported: 3.1.6, the last for Python 3.11, and the newest 3.x. Above this module an array of
zarr-python is what `describe` says of it.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import google_crc32c
import numcodecs
import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype, NDBuffer, cpu, default_buffer_prototype
from zarr.core.buffer import gpu as _gpu
from zarr.core.buffer.cpu import buffer_prototype as cpu_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
from zarr.core.sync import sync
from zarr.registry import register_pipeline
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore

from gpuload.errors import UnsupportedArrayError

__all__ = [
    "BatchedCodecPipeline",
    "Buffer",
    "BufferPrototype",
    "ByteRequest",
    "Description",
    "LocalStore",
    "Metadata",
    "NDBuffer",
    "Store",
    "StorePath",
    "WrapperStore",
    "ZipStore",
    "buffer_of",
    "byte_range",
    "child_names",
    "cpu_prototype",
    "crc32c",
    "decode_chunks",
    "default_buffer_prototype",
    "describe",
    "local_root",
    "open_node",
    "parsed",
    "register_pipeline",
    "wants_device",
]

# Newer generations fit the codecs when they make a pipeline, 3.1.6 when it parses the metadata.
_FITS_CODECS = importlib.util.find_spec("zarr.core.chunk_utils") is not None

Bytes = npt.NDArray[np.uint8]
Metadata = Any  # ArrayV2Metadata | ArrayV3Metadata, whose attributes are not the same in all generations


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """An array as zarr-python understands its metadata.

    Parameters
    ----------
    zarr_format
        2 or 3.
    shape
        Elements along each dimension.
    dtype
        What NumPy results have: zarr's dtype, in zarr's byte order.
    endianness
        ``"little"``, ``"big"`` or None: the order the elements have in a v2 array; in v3 the codecs say it.
    fill
        Scalar for what was never written; zarr's own default where the metadata has null.
    chunk_edges
        Per dimension, the extent of every chunk as one number, or that of each chunk (rectilinear grids).
    order
        ``"C"`` or ``"F"``: of the elements in a v2 chunk.
    codecs
        v3: each codec as the metadata has it, ``{"name", "configuration"}``. v2: the numcodecs configuration of the
        compressor, if any.
    filters
        v2: the numcodecs configuration of each filter, in the order of encoding; v3 has none.
    separator
        Between the coordinates in a chunk key; None: only `encode_key` knows.
    key_prefix
        What default-encoded keys start with: ``"c"`` or nothing.
    encode_key
        The key of the chunk at the given coordinates.
    dims
        Names of the dimensions; None where there is none.
    attrs
        User attributes.
    """

    zarr_format: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Any
    chunk_edges: tuple[int | tuple[int, ...], ...]
    chunks: tuple[int, ...] | None
    shards: tuple[int, ...] | None
    order: str
    codecs: tuple[Mapping[str, Any], ...]
    filters: tuple[Mapping[str, Any], ...]
    separator: str | None
    key_prefix: str
    encode_key: Callable[[tuple[int, ...]], str]
    dims: tuple[str | None, ...]
    attrs: Mapping[str, Any]


def describe(metadata: Metadata) -> Description:
    """What zarr-python understands of an array's `metadata`."""
    v3 = metadata.zarr_format == 3
    edges = _chunk_edges(metadata)
    chunks, shards = _chunks_and_shards(metadata, edges)
    separator, prefix = _key_encoding(metadata)
    attrs = attributes(metadata)
    if v3:
        codecs = tuple(_as_dict(codec.to_dict()) for codec in metadata.codecs)
    else:
        codecs = () if metadata.compressor is None else (dict(metadata.compressor.get_config()),)
    fill = metadata.fill_value
    return Description(
        zarr_format=metadata.zarr_format,
        shape=tuple(int(n) for n in metadata.shape),
        dtype=metadata.dtype.to_native_dtype(),
        fill=metadata.dtype.default_scalar() if fill is None else fill,
        chunk_edges=edges,
        chunks=chunks,
        shards=shards,
        order="C" if v3 else metadata.order,
        codecs=codecs,
        filters=() if v3 else tuple(dict(codec.get_config()) for codec in metadata.filters or ()),
        separator=separator,
        key_prefix=prefix,
        encode_key=metadata.encode_chunk_key,
        dims=_dims(metadata, attrs),
        attrs=attrs,
    )


def loses_byte_order(metadata: Any) -> bool:
    """Whether zarr-python may have dropped the byte order that the document has: 3.1.6 does, of structures."""
    if metadata.zarr_format == 2 or metadata.dtype.to_native_dtype().names is None:
        return False
    return '"endian"' not in json.dumps([_as_dict(codec.to_dict()) for codec in metadata.codecs], default=str)


def with_codecs_of(description: Description, document: bytes) -> Description:
    """The description with its codecs as the document of the array has them, which zarr-python has understood."""
    return replace(description, codecs=tuple(_as_dict(codec) for codec in json.loads(document)["codecs"]))


def attributes(metadata: Any) -> dict[str, Any]:
    """User attributes of an array or group; zarr-python does not look at what they are."""
    found = metadata.attributes
    if not isinstance(found, Mapping):
        raise UnsupportedArrayError(f"the attributes are no JSON object but a {type(found).__name__}")
    return dict(found)


def _as_dict(codec: Any) -> Mapping[str, Any]:
    return codec if isinstance(codec, Mapping) else {"name": str(codec)}


def _chunk_edges(metadata: Any) -> tuple[int | tuple[int, ...], ...]:
    if metadata.zarr_format == 2:
        return tuple(int(n) for n in metadata.chunks)
    grid = metadata.chunk_grid
    edges = getattr(grid, "chunk_shape", None)
    if edges is None:  # a rectilinear grid, which only newer generations have
        edges = grid.chunk_shapes
    return tuple(int(edge) if isinstance(edge, int) else tuple(int(n) for n in edge) for edge in edges)


def _chunks_and_shards(
    metadata: Metadata, edges: tuple[int | tuple[int, ...], ...]
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Shapes of the chunks that are read one by one, and of the shards, if there are any; None if they differ."""
    regular = tuple(edge for edge in edges if isinstance(edge, int))
    if len(regular) < len(edges):
        return None, None
    if metadata.zarr_format == 3 and not hasattr(metadata.chunk_grid, "chunk_shape"):
        # A rectilinear grid whose chunks are all alike: zarr-python says nothing of its chunks as such.
        sharding = metadata.sharding_codec
        return (regular, None) if sharding is None else (tuple(int(n) for n in sharding.chunk_shape), regular)
    shards = metadata.shards
    return tuple(int(n) for n in metadata.chunks), None if shards is None else tuple(int(n) for n in shards)


def _key_encoding(metadata: Any) -> tuple[str | None, str]:
    """Separator and prefix of the two usual encodings of chunk keys."""
    if metadata.zarr_format == 2:
        return metadata.dimension_separator, ""
    encoding = metadata.chunk_key_encoding
    if encoding.name == "default":
        return encoding.separator, "c"
    if encoding.name == "v2":
        return encoding.separator, ""
    return None, ""


def _dims(metadata: Any, attrs: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Dimension names: v3 has them in its metadata, in v2 xarray's attribute is the custom."""
    ndim = len(metadata.shape)
    names = metadata.dimension_names if metadata.zarr_format == 3 else attrs.get("_ARRAY_DIMENSIONS")
    if not isinstance(names, list | tuple) or len(names) != ndim:
        return (None,) * ndim
    return tuple(None if name is None else str(name) for name in names)


def open_node(store: Store, path: str, zarr_format: int | None) -> zarr.Array[Any] | zarr.Group:
    """The array or group at `path`, its metadata parsed by zarr-python; raises what zarr-python raises."""
    options: dict[str, Any] = {"store": store, "path": path, "mode": "r", "zarr_format": zarr_format}
    try:
        return zarr.open(**options)
    except FileNotFoundError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        # A group's consolidated metadata describes every array below it. One that zarr-python does not understand
        # must not keep the others from being read.
        try:
            return zarr.open_group(**options, use_consolidated=False)
        except (ValueError, TypeError, KeyError):
            raise error from None


def parsed(document: bytes) -> Metadata:
    """The metadata of an array as zarr-python parses its document; raises what zarr-python raises, also for a group."""
    found = json.loads(document)
    kind: Any = ArrayV3Metadata if found["zarr_format"] == 3 else ArrayV2Metadata
    return kind.from_dict(found)


def child_names(group: zarr.Group, path: str) -> list[str]:
    """Names of the arrays and groups right below `group`, sorted; nothing of them is parsed."""
    consolidated = group.metadata.consolidated_metadata
    if consolidated is not None:
        return sorted({name.split("/")[0] for name in consolidated.metadata})
    store = group.store
    documents = ("zarr.json",) if group.metadata.zarr_format == 3 else (".zarray", ".zgroup")

    async def look() -> list[str]:
        found = []
        async for name in store.list_dir(path):
            for document in documents:
                if await store.exists("/".join(part for part in (path, name, document) if part)):
                    found.append(name)
                    break
        return sorted(found)

    return sync(look())


def decode_chunks(
    metadata: Metadata, shapes: Sequence[tuple[int, ...]], encoded: Sequence[Bytes]
) -> list[npt.NDArray[Any]]:
    """Decode whole chunks with zarr-python's own batched codec pipeline, on the host.

    Parameters
    ----------
    metadata
        Of the array whose codecs to use.
    shapes
        Of each chunk, as stored.
    encoded
        The bytes of each chunk.
    """
    pipeline, specs = _pipeline(metadata, shapes)
    buffers = [spec.prototype.buffer.from_array_like(data) for spec, data in zip(specs, encoded, strict=True)]
    decoded: Iterable[Any] = sync(pipeline.decode(zip(buffers, specs, strict=True)))
    return [chunk.as_numpy_array() for chunk in decoded]


def encode_chunks(metadata: Metadata, chunks: Sequence[npt.NDArray[Any]], *, inner: bool = False) -> list[Bytes | None]:
    """Encode whole chunks with zarr-python's own batched codec pipeline, on the host.

    Parameters
    ----------
    metadata
        Of the array whose codecs to use.
    chunks
        Elements of each chunk, in the array's dtype and its full size.
    inner
        Use the codecs of the inner chunks of a sharded array.

    Returns
    -------
    encoded
        uint8 (bytes,) arrays; None for a shard without inner chunks.
    """
    pipeline, specs = _pipeline(metadata, [chunk.shape for chunk in chunks], inner=inner)
    elements = [spec.prototype.nd_buffer.from_numpy_array(chunk) for spec, chunk in zip(specs, chunks, strict=True)]
    encoded: Iterable[Any] = sync(pipeline.encode(zip(elements, specs, strict=True)))
    return [None if buffer is None else buffer.as_numpy_array().view(np.uint8) for buffer in encoded]


def _pipeline(
    metadata: Metadata, shapes: Sequence[tuple[int, ...]], *, inner: bool = False
) -> tuple[BatchedCodecPipeline, list[ArraySpec]]:
    """The codecs of an array for the host, and what they are told of each chunk."""
    codecs, order = _codecs_and_order(metadata)
    if inner:
        codecs = metadata.codecs[0].codecs
    prototype = default_buffer_prototype()
    if not issubclass(prototype.buffer, cpu.Buffer):
        prototype = cpu_prototype
    config = ArrayConfig.from_dict({"order": order})  # type: ignore[typeddict-item]
    specs = [ArraySpec(shape, metadata.dtype, metadata.fill_value, config, prototype) for shape in shapes]
    return BatchedCodecPipeline.from_codecs(codecs), specs  # the codecs were fitted to the array with its metadata


def array_metadata(**options: Any) -> Metadata:
    """The metadata of a new v3 array, as ``zarr.create_array`` makes it of its arguments; nothing is written."""
    return zarr.create_array(MemoryStore(), zarr_format=3, **options).metadata


def group_metadata(attributes: Mapping[str, Any]) -> Metadata:
    """The metadata of a new v3 group."""
    return zarr.create_group(MemoryStore(), zarr_format=3, attributes=dict(attributes)).metadata


def documents(metadata: Metadata) -> dict[str, bytes]:
    """The documents of an array or group, by their names."""
    return {name: data.to_bytes() for name, data in metadata.to_buffer_dict(cpu_prototype).items()}


def compressors(codecs: str | Sequence[Any] | None) -> Any:
    """What `array_metadata` takes, from ``"none"``, the name of a codec with its usual settings, or codecs."""
    if codecs is None or codecs == "none":
        return None
    if not isinstance(codecs, str):
        return list(codecs)
    known: dict[str, Callable[[], Any]] = {"zstd": ZstdCodec, "blosc": BloscCodec, "gzip": GzipCodec}
    if codecs not in known:
        raise ValueError(f"{codecs!r} is no codec that has a name here: none, {', '.join(known)}")
    return [known[codecs]()]


def resized(metadata: Metadata, shape: tuple[int, ...]) -> Metadata:
    """The metadata of an array with another shape."""
    return metadata.update_shape(shape)


def write_empty_chunks() -> bool:
    """Whether chunks that hold nothing but the fill value are stored, as configured for zarr-python."""
    return bool(zarr.config.get("array.write_empty_chunks"))


def all_equal(elements: npt.NDArray[Any], value: Any) -> bool:
    """Whether all elements equal `value`, as zarr-python compares what has no bits to be compared."""
    return bool(cpu.NDBuffer.from_numpy_array(elements).all_equal(value))


def _codecs_and_order(metadata: Metadata) -> tuple[Iterable[Any], str]:
    """The codecs of a chunk, and the order of elements in its bytes that they leave open."""
    if metadata.zarr_format == 3:
        return metadata.codecs, "C"
    from zarr.codecs._v2 import V2Codec

    return [V2Codec(filters=metadata.filters, compressor=metadata.compressor)], metadata.order


Pipeline = TypeVar("Pipeline", bound=BatchedCodecPipeline)


def fitted_pipeline(kind: type[Pipeline], metadata: Metadata) -> Pipeline:
    """A codec pipeline of class `kind` for an array, its codecs fitted to it."""
    codecs, order = _codecs_and_order(metadata)
    pipeline = kind.from_codecs(codecs)
    if not _FITS_CODECS:
        return pipeline  # they were fitted with the metadata
    edges = _chunk_edges(metadata)
    shape = tuple(edge if isinstance(edge, int) else 1 for edge in edges)  # any: chunks state their shape themselves
    config = ArrayConfig.from_dict({"order": order})  # type: ignore[typeddict-item]
    spec = ArraySpec(shape, metadata.dtype, metadata.fill_value, config, default_buffer_prototype())
    return pipeline.evolve_from_array_spec(spec)


def wants_results(spec: ArraySpec) -> bool:
    """Whether zarr-python looks at what a pipeline says of each chunk: where a missing one is to be an error."""
    return getattr(spec.config, "read_missing_chunks", True) is False


def host_buffer(array: npt.NDArray[Any]) -> NDBuffer:
    """`array` as a buffer of elements."""
    return cpu.NDBuffer.from_numpy_array(array)


def on_host(spec: ArraySpec) -> ArraySpec:
    """The same chunk, in host memory."""
    return replace(spec, prototype=cpu_prototype)


def local_root(store: Store) -> str | None:
    """The directory of a store of local files; None for any other.

    Only classes whose keys are known to be files: what somebody derived from them may read and write as it likes.
    """
    if type(store) is LocalStore:
        return str(store.root)
    if type(store) is FsspecStore:  # dask makes one of a path
        fs: Any = store.fs
        kind = type(getattr(fs, "sync_fs", fs))
        if (kind.__module__, kind.__qualname__) == ("fsspec.implementations.local", "LocalFileSystem"):
            return store.path
    return None


def wants_device(prototype: BufferPrototype) -> bool:
    """Whether `prototype` makes buffers of device memory."""
    return issubclass(prototype.buffer, _gpu.Buffer)


def buffer_of(prototype: BufferPrototype, data: Any) -> Buffer:
    """A buffer of `prototype` on `data`, a uint8 array in the kind of memory the prototype asks for."""
    if issubclass(prototype.buffer, cpu.Buffer | _gpu.Buffer):
        return prototype.buffer.from_array_like(data)
    return prototype.buffer.from_bytes(bytes(data))


def byte_range(request: ByteRequest | None) -> tuple[int, int]:
    """Offset and size of a request: a negative offset counts from the end, size -1 is all that follows."""
    match request:
        case None:
            return 0, -1
        case RangeByteRequest():
            return request.start, max(0, request.end - request.start)
        case OffsetByteRequest():
            return request.offset, -1
        case SuffixByteRequest():
            return -request.suffix, request.suffix
    raise TypeError(f"Unexpected byte_range, got {request}.")


def numcodec(codec_id: str, configuration: Mapping[str, Any]) -> Any:
    """The codec of numcodecs with that id; raises ValueError where it is not installed."""
    codec: Any = numcodecs.get_codec({"id": codec_id, **configuration})
    return codec


def crc32c(data: Any) -> int:
    """CRC-32C (Castagnoli) of a contiguous buffer."""
    return int(google_crc32c.value(data))


def is_json_error(error: BaseException) -> bool:
    """Whether metadata could not even be parsed."""
    return isinstance(error, json.JSONDecodeError | UnicodeDecodeError)


def is_unknown_codec(error: BaseException) -> bool:
    """Whether a codec is missing, rather than the bytes wrong."""
    return type(error).__name__ == "UnknownCodecError"
