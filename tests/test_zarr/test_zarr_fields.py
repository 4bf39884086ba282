"""Structures and their fields, dates, and what a device cannot hold: the values as written, and where they come to."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, TransposeCodec

import gpuload
from gpuload import events
from gpuload.errors import DestinationError, SelectionError, UnsupportedArrayError
from gpuload.request import Decode, Filled, Reason, Served
from gpuload.zarr import Array
from gpuload.zarr.layout import Road

Same = Callable[[Any, Any], bool]
IS_OLD = zarr.__version__ == "3.1.6"
DTYPES: dict[str, Any] = {
    "flux": [("flux", ">f4"), ("mask", ">i4")],
    "packed": [("a", "<f4"), ("b", ">i2"), ("c", "S3"), ("d", "<f8")],
    "nested": [("a", [("x", "<i2"), ("y", "<f8")]), ("b", "<U2")],
}
KINDS: dict[str, dict[str, Any]] = {
    "v2": {"zarr_format": 2, "compressors": None},
    "v2 F": {"zarr_format": 2, "compressors": None, "order": "F"},
    "v2 zstd": {"zarr_format": 2},
    "v3": {"compressors": None},
    "v3 zstd": {},
    "transposed": {"filters": [TransposeCodec(order=(1, 0))]},
    "shards": {"compressors": None, "shards": (4, 6)},
    "big": {"compressors": None, "serializer": BytesCodec(endian="big")},
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]


def opened(path: Path, device: str = "cpu") -> Array:
    array = gpuload.open(path, device=device)
    assert isinstance(array, Array)
    return array


def written(path: Path, kind: str, name: str) -> Any:
    """An array of structures, its last row never written, and what is in it."""
    options, dtype = KINDS[kind], np.dtype(DTYPES[name])
    if kind.startswith("v2"):
        if name == "nested":
            pytest.skip("zarr v2 metadata of nested structures is not read by zarr-python")
    else:
        dtype = dtype.newbyteorder("<")  # zarr v3 data types have no byte order
    if IS_OLD and kind in ("shards", "big"):
        pytest.skip("this zarr-python cannot write it")
    values = np.zeros((7, 5), dtype)
    bits = np.random.default_rng(1).integers(1, 100, values.nbytes, np.uint8)
    if name != "nested":
        values = bits.view(dtype).reshape(7, 5)
    else:
        values["a"]["x"][:6], values["b"][:6] = np.arange(30).reshape(6, 5), "äb"
        values["a"]["y"][:6] = 0.5
    array = zarr.create_array(str(path), shape=(7, 5), chunks=(2, 3), dtype=dtype, **options)
    array[:6] = values[:6]
    values[6] = zarr.open_array(str(path), mode="r").fill_value
    return values


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_structures_and_fields(tmp_path: Path, same: Same, backend: str, kind: str, name: str) -> None:
    right = written(tmp_path / "a", kind, name)
    array = opened(tmp_path / "a")
    assert array.layout.road is (Road.ENCODED if kind in ("v2 zstd", "v3 zstd", "transposed") else Road.RAW)
    assert same(array[...], right)
    assert same(array[::-2, [4, 0, 4]], right[::-2, [4, 0, 4]])
    assert array.dtype == right.dtype
    assert list(array.fields) == list(right.dtype.names)
    for field in right.dtype.names:
        values = np.ascontiguousarray(right[field])
        view = array.fields[field]
        assert view.dtype == values.dtype
        assert view.shape == values.shape
        for part in (..., (slice(None, None, -2), 1), (slice(0, 0), 3), (6, 4), ([5, 0, 5], slice(1, 4))):
            expected = np.asarray(values[part], values.dtype)
            keys = part if isinstance(part, tuple) else (part,)
            assert same(array[(field, *keys)], expected)
            out = np.empty((*expected.shape, 2), values.dtype)[..., 1]
            assert view.read(part, out=out) is out
            assert same(out, expected)
        assert same(array[field], values)
        assert same(array[2:5, 1, field], np.ascontiguousarray(values[2:5, 1]))
        assert same(view[1::3], values[1::3])
        assert same(array.oindex[field, [5, 0], [4, 1, 1]], values[np.ix_([5, 0], [4, 1, 1])])
        assert same(array.vindex[field, [5, 0, 6], [4, 1, 1]], values[[5, 0, 6], [4, 1, 1]])
        assert same(array.blocks[field, -1, 0], values[6 if kind != "shards" else 4 :, : 3 if kind != "shards" else 6])
        assert same(pickle.loads(pickle.dumps(view))[...], values)
    first, second = right.dtype.names[:2]
    several = array[second, first, 1:6]
    assert several.dtype == np.dtype([(second, right.dtype[second]), (first, right.dtype[first])])
    for field in (first, second):
        assert same(np.ascontiguousarray(several[field]), np.ascontiguousarray(right[field][1:6]))


def test_fields_of_fields(tmp_path: Path, same: Same) -> None:
    right = written(tmp_path / "a", "v3", "nested")
    inner = opened(tmp_path / "a").fields["a"].fields["y"]
    assert same(inner[1:, 2], np.ascontiguousarray(right["a"]["y"][1:, 2]))
    assert same(opened(tmp_path / "a").fields["a"]["x", ::2], np.ascontiguousarray(right["a"]["x"][::2]))


def test_big_endian_structures_are_read_as_the_codec_says(tmp_path: Path) -> None:
    """zarr-python 3.1.6 does not look at the byte order that the metadata have for structures."""
    values = np.array([(0.5, 1), (1.5, -2), (2.5, 3)], [("flux", ">f4"), ("mask", ">i4")])
    zarr.create_array(str(tmp_path / "a"), shape=(3,), chunks=(3,), dtype=values.dtype, compressors=None)
    document = tmp_path / "a" / "zarr.json"
    metadata = json.loads(document.read_text())
    metadata["codecs"] = [{"name": "bytes", "configuration": {"endian": "big"}}]
    document.write_text(json.dumps(metadata))
    (tmp_path / "a" / "c").mkdir()
    (tmp_path / "a" / "c" / "0").write_bytes(values.tobytes())
    array = opened(tmp_path / "a")
    assert array[...].tolist() == values.tolist()
    assert array["mask"].tolist() == [1, -2, 3]


def test_no_such_field(tmp_path: Path) -> None:
    written(tmp_path / "a", "v2", "flux")
    array = opened(tmp_path / "a")
    with pytest.raises(SelectionError, match=r"'flow'.*'flux', 'mask'"):
        array["flow", 0]
    with pytest.raises(SelectionError, match="'flow'"):
        array["flux", "flow"]
    with pytest.raises(SelectionError, match="too many"):
        array["flux", 0, 0, 0]
    with pytest.raises(DestinationError, match="dtype"):
        array.read("flux", out=np.empty((7, 5), array.dtype))
    with pytest.raises(SelectionError, match="single fields"):
        gpuload.open(tmp_path / "a", mode="r+", device="cpu").fields["flux"][0] = 1  # type: ignore[union-attr]
    zarr.create_array(str(tmp_path / "b"), shape=(3,), chunks=(3,), dtype="i4")
    with pytest.raises(SelectionError, match="no fields"):
        opened(tmp_path / "b")["flux"]
    assert opened(tmp_path / "b").fields == {}


@contextmanager
def served() -> Iterator[list[Any]]:
    seen: list[Any] = []
    unsubscribe = events.subscribe(seen.append)
    try:
        yield seen
    finally:
        unsubscribe()


def test_a_field_without_codecs_is_all_that_is_read(tmp_path: Path) -> None:
    """From its first byte to its last."""
    written(tmp_path / "a", "v2", "flux")
    array = opened(tmp_path / "a")
    with served() as seen:
        array["mask", 2, 1:3]
    (event,) = [event for event in seen if isinstance(event, Served)]
    assert (event.file_offset.tolist(), event.size.tolist()) == ([12], [12])


@pytest.mark.parametrize("kind", ["v2", "v2 zstd", "shards"])
@pytest.mark.parametrize("name", ["flux", "packed"])
def test_fields_on_a_device(tmp_path: Path, fake_cupy: ModuleType, same: Same, kind: str, name: str) -> None:
    right = written(tmp_path / "a", kind, name)
    array = opened(tmp_path / "a", "cuda")
    with served() as seen:
        assert same(array[...], right)
    reads = [event for event in seen if isinstance(event, Served)]  # the index of a shard comes first
    assert reads[-1].reason is (Reason.HOST_CODEC if kind == "v2 zstd" else Reason.HOST_DTYPE)
    for field, view in array.fields.items():
        values = np.ascontiguousarray(right[field].astype(right[field].dtype.newbyteorder("=")))
        for part in (..., (slice(None, None, -2), [3, 0, 3]), 6, ([5, 0], [4, 1])):
            got = view[part]
            if values.dtype.kind == "S":
                assert isinstance(got, np.ndarray)
            else:
                assert isinstance(got, fake_cupy.ndarray)
                got = got.get()
            assert same(got, values[part])


@pytest.mark.parametrize("kind", ["v2", "v3", "v3 zstd", "shards"])
@pytest.mark.parametrize("dtype", ["M8[s]", "m8[25us]", "M8[ns]"])
@pytest.mark.parametrize("order", "<>")
def test_dates(tmp_path: Path, fake_cupy: ModuleType, same: Same, kind: str, dtype: str, order: str) -> None:
    options = dict(KINDS[kind])
    stored = np.dtype(dtype)
    if kind == "v2":
        stored = stored.newbyteorder(order)
    elif order == ">":
        options["serializer"] = BytesCodec(endian="big")
    counts = np.random.default_rng(4).integers(-(2**62), 2**62, (7, 5))
    counts[3, 3] = np.iinfo(np.int64).min  # NaT
    counts[6] = np.iinfo(np.int64).min
    nat = np.array("NaT", dtype)[()]
    array = zarr.create_array(str(tmp_path / "a"), shape=(7, 5), chunks=(2, 3), dtype=stored, fill_value=nat, **options)
    array[:6] = counts[:6].view(dtype)

    host = opened(tmp_path / "a")
    assert host.time_unit == dtype[3:-1]
    assert host.dtype == host.result_dtype == array.dtype
    assert same(host.as_times(host[...]), counts.view(dtype))
    device = opened(tmp_path / "a", "cuda")
    assert device.result_dtype == np.int64
    assert device.dtype == array.dtype
    for part in (..., (slice(None, None, -2), 3), ([6, 0], [4, 1])):
        got = device[part]
        assert isinstance(got, fake_cupy.ndarray)
        assert same(got.get(), counts[part])
        assert same(device.as_times(got), counts[part].view(dtype))
    out = fake_cupy.asarray(np.zeros((7, 5), np.int64))
    assert device.read(out=out) is out
    assert same(out.get(), counts)


def test_what_has_no_unit(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(3,), chunks=(3,), dtype="i8")
    array = opened(tmp_path / "a")
    assert array.time_unit is None
    with pytest.raises(UnsupportedArrayError, match="neither"):
        array.as_times(array[...])


@pytest.mark.parametrize(
    ("dtype", "kind", "reason"),
    [("S3", {}, Reason.HOST_CODEC), ("U3", {"compressors": None}, Reason.HOST_DTYPE), (str, {}, Reason.HOST_DTYPE)],
)
def test_strings_on_a_device(tmp_path: Path, fake_cupy: ModuleType, dtype: Any, kind: Any, reason: Reason) -> None:
    array = zarr.create_array(str(tmp_path / "a"), shape=(6,), chunks=(2,), dtype=dtype, **kind)
    array[:4] = np.array(["a", "", "bcd", "e"], array.dtype)
    read = opened(tmp_path / "a", "cuda")
    with served() as seen:
        got = read[[3, 0, 5]]
    assert isinstance(got, np.ndarray)
    assert [value.decode() if isinstance(value, bytes) else value for value in got.tolist()] == ["e", "a", ""]
    assert [event.reason for event in seen if isinstance(event, Served)] == [reason]
    assert [event.chunks for event in seen if isinstance(event, Filled)] == [1]


def test_what_zarr_decodes_is_recorded_as_decoded_on_the_host(tmp_path: Path) -> None:
    from zarr.codecs import GzipCodec, ZstdCodec

    array = zarr.create_array(
        str(tmp_path / "a"), shape=(8, 4), chunks=(2, 4), dtype="i4", compressors=[ZstdCodec(), GzipCodec()]
    )
    array[2:6] = 1
    read = opened(tmp_path / "a")
    assert read.layout.road is Road.FOREIGN
    with served() as seen:
        assert read[1:].sum() == 16
    reads = [event for event in seen if isinstance(event, Served)]
    assert {(event.reason, event.decode) for event in reads} == {(Reason.HOST_CODEC, Decode.HOST)}
    assert sum(len(event.size) for event in reads) == 2
    assert [(event.chunks, event.bytes) for event in seen if isinstance(event, Filled)] == [(2, 3 * 4 * 4)]
