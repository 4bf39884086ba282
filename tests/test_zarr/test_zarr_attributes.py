"""Changing attributes: whole, told to the consolidated metadata of groups above, and never a lost change."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpuload
from gpuload.errors import AssignmentError, ChunkWriteError, NotZarrError, ReadOnlyError
from gpuload.files.writer import Writer
from gpuload.zarr import Array, Dataset


def made(path: Path, zarr_format: Any, *, consolidated: bool = False) -> None:
    """A group with an array, and a group below it with another one."""
    root = zarr.create_group(str(path), zarr_format=zarr_format, attributes={"title": "t"})
    for group, name in ((root, "a"), (root.create_group("sub", attributes={"of": "sub"}), "b")):
        array = group.create_array(name, shape=(6,), chunks=(4,), dtype="i4", attributes={"units": "K", "n": 1})
        array[:] = np.arange(6)
    if consolidated:
        zarr.consolidate_metadata(str(path))


def opened(path: Path, mode: str = "r+") -> Any:
    return gpuload.open(path, mode=mode, device="cpu")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("node", ["", "a", "sub", "sub/b"])
def test_what_is_changed_is_read_by_all(tmp_path: Path, zarr_format: Any, node: str) -> None:
    made(tmp_path / "g", zarr_format)
    before = {key: path.read_bytes() for key, path in files(tmp_path / "g").items()}
    mine = opened(tmp_path / "g")[node] if node else opened(tmp_path / "g")
    model = dict(mine.attrs)
    mine.attrs["units"] = model["units"] = "°C"
    mine.attrs.update({"list": [1, None, "x"], "nested": {"a": 1.5}}, more=True)
    model |= {"list": [1, None, "x"], "nested": {"a": 1.5}, "more": True}
    mine.update_attributes({"n": 2})
    model["n"] = 2
    del mine.attrs["more"]
    del model["more"]
    assert mine.attrs == model
    assert repr(mine.attrs) == repr(model)
    assert mine.attrs.asdict() == model
    assert opened(tmp_path / "g" / node).attrs == model
    assert dict(zarr.open(str(tmp_path / "g" / node), mode="r").attrs) == model
    changed = [key for key, path in files(tmp_path / "g").items() if before.get(key) != path.read_bytes()]
    document = "zarr.json" if zarr_format == 3 else ".zattrs"
    assert changed == [f"{node}/{document}" if node else document]
    if isinstance(mine, Array):
        assert mine[...].tolist() == list(range(6))
        assert np.array_equal(zarr.open_array(str(tmp_path / "g" / node), mode="r")[...], np.arange(6))
    mine.attrs.clear()
    assert not opened(tmp_path / "g" / node).attrs
    with pytest.raises(KeyError):
        del mine.attrs["units"]


def files(path: Path) -> dict[str, Path]:
    return {str(file.relative_to(path)): file for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("node", ["", "a", "sub", "sub/b"])
@pytest.mark.parametrize("alone", [False, True], ids=["from the root", "opened by itself"])
def test_consolidated_metadata_follow(tmp_path: Path, zarr_format: Any, node: str, alone: bool) -> None:
    made(tmp_path / "g", zarr_format, consolidated=True)
    place = tmp_path / "g" / node if alone else tmp_path / "g"
    mine = opened(place) if alone or not node else opened(place)[node]
    mine.attrs["new"] = [1, 2]
    if isinstance(mine, Array):
        mine.append(np.arange(3))
    group = zarr.open_consolidated(str(tmp_path / "g"))
    assert group.metadata.consolidated_metadata is not None
    theirs = group[node] if node else group
    assert dict(theirs.attrs) == mine.attrs
    assert mine.attrs["new"] == [1, 2]
    if isinstance(mine, Array):
        assert theirs.shape == (9,)  # type: ignore[union-attr]
        assert theirs[...].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]  # type: ignore[union-attr,index]
    others = {"", "a", "sub", "sub/b"} - {node}
    fresh = zarr.open_group(str(tmp_path / "g"), mode="r", use_consolidated=False)
    for other in others:
        one, two = (group[other], fresh[other]) if other else (group, fresh)
        assert dict(one.attrs) == dict(two.attrs)
        assert "new" not in one.attrs


def test_a_member_behind_a_link(tmp_path: Path) -> None:
    made(tmp_path / "g", 3, consolidated=True)
    (tmp_path / "latest").symlink_to(tmp_path / "g" / "sub" / "b")
    opened(tmp_path / "latest").append([9])
    assert zarr.open_consolidated(str(tmp_path / "g"))["sub/b"].shape == (7,)  # type: ignore[union-attr]


def test_what_is_above_and_no_group_is_left_alone(tmp_path: Path) -> None:
    made(tmp_path / "g", 3)
    (tmp_path / "zarr.json").write_text("[1")
    opened(tmp_path / "g").attrs["x"] = 1
    opened(tmp_path / "g" / "a").append([1])
    assert (tmp_path / "zarr.json").read_text() == "[1"


def test_a_group_above_that_cannot_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "g", 3, consolidated=True)
    write = Writer.write

    def refuse(self: Writer, key: str, *parts: Any) -> None:
        if self.root.path == str(tmp_path / "g"):
            raise ChunkWriteError(key, 13, "refused")
        write(self, key, *parts)

    monkeypatch.setattr(Writer, "write", refuse)
    array = opened(tmp_path / "g" / "a")
    with pytest.raises(ChunkWriteError, match=r"g/zarr.json.*stale now"):
        array.append([1])
    assert opened(tmp_path / "g" / "a").shape == (7,)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"x": np.arange(3)}, "'x' cannot be stored as JSON"),
        ({"ok": 1, "y": object()}, "'y'"),
        ({3: "x"}, "named by text, not by 3"),
    ],
)
def test_what_json_has_no_form_for(tmp_path: Path, attributes: Any, words: str) -> None:
    made(tmp_path / "g", 3)
    array = opened(tmp_path / "g" / "a")
    with pytest.raises(AssignmentError, match=words):
        array.update_attributes(attributes)
    assert array.attrs == opened(tmp_path / "g" / "a").attrs == {"units": "K", "n": 1}


def test_for_reading_only(tmp_path: Path) -> None:
    made(tmp_path / "g", 3)
    for node in (opened(tmp_path / "g", "r"), opened(tmp_path / "g", "r")["a"]):
        with pytest.raises(ReadOnlyError, match="r\\+"):
            node.attrs["x"] = 1
    with pytest.raises(ReadOnlyError, match="to append"):
        opened(tmp_path / "g" / "a", "r").append([1])


def test_a_node_that_is_gone(tmp_path: Path) -> None:
    made(tmp_path / "g", 3)
    array = opened(tmp_path / "g")["a"]
    (tmp_path / "g" / "a" / "zarr.json").unlink()
    with pytest.raises(NotZarrError, match="any more"):
        array.attrs["x"] = 1
    assert not (tmp_path / "g" / "a" / ".zattrs").exists()


def test_what_only_others_understand_stays(tmp_path: Path) -> None:
    made(tmp_path / "g", 3)
    path = tmp_path / "g" / "a" / "zarr.json"
    document = json.loads(path.read_text())
    document["extra"] = {"must_understand": False, "x": 1}
    path.write_text(json.dumps(document))
    group = opened(tmp_path / "g")
    assert isinstance(group, Dataset)
    group.attrs["x"] = float("nan")
    opened(path.parent).attrs["x"] = 1
    after = json.loads(path.read_text())
    assert after == {**document, "attributes": {**document["attributes"], "x": 1}}


def test_changes_at_the_same_time_all_stay(tmp_path: Path) -> None:
    made(tmp_path / "g", 3, consolidated=True)

    def change(number: int) -> None:
        node = opened(tmp_path / "g" / "sub" / "b")
        node.attrs[f"x{number}"] = number
        node.append([100 + number])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(change, range(24)))
    array = opened(tmp_path / "g")["sub/b"]
    assert {name: value for name, value in array.attrs.items() if name[0] == "x"} == {f"x{n}": n for n in range(24)}
    assert sorted(array[6:].tolist()) == list(range(100, 124))
    consolidated = zarr.open_consolidated(str(tmp_path / "g"))["sub/b"]
    assert consolidated.shape == (30,)  # type: ignore[union-attr]
    assert dict(consolidated.attrs) == array.attrs


def test_pickle(tmp_path: Path) -> None:
    made(tmp_path / "g", 3)
    copy = pickle.loads(pickle.dumps(opened(tmp_path / "g" / "a").attrs))
    copy["x"] = 1
    assert opened(tmp_path / "g" / "a").attrs == {"units": "K", "n": 1, "x": 1}
