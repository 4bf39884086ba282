"""`View`: a dataset of variables that share named dimensions, parts of what is in one or several stores."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.errors import JoinError, ReadOnlyError, SelectionError, UnsupportedArrayError
from gpuload.zarr import formatting
from gpuload.zarr.dataset import Dataset
from gpuload.zarr.source import Source
from gpuload.zarr.variable import Variable

Transform = Callable[[dict[str, Any]], dict[str, Any]]


class View(Dataset):
    """A dataset of variables with shared dimensions. Nothing is read before it is indexed, loaded or iterated.

    Threads: safe. Fork: as its arrays. Pickle: by paths and options, with the functions of `map`.

    Parameters
    ----------
    variables
        By name.
    attrs
        User attributes.
    device
        Where results are made.
    transforms
        Called one after the other on what is loaded.
    """

    def __init__(
        self,
        variables: Mapping[str, Variable],
        attrs: Mapping[str, Any],
        device: str,
        transforms: tuple[Transform, ...] = (),
    ) -> None:
        self._held = dict(variables)
        self.name = ""
        self.attrs = dict(attrs)
        self.transforms = transforms
        self._device = device

    @property
    def device(self) -> str:
        return self._device

    @property
    def source(self) -> Source:
        """Parts of stores have no place of their own.

        Raises
        ------
        UnsupportedArrayError
            Always.
        """
        raise UnsupportedArrayError(f"{self.title} is made of parts: gpuload.open the store it is in, and use that")

    def update_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Attributes belong to stores, not to parts of them.

        Raises
        ------
        ReadOnlyError
            Always.
        """
        raise ReadOnlyError(f"{self.title} is for reading only: gpuload.open the store in mode 'r+'")

    @property
    def variables(self) -> dict[str, Variable]:
        return dict(self._held)

    @property
    def sizes(self) -> dict[str, int]:
        found: dict[str, tuple[str, int]] = {}
        for name, variable in self._held.items():
            for dim, size in zip(variable.dims, variable.shape, strict=True):
                if dim is None:
                    continue
                first, length = found.setdefault(dim, (name, size))
                if length != size:
                    raise JoinError(f"dimension {dim!r} has length {length} in {first!r}, but {size} in {name!r}: "
                                    "choose variables that fit together, ds[[...]]")  # fmt: skip
        return {dim: length for dim, (_, length) in found.items()}

    def isel(self, **indexers: Any) -> View:
        chosen = dict(self._held)
        for dim, key in indexers.items():
            self._check_dimension(dim)
            for name, variable in chosen.items():
                if dim in variable.dims:
                    chosen[name] = variable.select(variable.dims.index(dim), key)
        return self._with(chosen)

    def sel(self, *, method: str | None = None, **labels: Any) -> View:
        if method not in (None, "nearest"):
            raise SelectionError(f"method={method!r}: None or 'nearest'")
        return self.isel(**{dim: self._places(dim, label, method) for dim, label in labels.items()})

    def map(self, function: Transform) -> View:
        return View(self._held, self.attrs, self._device, (*self.transforms, function))

    def load(self) -> dict[str, Any]:
        return self.transformed({name: variable[...] for name, variable in self._held.items()})

    def transformed(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """What the functions of `map` make of `arrays`."""
        for function in self.transforms:
            arrays = function(arrays)
        return arrays

    def coordinate(self, dim: str) -> npt.NDArray[Any]:
        """The values of a dimension's coordinate, in host memory.

        Raises
        ------
        SelectionError
            There is no such dimension, or no one-dimensional variable of its name.
        """
        self._check_dimension(dim)
        variable = self._held.get(dim)
        if variable is None or variable.dims != (dim,):
            raise SelectionError(f"dimension {dim!r} has no coordinate: no variable {dim!r} with that dimension alone; "
                                 "isel selects by place")  # fmt: skip
        return variable.load_host()

    def _check_dimension(self, dim: str) -> None:
        known = {name for variable in self._held.values() for name in variable.dims if name is not None}
        if dim not in known:
            close = difflib.get_close_matches(dim, known, 1)
            what = f"did you mean {close[0]!r}?" if close else f"there are: {formatting.listed(sorted(known))}"
            raise SelectionError(f"no variable has a dimension {dim!r}; {what}")

    def _places(self, dim: str, label: Any, method: str | None) -> Any:
        """What `isel` takes for a label of `sel`."""
        values = self.coordinate(dim)
        if isinstance(label, slice):
            return _range_of(dim, values, label)
        wanted = _as_values(dim, values, label)
        flat = wanted.reshape(-1)
        if method == "nearest":
            if not len(values):
                raise SelectionError(f"dimension {dim!r} has no elements")
            places = np.array([int(np.abs(values - one).argmin()) for one in flat], np.int64)
        else:
            places = np.empty(len(flat), np.int64)
            for i, one in enumerate(flat):
                found = np.flatnonzero(values == one)
                if not len(found):
                    extent = f"from {values.min()} to {values.max()}" if len(values) else "no values"
                    raise SelectionError(f"{dim!r} has no value {one}; it has {extent}, and method='nearest' takes the "
                                         "nearest")  # fmt: skip
                places[i] = found[0]
        return int(places[0]) if wanted.ndim == 0 else places

    def _with(self, variables: Mapping[str, Variable]) -> View:
        return View(variables, self.attrs, self._device, self.transforms)

    def _view(self, names: list[str] | None = None) -> View:
        if names is None:
            return self
        for name in names:
            if name not in self._held:
                raise KeyError(self._lacks(name))
        return self._with({name: self._held[name] for name in names})

    def _find(self, name: object) -> Variable | None:
        return self._held.get(name) if isinstance(name, str) else None

    def _lacks(self, name: object) -> str:
        return f"no variable {name!r}; there are: {formatting.listed(list(self._held))}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, name: object) -> bool:
        return name in self._held

    @property
    def title(self) -> str:
        mapped = f", {len(self.transforms)} transforms" if self.transforms else ""
        return f"<gpuload.Dataset of {len(self._held)} variables{mapped} on {self.device}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (self._held, self.attrs, self._device, self.transforms)


def _range_of(dim: str, values: npt.NDArray[Any], label: slice) -> slice:
    """The places of the values from ``label.start`` to ``label.stop``, both of which count."""
    differences = values[1:] > values[:-1]
    ascending = bool(differences.all())
    if not ascending and not (values[1:] < values[:-1]).all():
        raise SelectionError(f"{dim!r} neither ascends nor descends: a slice of its values is no range; give a list")
    low, high = (None if end is None else _as_values(dim, values, end)[()] for end in (label.start, label.stop))
    if low > high if low is not None and high is not None else not ascending:
        low, high = high, low
    inside = np.ones(len(values), bool)
    if low is not None:
        inside &= values >= low
    if high is not None:
        inside &= values <= high
    places = np.flatnonzero(inside)
    if not len(places):
        return slice(0, 0)
    return slice(int(places[0]), int(places[-1]) + 1, label.step)


def _as_values(dim: str, values: npt.NDArray[Any], label: Any) -> npt.NDArray[Any]:
    """A label, or several, in the data type of the coordinate."""
    try:
        wanted = np.asarray(label)
        if wanted.dtype.kind in "bO" or wanted.ndim > 1:
            raise TypeError("give a value, a list of values or a slice")
        if (values.dtype.kind in "iuf") != (wanted.dtype.kind in "iuf"):
            raise TypeError(f"it has dtype {wanted.dtype}")
        return wanted.astype(values.dtype) if values.dtype.kind in "fcmM" else wanted
    except (TypeError, ValueError) as error:
        raise SelectionError(f"{label!r} is no value of {dim!r}, which has {values.dtype}: {error}") from error


def joined(views: list[View], names: list[str], dim: str) -> View:
    """Datasets one behind the other along dimension `dim`, without a copy.

    Where no variable has that dimension it is a new one, and each dataset is one element of it. What does not have the
    dimension must be the same in all: coordinates by their values, others by shape and data type.

    Parameters
    ----------
    views
        At least one.
    names
        What to call each in an error.
    dim
        The dimension.

    Raises
    ------
    JoinError
        They do not fit together; names the first two that do not.
    """
    first = views[0]
    new = not any(dim in variable.dims for variable in first.variables.values())
    together = {}
    for name, variable in first.variables.items():
        others = []
        for view, where in zip(views, names, strict=True):
            other = view.variables.get(name)
            if other is None:
                raise JoinError(f"{where} has no variable {name!r}, which {names[0]} has")
            _check_alike(name, variable, other, (names[0], where), None if new else dim)
            others.append(other)
        for view, where in zip(views, names, strict=True):
            for extra in view.variables.keys() - first.variables.keys():
                raise JoinError(f"{where} has a variable {extra!r}, which {names[0]} has not: choose what they share")
        together[name] = _join(variable, others, dim, (names, new))
    return View(together, first.attrs, first.device, first.transforms)


def _check_alike(name: str, one: Variable, other: Variable, where: tuple[str, str], dim: str | None) -> None:
    facts: tuple[tuple[str, Any, Any], ...] = (
        ("dimensions", one.dims, other.dims),
        ("data type", one.dtype, other.dtype),
        *(
            (f"length along {name_of!r}", n, m)
            for name_of, n, m in zip(one.dims, one.shape, other.shape, strict=False)
            if name_of is None or name_of != dim
        ),
    )
    for what, mine, yours in facts:
        if mine != yours:
            raise JoinError(f"{name!r} has {what} {mine} in {where[0]}, but {yours} in {where[1]}")


def _join(variable: Variable, others: list[Variable], dim: str, context: tuple[list[str], bool]) -> Variable:
    names, new = context
    coordinate = variable.dims == (variable.name,)
    if not new and dim in variable.dims:
        parts = tuple(part for other in others for part in other.parts)
        axis = variable.dims.index(dim)
        length = sum(other.shape[axis] for other in others)
        index = tuple(range(length) if d == axis else range(n) for d, n in enumerate(variable.shape))
        return replace(variable, parts=parts, axis=axis, index=index)
    if new and not coordinate:
        parts = tuple(part for other in others for part in other.parts)
        index = (range(len(parts)), *map(range, variable.shape))
        return replace(
            variable, parts=parts, axis=0, stacked=True, index=index, joined_dims=(dim, *variable.joined_dims)
        )
    if coordinate:
        values = variable.load_host()
        for other, where in zip(others[1:], names[1:], strict=True):
            if not np.array_equal(values, other.load_host(), equal_nan=values.dtype.kind in "fc"):
                raise JoinError(f"the coordinate {variable.name!r} has other values in {where} than in {names[0]}")
    return variable
