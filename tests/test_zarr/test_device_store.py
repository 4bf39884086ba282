"""zarr's own tests of a store, unchanged, on `DeviceStore`; and what they do not ask."""

from __future__ import annotations

import asyncio
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.testing.store import StoreTests

from gpuload import events
from gpuload.errors import EscapesStoreError, NotRegularFileError
from gpuload.request import Served
from gpuload.zarr import DeviceStore


class TestDeviceStore(StoreTests[DeviceStore, cpu.Buffer]):
    store_cls = DeviceStore
    buffer_cls = cpu.Buffer

    async def get(self, store: DeviceStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes((store.root / key).read_bytes())

    async def set(self, store: DeviceStore, key: str, value: Buffer) -> None:
        path = store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())

    @pytest.fixture
    def store_kwargs(self, tmp_path: Path) -> dict[str, Any]:
        return {"root": str(tmp_path)}

    def test_store_repr(self, store: DeviceStore) -> None:
        assert repr(store) == f"DeviceStore('file://{store.root}')"

    def test_store_supports_writes(self, store: DeviceStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: DeviceStore) -> None:
        assert store.supports_listing


@pytest.fixture
def served() -> Any:
    """Keys of all ranges that go through the engine."""
    keys: list[str] = []

    def note(event: events.Event) -> None:
        if isinstance(event, Served):
            keys.extend(event.keys[i] for i in event.key_index.tolist())

    unsubscribe = events.subscribe(note)
    yield keys
    unsubscribe()


@pytest.fixture
def store(tmp_path: Path) -> DeviceStore:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "k").write_bytes(bytes(range(100)))
    return DeviceStore(tmp_path / "store")


RANGES = [None, RangeByteRequest(3, 9), RangeByteRequest(95, 200), OffsetByteRequest(40), SuffixByteRequest(7)]
SLICES = [slice(None), slice(3, 9), slice(95, 200), slice(40, None), slice(-7, None)]


def test_every_way_of_reading_goes_through_the_engine(store: DeviceStore, served: list[str]) -> None:
    prototype = default_buffer_prototype()
    data = bytes(range(100))
    expected = [data[part] for part in SLICES]

    async def all_ways() -> None:
        got = [await store.get("k", prototype, part) for part in RANGES]
        assert [buffer.to_bytes() for buffer in got if buffer] == expected
        got = await store.get_partial_values(prototype, [("k", part) for part in RANGES])
        assert [buffer.to_bytes() for buffer in got if buffer] == expected
        numbered: dict[int, bytes] = {}
        async for group in store.get_ranges("k", RANGES, prototype=prototype, max_concurrency=2):
            numbered |= {i: buffer.to_bytes() for i, buffer in group if buffer}
        assert [numbered[i] for i in range(len(RANGES))] == expected

    asyncio.run(all_ways())
    assert [store.get_sync("k", byte_range=part).to_bytes() for part in RANGES] == expected  # type: ignore[union-attr]
    ranges = store.get_ranges_sync("k", RANGES, prototype=prototype, max_gap_bytes=0)
    assert [buffer.to_bytes() for _, buffer in ranges if buffer] == expected
    assert served == ["k"] * 5 * len(RANGES)


def test_an_absent_key_is_a_group_of_errors_for_ranges(store: DeviceStore) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        store.get_ranges_sync("absent", RANGES, prototype=default_buffer_prototype())
    assert caught.group_contains(FileNotFoundError)


def test_no_ranges_need_no_key(store: DeviceStore) -> None:
    assert list(store.get_ranges_sync("absent", [], prototype=default_buffer_prototype())) == []


def test_a_directory_is_no_key_but_a_fifo_is_an_error(store: DeviceStore) -> None:
    (store.root / "directory").mkdir()
    os.mkfifo(store.root / "fifo")
    assert store.get_sync("directory") is None
    with pytest.raises(NotRegularFileError, match="fifo"):
        store.get_sync("fifo")
    prototype = default_buffer_prototype()
    both = asyncio.run(store.get_partial_values(prototype, [("directory", None), ("k", RangeByteRequest(0, 2))]))
    assert both[0] is None
    assert both[1] is not None
    assert both[1].to_bytes() == b"\0\1"


def test_reading_never_leaves_the_root(store: DeviceStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (store.root / "link").symlink_to(tmp_path / "secret")
    (store.root / "up").symlink_to(tmp_path)
    for key in ("link", "up/secret", "../secret", "/etc/hostname", "a/../../secret"):
        with pytest.raises(EscapesStoreError):
            store.get_sync(key)
    followed = DeviceStore(store.root, follow_links=True)
    buffer = followed.get_sync("link")
    assert buffer is not None
    assert buffer.to_bytes() == b"secret"
    with pytest.raises(EscapesStoreError):
        followed.get_sync("../secret")


async def _collect(generator: Any) -> list[str]:
    return [item async for item in generator]


@pytest.mark.parametrize("prefix", ["up", "..", "../store", "/etc", "up/a"])
def test_listing_and_writing_never_leave_the_root(store: DeviceStore, tmp_path: Path, prefix: str) -> None:
    (store.root / "up").symlink_to(tmp_path)
    (tmp_path / "a").mkdir()
    value = cpu.Buffer.from_bytes(b"x")
    before = sorted(tmp_path.rglob("*"))
    for action in (
        lambda: _collect(store.list_dir(prefix)),
        lambda: _collect(store.list_prefix(prefix)),
        lambda: store.exists(f"{prefix}/k"),
        lambda: store.getsize(f"{prefix}/k"),
        lambda: store.set(f"{prefix}/new", value),
        lambda: store.set_if_not_exists(f"{prefix}/new", value),
        lambda: store.delete(f"{prefix}/k"),
        lambda: store.delete_dir(prefix),
    ):
        with pytest.raises(EscapesStoreError):
            asyncio.run(action())  # type: ignore[arg-type]
    with pytest.raises(EscapesStoreError):
        store.set_sync(f"{prefix}/new", value)
    with pytest.raises(EscapesStoreError):
        store.delete_sync(f"{prefix}/k")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("key", ["", "/", "a\0b"])
def test_what_names_no_file_is_neither_written_nor_deleted(store: DeviceStore, key: str) -> None:
    value = default_buffer_prototype().buffer.from_bytes(b"x")
    before = sorted(store.root.rglob("*"))
    for change in (store.set(key, value), store.set_if_not_exists(key, value), store.delete(key)):
        with pytest.raises(EscapesStoreError):
            asyncio.run(change)
    for change_now in ("set_sync", "delete_sync"):
        if hasattr(zarr.storage.LocalStore, change_now):
            with pytest.raises(EscapesStoreError):
                getattr(store, change_now)(*((key, value) if change_now == "set_sync" else (key,)))
    assert store.root.is_dir()
    assert sorted(store.root.rglob("*")) == before


def test_zarr_reads_an_array_through_the_store(tmp_path: Path, served: list[str]) -> None:
    data = np.arange(60, dtype="f4").reshape(6, 10)
    zarr.create_array(str(tmp_path / "a.zarr"), data=data, chunks=(2, 5), shards=(4, 10))
    array = zarr.open_array(DeviceStore(tmp_path / "a.zarr", read_only=True))
    assert np.array_equal(array[...], data)
    assert np.array_equal(array[1:3, 4:7], data[1:3, 4:7])
    assert {"zarr.json", "c/0/0", "c/1/0"} == set(served)


def test_zarr_writes_through_the_store(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path / "new.zarr")
    array = zarr.create_array(store, shape=(4,), chunks=(2,), dtype="i4")
    array[:] = np.arange(4)
    assert np.array_equal(zarr.open_array(str(tmp_path / "new.zarr"))[:], np.arange(4))


def test_a_pickled_store_keeps_its_options(store: DeviceStore) -> None:
    store.get_sync("k")
    copy = pickle.loads(pickle.dumps(DeviceStore(store.root, read_only=True, follow_links=True)))
    assert copy.follow_links
    assert copy.read_only
    assert copy != store
    assert copy.get_sync("k").to_bytes() == bytes(range(100))
    assert copy.with_read_only(False).follow_links


def test_an_unreadable_root_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DeviceStore(tmp_path / "absent", read_only=True).get_sync("k")


def test_a_store_goes_on_where_it_was_moved(store: DeviceStore, tmp_path: Path) -> None:
    assert store.get_sync("k") is not None
    asyncio.run(store.move(tmp_path / "moved"))
    assert store.root == tmp_path / "moved"
    assert store.get_sync("k").to_bytes() == bytes(range(100))  # type: ignore[union-attr]


def test_a_root_is_a_path() -> None:
    with pytest.raises(TypeError, match="'root' must be a string or Path instance"):
        DeviceStore(0)  # type: ignore[arg-type]


@pytest.mark.parametrize("at_once", [2, 20])
def test_many_reads_may_open_the_store(store: DeviceStore, at_once: int) -> None:
    async def read() -> list[bytes]:
        prototype = default_buffer_prototype()
        found = await asyncio.gather(*[store.get("k", prototype) for _ in range(at_once)])
        return [buffer.to_bytes() for buffer in found if buffer]

    assert asyncio.run(read()) == [bytes(range(100))] * at_once


def test_a_root_that_is_replaced_is_seen(store: DeviceStore, tmp_path: Path) -> None:
    assert store.get_sync("k") is not None
    store.root.rename(tmp_path / "old")
    store.root.mkdir()
    (store.root / "k").write_bytes(b"new")
    buffer = store.get_sync("k")
    assert buffer is not None
    assert buffer.to_bytes() == b"new"


def test_a_prototype_of_another_kind_gets_its_own_buffers(store: DeviceStore) -> None:
    from zarr.testing.buffer import TestBuffer

    prototype = default_buffer_prototype()._replace(buffer=TestBuffer)
    assert type(store.get_sync("k", prototype=prototype)) is TestBuffer


def test_unfinished_files_are_no_keys(store: DeviceStore) -> None:
    (store.root / "d").mkdir()
    for name in (".gpuload-0123456789abcdef-0.tmp", "d/.gpuload-0123456789abcdef-12.tmp", "d/k"):
        (store.root / name).write_bytes(b"x")

    async def everything() -> list[list[str]]:
        listings = (
            store.list(),
            store.list_prefix(""),
            store.list_prefix("d"),
            store.list_dir(""),
            store.list_dir("d"),
        )
        return [sorted([key async for key in listing]) for listing in listings]

    assert asyncio.run(everything()) == [["d/k", "k"], ["d/k", "k"], ["d/k"], ["d", "k"], ["k"]]
