"""What the tests of zarr arrays share: selections, the corpus, equality bit for bit, and both backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from gpuload import config
from gpuload.backends import registry
from gpuload.memory.device import HostDevice


@pytest.fixture(scope="session")
def selections() -> Callable[[tuple[int, ...]], st.SearchStrategy[Any]]:
    """From a shape to its basic selections in full: integers, slices of any step, ellipsis, new axes, empty ones."""
    return _selections


def _selections(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    def along(size: int) -> st.SearchStrategy[Any]:
        index = st.integers(-size, size - 1) if size else st.nothing()
        end = st.none() | st.integers(-size - 2, size + 2)
        step = st.none() | st.integers(-size - 1, size + 1).filter(bool)
        return index | st.builds(slice, end, end, step) | st.just(slice(None))

    @st.composite
    def draw_selection(draw: st.DrawFn) -> tuple[Any, ...]:
        mentioned = draw(st.integers(0, len(shape)))
        behind = draw(st.integers(0, mentioned))  # dimensions after the ellipsis
        front = [draw(along(size)) for size in shape[: mentioned - behind]]
        back = [draw(along(size)) for size in shape[len(shape) - behind :]]
        ellipsis = [...] if behind or draw(st.booleans()) else []
        keys = front + ellipsis + back
        for position in sorted(draw(st.lists(st.integers(0, len(keys)), max_size=2)), reverse=True):
            keys.insert(position, None)
        return tuple(keys)

    return draw_selection()


@pytest.fixture(autouse=True, scope="session")
def poisoned_results() -> Iterator[None]:
    """Every new result on the host is full of 0xA5, so that what is not written shows."""
    make = HostDevice.empty

    def poisoned(self: HostDevice, shape: Sequence[int], dtype: Any, order: str = "C") -> Any:
        array = make(self, shape, dtype, order)
        if not array.dtype.hasobject and array.dtype.kind != "T" and array.dtype.itemsize:
            array.reshape(-1, order="A").view(f"V{array.dtype.itemsize}")[...] = np.void(b"\xa5" * array.dtype.itemsize)
        return array

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostDevice, "empty", poisoned)
        yield


@pytest.fixture(params=["io_uring", "posix", "io_uring, straight into place", "posix, straight into place"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each fallback backend in turn, by way of slabs and straight into place."""
    name, _, straight = request.param.partition(", ")
    state = registry.available(name)
    if state.reason is not None:
        pytest.skip(f"{name} is not available here: {state.reason} {state.detail}")
    with config.set({"backend": name, "direct.host": "always" if straight else "never"}):
        yield name
