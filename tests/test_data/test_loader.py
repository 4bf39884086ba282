"""Batches: the values of plain indexing, each sample once, in an order that nothing but seed and epoch changes."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import pickle
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload
from gpuload.data import Batch, DataLoader, groups, sampling
from gpuload.errors import (
    AfterForkError,
    ChangedError,
    ChunkError,
    ChunkLostError,
    JoinError,
    SampleError,
)
from gpuload.record import recorder

from .conftest import climate, write

WAIT = 60
CLOCK_REALTIME_COARSE = 5  # linux/time.h; the time module has no name for it


def opened(path: Path | list[Path], **options: Any) -> gpuload.Dataset:
    dataset = gpuload.open(path, device="cpu", **options)  # type: ignore[arg-type]
    assert isinstance(dataset, gpuload.Dataset)
    return dataset


def expected(variable: tuple[Any, Any, Any], batch: Batch, dim: str | None, windows: Mapping[str, int]) -> Any:
    """By plain indexing, sample by sample."""
    values, dims, _ = variable
    samples = []
    for i in range(len(next(iter(batch.starts.values())))):
        key = []
        for name in dims:
            if name == dim:
                key.append(int(batch.starts[name][i]))
            elif name in windows:
                start = int(batch.starts[name][i])
                key.append(slice(start, start + windows[name]))
            else:
                key.append(slice(None))
        samples.append(values[tuple(key)])
    return np.stack(samples)


def check(batch: Batch, variables: Mapping[str, Any], dim: str | None, windows: Mapping[str, int]) -> None:
    sampled = {n for n, (_, dims, _) in variables.items() if any(d == dim or d in windows for d in dims)}
    assert set(batch) == sampled
    for name, found in batch.items():
        wanted = expected(variables[name], batch, dim, windows)
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert np.array_equal(found, wanted, equal_nan=wanted.dtype.kind == "f"), name


def order_of(loader: DataLoader) -> list[tuple[int, ...]]:
    """Where the samples of an epoch start, in their order."""
    return [tuple(int(n) for n in starts) for batch in loader for starts in zip(*batch.starts.values(), strict=True)]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert [t.name for t in threading.enumerate() if t.name == "gpuload-ahead"] == []


# ---------------------------------------------------------------------- values and cover


@pytest.mark.parametrize("shuffle", [False, "chunk", "full"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_elements_along_one_dimension(store: Path, shuffle: Any, prefetch: int) -> None:
    loader = DataLoader(opened(store), 4, dim="time", shuffle=shuffle, seed=3, prefetch=prefetch)
    assert len(loader) == 6
    batches = list(loader)
    assert [len(batch["t2m"]) for batch in batches] == [4, 4, 4, 4, 4, 3]
    for batch in batches:
        check(batch, climate(), "time", {})
    assert sorted(itertools.chain(*(batch.starts["time"].tolist() for batch in batches))) == list(range(23))
    assert [(batch.epoch, batch.number) for batch in batches] == [(0, i) for i in range(6)]


WINDOWS: list[dict[str, Any]] = [
    {"window": {"time": 4}},
    {"window": {"time": 4}, "stride": {"time": 1}},
    {"window": {"time": 2}, "stride": {"time": 7}},
    {"window": {"time": 6, "lat": 2, "lon": 3}, "stride": {"time": 2, "lon": 2}},
    {"window": {"lat": 3, "lon": 7}},
    {"dim": "time", "window": {"lat": 2}},
    {"dim": "time", "crop": {"lat": 3, "lon": 2}},
    {"window": {"time": 5}, "stride": {"time": 2}, "crop": {"lon": 4}},
]


@pytest.mark.parametrize("shuffle", [False, "chunk", "full"])
@pytest.mark.parametrize("wanted", WINDOWS, ids=str)
def test_windows(store: Path, wanted: dict[str, Any], shuffle: Any) -> None:
    loader = DataLoader(opened(store), 5, **wanted, shuffle=shuffle, seed=1, buffer=2)
    sizes = {"time": 23, "lat": 5, "lon": 7}
    dim, window, crop = wanted.get("dim"), wanted.get("window", {}), wanted.get("crop", {})
    grid = {**({dim: 1} if dim else {}), **window}
    stride = {name: wanted.get("stride", {}).get(name, extent) for name, extent in grid.items()}
    starts = [range(0, sizes[name] - extent + 1, stride[name]) for name, extent in grid.items()]
    seen = []
    for batch in loader:
        check(batch, climate(), dim, {**window, **crop})
        seen += list(zip(*(batch.starts[name].tolist() for name in grid), strict=True))
    assert sorted(seen) == sorted(itertools.product(*starts))
    assert len(loader) == -(-len(seen) // 5)


@st.composite
def wishes(draw: st.DrawFn) -> dict[str, Any]:
    shape = draw(st.tuples(st.integers(1, 14), st.integers(1, 6), st.integers(1, 5)))
    wish: dict[str, Any] = {"shape": shape}
    wish["chunks"] = tuple(draw(st.integers(1, n + 1)) for n in shape)
    wish["other"] = tuple(draw(st.integers(1, n + 1)) for n in (shape[1], shape[0]))
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, unique=True))
    sizes = dict(zip("abc", shape, strict=True))
    wish["window"] = {name: draw(st.integers(1, sizes[name])) for name in names}
    wish["stride"] = {name: draw(st.integers(1, 4)) for name in names if draw(st.booleans())}
    rest = [name for name in "abc" if name not in names]
    wish["crop"] = {name: draw(st.integers(1, sizes[name])) for name in rest if draw(st.booleans())}
    wish["dim"] = draw(st.sampled_from([None, *[n for n in names if wish["window"][n] == 1]]))
    wish["part"] = draw(st.sampled_from([{}, {"a": slice(None, None, -1)}, {"b": slice(None, None, 2)}]))
    return wish


@settings(max_examples=40)
@given(wish=wishes(), shuffle=st.sampled_from([False, "chunk", "full"]), data=st.data())
def test_any_samples_of_any_store(
    tmp_path_factory: pytest.TempPathFactory, wish: dict[str, Any], shuffle: Any, data: st.DataObject
) -> None:
    """Exact cover, values, and the same order whatever the ranks, the prefetching, the runs, and where it resumes."""
    random = np.random.default_rng(1)
    variables: dict[str, Any] = {
        "x": (random.random(wish["shape"]), ["a", "b", "c"], wish["chunks"]),
        "y": (random.integers(0, 99, (wish["shape"][1], wish["shape"][0])), ["b", "a"], wish["other"]),
    }
    path = write(tmp_path_factory.mktemp("any"), variables)
    dataset: Any = opened(path)
    for name, key in wish["part"].items():
        variables = {
            v: (values[(slice(None),) * dims.index(name) + (key,)] if name in dims else values, dims, chunks)
            for v, (values, dims, chunks) in variables.items()
        }
        dataset = dataset.isel(**{name: key})
    sizes = dict(zip("abc", variables["x"][0].shape, strict=True))
    windows = {name: min(extent, sizes[name]) for name, extent in wish["window"].items()}
    crop = {name: min(extent, sizes[name]) for name, extent in wish["crop"].items()}
    stride = {name: wish["stride"].get(name, extent) for name, extent in windows.items()}
    dim = wish["dim"]
    window = {name: extent for name, extent in windows.items() if name != dim}
    batch_size, seed = data.draw(st.integers(1, 7)), data.draw(st.integers(0, 3))

    def loader(**more: Any) -> DataLoader:
        strides = {name: n for name, n in stride.items() if name in windows}
        return DataLoader(dataset, batch_size, dim=dim, window=window, stride=strides, crop=crop, shuffle=shuffle,
                          seed=seed, buffer=2, **more)  # fmt: skip

    one = loader(prefetch=0)
    order = []
    for batch in one:
        check(batch, variables, dim, {**window, **crop})
        order += list(zip(*(column.tolist() for column in batch.starts.values()), strict=True))
    covered = sorted(sample[: len(windows)] for sample in order)
    names = [*([dim] if dim else []), *window]
    starts = [range(0, sizes[n] - windows[n] + 1, stride[n]) for n in names]
    assert covered == sorted(itertools.product(*starts))

    world = data.draw(st.integers(1, 4))
    parts = [
        order_of(loader(rank=rank, world_size=world, prefetch=data.draw(st.integers(0, 9)))) for rank in range(world)
    ]
    assert list(itertools.chain(*parts)) == order

    stop = data.draw(st.integers(0, len(one)))
    first = loader()
    before = list(itertools.islice(first, stop))
    second = loader(prefetch=1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    resumed = [
        tuple(int(n) for n in s) for batch in [*before, *second] for s in zip(*batch.starts.values(), strict=True)
    ]
    assert resumed == order


def test_short_runs_bring_the_same(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that end in the middle of batches, of windows and of chunks."""
    wishes: list[dict[str, Any]] = [
        {"dim": "time"},
        {"window": {"time": 4}, "stride": {"time": 1}},
        {"window": {"time": 4, "lon": 3}, "stride": {"time": 3, "lon": 2}},
    ]
    for wish, shuffle in itertools.product(wishes, [False, "chunk", "full"]):
        whole = order_of(DataLoader(opened(store), 3, **wish, shuffle=shuffle, buffer=2))
        with monkeypatch.context() as patch:
            for module in (sampling, groups):
                patch.setattr(module, "READ_BYTES", 1)
            patch.setattr(sampling, "_LEAST_BUFFER", 1)
            loader = DataLoader(opened(store), 3, **wish, shuffle=shuffle, buffer=2 if shuffle else None)
            short = []
            for batch in loader:
                check(batch, climate(), wish.get("dim"), wish.get("window", {}))
                short += list(zip(*(column.tolist() for column in batch.starts.values()), strict=True))
        assert short == whole


def test_years_and_members(tmp_path: Path) -> None:
    years = [climate(n, seed) for n, seed in [(7, 1), (9, 2), (2, 3)]]
    paths = [write(tmp_path / f"{i}.zarr", year) for i, year in enumerate(years)]
    whole: dict[str, Any] = {}
    for name, (first, dims, chunks) in years[0].items():
        joined = np.concatenate([y[name][0] for y in years], dims.index("time")) if "time" in dims else first
        whole[name] = (joined, dims, chunks)
    for shuffle in (False, "chunk", "full"):
        seen = []
        wish = {"window": {"time": 3}, "stride": {"time": 2}}
        for batch in DataLoader(opened(paths, concat="time"), 4, **wish, shuffle=shuffle, buffer=2):  # type: ignore[arg-type]
            check(batch, whole, None, {"time": 3})
            seen += batch.starts["time"].tolist()
        assert sorted(seen) == list(range(0, 16, 2))
    members = opened(paths[:1] * 3, concat="member")[["t2m"]]
    for batch in DataLoader(members, 4, dim="member", window={"time": 2}, shuffle=True):
        stacked = (np.stack([years[0]["t2m"][0]] * 3), ["member", "time", "lat", "lon"], ())
        check(batch, {"t2m": stacked}, "member", {"time": 2})


def test_an_array_alone_and_codecs_and_shards(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 9, (40, 6))
    options: list[dict[str, Any]] = [
        {"compressors": None},
        {"compressors": "auto"},
        {"shards": (20, 6), "compressors": None},
        {"shards": (20, 6)},
    ]
    for i, more in enumerate(options):
        write(tmp_path / f"{i}", {"v": (values, ["time", "x"], (5, 6))}, **more)
        array = gpuload.open(tmp_path / f"{i}" / "v", device="cpu")
        for batch in DataLoader(array, 6, dim="time", shuffle=True, seed=i):
            assert np.array_equal(batch["array"], values[batch.starts["time"]])
    dataset = opened(tmp_path / "0")
    assert [list(batch) for batch in DataLoader(dataset["v"], 40, dim="time")] == [["v"]]  # type: ignore[arg-type]


# ---------------------------------------------------------------------- what is read, and for what


def test_every_chunk_is_read_once(store: Path) -> None:
    """In order, also where windows share chunks; and shuffled by chunks, where samples end with their chunk."""
    wishes: list[dict[str, Any]] = [
        {"dim": "time"},
        {"window": {"time": 5}, "stride": {"time": 1}},
        {"window": {"time": 3}, "shuffle": "chunk", "buffer": 2},
        {"dim": "time", "shuffle": "chunk", "buffer": 1},
        {"dim": "time", "shuffle": "chunk", "buffer": 3, "seed": 5},
        {"window": {"time": 6, "lat": 2, "lon": 3}, "stride": {"time": 1, "lon": 1}},
    ]
    for wish, prefetch in itertools.product(wishes, [0, 3]):
        view = opened(store)[["t2m"]]
        with pytest.MonkeyPatch.context() as patch, gpuload.trace() as trace:
            if "buffer" not in wish:
                patch.setattr(sampling, "_LEAST_BUFFER", 1)
                patch.setattr(sampling, "READ_BYTES", 1)
            for _ in DataLoader(view, 4, **wish, prefetch=prefetch):
                pass
        chunks = [row.key for row in trace.rows() if "zarr.json" not in row.key]
        # No whole window of 3 is in the last chunk.
        last = of_row(store, "t2m", 7) if wish.get("buffer") == 2 else []
        needed = [str(p.relative_to(store)) for p in chunk_files(store, "t2m") if p not in last]
        assert sorted(chunks) == sorted(needed), wish


def test_the_record_says_what_a_request_was_for(store: Path) -> None:
    with gpuload.trace() as trace:
        opened(store)["t2m"][0]  # type: ignore[index]
        loader = DataLoader(opened(store)[["t2m"]], 4, dim="time", shuffle=True, buffer=2, prefetch=0)
        iterator = iter(loader)
        next(iterator)
        first = [row.purpose for row in trace.rows() if row.purpose]
        list(iterator)
    rows = trace.rows()
    assert rows[0].purpose == ""
    assert set(first) == {f"{loader.name}: epoch 0, batches 0-1"}
    spans = [row.purpose.removeprefix(f"{loader.name}: epoch 0, batches ") for row in rows if row.purpose]
    # Samples of one buffer after the other: the batches that a buffer's samples are in.
    assert sorted(set(spans), key=spans.index) == ["0-1", "1-2", "3-4", "4-5"]
    assert set(trace.to_pandas()["purpose"]) == {row.purpose for row in rows}


def test_the_report_counts(store: Path) -> None:
    loader = DataLoader(opened(store)[["t2m", "sp"]], 4, dim="time")
    before = loader.report()
    assert (before.batches, before.batches_per_second, before.fastpath_share) == (0, None, None)
    with gpuload.trace() as trace:
        list(loader)
    report = loader.report()
    assert (report.epoch, report.batches, report.samples, report.skipped, report.errors) == (0, 6, 23, 0, ())
    assert report.bytes == trace.summary().bytes > 0
    assert report.fastpath_share == 0
    assert 0 <= report.waited <= report.seconds
    assert report.batches_per_second
    assert json.loads(json.dumps(report.to_dict()))["batches"] == 6
    assert "6 of 23 samples" in str(report) == repr(report)
    assert "0 % by the fastpath" in report._repr_html_()


# ---------------------------------------------------------------------- epochs, ranks, states


def test_epochs_go_on_and_can_be_set(store: Path) -> None:
    def loader() -> DataLoader:
        return DataLoader(opened(store)[["sp"]], 4, dim="time", shuffle="full", seed=2)

    one = loader()
    orders = [order_of(one) for _ in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert one.epoch == 3
    two = loader()
    two.set_epoch(2)
    assert order_of(two) == orders[2]
    two.set_epoch(0)
    next(iter(two))  # left early: the epoch begins again
    assert order_of(two) == orders[0]


def test_a_state_goes_on_in_another_process(store: Path) -> None:
    loader = DataLoader(opened(store), 4, dim="time", shuffle=True, seed=4, buffer=2, crop={"lat": 2})
    loader.set_epoch(3)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = json.dumps(loader.state_dict())
    copied = pickle.dumps(loader)
    rest = list(iterator)
    assert loader.state_dict()["epoch"] == 4
    after = pickle.loads(copied)
    after.load_state_dict(json.loads(state))
    again = list(after)
    assert len(rest) == len(again) == 3
    for a, b in zip(rest, again, strict=True):
        assert (a.epoch, a.number) == (b.epoch, b.number)
        assert all(np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f") for name in a)
    assert after.epoch == 4
    # After the last batch, before the iterator is asked once more: nothing of this epoch is left.
    iterator = iter(after)
    for _ in range(len(after)):
        next(iterator)
    last = after.state_dict()
    iterator.close()  # type: ignore[attr-defined]
    after.load_state_dict(last)
    assert list(after) == []
    assert after.epoch == 5


def test_a_state_of_another_loader_is_refused(store: Path) -> None:
    state = DataLoader(opened(store), 4, dim="time", shuffle=True).state_dict()
    with pytest.raises(SampleError, match="batch_size 4, here 5; shuffle 'chunk', here 'none'"):
        DataLoader(opened(store), 5, dim="time").load_state_dict(state)


def test_drop_last_gives_all_ranks_the_same_number(store: Path) -> None:
    loaders = [DataLoader(opened(store), 2, dim="time", rank=r, world_size=5, drop_last=True) for r in range(5)]
    orders = [order_of(loader) for loader in loaders]
    assert [len(order) for order in orders] == [4] * 5
    assert {len(loader) for loader in loaders} == {2}
    assert len(set(itertools.chain(*orders))) == 20


# ---------------------------------------------------------------------- memory and ends


def test_what_is_handed_out_is_the_callers_own(store: Path) -> None:
    batches = list(DataLoader(opened(store), 4, dim="time", prefetch=3))
    arrays = [array for batch in batches for array in batch.values()]
    for a, b in itertools.combinations(arrays, 2):
        assert not np.shares_memory(a, b)
    for batch in batches:
        check(batch, climate(), "time", {})
        for array in batch.values():
            array[...] = 0
    for batch in DataLoader(opened(store), 4, dim="time"):
        check(batch, climate(), "time", {})


def test_a_batch_that_the_caller_drops_is_freed(store: Path) -> None:
    iterator = iter(DataLoader(opened(store), 4, dim="time"))
    batch = next(iterator)
    array = weakref.ref(batch["t2m"])
    del batch
    assert array() is None
    iterator.close()  # type: ignore[attr-defined]


def test_memory_is_bounded(make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing grows with the epoch's 32 MiB.

    Alive at once are the run in use and the one ahead, each of half a MiB, and of the batches, each of a quarter, that
    which the consumer has, that which is being made, and what it is made of: 1.75 MiB, and as much again for the rest.
    """
    path = make_store("large", {"v": (np.ones((512, 16384), "f4"), ["time", "x"], (1, 16384))}, compressors=None)
    for module in (sampling, groups):
        monkeypatch.setattr(module, "READ_BYTES", 1 << 19)
    for shuffle in (False, "chunk", "full"):
        loader = DataLoader(opened(path), 4, dim="time", shuffle=shuffle, prefetch=2)
        next(iter(loader))  # what is made once: the ring, the slabs, the tables of the order
        # The record has a bound of its own, of several MiB, and grows towards it by doubling, at a time that the tests
        # before this one set.
        recorder.process.clear()
        gc.collect()
        tracemalloc.start()
        try:
            for batch in loader:
                assert batch["v"].shape == (4, 16384)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 << 20, (shuffle, peak)


def test_leaving_early_stops_the_reading(store: Path) -> None:
    """By break, by an error, by Ctrl-C: the thread is over at once. `nothing_is_left` looks, too."""
    loader = DataLoader(opened(store), 1, dim="time", shuffle=True, buffer=1)

    def ahead() -> bool:
        return any(t.name == "gpuload-ahead" for t in threading.enumerate())

    for _ in loader:
        assert ahead()
        break
    assert not ahead()
    for kind in (ValueError, KeyboardInterrupt):
        with pytest.raises(kind):  # noqa: PT012 - it is the loop that is left
            for _ in loader:
                raise kind
        assert not ahead()
    with loader:
        iterator = iter(loader)
        next(iterator)
        assert ahead()
    assert not ahead()
    older = iter(loader)
    next(older)
    newer = iter(loader)
    next(newer)
    with pytest.raises(RuntimeError, match="another iteration"):
        list(older)
    newer.close()  # type: ignore[attr-defined]


def test_ctrl_c_while_waiting_for_a_batch(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading stands still until the consumer, that waits for it, was interrupted."""
    from gpuload.data import ahead, loader

    interrupted = threading.Event()
    read = groups.Sampling.starts if hasattr(groups, "Sampling") else None
    assert read is not None

    def starts(self: Any, *args: Any) -> Any:
        assert interrupted.wait(WAIT)
        return read(self, *args)

    def wait_for(self: Any, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        if threading.current_thread() is threading.main_thread():
            interrupted.set()
            raise KeyboardInterrupt
        return real(self, predicate, timeout)

    real = ahead.threading.Condition.wait_for
    monkeypatch.setattr(groups.Sampling, "starts", starts)
    monkeypatch.setattr(ahead.threading.Condition, "wait_for", wait_for)
    batches = iter(loader.DataLoader(opened(store), 1, dim="time"))
    with pytest.raises(KeyboardInterrupt):
        next(batches)


# ---------------------------------------------------------------------- what goes wrong


def chunk_files(store: Path, name: str) -> list[Path]:
    return sorted(p for p in store.glob(f"{name}/**/*") if p.is_file() and not p.name.startswith((".z", "zarr")))


def of_row(store: Path, name: str, row: int) -> list[Path]:
    """The chunks of one row of the chunk grid."""
    dotted = f"{row}."
    return [
        p
        for p in chunk_files(store, name)
        if p.name.startswith(dotted) or p.relative_to(store / name).parts[1:2] == (str(row),)
    ]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_broken_chunk_is_an_error_that_names_it(store: Path, prefetch: int) -> None:
    broken = of_row(store, "sp", 2)[0]
    broken.write_bytes(broken.read_bytes()[:3])
    seen = []
    with pytest.raises(ChunkError, match=str(broken.relative_to(store))):  # noqa: PT012 - and what came before
        for batch in DataLoader(opened(store)[["sp"]], 2, dim="time", prefetch=prefetch, buffer=1):
            seen += batch.starts["time"].tolist()
    assert seen == list(range(8))  # what came before it


@pytest.mark.parametrize("wish", [{"dim": "time"}, {"window": {"time": 2, "lon": 3}, "stride": {"time": 1}}], ids=str)
@pytest.mark.parametrize("shuffle", [False, "chunk", "full"])
def test_broken_chunks_can_be_skipped(store: Path, wish: dict[str, Any], shuffle: Any) -> None:
    for broken in [*of_row(store, "sp", 2), *of_row(store, "sp", 0)[:1]]:
        broken.write_bytes(b"x")
    loader = DataLoader(opened(store)[["t2m", "sp"]], 3, **wish, shuffle=shuffle, buffer=2, on_error="skip")
    seen = []
    for batch in loader:
        check(batch, {n: climate()[n] for n in ("t2m", "sp")}, wish.get("dim"), wish.get("window", {}))
        seen += batch.starts["time"].tolist()
    extent = wish.get("window", {}).get("time", 1)
    columns = 1 if "dim" in wish else 2
    lost = {0, 1, 2, 3, 8, 9, 10, 11}  # the first chunk of row 0 has rows 0 and 1 of lat only, but all of lon
    good = [start for start in range(24 - extent) if not lost & set(range(start, start + extent))]
    assert sorted(seen) == sorted(good * columns)
    report = loader.report()
    assert report.samples == len(seen)
    assert report.skipped == (24 - extent) * columns - len(seen)
    assert report.errors
    assert all("sp/" in error for error in report.errors)
    assert "skipped" in str(report)


def test_a_batch_without_samples_is_left_out(store: Path) -> None:
    for broken in of_row(store, "sp", 1):
        broken.write_bytes(b"x")
    loader = DataLoader(opened(store)[["sp"]], 4, dim="time", on_error="skip")
    assert [batch.number for batch in loader] == [0, 2, 3, 4, 5]
    assert loader.report().skipped == 4


def tick() -> None:
    """Wait until the clock that files are stamped with has gone on: a moment's difference is all it needs."""
    now = time.time_ns()
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= now:
        pass


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_chunk_that_is_lost_during_an_epoch(store: Path, prefetch: int) -> None:
    def loader() -> DataLoader:
        return DataLoader(opened(store), 3, dim="time", prefetch=prefetch, buffer=1)

    assert len(list(loader())) == 8  # chunks without a file, that there never was, are the fill value
    seen = []
    last = of_row(store, "t2m", 7)[0]
    with pytest.raises(ChunkLostError, match=str(last.relative_to(store))):  # noqa: PT012 - it happens in the loop
        for batch in loader():
            if len(seen) == 9:  # behind the chunk that there never was
                tick()
                last.unlink()
            seen += batch.starts["time"].tolist()
    assert seen == list(range(21))
    assert len(list(loader())) == 8  # for a new loader it is one that was never there


def test_a_store_that_is_written_during_an_epoch(store: Path, zarr_format: int) -> None:
    document = store / "t2m" / ("zarr.json" if zarr_format == 3 else ".zarray")
    with pytest.raises(ChangedError, match="'t2m'"):  # noqa: PT012 - it happens in the loop
        for _ in DataLoader(opened(store), 3, dim="time", prefetch=0, buffer=1):
            document.write_text(document.read_text() + " ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "name what samples lie along"),
        ({"dim": "tim"}, "dimension 'tim'; dimensions: 'lat', 'lon', 'level', 'time'"),
        ({"window": {"time": 24}}, "window of 24 does not fit into 'time', which has 23"),
        ({"dim": "time", "window": {"time": 2}}, "dim='time' means single elements"),
        ({"dim": "time", "stride": {"lat": 2}}, "stride has 'lat', which is not sampled"),
        ({"window": {"time": 2}, "crop": {"time": 2}}, "crop has 'time', which has windows"),
        ({"dim": "time", "crop": {"lat": 6}}, "crop of 6 does not fit into 'lat', which has 5"),
        ({"dim": "time", "shuffle": "all"}, "shuffle='all'"),
        ({"dim": "time", "rank": 2, "world_size": 2}, "rank=2"),
        ({"dim": "time", "prefetch": -1}, "prefetch=-1"),
        ({"dim": "time", "on_error": "ignore"}, "on_error='ignore'"),
        ({"dim": "time", "seed": -1}, "seed -1"),
        ({"dim": "time", "buffer": 0}, "buffer of 0"),
    ],
)
def test_wishes_that_cannot_be(store: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(SampleError, match=says):
        DataLoader(opened(store), 4, **options)


def test_what_cannot_be_batched(make_store: Callable[..., Path], store: Path) -> None:
    path = make_store("two", {"a": (np.zeros(4), ["x"], (2,)), "b": (np.zeros(5), ["x"], (2,))})
    with pytest.raises(JoinError, match="'x' has length 4 in 'a', but 5 in 'b'"):
        DataLoader(opened(path), 1, dim="x")
    with pytest.raises(TypeError, match="not ndarray"):
        DataLoader(np.zeros(3), 1, dim="x")  # type: ignore[arg-type]
    loader = DataLoader(opened(store), 4, dim="time")
    with pytest.raises(SampleError, match="epoch -1"):
        loader.set_epoch(-1)
    assert "6 batches of 4" in repr(loader)


def _in_child(loader: DataLoader, batches: Any, queue: Any) -> None:
    try:
        next(batches)
    except AfterForkError as error:
        queue.put(f"AfterForkError: {error}")
    queue.put([batch["sp"].tolist() for batch in loader])


def test_in_a_forked_child(store: Path) -> None:
    """An iteration from before the fork says so, and does not wait for ever; on the host a new one works."""
    loader = DataLoader(opened(store)[["sp"]], 4, dim="time", prefetch=1, buffer=1)
    batches = iter(loader)
    next(batches)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(loader, batches, queue))
    child.start()
    said, found = queue.get(), queue.get()
    child.join(WAIT)
    assert said.startswith("AfterForkError")
    assert "spawn" in said
    batches.close()  # type: ignore[attr-defined]
    assert found == [batch["sp"].tolist() for batch in loader]


def test_maps_run_on_each_batch(store: Path) -> None:
    view = opened(store)[["sp"]].map(lambda d: {"double": d["sp"] * 2}).map(lambda d: {**d, "n": len(d["double"])})
    for batch in DataLoader(view, 4, dim="time"):
        assert isinstance(batch, Batch)
        assert batch["n"] == len(batch.starts["time"])
        assert np.array_equal(batch["double"], climate()["sp"][0][batch.starts["time"]] * 2)


def test_arrays_go_to_others_by_dlpack(store: Path) -> None:
    for batch in DataLoader(opened(store)[["sp"]], 4, dim="time"):
        other = np.from_dlpack(batch["sp"])
        assert np.shares_memory(other, batch["sp"])


def test_reads_keep_nothing_of_earlier_results(store: Path) -> None:
    """Without help from the collector of garbage: a loop of reads would hold many results until it came by."""
    array = opened(store).variables["t2m"]
    gc.disable()
    try:
        for selection in (..., slice(3), [5, 1]):
            result = array[selection]
            alive = weakref.ref(result if result.base is None else result.base)
            del result
            array[0]  # the I/O thread lets go of a read when it is asked for the next one
            assert alive() is None
    finally:
        gc.enable()
