"""Arrays that other implementations wrote: equal to dask.array.from_zarr on zarr-python, bit for bit."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import dask.array
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from gpuload.dask import from_zarr
from gpuload.errors import UnsupportedArrayError
from gpuload.zarr import Array, DeviceStore
from gpuload.zarr.dataset import node_at
from gpuload.zarr.source import Source

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"
FORMATS = {".zarray": 2, "zarr.json": 3}
DOCUMENTS = sorted(
    path.relative_to(CORPUS).as_posix() for name in FORMATS for path in CORPUS.rglob(name) if CORPUS.is_dir()
)

pytestmark = pytest.mark.skipif(not DOCUMENTS, reason=f"the arrays of other implementations are not at {CORPUS}")


@cache
def pair(document: str) -> tuple[Array, zarr.Array[Any]] | None:
    """The array as gpuload and as zarr-python opens it; None where zarr-python cannot read it."""
    path = CORPUS / document
    zarr_format = FORMATS[path.name]
    source = Source(DeviceStore(path.parent, read_only=True), "", zarr_format=zarr_format, device="cpu", strict=None)
    try:
        node = node_at(source)
    except UnsupportedArrayError:
        return None
    assert isinstance(node, Array)
    return node, zarr.open_array(str(path.parent), mode="r", zarr_format=zarr_format)


def shape_of(document: str) -> tuple[int, ...]:
    return tuple(json.loads((CORPUS / document).read_text())["shape"])


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Any, Any, Any]:
    document = draw(st.sampled_from(DOCUMENTS))
    shape = shape_of(document)

    def along(size: int) -> st.SearchStrategy[Any]:
        end = st.none() | st.integers(-size - 2, size + 2)
        step = st.none() | st.integers(-size - 1, size + 1).filter(bool)
        return st.builds(slice, end, end, step) | (st.integers(-size, size - 1) if size else st.nothing())

    selection: list[Any] = [draw(along(size)) for size in shape]
    listed = [dim for dim, size in enumerate(shape) if size]
    if listed and draw(st.booleans()):
        dim = draw(st.sampled_from(listed))
        selection[dim] = draw(st.lists(st.integers(0, shape[dim] - 1), min_size=1, max_size=5))
    chunks = draw(st.sampled_from(["auto", None]) | st.tuples(*(st.integers(1, max(1, size)) for size in shape)))
    rechunked = draw(st.none() | st.tuples(*(st.integers(1, max(1, size)) for size in shape)))
    return document, chunks, rechunked, tuple(selection)


@given(cases())
def test_selections_and_rechunks(same: Callable[[Any, Any], bool], case: tuple[str, Any, Any, Any]) -> None:
    document, chunks, rechunked, selection = case
    arrays = pair(document)
    if arrays is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dask.array.PerformanceWarning)
        ours = from_zarr(arrays[0], chunks=chunks)
        theirs = dask.array.from_zarr(arrays[1], chunks=arrays[1].chunks)  # dask has no "auto" for objects
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if rechunked is not None and ours.ndim:
            ours, theirs = ours.rechunk(rechunked), theirs.rechunk(rechunked)
        ours, theirs = ours[selection], theirs[selection]
        assert ours.shape == theirs.shape
        assert same(ours.compute(), theirs.compute())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_whole(document: str, same: Callable[[Any, Any], bool]) -> None:
    arrays = pair(document)
    if arrays is None:
        assert any(name in document for name in ("pcodec", "zfpy", "optional"))
        return
    assert same(from_zarr(arrays[0]).compute(), dask.array.from_zarr(arrays[1]).compute())
    assert from_zarr(arrays[0], chunks=None).chunks == from_zarr(arrays[0], chunks=arrays[0].chunks).chunks
