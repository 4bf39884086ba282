"""What a notebook shows of a store: all that is there, text as text, in bounded time, and never an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpuload
from gpuload.request import Reason
from gpuload.zarr import inspect as whole_inspection
from gpuload.zarr.chunk_files import chunk_files
from gpuload.zarr.inspect import sample

EVIL = "<img src=x onerror=alert(1)>"
VALUE = np.arange(1, 1 + 10 * 37 * 49, dtype="f4").reshape(10, 37, 49)  # 7252 bytes a row


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever these tests run on, its file system takes the fastpath."""
    monkeypatch.setattr(sys.modules["gpuload.zarr.inspect"], "direct_reason", lambda geometry: None)


def opened(path: Path) -> Any:
    return gpuload.open(path, device="cpu")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Arrays and groups with hostile names and attributes."""
    root = zarr.create_group(tmp_path / "s.zarr")
    root.create_array("plain", data=VALUE, chunks=(1, 37, 49), compressors=None, dimension_names=[EVIL, "y", "x"])
    inner = root.create_group(EVIL, attributes={EVIL: EVIL})
    inner.create_array("packed", data=VALUE, chunks=(1, 37, 49), attributes={EVIL: EVIL})
    inner.create_group("empty")
    return tmp_path / "s.zarr"


def test_the_tree_tells_how_it_is_stored_and_what_can_take_the_fastpath(store: Path) -> None:
    dataset = opened(store)
    page = dataset._repr_html_()
    tail = next(iter(whole_inspection(store / "plain"))).fallback_bytes / VALUE.nbytes
    for words in (">plain<", ">packed<", ">empty<", f"{100 * (1 - tail):.1f} % (tail {100 * tail:.1f})",
                  "0.0 % (host-codec 100)", "chunks=(1, 37, 49)", "bytes zstd", "float32"):  # fmt: skip
        assert words in page, words
    assert f'<span class="gpuload-copy">gpuload pack {store} {store.parent}/s.packed.zarr</span>' in page
    assert "host-codec" in dataset[EVIL]["packed"]._repr_html_()


def test_names_and_attributes_are_text(store: Path) -> None:
    dataset = opened(store)
    for node in (dataset, dataset["plain"], dataset[EVIL], dataset[EVIL]["packed"]):
        shown = node._repr_mimebundle_()
        assert set(shown) == {"text/plain", "text/html"}
        assert shown["text/plain"] == repr(node)
        assert "<img" not in shown["text/html"]
    assert "&lt;img" in dataset._repr_html_()
    assert "&lt;img" in dataset[EVIL]["packed"]._repr_html_()


@pytest.mark.parametrize("shards", [None, (5, 37, 49)])
def test_no_chunk_is_read(tmp_path: Path, shards: Any) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=VALUE, chunks=(1, 37, 49), shards=shards, compressors=None)
    array = opened(tmp_path / "a.zarr")
    with gpuload.trace() as trace:
        shown = array._repr_mimebundle_()
    assert f"{100 * whole_inspection(tmp_path / 'a.zarr')[0].share:.1f} %" in shown["text/html"]
    # Of a shard its index: 16 bytes a chunk, and the checksum.
    assert {row.bytes for row in trace.rows()} == (set() if shards is None else {5 * 16 + 4})


def test_a_huge_array_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(10**6, 2048), chunks=(1, 1024), dtype="f4", compressors=None)
    folder = tmp_path / "a.zarr/c"
    for row in range(600):
        (folder / str(row)).mkdir(parents=True)
        (folder / str(row) / "0").write_bytes(b"\0" * 4096)
    looked: list[str] = []
    scandir = os.scandir

    class Counted:
        def __init__(self, fd: int) -> None:
            self.inner = scandir(fd)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            self.inner.close()

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            entry = next(self.inner)
            looked.append(entry.name)
            return entry

    monkeypatch.setattr(os, "scandir", Counted)
    page = opened(tmp_path / "a.zarr")._repr_html_()
    assert "100 %, of a part of the files" in page
    assert len(looked) < 600
    # Nor does a directory full of something else take long.
    files = chunk_files(opened(tmp_path / "a.zarr").source.root, "", opened(tmp_path / "a.zarr").description, 5)
    assert len(files.keys) <= 5
    assert not files.complete
    shutil.rmtree(folder)
    for row in range(400):
        (tmp_path / "a.zarr" / f"x{row}").mkdir()
    looked.clear()
    assert "no chunks at first" in opened(tmp_path / "a.zarr")._repr_html_()
    assert len(looked) < 300
    assert array.nchunks == 2 * 10**6


def test_the_sample_is_the_inspection_where_it_is_complete(store: Path) -> None:
    for name in ("plain", f"{EVIL}/packed"):
        looked = sample(opened(store)[name])
        assert looked is not None
        assert looked[1]
        (exact,) = (found for found in whole_inspection(store) if found.name == name)
        assert looked[0] == exact
    empty = zarr.create_array(store / "nothing", shape=(4,), dtype="f4")
    assert "nothing is stored" in opened(store / "nothing")._repr_html_()
    assert empty.shape == (4,)


def test_indexes_that_are_large_are_left_alone(tmp_path: Path) -> None:
    zarr.create_array(
        tmp_path / "a.zarr", shape=(2**20,), chunks=(1,), shards=(2**20,), dtype="u1", compressors=None
    )  # an index of 16 MiB
    array = opened(tmp_path / "a.zarr")
    with gpuload.trace() as trace:
        assert "not looked at" in array._repr_html_()
    assert trace.rows() == []


def test_nothing_is_raised_whatever_has_become_of_the_files(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = opened(store)
    inner, array = dataset[EVIL], dataset["plain"]
    (store / EVIL / "packed" / "zarr.json").write_text("{")
    (store / "plain" / "c" / "0").rename(store / "plain" / "c" / "x")
    for node in (dataset, inner):
        assert "is not JSON" in node._repr_html_()
    shutil.rmtree(store)
    for node in (dataset, inner, array):
        assert set(node._repr_mimebundle_()) == {"text/plain", "text/html"}

    def fail(self: Any) -> Any:
        raise RuntimeError(EVIL)

    monkeypatch.setattr(type(dataset), "__iter__", fail)
    monkeypatch.setattr(sys.modules["gpuload.zarr.outline"], "sample", fail)
    for node in (dataset, array):
        shown = node._repr_mimebundle_()
        assert "&lt;img" in shown["text/html"]
    assert f"cannot be listed: {EVIL}" in repr(dataset)


def test_a_cut_shard_index_is_said(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=VALUE, chunks=(1, 37, 49), shards=(5, 37, 49), compressors=None)
    (tmp_path / "a.zarr/c/0/0/0").write_bytes(b"cut")
    assert "cannot be looked at" in opened(tmp_path / "a.zarr")._repr_html_()
    assert "cannot be looked at" in opened(tmp_path / "a.zarr")._repr_mimebundle_()["text/html"]


def test_no_display_library_is_loaded(store: Path) -> None:
    code = (
        f"import sys, gpuload\nds = gpuload.open({str(store)!r}, device='cpu')\n"
        "ds._repr_mimebundle_(), ds['plain']._repr_mimebundle_(), gpuload.trace()._repr_mimebundle_()\n"
        "print({'ipywidgets', 'anywidget', 'IPython', 'gpuload.widgets'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_what_stops_it_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inspection = sys.modules["gpuload.zarr.inspect"]
    monkeypatch.setattr(inspection, "direct_reason", lambda geometry: Reason.FILE_SYSTEM)
    assert "file-system" in opened(store)["plain"]._repr_html_()
