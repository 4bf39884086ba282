"""Arrays that other implementations wrote: what zarr-python reads is read bit for bit, the rest refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload import config
from gpuload.backends import registry
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
def expected(document: str) -> Any:
    """What zarr-python reads, or the exception it raises."""
    path = CORPUS / document
    try:
        return zarr.open_array(str(path.parent), mode="r", zarr_format=FORMATS[path.name])[...]
    except Exception as error:  # noqa: BLE001 - whatever zarr-python says, it refuses
        return error


def opened(document: str) -> Array:
    path = CORPUS / document
    store = DeviceStore(path.parent, read_only=True)
    node = node_at(Source(store, "", zarr_format=FORMATS[path.name], device="cpu", strict=None))
    assert isinstance(node, Array)
    return node


@cache
def readable(document: str) -> Array | None:
    return None if isinstance(expected(document), Exception) else opened(document)


def shape_of(document: str) -> tuple[int, ...]:
    return tuple(json.loads((CORPUS / document).read_text())["shape"])


SHAPES = sorted({shape_of(document) for document in DOCUMENTS}, key=lambda shape: (len(shape), shape))
BACKENDS = [entry.name for entry in registry.ENTRIES if registry.available(entry.name).reason is None]


def test_the_corpus_is_all_there() -> None:
    refused = [document for document in DOCUMENTS if readable(document) is None]
    assert len(DOCUMENTS) == 65
    # zarr-python reads pcodec where its package is installed.
    assert len([document for document in refused if "pcodec" not in document]) == 6
    assert len([document for document in DOCUMENTS if "pcodec" in document]) == 4


@pytest.mark.parametrize("document", DOCUMENTS)
def test_whole(document: str, backend: str, same: Callable[[Any, Any], bool]) -> None:
    right = expected(document)
    if isinstance(right, Exception):
        with pytest.raises(UnsupportedArrayError, match=r"pcodec|zfpy|optional"):
            opened(document)
        return
    array = opened(document)
    assert same(array[...], right)
    assert array.shape == right.shape
    assert array.dtype == right.dtype
    assert array.nbytes == right.nbytes
    assert array.size == math.prod(array.shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_selections(
    shape: tuple[int, ...], same: Callable[[Any, Any], bool], selections: Callable[[Any], st.SearchStrategy[Any]]
) -> None:
    documents = [document for document in DOCUMENTS if shape_of(document) == shape and readable(document) is not None]

    @settings(max_examples=max(200, settings().max_examples))
    @given(
        st.sampled_from(documents), st.sampled_from(BACKENDS), st.sampled_from(["always", "never"]), selections(shape)
    )
    def check(document: str, backend: str, direct: str, selection: Any) -> None:
        array = readable(document)
        assert array is not None
        right = np.asarray(expected(document)[selection], array.dtype)
        with config.set({"backend": backend, "direct.host": direct}):
            assert same(array[selection], right)

    if documents:
        check()
    else:
        assert "optional" in " ".join(document for document in DOCUMENTS if shape_of(document) == shape)
