"""Random arrays, chunks and selections equal NumPy, in every shape on disk, through poisoned memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuload import config
from gpuload.engine import transfer
from gpuload.memory.device import HOST

KINDS = ["raw", "zlib", "shard", "zshard"]
DTYPES = ["u1", "<i2", ">i4", "<f8", "<c16", "S3", "V7"]


def one_selection(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    def along(size: int) -> Any:
        if draw(st.integers(0, 3)) == 0:
            return draw(st.integers(-size, size - 1))
        end = st.none() | st.integers(-size - 1, size + 1)
        return slice(draw(end), draw(end), draw(st.none() | st.integers(-size, size).filter(bool)))

    key: list[Any] = [along(size) for size in shape]
    if shape and draw(st.booleans()):
        axis = draw(st.integers(0, len(shape) - 1))
        key[axis] = draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), max_size=9))
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    if draw(st.booleans()):
        key = [*key[: draw(st.integers(0, len(key)))], ...]
    return tuple(key)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=4)))
    chunks = tuple(draw(st.integers(1, n + 1)) for n in shape)
    n = int(np.prod([-(-s // c) for s, c in zip(shape, chunks, strict=True)]))
    return {
        "shape": shape,
        "chunks": chunks,
        "dtype": draw(st.sampled_from(DTYPES)),
        "order": draw(st.sampled_from("CF")),
        "kind": draw(st.sampled_from(KINDS)),
        "missing": tuple(draw(st.sets(st.integers(0, n - 1), max_size=min(n, 5)))),
        "piece_bytes": draw(st.sampled_from([1, 7, 16, 64, 1 << 20])),
        "selections": [one_selection(draw, shape) for _ in range(3)],
        "out": draw(st.sampled_from(["C", "F", "gaps", "reversed"])),
        "direct": draw(st.sampled_from(["always", "never"])),
    }


def odd_array(poisoned: Any, how: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """A destination of odd strides inside poisoned memory, and that memory."""
    if how in "CF":
        memory = poisoned(shape, dtype, how)
        return memory, memory
    if how == "gaps":
        memory = poisoned((*(2 * n + 1 for n in shape),), dtype)
        return memory[(*(slice(1, None, 2) for _ in shape), ...)], memory
    memory = poisoned(shape, dtype)
    return memory[(*(slice(None, None, -1) for _ in shape), ...)], memory


def data_of(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    count = int(np.prod(shape))
    raw = np.random.default_rng(count).integers(0, 255, count * kind.itemsize, np.uint8)
    return np.frombuffer(raw.tobytes(), kind).reshape(shape)


@settings(suppress_health_check=list(HealthCheck), max_examples=60)
@given(case=cases())
def test_random_selections_equal_numpy(case: dict[str, Any], stored: Any, backend: str, poisoned: Any) -> None:
    data = data_of(case["shape"], case["dtype"])
    with config.set({"piece_bytes": case["piece_bytes"], "direct.host": case["direct"]}):
        array = stored(data, case["chunks"], kind=case["kind"], order=case["order"], missing=case["missing"])
        for selection in case["selections"]:
            expected = array.full[selection]
            view, memory = odd_array(poisoned, case["out"], np.shape(expected), data.dtype)
            array.read(selection, view)
            assert view.tobytes() == np.asarray(expected, data.dtype).tobytes()
            if case["out"] == "gaps" and view.ndim:  # nothing between the elements was touched
                poison = np.frombuffer(b"\xa5" * data.dtype.itemsize, f"V{data.dtype.itemsize}")[0]
                view.view(poison.dtype)[...] = poison
                assert (memory.reshape(-1).view(np.uint8) == 0xA5).all()


@pytest.mark.parametrize("kind", [*KINDS, "raw, straight", "shard, straight"])
def test_many_batches_equal_numpy(kind: str, stored: Any, backend: str, fresh: Any) -> None:
    data = np.arange(40 * 41 * 17, dtype="<i4").reshape(40, 41, 17)
    kind, _, straight = kind.partition(", ")
    direct = "always" if straight else "never"
    with config.set({"batch_bytes": 4096, "piece_bytes": 512, "slab.size": 1 << 20, "direct.host": direct}):
        array = stored(data, (7, 8, 9), kind=kind, missing=(0, 5, 31))
        array.check()
        array.check((slice(None, None, -3), 17, slice(3, 15)))
        array.check(np.s_[5, 5, 5])
        array.check(np.s_[::-1, [3, 9, 3, 40, 39, 8, 0], 2:])
        array.check(np.s_[:, [30, 3, 9, 31, 0, 24]])  # a missing chunk's places span those of chunks before it
        array.check(np.s_[9, :, np.arange(17) % 5 < 2])


@pytest.mark.parametrize("kind", ["raw", "shard"])
def test_a_chunk_larger_than_a_batch_equals(kind: str, stored: Any, backend: str, fresh: Any) -> None:
    data = np.random.default_rng(3).integers(0, 1 << 60, (3, 70_000), np.int64)
    with config.set({"batch_bytes": 64 << 10, "piece_bytes": 16 << 10}):
        array = stored(data, (2, 65_000), kind=kind, per_shard=2)
        array.check()
        array.check(np.s_[::-1, 3::7])
        array.check(np.s_[::-1, np.random.default_rng(4).integers(0, 70_000, 20_000)])


@pytest.mark.parametrize("kind", ["zlib", "zshard"])
def test_an_encoded_chunk_larger_than_a_slab_equals(kind: str, stored: Any, backend: str, fresh: Any) -> None:
    data = np.random.default_rng(4).integers(0, 1 << 60, (3, 600_000), np.int64)
    with config.set({"slab.size": 4 << 20, "slab.limit": 4 << 20}):
        array = stored(data, (1, 600_000), kind=kind)
        array.check()


@pytest.mark.parametrize("capacity", [1, 100])
def test_a_chunk_larger_than_its_decoder_expects_is_read_whole(
    capacity: int, stored: Any, backend: str, fresh: Any
) -> None:
    # All blocks there are hold chunks that must be read again: the second reading cannot wait for one of them.
    data = np.random.default_rng(5).integers(0, 1 << 60, (64, 32 << 10), np.int64)
    with config.set({"slab.size": 4 << 20, "slab.limit": 4 << 20, "batch_bytes": 1 << 20}):
        array = stored(data, (1, 32 << 10), kind="zlib", capacity=capacity)
        array.check()


def test_neighbours_in_memory_are_left_alone(stored: Any, backend: str) -> None:
    array = stored(np.arange(1000, dtype="<u2"), (90,), missing=(3,))
    memory = np.full(1200, 0xA5A5, "<u2")
    array.read(..., memory[100:1100])
    assert (memory[:100] == 0xA5A5).all()
    assert (memory[1100:] == 0xA5A5).all()
    assert np.array_equal(memory[100:1100], array.full)


def test_poison_reaches_every_kind_of_block(fresh: Any) -> None:
    io = transfer.io_thread()
    io.prepare("posix", HOST)

    def look() -> bool:
        blocks = [io.pool.take(100), io.pool.own(100 << 20)]
        try:
            return all(bool((block.array == 0xA5).all()) for block in blocks)
        finally:
            for block in blocks:
                io.pool.give(block)

    assert io.call(look)


def test_a_zero_dimensional_array(stored: Any, backend: str) -> None:
    for kind, missing in itertools.product(KINDS, [(), (0,)]):
        stored(np.array(42.5), (), kind=kind, missing=missing).check()
