"""From a dataset and what a user wants of it to samples: where they start, and how they lie in each variable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuload.data.grid import SampleAxis, SampleGrid
from gpuload.data.order import Order
from gpuload.data.stage import Along, Sampled
from gpuload.errors import SampleError
from gpuload.request import Int64
from gpuload.zarr.view import View

READ_BYTES = 64 << 20  # chunks that are read together, and of the chunk shuffle also mixed together, by default
_LEAST_BUFFER = 8  # chunks that are mixed together, by default, however large they are


@dataclass(frozen=True, eq=False)
class Sampling:
    """Samples of a dataset. Threads, fork and pickle: safe, as its arrays are.

    Parameters
    ----------
    grid
        The samples.
    crops
        Dimension, elements of a crop, and number of places it can have, of each dimension that is cropped.
    sampled
        Each variable that is brought, by name.
    sample_bytes
        Of all variables of one sample.
    cell_bytes
        Of all variables in one chunk of the grid, about.
    """

    grid: SampleGrid
    crops: tuple[tuple[str, int, int], ...]
    sampled: Mapping[str, Sampled]
    sample_bytes: int
    cell_bytes: int

    @property
    def columns(self) -> tuple[str, ...]:
        """The dimensions that `starts` tells of."""
        return (*(axis.name for axis in self.grid.axes), *(dim for dim, _, _ in self.crops))

    @property
    def buffer(self) -> int:
        """How many chunks are read, or mixed, together by default; says the same on every machine."""
        return max(_LEAST_BUFFER, -(-READ_BYTES // max(1, self.cell_bytes)))

    def starts(self, order: Order, first: int, last: int) -> Int64:
        """int64 (last - first, columns): where the samples at places of an epoch start along each dimension."""
        windows = order(first, last)
        crops = [order.crops(windows, number, room) for number, (_, _, room) in enumerate(self.crops)]
        return np.column_stack((self.grid.starts(windows), *crops))


def sampling_of(
    view: View,
    dim: str | None,
    window: Mapping[str, int],
    stride: Mapping[str, int],
    crop: Mapping[str, int],
    *,
    reuse: bool,
) -> Sampling:
    """The samples that `dim` or `window` with `stride` and `crop` make of a dataset.

    Raises
    ------
    SampleError
        They do not fit it, or each other.
    JoinError
        Variables have different lengths along a dimension.
    """
    windows = _windows(dim, window, stride, crop)
    variables = {
        name: variable
        for name, variable in view.variables.items()
        if any(d in windows or d in crop for d in variable.dims)
    }
    for name, variable in variables.items():
        if variable.dtype.hasobject:
            raise SampleError(f"{name!r} holds objects, which cannot be put into batches: choose variables, ds[[...]]")
    sizes = View(variables, {}, view.device).sizes if variables else {}
    for name in (*windows, *crop):
        if name not in sizes:
            there = ", ".join(map(repr, view.sizes)) or "none with a name"
            raise SampleError(f"no variable that is sampled has a dimension {name!r}; dimensions: {there}")
    largest = sorted(variables.values(), key=lambda variable: -variable.nbytes)
    axes = []
    for name, extent in windows.items():
        of = next(variable for variable in largest if name in variable.dims)
        bounds = of.bounds(of.dims.index(name))
        axes.append(SampleAxis(name, sizes[name], extent, stride.get(name, extent), bounds))
    grid = SampleGrid(axes)
    crops = []
    for name, extent in crop.items():
        if not 1 <= extent <= sizes[name]:
            raise SampleError(f"a crop of {extent} does not fit into {name!r}, which has {sizes[name]}")
        crops.append((name, extent, sizes[name] - extent + 1))
    columns = (*windows, *crop)
    extents = {**windows, **crop}
    sampled = {}
    for name, variable in variables.items():
        cut = [number for number, d in enumerate(variable.dims) if d in extents]
        along = []
        for number in cut:
            d = str(variable.dims[number])
            # A chunk of a full shuffle would bring mostly what is not wanted: rows are read for themselves.
            rows = len(cut) == 1 and not reuse
            bounds = np.arange(variable.shape[number] + 1) if rows else variable.bounds(number)
            along.append(Along(number, columns.index(d), extents[d], d != dim, bounds))
        sampled[name] = Sampled(variable, tuple(along), reuse)
    return Sampling(
        grid=grid,
        crops=tuple(crops),
        sampled=sampled,
        sample_bytes=sum(_sample_bytes(one) for one in sampled.values()),
        cell_bytes=sum(variable.nbytes for variable in variables.values()) // max(1, grid.cells),
    )


def _windows(
    dim: str | None, window: Mapping[str, int], stride: Mapping[str, int], crop: Mapping[str, int]
) -> dict[str, int]:
    if dim is None and not window:
        raise SampleError("name what samples lie along: dim='time', or window={'time': 12}")
    if dim is not None and dim in window:
        raise SampleError(f"dim={dim!r} means single elements along it, and window has it, too: leave one out")
    windows = dict(window) if dim is None else {dim: 1, **window}
    for what, names in (("stride", set(stride) - set(windows)), ("crop", set(crop) & set(windows))):
        for name in sorted(names):
            why = "which is not sampled" if what == "stride" else "which has windows"
            raise SampleError(f"{what} has {name!r}, {why}")
    return windows


def _sample_bytes(sampled: Sampled) -> int:
    return math.prod(sampled.sample_shape) * sampled.variable.result_dtype.itemsize
