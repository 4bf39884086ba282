"""`Dataset`: a zarr group as a mapping of its arrays and groups."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import zarr

from gpuload.errors import NotZarrError, UnsupportedArrayError
from gpuload.zarr import _compat, formatting
from gpuload.zarr.array import Array
from gpuload.zarr.attributes import Attributes
from gpuload.zarr.source import Source


class Dataset(Mapping[str, "Array | Dataset"]):
    """A zarr group in local files: its arrays and groups by name, opened when they are asked for.

    ``ds["a/b"]`` goes through nested groups. Threads: safe. Fork: safe. Pickle: by path and options.

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
        self.attrs = Attributes(source, _compat.attributes(group.metadata))

    @property
    def device(self) -> str:
        return self._source.device.name

    @property
    def source(self) -> Source:
        """Where it is and how it was opened."""
        return self._source

    def __getitem__(self, name: str) -> Array | Dataset:
        """The array or group `name`.

        Raises
        ------
        KeyError
            There is none; says what there is.
        UnsupportedArrayError
            There is one that zarr-python cannot open or decode.
        """
        node = self._find(name)
        if node is None:
            raise KeyError(self._lacks(name))
        return node

    def update_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set user attributes of the group, as `Array.update_attributes` does."""
        self.attrs.update(attributes)

    def _find(self, name: object) -> Array | Dataset | None:
        """The node `name`, or None where there is none."""
        if not isinstance(name, str):
            return None
        parts = name.strip("/").split("/")
        if any(part in ("", ".", "..") for part in parts):
            return None
        source = self._source.child("/".join(parts), self._zarr.metadata.zarr_format)
        try:
            return node_at(source)
        except NotZarrError:
            return None

    def _lacks(self, name: object) -> str:
        """What to say of a name that is not there: what is, in the innermost group on the way to it."""
        if not isinstance(name, str):
            return f"{name!r}: arrays and groups have names, not numbers"
        parts = name.strip("/").split("/")
        inner: Array | Dataset = self
        source, rest = self._source, "/".join(parts)
        for n in range(len(parts) - 1, 0, -1):
            above = "/".join(parts[:n])
            node = self._find(above)
            if node is not None:
                inner, source, rest = node, self._source.child(above, None), "/".join(parts[n:])
                break
        if isinstance(inner, Array):
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
        except UnsupportedArrayError:
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

    def shown(self, name: str) -> tuple[formatting.Part, Array | Dataset | None]:
        """The line of the array or group `name`, and the node; in place of what cannot be opened, why."""
        try:
            node = self[name]
        except KeyError:  # consolidated metadata that outlived it
            return formatting.Part(name, note="is not there any more, or its metadata are damaged"), None
        except Exception as error:  # noqa: BLE001 - one that cannot be opened does not hide the others
            return formatting.Part(name, note=str(error)), None
        return (node.part(name) if isinstance(node, Array) else formatting.Part(name, note="group")), node

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._source,)


def node_at(source: Source) -> Array | Dataset:
    """Open the node of `source`."""
    node = source.node()
    return Array(source, node.metadata) if isinstance(node, zarr.Array) else Dataset(source, node)


def _reopen(source: Source) -> Array | Dataset:
    return node_at(source)
