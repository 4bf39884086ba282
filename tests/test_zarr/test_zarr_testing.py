"""What zarr-python ships for testing others, on gpuload's store and codec pipeline.

`StoreTests` are in `test_device_store.py`. Here are the state machines, which compare a store with one in memory after
every step, and arrays as zarr-python's own strategies make them up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.stateful import run_state_machine_as_test
from numpy.testing import assert_array_equal
from zarr.testing import stateful, strategies

import gpuload
from gpuload import config
from gpuload.request import Reason
from gpuload.zarr import DevicePipeline, DeviceStore, pipeline_counts

Make = Callable[[], DeviceStore]
FEW = settings(max_examples=max(10, settings().max_examples // 4))  # of whatever profile is loaded
# What an array may hold that only zarr-python decodes.
ALLOWED = {("read", "gpuload"), ("write", Reason.ZARR_PIPELINE)}
ALLOWED |= {("read", reason) for reason in (Reason.HOST_DTYPE, Reason.HOST_CODEC, Reason.ZARR_PIPELINE)}

pytestmark = pytest.mark.filterwarnings("ignore::zarr.core.dtype.common.UnstableSpecificationWarning")


@pytest.fixture
def counted() -> Iterator[set[tuple[str, str]]]:
    """All on gpuload; what was done by whom is known afterwards, and gpuload read some of it."""
    before = pipeline_counts()
    options: dict[str, Any] = {}
    if "rectilinear_chunks" in zarr.config.get("array"):  # which newer strategies make up
        options["array.rectilinear_chunks"] = True
    allowed: set[tuple[str, str]] = set()
    with gpuload.zarr.enable(device="cpu"), zarr.config.set(options), config.set(poison=True):
        assert zarr.registry.get_pipeline_class() is DevicePipeline
        yield allowed
    after = pipeline_counts()
    changed = {key for key, chunks in after.items() if chunks != before.get(key, 0)}
    assert ("read", "gpuload") in changed
    assert changed <= allowed


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Another store with every call."""
    numbers = itertools.count()
    return lambda: DeviceStore(tmp_path / str(next(numbers)))


@given(data=st.data())
@FEW
def test_arrays_that_strategies_make_up(data: st.DataObject, make: Make, counted: set[tuple[str, str]]) -> None:
    counted |= ALLOWED
    values = data.draw(strategies.numpy_arrays(shapes=npst.array_shapes(max_dims=3, min_side=1, max_side=7)))
    array = data.draw(strategies.arrays(arrays=st.just(values), stores=st.builds(make), attrs=st.none()))
    expected = values.copy()

    def check(got: Any, right: Any) -> None:
        assert_array_equal(got, right)
        assert np.ndim(right) == 0 or np.asarray(got).dtype == right.dtype  # scalars of strings lose their length

    check(array[...], expected)
    basic = data.draw(strategies.basic_indices(shape=values.shape))
    check(array[basic], expected[basic])
    ours, theirs = data.draw(strategies.orthogonal_indices(shape=values.shape))
    check(array.oindex[ours], expected[theirs])
    points = data.draw(npst.integer_array_indices(values.shape, result_shape=npst.array_shapes(max_dims=2)))
    check(array.vindex[points], expected[points])
    mask = data.draw(npst.arrays(bool, values.shape))
    check(array.vindex[mask], expected[mask])
    check(array.blocks[(0,) * values.ndim], expected[tuple(slice(0, n) for n in _first_block(array))])

    new = data.draw(strategies.numpy_arrays(shapes=st.just(expected[basic].shape), dtype=values.dtype))
    array[basic] = expected[basic] = new
    check(array[...], expected)
    array.vindex[mask] = expected[mask] = data.draw(
        strategies.numpy_arrays(shapes=st.just((int(mask.sum()),)), dtype=values.dtype)
    )
    check(array[...], expected)


def _first_block(array: Any) -> tuple[int, ...]:
    if hasattr(array, "write_chunk_sizes"):  # newer zarr-python, whose chunks may differ in extent
        return tuple(sizes[0] for sizes in array.write_chunk_sizes)
    extents = array.metadata.chunk_grid.chunk_shape if array.metadata.zarr_format == 3 else array.chunks
    return tuple(extents)


def test_the_state_machine_of_hierarchies(make: Make, counted: set[tuple[str, str]]) -> None:
    counted |= ALLOWED | {("read", Reason.NOT_LOCAL)}  # the model that it compares with is in memory

    def machine() -> Any:
        store = make()
        store.root.mkdir()
        return stateful.ZarrHierarchyStateMachine(store)

    run_state_machine_as_test(machine, settings=settings(FEW, stateful_step_count=15))


def test_the_state_machine_of_stores(make: Make) -> None:
    def machine() -> Any:
        store = make()
        store.root.mkdir()
        return stateful.ZarrStoreStateMachine(store)

    run_state_machine_as_test(machine, settings=settings(FEW, stateful_step_count=15))


@pytest.mark.skipif("rectilinear_chunks" not in zarr.config.get("array"), reason="newer zarr-python only")
@pytest.mark.parametrize("chunks", [[[4], 5], [3, [5]], [[4, 4, 4, 4, 4], [5, 2]]])
def test_rectilinear_grids_whose_chunks_are_alike(tmp_path: Path, chunks: Any, counted: set[tuple[str, str]]) -> None:
    counted |= ALLOWED
    data = np.arange(140).reshape(20, 7)
    shape = tuple(sum(edge) if isinstance(edge, list) else size for size, edge in zip(data.shape, chunks, strict=True))
    part = data[: shape[0], : shape[1]]
    array = zarr.create_array(str(tmp_path), data=part, chunks=chunks)
    assert_array_equal(array[...], part)
    assert_array_equal(gpuload.open(tmp_path)[...], part)
    zarr.create_array(str(tmp_path / "plain"), data=part)[...]
