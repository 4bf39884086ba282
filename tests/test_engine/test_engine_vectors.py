"""Which reads go straight into host arrays, and that those leave alone what lies between their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuload import config
from gpuload.bindings.vectors import IOV_MAX, IOVEC, behind
from gpuload.engine.plan import Plan
from gpuload.engine.vectors import ALIGN, ROW_BYTES
from gpuload.errors import ConfigError
from gpuload.memory.device import HOST


def plan_of(array: Any, selection: Any = ..., out: Any = None) -> Plan:
    if out is None:
        out = HOST.empty(array.full[selection].shape, array.dtype)
    request, _ = array.request(selection, out)
    return Plan(request, batch_bytes=1 << 20, piece_bytes=1 << 20, max_files=64, on_host=True)


def goes_straight(*arguments: Any) -> bool:
    return plan_of(*arguments).vectors is not None


def test_the_rule(stored: Any) -> None:
    row = ROW_BYTES // 4
    array = stored(np.arange(8 * 4 * row, dtype="<i4").reshape(8, 4 * row), (4, row))
    assert goes_straight(array)
    assert not goes_straight(array, np.s_[:, : row // 2]), "rows are shorter than a copy is worth"
    assert not goes_straight(array, np.s_[:, ::2]), "elements that are no rows"
    assert not goes_straight(array, np.s_[[3, 1, 0]]), "lists"
    memory = HOST.empty((8 * 4 * row + 8,), "<i4")
    shape = (8, 4 * row)
    assert goes_straight(array, ..., memory[ALIGN // 4 :][: 8 * 4 * row].reshape(shape))
    assert not goes_straight(array, ..., memory[1:][: 8 * 4 * row].reshape(shape)), "not aligned"
    with config.set({"direct.host": "never"}):
        assert not goes_straight(array)
    with config.set({"direct.host": "always"}):
        assert goes_straight(array, ..., memory[1:][: 8 * 4 * row].reshape(shape))
        assert not goes_straight(array, np.s_[:, ::2])


def test_encoded_chunks_go_through_slabs(stored: Any) -> None:
    assert not goes_straight(stored(np.zeros((4, 4096), "<i4"), (4, 4096), kind="zlib"))


@pytest.mark.parametrize(("rows", "straight"), [(IOV_MAX - 1, True), (IOV_MAX, False)])
def test_as_many_rows_as_the_kernel_takes_at_once(rows: int, straight: bool, stored: Any, backend: str) -> None:
    # One place more is for the byte that proves the file's size.
    data = np.random.default_rng(1).integers(0, 99, (rows, 32), np.uint8)
    array = stored(data, (rows, 16))
    with config.set({"direct.host": "always"}):
        assert goes_straight(array) is straight
        array.check()


def test_an_unknown_way(stored: Any) -> None:
    with config.set({"direct.host": "sometimes"}), pytest.raises(ConfigError, match="sometimes"):
        plan_of(stored(np.zeros(9), (3,)))


@pytest.mark.parametrize("kind", ["raw", "shard"])
@pytest.mark.parametrize("selection", [..., np.s_[3:, 2:19, 1:], np.s_[-1], np.s_[::-2, 5:]], ids=str)
def test_ragged_chunks_with_gaps(kind: str, selection: Any, stored: Any, backend: str, poisoned: Any) -> None:
    data = np.random.default_rng(2).integers(0, 1 << 40, (10, 23, 17), np.int64)
    array = stored(data, (4, 6, 5), kind=kind, missing=(0, 7))
    expected = array.full[selection]
    memory = poisoned(tuple(n + 2 for n in expected.shape), data.dtype)
    inner = (slice(1, -1),) * expected.ndim
    with config.set({"direct.host": "always"}):
        assert goes_straight(array, selection, memory[inner])
        array.check(selection, memory[inner])
    memory[inner] = poisoned(expected.shape, data.dtype)
    assert (memory.reshape(-1).view(np.uint8) == 0xA5).all()


def test_no_block_is_larger_than_its_tables(stored: Any) -> None:
    array = stored(np.zeros((64, 1 << 14), "<i4"), (16, 1 << 12))
    plan = plan_of(array)
    assert len(plan) > 1
    for index in range(len(plan)):
        part = plan.part(index)
        rows = 16 * (part.last - part.first)
        assert part.block_bytes <= (rows + part.last - part.first) * IOVEC.itemsize + 4096


@pytest.mark.parametrize("done", range(11))
def test_the_rest_of_a_table(done: int) -> None:
    table = np.array([(100, 3), (200, 0), (300, 5), (400, 2)], IOVEC)
    places = [base + i for base, length in table.tolist() for i in range(length)]
    rest = behind(table, done)
    assert [base + i for base, length in rest.tolist() for i in range(length)] == places[done:]
    assert table.tolist() == [(100, 3), (200, 0), (300, 5), (400, 2)]
