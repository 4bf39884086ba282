"""Any archive, any selection: what gpuload reads of a zip archive equals what zarr-python's ZipStore reads of it."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

import gpuload
from gpuload import config
from gpuload.backends import registry

EXAMPLES = settings().max_examples if settings().max_examples > 100 else 25
BACKENDS = [entry.name for entry in registry.ENTRIES if registry.available(entry.name).reason is None]
pytestmark = [
    pytest.mark.timeout(600 if EXAMPLES == 25 else 4 * 3600),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]


def array_of(draw: st.DrawFn, store: dict[str, Any], *, sharded: bool) -> Any:
    """Values, and a store of them in memory: v2 or v3, with shards or without, with codecs or without."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    chunks = tuple(draw(st.integers(1, max(1, n))) for n in shape)
    dtype = draw(st.sampled_from(["<f4", "<i2", "u1", "<c16", "<M8[s]", "b1"]))
    options: dict[str, Any] = {"chunks": chunks, "fill_value": draw(st.sampled_from([0, 1])), "zarr_format": 3}
    if sharded and shape:
        options["shards"] = tuple(chunk * draw(st.integers(1, 3)) for chunk in chunks)
        options["compressors"] = draw(st.sampled_from([None, ZstdCodec(), GzipCodec()]))
    elif draw(st.booleans()):
        options["compressors"] = draw(st.sampled_from([None, ZstdCodec(), BloscCodec(cname="lz4")]))
    else:
        options |= {"zarr_format": 2, "order": draw(st.sampled_from("CF")), "compressors": None}
    if np.dtype(dtype).kind == "M":
        options["fill_value"] = np.datetime64(options["fill_value"], "s")
    values = np.asarray(np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, shape), np.int64).astype(dtype)
    name = draw(st.sampled_from(["", "a", "a/b"]))
    made = zarr.create_array(zarr.storage.MemoryStore(store), name=name or None, shape=shape, dtype=dtype, **options)
    made[...] = values
    return name, values


def habits(draw: st.DrawFn, names: list[str]) -> tuple[list[str], dict[str, Any]]:
    """An order of members, some of them twice and with directories between, and how they are written."""
    deflated = set(draw(st.lists(st.sampled_from(names)))) if draw(st.booleans()) else set()
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    extra = [b"\x99\x99" + n.to_bytes(2, "little") + bytes(n) for n in lengths]
    order = draw(st.permutations(names))
    twice = draw(st.lists(st.sampled_from(names), max_size=2))
    return [*twice, *order], {
        "method": lambda name: zipfile.ZIP_DEFLATED if name in deflated else zipfile.ZIP_STORED,
        "local_extra": lambda name: extra[len(name) % len(extra)],
        "streamed": draw(st.booleans()),
        "zip64": draw(st.booleans()),
    }


def index_of(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    ends = st.none() | st.integers(-9, 9)
    slices = st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, -1, -3]))
    return tuple(draw(slices | st.integers(-n, n - 1) if n else slices) for n in shape)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.filterwarnings("ignore:Duplicate name")
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_equal_to_zip_store(
    data: st.DataObject, zips: ModuleType, same: Callable[[Any, Any], bool], sharded: bool
) -> None:
    draw = data.draw
    store: dict[str, Any] = {}
    name, values = array_of(draw, store, sharded=sharded)
    content = {key: buffer.to_bytes() for key, buffer in store.items()}
    names, options = habits(draw, sorted(content))
    # Of what is there twice the first is something else.
    members = [(key, b"old" if key in names[i + 1 :] else content[key]) for i, key in enumerate(names)]
    if draw(st.booleans()):
        members[1:1] = [("a/", b""), ("c/", b"")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.zip"
        zips.write(path, members, **options)
        with zarr.storage.ZipStore(path, mode="r") as theirs:
            expected = zarr.open_array(theirs, path=name, mode="r")
            ours = gpuload.open(expected, device="cpu")
            whole = np.asarray(expected[...])
        assert same(whole, values)
        for backend in BACKENDS:
            with config.set({"backend": backend}):
                assert same(ours[...], whole)  # type: ignore[index]
                for _ in range(3):
                    index = index_of(draw, values.shape)
                    assert same(ours[index], whole[index]), index  # type: ignore[index]
