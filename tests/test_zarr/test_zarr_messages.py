"""What arrays and groups say of themselves, and what a wrong path or name is answered with."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import zarr

import gpuload
from gpuload.errors import EscapesStoreError, NotLocalError, NotZarrError
from gpuload.zarr import Array, Dataset, DeviceStore, formatting

DATA = np.arange(24, dtype="f4").reshape(4, 6)


@pytest.fixture(params=[2, 3])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = zarr.create_group(str(tmp_path / "s.zarr"), zarr_format=request.param)
    root.create_array("air", data=DATA, chunks=(2, 3), attributes={"units": "<b>K</b>"})
    root.create_array("long/temperature", shape=(5,), chunks=(5,), dtype="i2")
    return tmp_path / "s.zarr"


def opened(path: object) -> Dataset:
    node = gpuload.open(path, device="cpu")  # type: ignore[arg-type]
    assert isinstance(node, Dataset)
    return node


def test_a_group_shows_its_parts_in_columns(store: Path) -> None:
    title, *lines = repr(opened(store)).splitlines()
    assert title == f"<gpuload.Dataset in '{store}' on cpu>"
    assert lines == ["  air   float32  (4, 6)  chunks=(2, 3)", "  long  group"]
    assert "(5,)" in repr(opened(store)["long"])


def test_a_large_group_is_cut_short_and_only_what_is_shown_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formatting, "SHOWN", 3)
    root = zarr.create_group(str(tmp_path / "s.zarr"))
    for name in "abcde":
        root.create_group(name)
    dataset = opened(tmp_path / "s.zarr")
    with gpuload.trace() as trace:
        assert repr(dataset).splitlines()[1:] == ["  a  group", "  b  group", "  c  group", "  and 2 more"]
    assert {row.key for row in trace.rows()} >= {"c/zarr.json"}
    assert not {row.key for row in trace.rows()} & {"d/zarr.json", "e/zarr.json"}
    assert "and 2 more" in dataset._repr_html_()


def test_pages_show_the_same_and_escape_what_comes_from_files(store: Path) -> None:
    dataset = opened(store)
    page = dataset._repr_html_()
    for words in ("air", "float32", "(4, 6)", "chunks=(2, 3)", "long", "group"):
        assert f">{words}<" in page
    array = dataset["air"]
    assert isinstance(array, Array)
    page = array._repr_html_()
    for words in ("(4, 6)", "float32", "chunks=(2, 3)", "96 bytes", "1 attributes", "&lt;b&gt;K&lt;/b&gt;"):
        assert f">{words}<" in page
    assert "<b>K" not in page


def test_a_name_with_control_characters_stays_on_its_line() -> None:
    assert formatting.text_lines([formatting.Part("a\n\x1b[31m", note="group")], 1) == ["  a\\n\\x1b[31m  group"]


def test_a_part_that_cannot_be_opened_is_shown_with_its_error(store: Path, tmp_path: Path) -> None:
    for document in (store / "air").glob("*.json"):
        document.write_text(document.read_text().replace("float32", "float31"))
    for document in (store / "air").glob(".zarray"):
        document.write_text(document.read_text().replace("<f4", "<f3"))
    for shown in (repr(opened(store)), opened(store)._repr_html_()):
        assert re.search("air.*(float31|f3)", shown)
        assert "long" in shown


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("nothing", "has no 'nothing'. It holds: air, long"),
        ("ari", "has no 'ari'. Did you mean 'air'?"),
        ("long/temprature", "at 'long' has no 'temprature'. Did you mean 'temperature'?"),
        ("long/x/y", "at 'long' has no 'x/y'. It holds: temperature"),
        ("air/x", "at 'air' is an array and holds no 'x'"),
        (0, "0: arrays and groups have names, not numbers"),
    ],
)
def test_a_wrong_name_is_answered_with_what_there_is(store: Path, name: str, answer: str) -> None:
    dataset = opened(store)
    with pytest.raises(KeyError) as caught:
        dataset[name]
    assert caught.value.args[0].endswith(answer)
    assert name not in dataset
    assert dataset.get(name) is None


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"nonsense" * 10])
def test_a_damaged_document_is_named(store: Path, content: bytes) -> None:
    document = next(path for path in (store / "air").iterdir() if path.name in ("zarr.json", ".zarray"))
    document.write_bytes(content)
    dataset = opened(store)
    for ask in (dataset.__getitem__, dataset.get):
        with pytest.raises(NotZarrError, match=rf"s\.zarr.*'air/{re.escape(document.name)}' is not JSON"):
            ask("air")
    assert "air" in dataset
    assert f"'air/{document.name}' is not JSON" in repr(dataset)
    assert dataset["long/temperature"][0] == 0  # type: ignore[index]
    (store / "long" / document.name.replace(".zarray", ".zgroup")).write_bytes(content)
    with pytest.raises(NotZarrError, match=r"'long/\S+' is not JSON"):
        dataset["long"]
    document.unlink()
    with pytest.raises(KeyError):
        dataset["air"]


def test_many_names_are_not_a_wall() -> None:
    names = [f"n{i:02}" for i in range(30)]
    assert formatting.listed(names).endswith("n10, n11, and 18 more")
    assert formatting.listed([]) == "nothing"


def test_a_wrong_path_is_answered_with_what_to_open(store: Path, tmp_path: Path) -> None:
    (tmp_path / "s.zip").write_bytes(b"PK")
    (tmp_path / "s.txt").write_bytes(b"zarr")
    document = next(path for path in (store / "air").iterdir() if path.name in ("zarr.json", ".zarray"))
    for path, answer in {
        tmp_path: "holds neither a zarr array nor a group; below it are s.zarr",
        document: f"open '{store / 'air'}'",
        tmp_path / "s.zip": "cannot be read as a zip archive",
        tmp_path / "s.txt": "is no directory, as a store must be",
    }.items():
        with pytest.raises(NotZarrError, match=re.escape(answer)):
            gpuload.open(path)


def test_stores_are_opened_like_paths(store: Path) -> None:
    for form in (zarr.storage.LocalStore(store), DeviceStore(store)):
        assert np.array_equal(opened(form)["air"][...], DATA)  # type: ignore[index]
    with pytest.raises(NotLocalError, match="MemoryStore"):
        gpuload.open(zarr.storage.MemoryStore())


def test_a_store_keeps_its_leave_to_follow_links(store: Path, tmp_path: Path) -> None:
    (store / "air").rename(tmp_path / "elsewhere")
    (store / "air").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EscapesStoreError):
        opened(DeviceStore(store))["air"]
    free = DeviceStore(store, follow_links=True)
    assert np.array_equal(opened(free)["air"][...], DATA)  # type: ignore[index]
    with pytest.raises(EscapesStoreError):
        gpuload.open(free, follow_links=False)["air"]  # type: ignore[index]


def test_the_home_directory_is_known(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(store.parent))
    assert list(opened("~/s.zarr")) == ["air", "long"]


def test_what_is_no_path_is_named() -> None:
    with pytest.raises(TypeError, match=r"gpuload\.open takes a path.*not ndarray"):
        gpuload.open(DATA)  # type: ignore[arg-type]
