"""`Dataset`: a zarr group as a mapping of its arrays and groups, and the way to parts of it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import zarr

from gpuload.errors import NotZarrError, UnsupportedArrayError
from gpuload.zarr import _compat, formatting
from gpuload.zarr.array import Array
from gpuload.zarr.attributes import Attributes
from gpuload.zarr.source import Source
from gpuload.zarr.variable import Variable

if TYPE_CHECKING:
    from gpuload.zarr.view import View


class Dataset(Mapping[str, "Array | Variable | Dataset"]):
    """A zarr group in local files: its arrays and groups by name, opened when they are asked for.

    ``ds["a/b"]`` goes through nested groups. ``ds[["t2m", "sp"]]``, `isel`, `sel` and `map` give a dataset of
    variables that share named dimensions; nothing is read for it but coordinates. The names of dimensions are those of
    the metadata in v3, and ``_ARRAY_DIMENSIONS`` in v2.

    Threads: safe. Fork: safe. Pickle: by path and options.

    Attributes
    ----------
    attrs
        User attributes of the group; with ``mode="r+"`` they may be changed.
    name
        Path of the group below the root of its store, ``""`` at the root.
    device
        Where the arrays make their results.
    """

    def __init__(self, source: Source, group: zarr.Group) -> None:
        self._source = source
        self._zarr = group
        self.name = source.path
        self.attrs: MutableMapping[str, Any] = Attributes(source, _compat.attributes(group.metadata))

    @property
    def device(self) -> str:
        return self._source.device.name

    @property
    def source(self) -> Source:
        """Where it is and how it was opened."""
        return self._source

    @overload
    def __getitem__(self, name: str) -> Array | Variable | Dataset: ...

    @overload
    def __getitem__(self, name: list[str]) -> View: ...

    def __getitem__(self, name: str | list[str]) -> Array | Variable | Dataset:
        """The array or group `name`; a dataset of the variables in a list of names.

        Raises
        ------
        KeyError
            There is none; says what there is.
        NotZarrError
            There is one whose metadata are damaged; names the document.
        UnsupportedArrayError
            There is one that zarr-python cannot open or decode.
        """
        if isinstance(name, list):
            return self._view(name)
        node = self._find(name)
        if node is None:
            raise KeyError(self._lacks(name))
        return node

    def update_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set user attributes of the group, as `Array.update_attributes` does."""
        self.attrs.update(attributes)

    @property
    def variables(self) -> dict[str, Variable]:
        """The arrays of this group, not those of groups in it, by name."""
        return {name: Variable.of(name, node) for name, node in self.items() if isinstance(node, Array)}

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each named dimension.

        Raises
        ------
        JoinError
            Two variables have different ones.
        """
        return self._view().sizes

    def isel(self, **indexers: Any) -> View:
        """The part of all variables at places of dimensions: ``ds.isel(time=slice(0, 100), level=3)``.

        Parameters
        ----------
        indexers
            For each dimension an integer, which takes it away, a slice of any step, an index array or a mask. Variables
            without that dimension stay whole.

        Raises
        ------
        SelectionError
            There is no such dimension, or the index does not fit it.
        """
        return self._view().isel(**indexers)

    def sel(self, *, method: str | None = None, **labels: Any) -> View:
        """The part of all variables at values of coordinates: ``ds.sel(lat=slice(30, 60), time=2.5)``.

        The coordinate of a dimension is the one-dimensional variable of its name. Its values count as they are stored:
        of times in hours since a date, the hours.

        Parameters
        ----------
        method
            ``"nearest"`` takes for single values the nearest of the coordinate; None: values must be there.
        labels
            For each dimension a value, which takes it away, a list of values, or a slice whose ends both count, in the
            direction of the coordinate or against it.

        Raises
        ------
        SelectionError
            No such dimension, no coordinate, a value that is not there, or a slice of one that is in no order.
        """
        return self._view().sel(method=method, **labels)

    def map(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> View:
        """The dataset with `function` to be called on what is loaded: by `load`, and on each batch of a loader.

        Parameters
        ----------
        function
            From a dict of arrays on the device to another one. It runs on the current stream of who loads.
        """
        return self._view().map(function)

    def load(self) -> dict[str, Any]:
        """All variables, read: arrays on the device by name."""
        return self._view().load()

    def _view(self, names: list[str] | None = None) -> View:
        """The variables `names`, by default all of this group."""
        from gpuload.zarr.view import View

        if names is None:
            return View(self.variables, self.attrs, self.device)
        chosen = {}
        for name in names:
            node = self[name]
            if isinstance(node, Dataset):
                raise KeyError(f"{name!r} is a group: a list names arrays, those in groups as 'group/array'")
            chosen[name] = Variable.of(name, node) if isinstance(node, Array) else node
        return View(chosen, self.attrs, self.device)

    def _find(self, name: object) -> Array | Variable | Dataset | None:
        """The node `name`, or None where there is none."""
        if not isinstance(name, str):
            return None
        parts = name.strip("/").split("/")
        if any(part in ("", ".", "..") for part in parts):
            return None
        source = self._source.child("/".join(parts), self._zarr.metadata.zarr_format)
        node = source.look()
        return None if node is None else _opened(source, node)

    def _lacks(self, name: object) -> str:
        """What to say of a name that is not there: what is, in the innermost group on the way to it."""
        if not isinstance(name, str):
            return f"{name!r}: arrays and groups have names, not numbers"
        parts = name.strip("/").split("/")
        inner: Array | Variable | Dataset = self
        source, rest = self._source, "/".join(parts)
        for n in range(len(parts) - 1, 0, -1):
            above = "/".join(parts[:n])
            node = self._find(above)
            if node is not None:
                inner, source, rest = node, self._source.child(above, None), "/".join(parts[n:])
                break
        if not isinstance(inner, Dataset):
            return f"{source!r} is an array and holds no {rest!r}"
        names = list(inner)
        close = difflib.get_close_matches(rest, names, 1)
        what = f"Did you mean {close[0]!r}?" if close else f"It holds: {formatting.listed(names)}"
        return f"{source!r} has no {rest!r}. {what}"

    def to_xarray(self, **options: Any) -> Any:
        """As an `xarray.Dataset` that reads where this does: `xarray.open_dataset` with ``engine="gpuload"``.

        Parameters
        ----------
        options
            Those of `xarray.open_dataset`: ``chunks={}`` for dask, ``decode_times=False``, ``group``, ...
        """
        # By name, because the engine stands above this package.
        return importlib.import_module("gpuload.xarray").to_xarray(self, **options)

    def __iter__(self) -> Iterator[str]:
        return iter(_compat.child_names(self._zarr, self._source.path))

    def __len__(self) -> int:
        return len(_compat.child_names(self._zarr, self._source.path))

    def __contains__(self, name: object) -> bool:
        try:
            return self._find(name) is not None
        except (NotZarrError, UnsupportedArrayError):
            return True

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        try:
            names = list(self)
        except Exception as error:  # noqa: BLE001 - whatever has become of the files: it is shown, and nothing fails
            return f"{self.title}\n  cannot be listed: {formatting.printable(str(error))}"
        return "\n".join([self.title, *formatting.text_lines(self._parts(names), len(names))])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        # What draws groups opens them.
        page: str = importlib.import_module("gpuload.zarr.outline").group_page(self)
        return page

    @property
    def title(self) -> str:
        """The first line of what it shows of itself."""
        name = f" {self.name!r}" if self.name else ""
        return f"<gpuload.Dataset{name} in {self._source.place!r} on {self.device}>"

    def _parts(self, names: Sequence[str]) -> list[formatting.Part]:
        """The first of `names`, for show; no more are opened than are shown."""
        return [self.shown(name)[0] for name in names[: formatting.SHOWN]]

    def shown(self, name: str) -> tuple[formatting.Part, Array | Variable | Dataset | None]:
        """The line of the array or group `name`, and the node; in place of what cannot be opened, why."""
        try:
            node = self[name]
        except KeyError:  # consolidated metadata that outlived it
            return formatting.Part(name, note="is not there any more"), None
        except Exception as error:  # noqa: BLE001 - one that cannot be opened does not hide the others
            return formatting.Part(name, note=str(error)), None
        return (formatting.Part(name, note="group") if isinstance(node, Dataset) else node.part(name)), node

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._source,)


def node_at(source: Source) -> Array | Dataset:
    """Open the node of `source`."""
    return _opened(source, source.node())


def _opened(source: Source, node: zarr.Array[Any] | zarr.Group) -> Array | Dataset:
    return Array(source, node.metadata) if isinstance(node, zarr.Array) else Dataset(source, node)


def _reopen(source: Source) -> Array | Dataset:
    return node_at(source)
