"""The forms a reference may take, the paths it may name, and what is refused: by name, and before anything is read."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload
from gpuload import config
from gpuload.errors import (
    ChunkDecodeError,
    ChunkReadError,
    ChunkSizeError,
    ConfigError,
    EscapesStoreError,
    NotFoundError,
    NotLocalError,
    NotRegularFileError,
    NotZarrError,
    ReadOnlyError,
    UnsupportedArrayError,
)
from gpuload.zarr import Array, Dataset, VirtualStore

VALUES = np.arange(24, dtype="<i4").reshape(6, 4)
ZARRAY: dict[str, Any] = {
    "shape": [6, 4], "chunks": [2, 4], "dtype": "<i4", "fill_value": -1, "order": "C", "filters": None,
    "compressor": None, "zarr_format": 2,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file of 10 bytes, and then VALUES."""
    made = tmp_path.resolve() / "store"
    made.mkdir()
    (made / "x.bin").write_bytes(b"0123456789" + VALUES.tobytes() + b"more")
    return made


def chunks(path: str = "x.bin", at: int = 10) -> dict[str, Any]:
    return {f"{i}.0": [path, at + 32 * i, 32] for i in range(3)}


def refs(entries: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {".zarray": json.dumps(ZARRAY | metadata), **entries}


def write(folder: Path, content: Any, name: str = "refs.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def opened(path: Path, **options: Any) -> Array:
    found = gpuload.open(path, device="cpu", **options)
    assert isinstance(found, Array)
    return found


def encoded(data: bytes) -> str:
    return "base64:" + base64.b64encode(data).decode()


# ---------------------------------------------------------------- forms


@pytest.mark.parametrize("version", [0, 1, None])
def test_versions(folder: Path, version: int | None) -> None:
    entries = refs(chunks())
    content = entries if version is None else {"version": version, "refs": entries}
    assert np.array_equal(opened(write(folder, content))[...], VALUES)


def test_each_form_of_an_entry(folder: Path) -> None:
    (folder / "whole.bin").write_bytes(VALUES[4:].tobytes())
    text = "".join(map(chr, VALUES[2:4].tobytes()))  # all below 128, as kerchunk writes them
    entries = {"0.0": encoded(VALUES[:2].tobytes()), "1.0": text, "2.0": ["whole.bin"]}
    array = opened(write(folder, refs(entries)))
    assert np.array_equal(array[...], VALUES)
    assert np.array_equal(array[5:0:-2, [3, 0, 3]], VALUES[5:0:-2, [3, 0, 3]])
    del entries["1.0"]
    array = opened(write(folder, refs(entries)))
    assert np.array_equal(array[1:5, 0], [4, -1, -1, 16])


def test_metadata_that_is_not_made_text(folder: Path) -> None:
    content = {".zgroup": {"zarr_format": 2}, ".zattrs": {"title": "a"}}
    content |= {"a/.zarray": ZARRAY, "a/.zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]}}
    content |= {f"a/{key}": entry for key, entry in chunks().items()}
    dataset = gpuload.open(write(folder, content), device="cpu")
    assert isinstance(dataset, Dataset)
    assert list(dataset) == ["a"]
    assert dataset.attrs == {"title": "a"}
    array = dataset["a"]
    assert isinstance(array, Array)
    assert array.dims == ("y", "x")
    assert np.array_equal(array[...], VALUES)
    assert "refs.json" in repr(dataset)


def test_metadata_in_a_file(folder: Path) -> None:
    (folder / "meta").write_text(json.dumps(ZARRAY))
    assert np.array_equal(opened(write(folder, {".zarray": ["meta"], **chunks()}))[...], VALUES)


def test_templates_are_text_put_in_place(folder: Path) -> None:
    content = {"version": 1, "templates": {"u": str(folder), "n": "x"}, "refs": refs(chunks("{{u}}/{{ n }}.bin"))}
    assert np.array_equal(opened(write(folder, content))[...], VALUES)


def test_scalars_whose_key_is_left_out(folder: Path) -> None:
    content = {".zgroup": '{"zarr_format": 2}'}
    content |= {"s/.zarray": json.dumps(ZARRAY | {"shape": [], "chunks": []}), "s/": ["x.bin", 14, 4]}
    dataset = gpuload.open(write(folder, content), device="cpu")
    assert dataset["s"][...] == 1  # and not the fill value
    with pytest.raises(NotZarrError, match="'s/'"):
        gpuload.open(write(folder, content | {"s/.zarray": json.dumps(ZARRAY)}))


def test_v3_with_shards_in_references(folder: Path) -> None:
    data = np.arange(64, dtype="i2").reshape(8, 8)
    zarr.create_array(str(folder / "a"), data=data, chunks=(2, 2), shards=(4, 4), fill_value=5)
    whole, content = b"", {}
    for path in sorted((folder / "a").rglob("*")):
        if path.is_file():
            content[str(path.relative_to(folder / "a"))] = ["all", len(whole), path.stat().st_size]
            whole += path.read_bytes()
    (folder / "all").write_bytes(whole)
    array = opened(write(folder, content))
    assert array.shards == (4, 4)
    assert np.array_equal(array[...], data)
    assert np.array_equal(array[[6, 1], ::-3], data[[6, 1], ::-3])


@settings(max_examples=50)
@given(data=st.data())
def test_any_division_among_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Chunks in any files of any directories, at any place, inline or not there at all."""
    folder = tmp_path_factory.mktemp("refs")
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    edges = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    fill = data.draw(st.integers(0, 255))
    expected = np.full(shape, fill, "u1")
    contents: dict[str, bytes] = {"a": b"x", "b": b"", "sub/c": b"yz"}
    entries: dict[str, Any] = {}
    for i, j in np.ndindex(*(-(-n // e) for n, e in zip(shape, edges, strict=True))):
        where = data.draw(st.sampled_from(["a", "b", "sub/c", "inline", "text", "missing"]))
        chunk = np.array(
            data.draw(st.lists(st.integers(0, 127), min_size=edges[0] * edges[1], max_size=edges[0] * edges[1])), "u1"
        ).reshape(edges)
        if where == "missing":
            continue
        place = expected[i * edges[0] : (i + 1) * edges[0], j * edges[1] : (j + 1) * edges[1]]
        place[...] = chunk[: place.shape[0], : place.shape[1]]
        if where in contents:
            entries[f"{i}.{j}"] = [where, len(contents[where]), chunk.size]
            contents[where] += chunk.tobytes()
        elif where == "inline":
            entries[f"{i}.{j}"] = encoded(chunk.tobytes())
        elif not (text := chunk.tobytes().decode()).startswith("base64:"):
            entries[f"{i}.{j}"] = text
    (folder / "sub").mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    metadata = {"shape": shape, "chunks": edges, "dtype": "|u1", "fill_value": fill}
    array = opened(write(folder, refs(entries, **metadata)))
    with config.set({"handles.budget": None, "direct.host": data.draw(st.sampled_from(["always", "never"]))}):
        assert np.array_equal(array[...], expected)
        rows = data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=5))
        assert np.array_equal(array[rows, ::-1], expected[rows, ::-1])


# ---------------------------------------------------------------- paths


def test_paths_of_local_files(folder: Path) -> None:
    odd = folder / "a b#ü.bin"
    odd.write_bytes((folder / "x.bin").read_bytes())

    plain = folder / "x.bin"
    paths = ["x.bin", "./x.bin", str(plain), plain.as_uri(), f"file://localhost{plain}", odd.name, odd.as_uri()]
    for path in paths:
        assert np.array_equal(opened(write(folder, refs(chunks(path))))[...], VALUES), path


def test_a_relative_path_starts_where_the_references_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    write(folder, refs(chunks()))
    assert np.array_equal(opened(Path("../refs.json"))[...], VALUES)


def test_what_is_outside_is_refused_until_it_is_allowed(folder: Path) -> None:
    inner = folder / "refs"
    inner.mkdir()
    for path in ("../x.bin", str(folder / "x.bin"), (folder / "x.bin").as_uri()):
        made = write(inner, refs(chunks(path)))
        with pytest.raises(EscapesStoreError, match=r"refs\.json.*x\.bin.*roots"):
            gpuload.open(made)
        assert np.array_equal(opened(made, roots=[folder])[...], VALUES)
        with config.set({"references.roots": [str(folder)]}):
            assert np.array_equal(opened(made)[...], VALUES)
        again = pickle.loads(pickle.dumps(opened(made, roots=[folder])))
        assert np.array_equal(again[1], VALUES[1])
    with pytest.raises(EscapesStoreError):  # a name that only begins alike
        gpuload.open(write(inner, refs(chunks(f"{folder}2/x.bin"))), roots=[folder])
    with config.set({"references.roots": 5}), pytest.raises(ConfigError, match=r"references\.roots"):
        gpuload.open(made)


def test_a_root_that_is_a_link_goes_by_both_names(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    for path in (folder / "x.bin", link / "x.bin"):
        write(folder, refs(chunks(str(path))))
        assert np.array_equal(opened(link / "refs.json")[...], VALUES)


@pytest.mark.parametrize("path", ["a/../x.bin", "/x/../../x.bin", "../../../../../../../x", "..", "a/.."])
def test_dots_that_lead_up(folder: Path, path: str) -> None:
    with pytest.raises(EscapesStoreError):
        gpuload.open(write(folder, refs(chunks(path))))


@pytest.mark.parametrize(
    "path", ["s3://bucket/x.bin", "http://host/x.bin", "file://host/x.bin", "memory://x", "zip://x::file:///x.zip",
             "simplecache::file:///x", "jinja2:://"],
)  # fmt: skip
def test_other_protocols(folder: Path, path: str) -> None:
    with pytest.raises((NotLocalError, EscapesStoreError), match=r"refs\.json"):
        gpuload.open(write(folder, refs(chunks(path))))


def test_the_home_directory_is_none_of_references(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    with pytest.raises(ChunkReadError, match=r"~/x\.bin"):
        opened(write(folder, refs(chunks("~/x.bin"))))[...]


@pytest.mark.parametrize("through", ["a file", "a directory"])
def test_links_that_lead_out(folder: Path, through: str) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "x.bin").write_bytes((folder / "x.bin").read_bytes())
    if through == "a file":
        (folder / "out.bin").symlink_to(outside / "x.bin")
        path = write(folder, refs(chunks("out.bin")))
    else:
        (folder / "out").symlink_to(outside)
        path = write(folder, refs(chunks("out/x.bin")))
    with pytest.raises(EscapesStoreError):
        opened(path)[...]
    assert np.array_equal(opened(path, follow_links=True)[...], VALUES)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "entry",
    [["x.bin", -1, 4], ["x.bin", 4, -1], ["x.bin", 2**62, 2**62], ["x.bin", 10**40, 4], ["x.bin", 4.0, 4],
     ["x.bin", True, 4], ["x.bin", "4", 4], ["x.bin", 4], [], [5], ["x.bin", None, None], 5, None, True,
     [["x.bin"], 4, 4], "base64:!!",
     ["x" * 5000, 0, 4], ["", 0, 4], ["x\0y", 0, 4], ["\ud800", 0, 4]],
    ids=lambda entry: str(entry)[:30],
)  # fmt: skip
def test_entries_that_are_no_references(folder: Path, entry: Any) -> None:
    with pytest.raises(NotZarrError, match=r"refs\.json"):
        gpuload.open(write(folder, refs(chunks() | {"0.0": entry})))


@pytest.mark.parametrize("key", ["../x", "/x", "a/../b", "a//b", "..", "a/..", "a\0b", "./a", "a/./b"])
def test_keys_that_leave_the_store(folder: Path, key: str) -> None:
    with pytest.raises(EscapesStoreError):
        gpuload.open(write(folder, refs(chunks() | {key: "x"})))


@pytest.mark.parametrize("key", ["a/" * 200 + "b", "a" * 5000])
def test_keys_that_are_too_long(folder: Path, key: str) -> None:
    with pytest.raises(NotZarrError, match="too long"):
        gpuload.open(write(folder, refs(chunks() | {key: "x"})))


@pytest.mark.parametrize(
    "content",
    [
        {"version": 1, "gen": [{"key": "a", "url": "{{u}}", "offset": "{{ i * 8 }}"}], "refs": refs(chunks())},
        {"version": 1, "templates": {"f": "{{c}}.bin"}, "refs": refs(chunks("{{f(c='x')}}"))},
        {"version": 1, "templates": {"f": "x"}, "refs": refs(chunks("{{f(c='x')}}"))},
        {"version": 1, "templates": {"f": "x"}, "refs": refs(chunks("{% for i in range(10) %}x{% endfor %}"))},
        {"version": 1, "templates": {"f": "x"}, "refs": refs(chunks("{{g}}"))},
        {"version": 1, "templates": {"f": "{{f}}{{f}}"}, "refs": refs(chunks("{{f}}"))},
    ],
)
def test_what_would_have_to_be_computed(folder: Path, content: Any) -> None:
    with pytest.raises(UnsupportedArrayError, match="computed"):
        gpuload.open(write(folder, content))


@pytest.mark.parametrize(
    "content",
    [{"version": 2, "refs": {}}, {"version": True, "refs": {}}, {"version": 1}, {"version": 1, "refs": []},
     {"refs": {}},
     {"version": 1, "templates": {"u": 5}, "refs": {}}, {"version": 1, "templates": {"u": "x" * 5000}, "refs": {}},
     {"version": 1, "templates": [], "refs": {}}, {"some": "other", "document": "of JSON"}, {}],
    ids=lambda content: str(content)[:40],
)  # fmt: skip
def test_documents_that_hold_no_references(folder: Path, content: Any) -> None:
    with pytest.raises(NotZarrError, match=r"refs\.json"):
        gpuload.open(write(folder, content))


@pytest.mark.parametrize(
    "text",
    ["{", "{]", '{"a": ' + "[" * 100_000, "{" + '"a": {' * 100_000, '{"a": [1' + "0" * 9000 + "]}"],
    ids=lambda text: text[:6],
)
def test_documents_that_are_no_json(folder: Path, text: str) -> None:
    (folder / "refs.json").write_text(text)
    with pytest.raises(NotZarrError, match=r"refs\.json"):
        gpuload.open(folder / "refs.json")


def test_a_document_that_is_too_large(folder: Path) -> None:
    path = write(folder, refs(chunks()))
    with config.set({"references.limit": 100}), pytest.raises(NotZarrError, match=r"references\.limit"):
        gpuload.open(path)
    with open(path, "r+b") as file:
        file.truncate(1 << 40)  # no drive has it
    with pytest.raises(NotZarrError, match="bytes"):
        gpuload.open(path)


def test_references_are_for_reading(folder: Path) -> None:
    path = write(folder, refs(chunks()))
    with pytest.raises(ReadOnlyError):
        gpuload.open(path, mode="r+")
    with pytest.raises(ReadOnlyError):
        opened(path)[0] = 1
    with pytest.raises(ReadOnlyError):
        opened(path).append(VALUES)


# ---------------------------------------------------------------- files that are not what was referred to


def test_a_file_that_is_not_there_is_no_fill_value(folder: Path) -> None:
    array = opened(write(folder, refs(chunks() | {"1.0": ["y.bin", 0, 32]})))
    assert np.array_equal(array[:2], VALUES[:2])
    with pytest.raises(ChunkReadError, match=r"1\.0.*y\.bin"):
        array[3]


@pytest.mark.parametrize(("offset", "size"), [(100, 32), (2**40, 32), (2**62, 32), (90, 32)])
def test_ranges_beyond_the_end(folder: Path, offset: int, size: int) -> None:
    array = opened(write(folder, refs(chunks() | {"1.0": ["x.bin", offset, size]})))
    with pytest.raises(ChunkSizeError, match=r"1\.0.*x\.bin.*110") as caught:
        array[...]
    assert caught.value.expected == 32


def test_ranges_of_a_wrong_size(folder: Path) -> None:
    for size in (0, 31, 33):
        array = opened(write(folder, refs(chunks() | {"2.0": ["x.bin", 10, size]})))
        with pytest.raises(ChunkSizeError, match=r"2\.0"):
            array[...]
    with pytest.raises(ChunkSizeError, match=r"2\.0"):
        opened(write(folder, refs(chunks() | {"2.0": encoded(b"short")})))[...]


def test_a_file_that_was_cut_meanwhile(folder: Path) -> None:
    array = opened(write(folder, refs(chunks())))
    assert np.array_equal(array[...], VALUES)
    os.truncate(folder / "x.bin", 80)
    assert np.array_equal(array[:4], VALUES[:4])
    with pytest.raises(ChunkSizeError, match=r"2\.0"):
        array[...]
    (folder / "x.bin").unlink()
    with pytest.raises(ChunkReadError, match=r"x\.bin"):
        array[...]


def test_what_is_no_regular_file(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    (folder / "directory").mkdir()
    for name in ("fifo", "directory"):
        with pytest.raises(NotRegularFileError, match=name):
            opened(write(folder, refs(chunks(name))))[...]
    with pytest.raises(NotZarrError):
        VirtualStore(folder / "fifo")
    with pytest.raises(NotFoundError):
        VirtualStore(folder / "none.json")


@pytest.mark.parametrize("filters", [[{"id": "zlib", "level": 1}], [{"id": "delta", "dtype": "<i4"}]])
def test_an_encoded_chunk_that_is_far_too_large(folder: Path, filters: Any) -> None:
    """A file without a byte on the drive, and terabytes of zeros to decode: refused before it is read."""
    with open(folder / "huge", "wb") as file:
        file.truncate(1 << 42)
    array = opened(write(folder, refs(chunks() | {"0.0": ["huge"]}, filters=filters)))
    with pytest.raises(ChunkSizeError, match=r"0\.0"):
        array[...]


def test_bytes_that_no_codec_takes(folder: Path) -> None:
    array = opened(write(folder, refs(chunks(), filters=[{"id": "zlib", "level": 1}])))
    with pytest.raises(ChunkDecodeError):
        array[...]
