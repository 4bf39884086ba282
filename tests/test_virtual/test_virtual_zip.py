"""Zip archives: members are ranges of one file, found by their own headers, and read as zarr-python's ZipStore does."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from click.testing import CliRunner
from zarr.abc.store import RangeByteRequest, SuffixByteRequest

import gpuload
from gpuload.cli import main
from gpuload.errors import ChangedError, ChunkReadError, NotZarrError, ReadOnlyError, StrictError
from gpuload.request import Reason
from gpuload.zarr import Array, Dataset, VirtualStore, inspect
from gpuload.zarr.where import chunks_of

VALUES = np.arange(7 * 11, dtype="f4").reshape(7, 11)  # as `zips.fill` has it
NAMES = {2: ["encoded", "plain"], 3: ["encoded", "plain", "sharded"]}


@pytest.fixture(params=[2, 3])
def archive(request: pytest.FixtureRequest, tmp_path: Path, zips: ModuleType) -> Path:
    """A ZipStore as zarr-python writes it."""
    path = tmp_path.resolve() / "a.zarr.zip"
    with zarr.storage.ZipStore(path, mode="w") as store:
        zips.fill(store, request.param)
    return path


@pytest.fixture
def deflated(archive: Path, zips: ModuleType) -> Path:
    """The same, with all of its members deflated."""
    with zipfile.ZipFile(archive) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    zips.write(archive.with_name("d.zip"), members, method=lambda _: zipfile.ZIP_DEFLATED)
    return archive.with_name("d.zip")


def opened(path: Any, **options: Any) -> Dataset:
    found = gpuload.open(path, **({"device": "cpu"} | options))
    assert isinstance(found, Dataset)
    return found


def array(path: Any, name: str = "plain", **options: Any) -> Array:
    found = opened(path, **options)[name]
    assert isinstance(found, Array)
    return found


def test_equal_to_zarr_python(archive: Path) -> None:
    dataset = opened(archive)
    assert dataset.attrs == {"title": "zipped"}
    with zarr.storage.ZipStore(archive, mode="r") as store:
        group = zarr.open_group(store, mode="r")
        assert list(dataset) == sorted(group)
        for name in [name for name in dataset if name != "deep"]:
            for key in ((), (slice(None, None, 3), 2), (slice(1, 5), slice(3, None, 5))):
                assert np.array_equal(np.asarray(array(archive, name)[key]), group[name][key]), name  # type: ignore[index]
            assert np.array_equal(array(archive, name)[::-3, 4], VALUES[::-3, 4])
            assert np.array_equal(array(archive, name).oindex[[6, 0], [1, 1, 9]], VALUES[np.ix_([6, 0], [1, 1, 9])])
        assert dataset["deep/scalar"][...] == 5  # type: ignore[index]


def test_opened_from_objects_of_zarr_python(archive: Path) -> None:
    with zarr.storage.ZipStore(archive, mode="r") as store:
        assert np.array_equal(array(store)[...], VALUES)
        group = zarr.open_group(store, mode="r")
        assert np.array_equal(array(group)[...], VALUES)
        assert np.array_equal(gpuload.open(group["plain"], device="cpu")[3], VALUES[3])  # type: ignore[index, arg-type]
    virtual = VirtualStore(archive)
    assert np.array_equal(zarr.open_group(virtual, mode="r")["encoded"][...], VALUES)  # type: ignore[index]
    assert virtual == VirtualStore(archive)


def test_chunks_are_ranges_of_one_file(archive: Path) -> None:
    with gpuload.trace() as trace:
        array(archive)[:6, :8]
    assert {row.key for row in trace.rows()} == {"a.zarr.zip"}
    with zipfile.ZipFile(archive) as file:
        headers = {
            i.header_offset + 30 + len(i.filename): i for i in file.infolist() if i.filename.startswith("plain/")
        }
    chunks = [row for row in trace.rows() if row.file_offset in headers and row.bytes == 2 * 4 * 4]
    assert len(chunks) == 6


def test_a_member_begins_where_its_own_header_ends(tmp_path: Path, zips: ModuleType) -> None:
    """What is extra in the headers is neither in the directory nor as long as what is extra there."""
    zips.fill(tmp_path / "x.zarr", 3)
    members = zips.files_of(tmp_path / "x.zarr")
    for n, options in enumerate(({}, {"streamed": True}, {"zip64": True})):
        path = tmp_path / f"{n}.zip"
        zips.write(
            path, members.items(), local_extra=lambda name: b"\x99\x99\x05\x00extra" * (len(name) % 3), **options
        )
        for name in NAMES[3]:
            assert np.array_equal(array(path, name)[...], VALUES), (path, name)


def test_an_archive_beyond_4_gib(tmp_path: Path, zips: ModuleType) -> None:
    zips.fill(tmp_path / "x.zarr", 3)
    with open(tmp_path / "x.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for number, (name, data) in enumerate(zips.files_of(tmp_path / "x.zarr").items()):
            archive.start_dir = max(archive.start_dir, number << 30)  # with holes between
            archive.writestr(name, data)
    assert os.stat(tmp_path / "x.zip").st_size > 20 << 30
    assert np.array_equal(array(tmp_path / "x.zip")[...], VALUES)
    with gpuload.trace() as trace:
        array(tmp_path / "x.zip")[6, 10]
    assert trace.rows()[-1].file_offset > 4 << 30


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zipped_by_hand(tmp_path: Path, method: int, zips: ModuleType) -> None:
    """What `zip -r` makes of a directory holds that directory."""
    zips.fill(tmp_path / "x.zarr", 3)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as file:
        file.write(tmp_path / "x.zarr", "x.zarr/")
        for path in sorted((tmp_path / "x.zarr").rglob("*")):
            file.write(path, path.relative_to(tmp_path))
    assert np.array_equal(array(tmp_path / "x.zip")[...], VALUES)
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="r") as store:
        theirs = zarr.open_group(store, path="x.zarr", mode="r")
        assert np.array_equal(array(theirs)[...], VALUES)
        assert np.array_equal(gpuload.open(theirs["plain"], device="cpu")[...], VALUES)  # type: ignore[index, arg-type]


def test_of_two_members_of_one_name_the_last_counts(tmp_path: Path) -> None:
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        made = zarr.create_array(store, data=VALUES, chunks=(7, 11), compressors=None)
        with pytest.warns(UserWarning, match="Duplicate name"):
            made[...] = VALUES + 1
    assert np.array_equal(gpuload.open(tmp_path / "x.zip", device="cpu")[...], VALUES + 1)  # type: ignore[index]


def test_names_of_any_language(tmp_path: Path, zips: ModuleType) -> None:
    zips.fill(tmp_path / "x.zarr", 3)
    members = {name.replace("plain", "größe_温度"): data for name, data in zips.files_of(tmp_path / "x.zarr").items()}
    zips.write(tmp_path / "x.zip", members.items())
    assert np.array_equal(array(tmp_path / "x.zip", "größe_温度")[...], VALUES)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_consolidated_metadata(tmp_path: Path, zarr_format: int, zips: ModuleType) -> None:
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        zips.fill(store, zarr_format)
        zarr.consolidate_metadata(store)
    dataset = opened(tmp_path / "x.zip")
    assert list(dataset) == ["deep", *NAMES[zarr_format]]
    assert np.array_equal(dataset["plain"][...], VALUES)  # type: ignore[index]


def test_missing_chunks(tmp_path: Path) -> None:
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        made = zarr.create_array(store, shape=(7, 11), chunks=(2, 4), dtype="f4", fill_value=-2, compressors=None)
        made[2:4, 4:8] = 1
    expected = np.full((7, 11), -2, "f4")
    expected[2:4, 4:8] = 1
    assert np.array_equal(gpuload.open(tmp_path / "x.zip", device="cpu")[...], expected)  # type: ignore[index]


# ---------------------------------------------------------------- deflated


def test_deflated_members(deflated: Path) -> None:
    dataset = opened(deflated)
    for name in [name for name in dataset if name != "deep"]:
        with gpuload.trace() as trace:
            assert np.array_equal(array(deflated, name)[::-2, 3:], VALUES[::-2, 3:])
        assert {row.reason for row in trace.rows()} == {Reason.HOST_CODEC}
        with pytest.raises(StrictError):
            array(deflated, name, strict=True)[...]
    assert dataset["deep/scalar"][...] == 5  # type: ignore[index]
    with zipfile.ZipFile(deflated) as file:
        stored = sum(
            i.compress_size for i in file.infolist() if i.filename.startswith("plain/") and "z" not in i.filename
        )
    found = {each.name: each for each in inspect(deflated)}
    assert found["plain"].reasons == {Reason.HOST_CODEC: stored}


def test_deflated_documents_beside_stored_chunks(archive: Path, tmp_path: Path, zips: ModuleType) -> None:
    """As `zip -n` or a careful writer has it: what is large stays eligible."""
    with zipfile.ZipFile(archive) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    documents = ("zarr.json", ".zarray", ".zgroup", ".zattrs")
    zips.write(
        tmp_path / "m.zip",
        members,
        method=lambda name: zipfile.ZIP_DEFLATED if name.endswith(documents) else zipfile.ZIP_STORED,
    )
    with gpuload.trace() as trace:
        read = array(tmp_path / "m.zip")
    assert {row.reason for row in trace.rows()} == {Reason.HOST_CODEC}
    with gpuload.trace() as trace:
        assert np.array_equal(read[...], VALUES)
    assert Reason.HOST_CODEC not in {row.reason for row in trace.rows()}


# ---------------------------------------------------------------- what else is done with stores


def test_on_a_device(archive: Path, deflated: Path, fake_cupy: ModuleType) -> None:
    for path in (archive, deflated):
        for name in [name for name in opened(path) if name != "deep"]:
            got = array(path, name, device="cuda:1")[::-1, [5, 2]]
            assert isinstance(got, fake_cupy.ndarray)
            assert np.array_equal(got.get(), VALUES[::-1, [5, 2]])


def test_by_the_fastpath(tmp_path: Path, fake_hipfile: ModuleType) -> None:
    values = np.arange(1 << 14, dtype="i4").reshape(128, 128)
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        zarr.create_array(store, data=values, chunks=(32, 32), compressors=None)
    read = gpuload.open(tmp_path / "x.zip", device="cuda:0")
    with gpuload.trace() as trace:
        assert np.array_equal(read[...].get(), values)  # type: ignore[index]
    moved = {(row["path"], row["reason"]): row["bytes"] for row in trace.summary().to_dict()["rows"]}
    assert moved[("fastpath", None)] > 0.99 * values.nbytes


async def test_the_store_gives_device_buffers(archive: Path, deflated: Path, zarr_on_gpu: ModuleType) -> None:
    from zarr.core.buffer import gpu

    key = next(key for key in VirtualStore(archive).entries.below("plain/") if key[-1] == "0" and "z" not in key)
    for path in (archive, deflated):
        store = VirtualStore(path)
        for request, part in (
            (None, slice(None)),
            (RangeByteRequest(4, 12), slice(1, 3)),
            (SuffixByteRequest(8), slice(6, 8)),
        ):
            got = await store.get(key, gpu.buffer_prototype, request)
            assert got is not None
            assert isinstance(got.as_array_like(), zarr_on_gpu.ndarray)
            assert np.array_equal(np.frombuffer(got.to_bytes(), "f4"), VALUES[:2, :4].ravel()[part])
        assert await store.getsize(key) == 32


def test_pickled(archive: Path) -> None:
    for node in (opened(archive), array(archive), VirtualStore(archive)):
        again = pickle.loads(pickle.dumps(node))
        assert type(again) is type(node)
    assert np.array_equal(pickle.loads(pickle.dumps(array(archive)))[...], VALUES)


def test_inspected(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["gpuload.zarr.inspect"], "direct_reason", lambda geometry: None)
    with gpuload.trace() as trace:
        found = {each.name: each for each in inspect(archive)}
    with zipfile.ZipFile(archive) as file:
        chunks = [i for i in file.infolist() if i.filename.startswith("plain/") and i.file_size == 32]
    begins = [i.header_offset + 30 + len(i.filename) for i in chunks]
    assert not {row.file_offset for row in trace.rows()} & set(begins)  # documents were read, and no chunk
    end = os.stat(archive).st_size // 4096 * 4096
    plain = found["plain"]
    assert plain.fastpath_bytes == sum(max(0, min(32, end - begin)) for begin in begins)
    assert plain.fastpath_bytes + plain.fallback_bytes == 12 * 32
    assert found["encoded"].pack == f"gpuload pack {archive} {archive.with_name('a.packed.zarr')}"
    done = CliRunner().invoke(main, ["inspect", str(archive)])
    assert done.exit_code == 0, done.output
    assert "plain" in done.output


def test_packed_into_a_store(archive: Path, tmp_path: Path) -> None:
    gpuload.zarr.pack(archive, tmp_path / "packed.zarr", verify=True)
    assert np.array_equal(array(tmp_path / "packed.zarr")[...], VALUES)


def test_ranges_are_told_back_to_chunks(archive: Path) -> None:
    read = array(archive)
    with gpuload.trace() as trace:
        read[3, 5]
        read[6, 10]
    rows = trace.rows()
    found = chunks_of(read, [row.key for row in rows], np.array([row.file_offset for row in rows], np.int64))
    assert found.tolist() == [1 * 3 + 1, 3 * 3 + 2]


def test_as_a_dask_array(archive: Path) -> None:
    lazy = gpuload.dask.from_zarr(archive, component="plain", device="cpu")
    assert np.array_equal(lazy[1:].compute(), VALUES[1:])
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("more", b"x")
    with pytest.raises((ChangedError, ChunkReadError)):
        lazy[1:].compute()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_as_an_xarray_dataset(tmp_path: Path) -> None:
    made = xarray.Dataset({"t": (("y", "x"), VALUES)}, {"x": np.arange(11) * 10})
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        made.to_zarr(store, zarr_format=2, consolidated=True)  # type: ignore[arg-type]
    for chunks in (None, {}):
        with xarray.open_dataset(tmp_path / "x.zip", engine="gpuload", chunks=chunks, device="cpu") as dataset:
            xarray.testing.assert_identical(dataset.compute(), made)


# ---------------------------------------------------------------- what it is not for


def test_for_reading_only(archive: Path) -> None:
    with pytest.raises(ReadOnlyError):
        gpuload.open(archive, mode="r+")
    with pytest.raises(ReadOnlyError):
        array(archive)[0] = 1
    with pytest.raises(ReadOnlyError):
        opened(archive).attrs["title"] = "x"


def test_written_to_meanwhile(archive: Path) -> None:
    read = array(archive)
    assert np.array_equal(read[0], VALUES[0])
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("more", b"x")
    with pytest.raises(ChunkReadError, match="open it again"):
        read[0]
    assert np.array_equal(array(archive)[0], VALUES[0])


@pytest.mark.parametrize("looked_at", [False, True])
def test_replaced_meanwhile(archive: Path, deflated: Path, looked_at: bool) -> None:
    """Also by one of the same size and age, and also where the members have not been looked for yet."""
    for path in (archive, deflated):
        read = array(path)
        if looked_at:
            assert np.array_equal(read[0], VALUES[0])
        before = os.stat(path)
        shutil.copy(path, path.with_name("copy"))
        os.utime(path.with_name("copy"), ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(path.with_name("copy"), path)
        with pytest.raises(ChunkReadError, match=f"{path.name}.*open it again"):
            read[0]
        path.unlink()
        with pytest.raises(ChunkReadError, match="not there"):
            read[0]


def test_behind_a_link(archive: Path, tmp_path: Path) -> None:
    """The archive itself may be behind a link, as any store's root."""
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "b.zip"
    shutil.move(archive, moved)
    os.symlink(moved, tmp_path / "link.zip")
    assert np.array_equal(array(tmp_path / "link.zip")[...], VALUES)


def test_an_archive_of_something_else(tmp_path: Path, zips: ModuleType) -> None:
    zips.write(tmp_path / "x.zip", [("readme.txt", b"hello")])
    with pytest.raises(NotZarrError, match=r"x\.zip.*neither a zarr array nor a group"):
        gpuload.open(tmp_path / "x.zip")
    zips.write(tmp_path / "x.zip", [])
    with pytest.raises(NotZarrError, match=r"x\.zip.*neither a zarr array nor a group"):
        gpuload.open(tmp_path / "x.zip")
