"""The order of an epoch: each sample once, whoever asks for which part of it, chunk by chunk where that is meant."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.data.grid import SampleAxis, SampleGrid
from gpuload.data.order import Order, Shuffle
from gpuload.data.share import Share
from gpuload.errors import SampleError


@st.composite
def axes(draw: st.DrawFn, most: int = 40) -> SampleAxis:
    length = draw(st.integers(1, most))
    window = draw(st.integers(1, length))
    stride = draw(st.integers(1, length + 2))
    inner = draw(st.lists(st.integers(1, length - 1), unique=True)) if length > 1 else []
    if draw(st.booleans()):  # a regular grid
        inner = list(range(draw(st.integers(1, length)), length, max(1, draw(st.integers(1, length)))))
    return SampleAxis("x", length, window, stride, np.array([0, *sorted(set(inner)), length]))


@st.composite
def orders(draw: st.DrawFn) -> Order:
    grid = SampleGrid(draw(st.lists(axes(12), min_size=1, max_size=3)) if draw(st.booleans()) else [draw(axes())])
    return Order(
        grid,
        draw(st.sampled_from(Shuffle)),
        draw(st.integers(1, 7)),
        seed=draw(st.integers(0, 2**70)),
        epoch=draw(st.integers(0, 5)),
    )


def chunk_of(axis: SampleAxis, window: int) -> int:
    """By its definition, without arithmetic on whole chunks."""
    start = window * axis.stride
    return next(c for c in range(len(axis.bounds) - 1) if axis.bounds[c] <= start < axis.bounds[c + 1])


@given(axes())
def test_windows_are_all_that_fit(axis: SampleAxis) -> None:
    starts = [start for start in range(0, axis.length, axis.stride) if start + axis.window <= axis.length]
    assert axis.count == len(starts)
    assert axis.cells[0] == 0
    assert axis.cells[-1] == axis.count
    chunks = [chunk_of(axis, i) for i in range(axis.count)]
    firsts = [i for i in range(axis.count) if i == 0 or chunks[i] != chunks[i - 1]]
    assert axis.cells.tolist() == [*firsts, axis.count]


@given(orders())
def test_every_sample_comes_once(order: Order) -> None:
    windows = order(0, len(order))
    assert windows.shape == (order.grid.n, len(order.grid.axes))
    assert np.sort(order.grid.numbers(windows)).tolist() == list(range(order.grid.n))
    assert np.array_equal(order.grid.windows(order.grid.numbers(windows)), windows)


@given(orders(), st.data())
def test_any_part_of_the_order_is_that_part_of_the_whole(order: Order, data: st.DataObject) -> None:
    whole = order(0, len(order))
    first = data.draw(st.integers(0, len(order)))
    last = data.draw(st.integers(first, len(order)))
    assert np.array_equal(replace(order)(first, last), whole[first:last])  # a copy: it has computed nothing before


@given(orders(), st.integers(1, 9), st.integers(1, 9), st.booleans(), st.integers(1, 5))
def test_ranks_have_every_sample_once_in_the_order_of_one(
    order: Order, world: int, batch: int, drop: bool, other: int
) -> None:
    whole = order.grid.numbers(order(0, len(order))).tolist()
    shares = [Share(len(order), batch, rank, world, drop) for rank in range(world)]
    brought = []
    for share in shares:
        mine = [order.grid.numbers(order(*share.batch(i))).tolist() for i in range(share.batches)]
        assert all(len(b) == batch for b in mine[:-1])
        assert all(0 < len(b) <= batch for b in mine)
        if drop:
            assert all(len(b) == batch for b in mine)
        brought.append([sample for b in mine for sample in b])
    if drop:
        assert len({share.batches for share in shares}) == 1
        assert len(brought[0]) == len(order) // world // batch * batch
        flat = [sample for part in brought for sample in part]
        assert len(set(flat)) == len(flat)
    else:
        assert [sample for part in brought for sample in part] == whole
        assert max(map(len, brought)) - min(map(len, brought)) <= 1


@given(orders())
def test_samples_of_a_chunk_stay_together(order: Order) -> None:
    """A chunk's samples are all in one buffer; a buffer holds those of so many chunks at most."""
    if order.shuffle is Shuffle.FULL:
        assert order.end_of_buffer(0) == order.grid.n
        return
    axes = order.grid.axes
    home: dict[tuple[int, ...], int] = {}
    start = buffer = 0
    while start < len(order):
        end = order.end_of_buffer(start)
        chunks = {
            tuple(chunk_of(axis, i) for axis, i in zip(axes, row, strict=True)) for row in order(start, end).tolist()
        }
        assert 0 < len(chunks) <= order.buffer
        assert order.end_of_buffer(end - 1) == end
        for chunk in chunks:
            assert home.setdefault(chunk, buffer) == buffer
        start, buffer = end, buffer + 1


@given(axes())
def test_without_shuffling_one_dimension_comes_in_its_order(axis: SampleAxis) -> None:
    order = Order(SampleGrid([axis]), Shuffle.NONE, 3)
    assert order(0, len(order))[:, 0].tolist() == list(range(axis.count))


def test_seed_and_epoch_make_the_order() -> None:
    grid = SampleGrid([SampleAxis("time", 1000, 1, 1, np.arange(0, 1001, 10))])
    for shuffle in (Shuffle.CHUNK, Shuffle.FULL):
        seen = {tuple(Order(grid, shuffle, 4, seed, epoch)(0, 1000)[:, 0]) for seed in (0, 1) for epoch in (0, 1)}
        assert len(seen) == 4


def test_a_buffer_of_one_chunk_mixes_that_chunk_alone_and_chunks_are_mixed() -> None:
    grid = SampleGrid([SampleAxis("time", 100, 1, 1, np.arange(0, 101, 10))])
    chunks = Order(grid, Shuffle.CHUNK, 1, seed=1)(0, 100).reshape(10, 10)
    assert sorted(set((chunks // 10).min(axis=1))) == list(range(10))
    assert ((chunks // 10) == (chunks // 10)[:, :1]).all()
    assert (np.diff(chunks[:, 0] // 10) != 1).any()
    assert any((np.diff(row) != 1).any() for row in chunks)


def test_crops_are_anywhere_and_new_each_epoch() -> None:
    grid = SampleGrid([SampleAxis("time", 5000, 1, 1, np.array([0, 5000]))])
    first, second = (Order(grid, Shuffle.NONE, 1, seed=2, epoch=epoch) for epoch in (0, 1))
    windows = first(0, 5000)
    starts = first.crops(windows, 0, 10)
    assert set(starts.tolist()) == set(range(10))
    assert np.bincount(starts).min() > 400
    assert np.array_equal(first.crops(windows[70:80], 0, 10), starts[70:80])
    for other in (first.crops(windows, 1, 10), second.crops(windows, 0, 10)):
        assert 0.05 < (other == starts).mean() < 0.15


def test_a_million_samples_take_little_memory() -> None:
    """Of every shape: one chunk a sample, many samples a chunk, two dimensions. The issue allows 64 MiB."""
    one = SampleAxis("time", 1_000_000, 1, 1, np.arange(1_000_001))
    many = SampleAxis("time", 1_000_000, 1, 1, np.arange(0, 1_000_001, 1000))
    small = SampleAxis("x", 1000, 1, 1, np.arange(0, 1001, 2))
    for grid in (SampleGrid([one]), SampleGrid([many]), SampleGrid([small, small])):
        for shuffle in Shuffle:
            tracemalloc.start()
            try:
                order = Order(grid, shuffle, 16, seed=1)
                for start in range(0, 1_000_000, 250_000):
                    assert order(start, start + 32).shape == (32, len(grid.axes))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 32 << 20, (grid.shape, shuffle)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SampleAxis("time", 10, 11, 1, np.array([0, 10])), "window of 11 does not fit into 'time'"),
        (lambda: SampleAxis("time", 10, 0, 1, np.array([0, 10])), "window 0"),
        (lambda: SampleAxis("time", 10, 1, 0, np.array([0, 10])), "stride 0"),
        (lambda: Share(10, 0), "batch_size=0"),
        (lambda: Share(10, 1, 2, 2), "rank=2 of world_size=2"),
        (lambda: Shuffle.of("chunks"), "shuffle='chunks'"),
        (lambda: Shuffle.of(2), "shuffle=2"),
        (lambda: Order(SampleGrid([SampleAxis("t", 1, 1, 1, np.array([0, 1]))]), Shuffle.NONE, 0), "buffer of 0"),
        (lambda: Order(SampleGrid([SampleAxis("t", 1, 1, 1, np.array([0, 1]))]), Shuffle.NONE, 1, -1), "seed -1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_words(make, says: str) -> None:
    with pytest.raises(SampleError, match=says):
        make()


def test_words_for_shuffling() -> None:
    assert [Shuffle.of(v) for v in (False, None, True, "chunk", "full")] == ["none", "none", "chunk", "chunk", "full"]
