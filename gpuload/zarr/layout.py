"""How the elements of an array lie in files: a value, made once from the metadata that zarr-python parsed.

An array takes one of three roads, by its codecs alone. *Raw*: elements as they are, in any order of axes and bytes;
any part of a chunk can be read. *Encoded*: whole chunks, through codecs that `gpuload.zarr.codecs` has. *Foreign*: what
only zarr-python's own codec pipeline decodes. With shards, the first two hold for the inner chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from gpuload.errors import SelectionError, UnsupportedArrayError
from gpuload.planning.grid import ChunkForm
from gpuload.request import Int64
from gpuload.zarr import _compat
from gpuload.zarr._compat import Description
from gpuload.zarr.codecs import ChainDecoder, Crc32c, Stage, stage_for
from gpuload.zarr.keys import key_function
from gpuload.zarr.shards import IndexForm

Codec = Mapping[str, Any]


class Road(StrEnum):
    """Who can turn the stored bytes of a chunk into elements."""

    RAW = "raw"
    ENCODED = "encoded"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What a read has to know of an array.

    Parameters
    ----------
    shape
        Elements along each dimension.
    dtype
        Of NumPy results.
    stored_dtype
        `dtype` in the byte order of the files.
    fill
        Bytes of one element of the fill value, in the byte order of the files; empty on the foreign road.
    fill_value
        The scalar itself.
    road
        Who decodes.
    form
        Of the chunks that are read one by one: inner chunks where there are shards. None on the foreign road.
    index
        How the index of a shard is stored; None without shards.
    decoder
        On the encoded road.
    chunk_edges
        Per dimension, the extent of the chunks that have a key: one number, or one each.
    keys
        From int64 (m, ndim) coordinates to the m chunk keys, relative to the array.
    field_offset, fields
        Of one field of an array of structures: the byte where it starts in its structure, and its name behind those
        of the fields it is inside of. `dtype`, `fill` and `fill_value` are the field's then, `form` is that of the
        whole.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored_dtype: np.dtype[Any]
    fill: bytes
    fill_value: Any
    road: Road
    form: ChunkForm | None
    index: IndexForm | None
    decoder: ChainDecoder | None
    chunk_edges: tuple[int | tuple[int, ...], ...]
    keys: Callable[[Int64], list[str]]
    field_offset: int = 0
    fields: tuple[str, ...] = ()

    def field(self, name: str) -> Layout:
        """The layout of one field of an array of structures.

        Raises
        ------
        SelectionError
            There is no such field.
        """
        if self.dtype.fields is None or name not in self.dtype.fields:
            names = ", ".join(map(repr, self.dtype.names or ())) or "no fields"
            raise SelectionError(f"no field named {name!r}: {self.dtype} has {names}")
        dtype, offset = self.dtype.fields[name][:2]
        stored = self.stored_dtype[name]
        return replace(
            self,
            dtype=dtype,
            stored_dtype=stored,
            fill=self.fill[offset : offset + dtype.itemsize],
            fill_value=self.fill_value[name],
            field_offset=self.field_offset + offset,
            fields=(*self.fields, name),
        )

    def as_foreign(self) -> Layout:
        """The same array, decoded by zarr-python."""
        return replace(
            self, stored_dtype=self.dtype, fill=b"", road=Road.FOREIGN, form=None, index=None, decoder=None
        )  # fmt: skip

    def swap(self, dtype: np.dtype[Any]) -> int:
        """Width in bytes of the units to swap on the way to an array of `dtype`; 0: none."""
        if self.stored_dtype.isnative == dtype.isnative or self.stored_dtype.itemsize == 1:
            return 0
        if dtype.names is not None:
            return 1  # each field by its own width: on the host only
        return {"c": dtype.itemsize // 2, "U": 4, "S": 0, "V": 0, "b": 0}.get(dtype.kind, dtype.itemsize)


@dataclass(frozen=True, slots=True)
class _Chain:
    """The codecs of one chunk, understood."""

    order: tuple[int, ...]
    big_endian: bool | None  # None: as the dtype says, or without a byte order
    stages: tuple[Stage, ...]  # in the order of encoding
    sharding: Codec | None = None


def layout_of(description: Description) -> Layout:
    """The layout of an array.

    Raises
    ------
    UnsupportedArrayError
        A codec that is not installed; names it. Chunks without extent where there are elements.
    """
    if any(edge == 0 and n for edge, n in zip(description.chunk_edges, description.shape, strict=True)):
        raise UnsupportedArrayError(f"chunks {description.chunks} of an array of shape {description.shape}")
    keys = key_function(description)
    regular = all(isinstance(edge, int) for edge in description.chunk_edges)
    chain = _understand(description)
    chunk_shape = tuple(edge for edge in description.chunk_edges if isinstance(edge, int))
    index = None
    if chain is not None and chain.sharding is not None:
        chain, index, chunk_shape = _inner(chain.sharding, chunk_shape)
    if chain is None or not regular or not _is_flat(description.dtype) or 0 in chunk_shape:
        return Layout(
            description.shape, description.dtype, description.dtype, b"", description.fill, Road.FOREIGN,
            None, None, None, description.chunk_edges, keys,
        )  # fmt: skip
    stored = _stored_dtype(description.dtype, chain.big_endian)
    form = ChunkForm(chunk_shape, stored.itemsize, chain.order)
    decoder = ChainDecoder(chain.stages[::-1], form.nbytes) if chain.stages else None
    return Layout(
        shape=description.shape,
        dtype=description.dtype,
        stored_dtype=stored,
        fill=_fill_bytes(description.fill, description.dtype, stored),
        fill_value=description.fill,
        road=Road.ENCODED if decoder else Road.RAW,
        form=form,
        index=index,
        decoder=decoder,
        chunk_edges=description.chunk_edges,
        keys=keys,
    )


def _is_flat(dtype: np.dtype[Any]) -> bool:
    """Whether elements are stored as NumPy has them in memory, but for byte order."""
    if dtype.names is not None:
        return dtype.itemsize > 0 and all(_is_flat(dtype[name]) for name in dtype.names)
    return dtype.kind in "biufcmMSUV" and dtype.subdtype is None and dtype.itemsize > 0


def _stored_dtype(dtype: np.dtype[Any], big_endian: bool | None) -> np.dtype[Any]:
    return dtype if big_endian is None else dtype.newbyteorder(">" if big_endian else "<")


def _fill_bytes(fill: Any, dtype: np.dtype[Any], stored: np.dtype[Any]) -> bytes:
    # The way zarr-python does it: assigned to an array of the result's dtype.
    element = np.empty((), dtype)
    element[()] = fill
    return element.astype(stored).tobytes()


def _understand(description: Description) -> _Chain | None:
    ndim = len(description.shape)
    if description.zarr_format == 3:
        return _chain(description.codecs, ndim)
    codecs = (*description.filters, *description.codecs)
    _check_installed(codecs)
    order = tuple(range(ndim))
    stages = tuple(_v2_stage(codec) for codec in codecs)
    known = _understood(stages)
    return None if known is None else _Chain(order[::-1] if description.order == "F" else order, None, known)


def _v2_stage(codec: Codec) -> Stage | None:
    return stage_for(codec["id"], {key: value for key, value in codec.items() if key != "id"})


def _understood(stages: Sequence[Stage | None]) -> tuple[Stage, ...] | None:
    """`stages`, if all are known and the sizes between them too."""
    known = tuple(stage for stage in stages if stage is not None)
    if len(known) < len(stages):
        return None
    try:
        ChainDecoder(known[::-1], 1)
    except ValueError:  # one compressor over another
        return None
    return known


def _chain(codecs: Sequence[Codec], ndim: int) -> _Chain | None:
    """transpose*, then bytes or sharding, then codecs from bytes to bytes."""
    _check_installed(codecs)
    order = tuple(range(ndim))
    position = 0
    while position < len(codecs) and codecs[position]["name"] == "transpose":
        order = tuple(order[axis] for axis in codecs[position]["configuration"]["order"])
        position += 1
    if position == len(codecs):
        return None
    serializer, rest = codecs[position], codecs[position + 1 :]
    if serializer["name"] == "sharding_indexed":
        # Nothing around the sharding codec: its chunks would not be ranges of the file, or not in this order.
        return _Chain(order, None, (), serializer) if position == 0 and not rest else None
    if serializer["name"] != "bytes":
        return None
    endian = serializer.get("configuration", {}).get("endian")
    stages = _understood([_v3_stage(codec) for codec in rest])
    return None if stages is None else _Chain(order, None if endian is None else endian == "big", stages)


def _v3_stage(codec: Codec) -> Stage | None:
    name, configuration = codec["name"], codec.get("configuration", {})
    match name:
        case "crc32c":
            return Crc32c()
        case "gzip" | "zstd":
            return stage_for(name, {})  # how it was encoded does not matter for decoding
        case "blosc":
            return stage_for(name, {})
    prefix, _, codec_id = name.rpartition(".")
    return stage_for(codec_id, configuration) if prefix == "numcodecs" else None


def _check_installed(codecs: Sequence[Codec]) -> None:
    """zarr-python looks some codecs up when it first decodes; a codec that is missing is an error beforehand here."""
    for codec in codecs:
        name = codec.get("name", codec.get("id", ""))
        prefix, _, codec_id = name.rpartition(".")
        if prefix == "numcodecs":
            try:
                _compat.numcodec(codec_id, codec.get("configuration", {}))
            except (ValueError, TypeError, ImportError) as error:
                raise UnsupportedArrayError(f"the codec {name!r} cannot be used here: {error}") from error
        for inner in ("codecs", "index_codecs"):
            _check_installed(codec.get("configuration", {}).get(inner, ()) if "configuration" in codec else ())


def _inner(sharding: Codec, shard_shape: tuple[int, ...]) -> tuple[_Chain | None, IndexForm | None, tuple[int, ...]]:
    """The chain of the inner chunks, the form of the index, and the shape of the inner chunks."""
    configuration = sharding["configuration"]
    shape = tuple(int(n) for n in configuration["chunk_shape"])
    chain = _chain(configuration["codecs"], len(shape))
    index_chain = _chain(configuration["index_codecs"], len(shape) + 1)
    if chain is None or chain.sharding is not None or index_chain is None:
        return None, None, shape
    checksum = len(index_chain.stages) == 1 and isinstance(index_chain.stages[0], Crc32c)
    if index_chain.order != tuple(range(len(shape) + 1)) or (index_chain.stages and not checksum):
        return None, None, shape
    location = configuration.get("index_location", "end")
    index = IndexForm(
        grid=tuple(outer // inner for outer, inner in zip(shard_shape, shape, strict=True)),
        at_start=getattr(location, "value", location) == "start",
        big_endian=bool(index_chain.big_endian),
        checksum=checksum,
    )
    return chain, index, shape
