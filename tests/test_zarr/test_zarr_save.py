"""New stores and longer arrays: read back by gpuload and zarr-python, and never there by halves."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec

import gpuload
from gpuload.errors import (
    AssignmentError,
    ChunkWriteError,
    ExistsError,
    NotLocalError,
    NotZarrError,
    ReadOnlyError,
    SelectionError,
    UnsupportedArrayError,
)
from gpuload.files.writer import Writer
from gpuload.zarr import Array, Dataset
from gpuload.zarr.create import choose_chunks, choose_shards

RNG = np.random.default_rng(5)


def saved(*arguments: Any, **options: Any) -> Array:
    with gpuload.config.set(device="cpu"):
        node = gpuload.save(*arguments, **options)
    assert isinstance(node, Array)
    return node


@pytest.mark.parametrize("dtype", ["b1", "i2", ">i4", "f2", ">f8", "c8", "M8[s]", "U4", "S3"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (2, 3)},
        {"chunks": 2, "shards": (4, 6)},
        {"chunks": (2, 3), "shards": "auto", "codecs": "zstd"},
        {"chunks": (3, 4), "codecs": [Crc32cCodec()]},
        {"codecs": None},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*dtype:")
def test_arrays(tmp_path: Path, dtype: str, options: dict[str, Any]) -> None:
    value = RNG.integers(0, 2, (7, 9)).astype(dtype)
    array = saved(tmp_path / "deep" / "a", value, **options)
    assert np.array_equal(array[...], value)
    assert np.array_equal(zarr.open_array(str(tmp_path / "deep" / "a"), mode="r")[...], value)
    for name, made in (("chunks", array.chunks), ("shards", array.shards)):
        if isinstance(options.get(name), tuple):
            assert made == options[name]


@pytest.mark.parametrize("value", [3.5, np.float32(2), np.zeros((0, 4)), np.zeros((3, 0)), [[1, 2], [3, 4]]], ids=str)
@pytest.mark.parametrize("shards", [None, "auto"])
def test_scalars_lists_and_nothing(tmp_path: Path, value: Any, shards: Any) -> None:
    array = saved(tmp_path / "a", value, shards=shards)
    assert array.dtype == np.asarray(value).dtype
    assert np.array_equal(array[...], value)
    assert np.array_equal(zarr.open_array(str(tmp_path / "a"), mode="r")[...], value)


def test_names_attributes_and_fill_values(tmp_path: Path) -> None:
    value = np.full((4, 4), -1, "i4")
    array = saved(tmp_path / "a", value, chunks=2, dims=("y", None), attrs={"units": "K"}, fill_value=-1)
    assert (array.dims, dict(array.attrs)) == (("y", None), {"units": "K"})
    assert os.listdir(tmp_path / "a") == ["zarr.json"]
    assert np.array_equal(array[...], value)


def test_groups(tmp_path: Path) -> None:
    tree = {"a": np.arange(5), "sub": {"b": np.float32(3), "names": np.array(["x", "yy"])}, "empty": {}}
    with gpuload.config.set(device="cpu"):
        group = gpuload.save(tmp_path / "g", tree, attrs={"title": "t"})
    assert isinstance(group, Dataset)
    assert sorted(group) == ["a", "empty", "sub"]
    assert group["sub/b"][...] == 3  # type: ignore[index]
    assert dict(group.attrs) == {"title": "t"}
    plain = zarr.open_group(str(tmp_path / "g"), mode="r")
    assert dict(plain.attrs) == {"title": "t"}
    assert plain["sub/names"][...].tolist() == ["x", "yy"]  # type: ignore[index,union-attr]
    again = saved(tmp_path / "again", group["a"])
    assert again[...].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "zarr.json", "__x", 3])
def test_names_that_are_none(tmp_path: Path, name: Any) -> None:
    with pytest.raises(UnsupportedArrayError, match="name"):
        gpuload.save(tmp_path / "g", {name: np.arange(3)})
    assert not (tmp_path / "g").exists()


def test_a_value_on_a_device(tmp_path: Path, fake_cupy: ModuleType) -> None:
    array = gpuload.save(tmp_path / "a", fake_cupy.asarray(np.arange(12).reshape(3, 4)), chunks=2)
    assert isinstance(array, Array)
    assert array.device == "cuda:0"
    assert np.array_equal(array[...].get(), np.arange(12).reshape(3, 4))


def test_what_is_there_stays(tmp_path: Path) -> None:
    saved(tmp_path / "a", np.arange(3))
    with pytest.raises(ExistsError, match="overwrite"):
        saved(tmp_path / "a", np.arange(4))
    assert zarr.open_array(str(tmp_path / "a"), mode="r").shape == (3,)
    (tmp_path / "a" / "c" / "7").write_bytes(b"a chunk that is none of the new array's")
    assert saved(tmp_path / "a", np.arange(4), overwrite=True)[...].tolist() == [0, 1, 2, 3]
    assert not (tmp_path / "a" / "c" / "7").exists()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis").write_bytes(b"x")
    for path in (tmp_path / "precious", tmp_path / "precious" / "thesis"):
        with pytest.raises(ExistsError):
            saved(path, np.arange(4), overwrite=True)
    assert (tmp_path / "precious" / "thesis").read_bytes() == b"x"
    (tmp_path / "empty").mkdir()
    saved(tmp_path / "empty", np.arange(4))


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (2,), "shards": (3,)},
        {"chunks": (2, 2)},
        {"chunks": (0,)},
        {"codecs": "nope"},
        {"shards": "nope"},
        {"dims": ("a", "b")},
    ],
    ids=str,
)
def test_what_cannot_be_made(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArrayError):
        gpuload.save(tmp_path / "a", np.arange(6), **options)
    assert not (tmp_path / "a").exists()


def test_half_a_store_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Writer.write

    looked = []

    def look(self: Writer, key: str, *parts: Any) -> None:
        looked.append(key)
        with pytest.raises(NotZarrError):
            gpuload.open(tmp_path / "g")
        write(self, key, *parts)

    monkeypatch.setattr(Writer, "write", look)
    gpuload.save(tmp_path / "g", {"a": np.arange(3), "b": np.arange(3)})
    assert {"a/zarr.json", "b/zarr.json", "zarr.json"} <= set(looked)
    assert isinstance(gpuload.open(tmp_path / "g"), Dataset)


APPENDING = """
import sys, numpy, gpuload
array = gpuload.open(sys.argv[1], mode="r+", device="cpu")
print("ready", flush=True)
for n in range(array.shape[0], 10_000):
    array.append(numpy.full((1, 4), n))
"""


def test_kill_in_the_middle_leaves_whole_rows(tmp_path: Path) -> None:
    saved(tmp_path / "a", np.full((1, 4), 0), chunks=(1, 2), shards=(3, 4))
    for _ in range(2):
        before = zarr.open_array(str(tmp_path / "a"), mode="r").shape[0]
        arguments = [sys.executable, "-W", "ignore", "-c", APPENDING, str(tmp_path / "a")]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            while (rows := zarr.open_array(str(tmp_path / "a"), mode="r")[...]).shape[0] < before + 4:
                assert (rows == np.arange(len(rows))[:, None]).all()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        rows = np.asarray(gpuload.open(tmp_path / "a", device="cpu"))
        assert len(rows) >= before + 4
        assert (rows == np.arange(len(rows))[:, None]).all()


APPENDING_SOME = """
import sys, gpuload
array = gpuload.open(sys.argv[1], mode="r+", device="cpu")
print("ready", flush=True)
sys.stdin.readline()
for n in range(12):
    array.append([int(sys.argv[2]) + n])
"""


def test_processes_append_one_after_the_other(tmp_path: Path) -> None:
    """All in the same chunk, and in the same document."""
    saved(tmp_path / "a", np.arange(1), chunks=100)
    arguments = [sys.executable, "-W", "ignore", "-c", APPENDING_SOME, str(tmp_path / "a")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen([*arguments, str(first)], **pipes) for first in (100, 200, 300)]  # type: ignore[call-overload]
    try:
        for process in processes:
            assert process.stdout.readline() == b"ready\n"
        for process in processes:
            process.stdin.write(b"go\n")
            process.stdin.flush()
        for process in processes:
            process.communicate(timeout=500)
            assert process.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stdin.close()
    array = np.asarray(gpuload.open(tmp_path / "a", device="cpu"))
    assert sorted(array.tolist()) == [0, *(first + n for first in (100, 200, 300) for n in range(12))]
    for first in (100, 200, 300):  # each in its own order
        assert [n for n in array.tolist() if first <= n < first + 100] == list(range(first, first + 12))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shards", [None, (4, 6)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_append(tmp_path: Path, zarr_format: Any, shards: Any, axis: int) -> None:
    if zarr_format == 2 and shards:
        pytest.skip("v2 has no shards")
    model = RNG.integers(1, 9, (5, 5))
    zarr.create_array(str(tmp_path / "a"), data=model, chunks=(2, 3), shards=shards, zarr_format=zarr_format)
    array = gpuload.open(tmp_path / "a", mode="r+", device="cpu")
    assert isinstance(array, Array)
    for count in (1, 0, 7):
        shape = list(model.shape)
        shape[axis] = count
        more = RNG.integers(1, 9, shape)
        model = np.concatenate([model, more], axis)
        array.append(more, axis)
        assert array.shape == model.shape
        assert np.array_equal(array[...], model)
        assert np.array_equal(zarr.open_array(str(tmp_path / "a"), mode="r")[...], model)


def test_append_tells_the_consolidated_metadata(tmp_path: Path) -> None:
    for zarr_format in (2, 3):
        path = str(tmp_path / str(zarr_format))
        group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        group.create_group("sub").create_array("a", data=np.arange(3), chunks=(2,))
        zarr.consolidate_metadata(path)
        dataset = gpuload.open(path, mode="r+", device="cpu")
        dataset["sub/a"].append(np.arange(3))  # type: ignore[index,union-attr]
        consolidated = zarr.open_consolidated(path)
        assert consolidated["sub/a"].shape == (6,)  # type: ignore[union-attr]
        assert gpuload.open(path, device="cpu")["sub/a"][...].tolist() == [0, 1, 2, 0, 1, 2]  # type: ignore[index]


def test_append_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = saved(tmp_path / "a", np.zeros((3, 4)), chunks=2)
    for values, axis in ((np.zeros((1, 5)), 0), (np.zeros(4), 0), (np.zeros((1, 4)), 2), (np.zeros((1, 4)), 1)):
        with pytest.raises(AssignmentError):
            array.append(values, axis)
    with pytest.raises(AssignmentError, match="no end"):
        saved(tmp_path / "b", 3).append([1])
    reading = gpuload.open(tmp_path / "a", device="cpu")
    with pytest.raises(ReadOnlyError):
        reading.append(np.zeros((1, 4)))  # type: ignore[union-attr]
    write = Writer.write

    def refuse(self: Writer, key: str, *parts: Any) -> None:
        if key == "zarr.json":
            raise ChunkWriteError(key, 28, "full")
        write(self, key, *parts)

    monkeypatch.setattr(Writer, "write", refuse)
    with pytest.raises(ChunkWriteError):
        array.append(np.ones((9, 4)))
    monkeypatch.undo()
    # What was written behind the end is not there for anybody, and not for a later, shorter append either.
    array.append(np.full((1, 4), 2.0))
    array.append(np.full((4, 4), 3.0))
    assert gpuload.open(tmp_path / "a", device="cpu")[...][:, 0].tolist() == [0, 0, 0, 2, 3, 3, 3, 3]  # type: ignore[index]


@given(shape=st.lists(st.integers(0, 5000), max_size=4).map(tuple), itemsize=st.sampled_from([1, 2, 4, 8, 16, 36]))
def test_chosen_chunks_and_shards(shape: tuple[int, ...], itemsize: int) -> None:
    chunks = choose_chunks(shape, itemsize, 1 << 16)
    shards = choose_shards(shape, chunks, itemsize, 1 << 20)
    assert all(1 <= n <= max(1, whole) for n, whole in zip(chunks, shape, strict=True))
    assert all(outer % inner == 0 for outer, inner in zip(shards, chunks, strict=True))
    size = int(np.prod(chunks, dtype=object)) * itemsize
    assert size <= 1 << 16
    assert int(np.prod(shards, dtype=object)) * itemsize <= 1 << 20
    # As large as the array allows: no chunk is less than half of what it could be.
    assert size * 2 > min(1 << 16, int(np.prod([max(1, n) for n in shape], dtype=object)) * itemsize) - itemsize


def test_append_goes_on_where_others_stopped(tmp_path: Path) -> None:
    early = saved(tmp_path / "a", np.arange(5), chunks=2)
    other = gpuload.open(tmp_path / "a", mode="r+", device="cpu")
    assert isinstance(other, Array)
    other.append([10, 11])
    zarr.open_array(str(tmp_path / "a"), mode="r+").attrs["by"] = "somebody else"
    early.append([20])
    assert early.shape == (8,)
    assert early.attrs == {"by": "somebody else"}
    assert zarr.open_array(str(tmp_path / "a"), mode="r")[...].tolist() == [0, 1, 2, 3, 4, 10, 11, 20]


def test_nothing_is_appended_to_a_single_field(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that structures have no form in zarr v3 yet
        array = saved(tmp_path / "a", np.zeros(3, [("x", "i4"), ("y", "f8")]))
        with pytest.raises(SelectionError, match="single fields can only be read"):
            array.fields["x"].append([7])
        assert gpuload.open(tmp_path / "a", device="cpu").shape == (3,)  # type: ignore[union-attr]


@pytest.mark.parametrize("write", [partial(saved, chunks=2), "pack"], ids=["save", "pack"])
def test_where_a_link_leads(tmp_path: Path, write: Any) -> None:
    saved(tmp_path / "source", np.arange(5))
    if write == "pack":
        write = lambda place, _, **options: gpuload.zarr.pack(tmp_path / "source", place, **options)  # noqa: E731
    (tmp_path / "link").symlink_to("store")
    for options in ({}, {"overwrite": True}):  # nothing is there yet; a store is
        write(tmp_path / "link", np.arange(5), **options)
        assert (tmp_path / "link").is_symlink()
        found = gpuload.open(tmp_path / "store", device="cpu")
        assert isinstance(found, Array)
        assert found[...].tolist() == [0, 1, 2, 3, 4]


def test_places_as_open_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    saved("~/a", np.arange(3))
    saved((tmp_path / "b c").as_uri(), np.arange(3))
    gpuload.zarr.pack("~/a", (tmp_path / "d").as_uri())
    assert [array.shape for array in gpuload.zarr.inspect("~/a")] == [(3,)]
    assert sorted(os.listdir()) == ["b c", "d", "home"]
    for call in (
        lambda: gpuload.save("s3://bucket/a", np.arange(3)),
        lambda: gpuload.zarr.pack("~/a", "s3://bucket/a"),
        lambda: gpuload.zarr.pack("s3://bucket/a", "e"),
        lambda: gpuload.zarr.inspect("s3://bucket/a"),
    ):
        with pytest.raises(NotLocalError, match="'s3://bucket/a' is not a local path"):
            call()
    assert sorted(os.listdir()) == ["b c", "d", "home"]


@pytest.mark.parametrize("stood", [False, True], ids=["no directory", "an empty directory"])
def test_what_cannot_be_saved_leaves_nothing(tmp_path: Path, stood: bool) -> None:
    place = tmp_path / "a"
    if stood:
        place.mkdir(mode=0o750)
    too_long = {"fine": {"x": np.arange(5)}, "x" * 300: np.arange(2)}
    with pytest.raises(ChunkWriteError):
        gpuload.save(place, too_long)
    assert place.exists() == stood
    assert not stood or (place.stat().st_mode & 0o777 == 0o750 and not os.listdir(place))
    saved(place, np.arange(3))
    with pytest.raises(ChunkWriteError):
        gpuload.save(place, too_long, overwrite=True)
    assert saved(place, np.arange(4))[...].tolist() == [0, 1, 2, 3]


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    saved(tmp_path / "source", np.arange(5))
    (tmp_path / "file").write_text("no directory")
    for place in (tmp_path / "file" / "a", tmp_path / ("x" * 300)):
        with pytest.raises(ChunkWriteError, match="no store can be made there"):
            gpuload.save(place, np.arange(3))
        with pytest.raises(ChunkWriteError, match="no store can be made there"):
            gpuload.zarr.pack(tmp_path / "source", place)


# What cannot be stored as it is


def masked_structures() -> Any:
    array = np.ma.zeros(4, dtype=[("a", "i4"), ("b", [("c", "f8")])])
    array[2] = np.ma.masked
    return array


@pytest.mark.parametrize(
    "value",
    [
        np.ma.masked_equal(np.arange(6).reshape(2, 3), 4),
        np.ma.masked_invalid([1.0, np.nan]),
        np.ma.masked,
        masked_structures(),
    ],
    ids=["integers", "floats", "scalar", "structures"],
)
def test_a_mask_is_not_lost_without_a_word(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UnsupportedArrayError, match=r"^deep/a: 1 elements are masked.*filled.*getmaskarray"):
        gpuload.save(tmp_path / "a", {"deep": {"a": value}})
    assert not (tmp_path / "a").exists()
    with pytest.raises(UnsupportedArrayError, match="the array: 1 elements"):
        gpuload.save(tmp_path / "a", value)


def test_a_mask_is_not_assigned(tmp_path: Path) -> None:
    array = saved(tmp_path / "a", np.arange(6), chunks=4)
    value = np.ma.masked_equal(np.arange(10, 16), 12)
    for assign in (
        lambda: array.__setitem__(..., value),
        lambda: array.vindex.__setitem__([0, 1, 2, 3, 4, 5], value),
        lambda: array.append(value),
        lambda: array.__setitem__(0, np.ma.masked),
    ):
        with pytest.raises(AssignmentError, match="1 elements are masked"):
            assign()
    assert array.shape == (6,)
    assert array[...].tolist() == list(range(6))
    array[...] = value[3:4]  # nothing of this is masked
    array.append(value.filled(-1))
    assert array[...].tolist() == [13] * 6 + [10, 11, -1, 13, 14, 15]
    assert saved(tmp_path / "b", np.ma.array([1, 2]))[...].tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [[("x", "<i4"), ("y", "<f8")], "V6"])
def test_structures_are_not_saved_in_shards(tmp_path: Path, dtype: Any) -> None:
    """zarr-python 3.1.6 cannot open what it would write there."""
    value = np.zeros(8, np.dtype(dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that these have no form in zarr v3 yet
        with pytest.raises(UnsupportedArrayError, match=r"^b: zarr-python 3\.1\.6 cannot open shards of"):
            gpuload.save(tmp_path / "a", {"b": value}, chunks=2, shards=4)
        assert not (tmp_path / "a").exists()
        array = saved(tmp_path / "a", value, chunks=2, shards="auto")
        assert array.shards is None
        assert zarr.open_array(str(tmp_path / "a"), mode="r")[...].tobytes() == value.tobytes()
        with pytest.raises(UnsupportedArrayError, match="cannot open shards of"):
            gpuload.zarr.pack(tmp_path / "a", tmp_path / "c", shards=(4,))
        gpuload.zarr.pack(tmp_path / "a", tmp_path / "d")
        assert zarr.open_array(str(tmp_path / "d"), mode="r")[...].tobytes() == value.tobytes()
