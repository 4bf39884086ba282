"""`Dataset`: a zarr group as a mapping of its arrays and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import zarr

from gpuload.errors import NotZarrError, UnsupportedArrayError
from gpuload.zarr import _compat
from gpuload.zarr.array import Array
from gpuload.zarr.source import Source


class Dataset(Mapping[str, "Array | Dataset"]):
    """A zarr group in local files: its arrays and groups by name, opened when they are asked for.

    ``ds["a/b"]`` goes through nested groups. Threads: safe. Fork: safe. Pickle: by path and options.

    Attributes
    ----------
    attrs
        User attributes of the group.
    name
        Path of the group below the root of its store, ``""`` at the root.
    device
        Where the arrays make their results.
    """

    def __init__(self, source: Source, group: zarr.Group) -> None:
        self._source = source
        self._zarr = group
        self.name = source.path
        self.attrs: Mapping[str, Any] = dict(group.metadata.attributes)

    @property
    def device(self) -> str:
        return self._source.device.name

    def __getitem__(self, name: str) -> Array | Dataset:
        """The array or group `name`.

        Raises
        ------
        KeyError
            There is none.
        UnsupportedArrayError
            There is one that zarr-python cannot open or decode.
        """
        if not isinstance(name, str):
            raise KeyError(name)
        parts = name.strip("/").split("/")
        if not all(part not in ("", ".", "..") for part in parts):
            raise KeyError(name)
        source = self._source.child("/".join(parts), self._zarr.metadata.zarr_format)
        try:
            return node_at(source)
        except NotZarrError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(_compat.child_names(self._zarr, self._source.path))

    def __len__(self) -> int:
        return len(_compat.child_names(self._zarr, self._source.path))

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self[name]
        except UnsupportedArrayError:
            return True
        except KeyError:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        title = f"<gpuload.Dataset {self.name!r}" if self.name else "<gpuload.Dataset"
        lines = [f"{title} in '{self._source.root.path}' on {self.device}>"]
        for name in self:
            try:
                lines.append(f"  {name}: {self[name]!r}".splitlines()[0])
            except UnsupportedArrayError as error:
                lines.append(f"  {name}: {error}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._source,)


def node_at(source: Source) -> Array | Dataset:
    """Open the node of `source`."""
    node = source.node()
    return Array(source, node) if isinstance(node, zarr.Array) else Dataset(source, node)


def _reopen(source: Source) -> Array | Dataset:
    return node_at(source)
