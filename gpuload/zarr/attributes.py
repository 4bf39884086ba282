"""`Attributes`: the user attributes of an array or a group, which may be changed where the store may be written to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from gpuload.config import flag
from gpuload.errors import AssignmentError, NotZarrError, ReadOnlyError
from gpuload.files.lock import locked
from gpuload.files.writer import Writer
from gpuload.zarr.consolidated import Change, correct_own, read_document, tell_groups, written
from gpuload.zarr.source import Source


class Attributes(MutableMapping[str, Any]):
    """User attributes by name, as they were when the node was opened, or when they were last changed here.

    Each change is one replacement of the node's document: readers see the attributes before it, or after it. It starts
    from what is stored at that moment, so that others' changes stay, and the consolidated metadata of the groups above
    follow. What an attribute holds is not watched: assign it again to store what was changed inside.

    Threads: safe. Fork: safe. Pickle: by the path of the node, and as they are.

    Parameters
    ----------
    source
        Of the node.
    found
        What its metadata have.
    """

    def __init__(self, source: Source, found: Mapping[str, Any]) -> None:
        self._source, self._found = source, dict(found)

    def __getitem__(self, name: str) -> Any:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __setitem__(self, name: str, value: Any) -> None:
        self._change(lambda stored: {**stored, name: value})

    def __delitem__(self, name: str) -> None:
        if name not in self._found:
            raise KeyError(name)
        self._change(lambda stored: {key: value for key, value in stored.items() if key != name})

    def update(self, *others: Any, **more: Any) -> None:
        """Set many attributes by one write; arguments as those of `dict.update`."""
        new = dict(*others, **more)
        self._change(lambda stored: {**stored, **new})

    def put(self, attributes: Mapping[str, Any]) -> None:
        """Have just these attributes, by one write."""
        new = dict(attributes)
        self._change(lambda stored: new)

    def clear(self) -> None:
        """Delete all attributes, by one write."""
        self.put({})

    def asdict(self) -> dict[str, Any]:
        """A dictionary of them."""
        return dict(self._found)

    def __repr__(self) -> str:
        return repr(self._found)

    def _change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        source = self._source
        if source.store.read_only:
            raise ReadOnlyError(f"{source!r} was opened for reading; to change attributes, open it with mode='r+'")
        durable = flag("durable")
        with locked(source.root, source.prefix), Writer(source.root, durable=durable) as files:
            new = self._write(files, change)
            tell_groups(source, Change(attributes=new), durable=durable)
        self._found = new

    def _write(self, files: Writer, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Replace the document that has the attributes; returns them as they are stored."""
        root, prefix = self._source.root, self._source.prefix
        document = read_document(root, f"{prefix}zarr.json") if self._source.zarr_format != 2 else None
        if document is not None:
            key, new = f"{prefix}zarr.json", _plain(change(_attributes(document.get("attributes"))))
            document["attributes"] = new
        elif any(root.stat(prefix + name) is not None for name in (".zarray", ".zgroup")):
            key = f"{prefix}.zattrs"
            document = new = _plain(change(_attributes(read_document(root, key))))
        else:
            raise NotZarrError(f"{self._source!r} holds neither a zarr array nor a group any more")
        files.write(key, written(document))
        correct_own(root, files, prefix, Change(attributes=new))
        return new


def _attributes(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes as they come back from JSON.

    Raises
    ------
    AssignmentError
        JSON has no form for a name or a value.
    """
    for name in attributes:
        if not isinstance(name, str):
            raise AssignmentError(f"an attribute is named by text, not by {name!r}")
    for name, value in attributes.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise AssignmentError(f"attribute {name!r} cannot be stored as JSON: {error}") from error
    plain: dict[str, Any] = json.loads(json.dumps(attributes))
    return plain
