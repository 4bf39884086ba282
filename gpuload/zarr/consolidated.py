"""Keeps the consolidated metadata of the groups above a node right, when the node's own documents change.

Readers that find consolidated metadata look nowhere else. Groups above the root of the store are looked for, too: a
member may have been opened by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuload.errors import ChunkWriteError
from gpuload.files.lock import locked
from gpuload.files.root import Root
from gpuload.files.writer import Writer
from gpuload.zarr.source import MAX_DOCUMENT, Source

_GROUPS = ("zarr.json", ".zgroup")


@dataclass(frozen=True, slots=True)
class Change:
    """What became different of a node: None stands for what did not."""

    shape: tuple[int, ...] | None = None
    attributes: Mapping[str, Any] | None = None

    def apply_v3(self, document: dict[str, Any]) -> None:
        """To a document ``zarr.json``, or what consolidated metadata hold of it."""
        if self.shape is not None:
            document["shape"] = list(self.shape)
        if self.attributes is not None:
            document["attributes"] = dict(self.attributes)

    def apply_v2(self, documents: dict[str, Any], below: str) -> bool:
        """To the documents of v2 by their keys; whether those of the node `below` are among them."""
        prefix = f"{below}/" if below else ""
        if f"{prefix}.zarray" not in documents and f"{prefix}.zgroup" not in documents:
            return False
        if self.shape is not None:
            documents[f"{prefix}.zarray"]["shape"] = list(self.shape)
        if self.attributes is not None:
            documents[f"{prefix}.zattrs"] = dict(self.attributes)
        return True


def read_document(root: Root, key: str) -> dict[str, Any] | None:
    """The JSON object at `key`; None where there is none, or something that nobody can take for metadata."""
    try:
        fd = root.open(key)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size > MAX_DOCUMENT:
            return None
        try:
            found = json.load(file)
        except ValueError:
            return None
    return found if isinstance(found, dict) else None


def written(document: Mapping[str, Any]) -> bytes:
    """A document as it is stored."""
    return json.dumps(document, indent=2).encode()


def tell_groups(source: Source, change: Change, *, durable: bool) -> None:
    """Correct the consolidated metadata of all groups above the node of `source`, each of them under its lock.

    Raises
    ------
    ChunkWriteError
        The kernel refuses; the node itself has been changed by then.
    """
    for root, prefix, below in _above(source):
        with locked(root, prefix), Writer(root, durable=durable) as files:
            try:
                _correct(root, files, prefix, below, change)
            except ChunkWriteError as error:
                raise ChunkWriteError(
                    os.path.join(root.path, error.key),
                    error.errno or 0,
                    f"the consolidated metadata of this group could not be told what has changed of {below!r}, and are "
                    f"stale now: {os.strerror(error.errno or 0)}",
                ) from error


def correct_own(root: Root, files: Writer, prefix: str, change: Change) -> None:
    """Correct what consolidated metadata of v2 say of the very group that has them, whose lock is held."""
    _correct(root, files, prefix, "", change)


def _correct(root: Root, files: Writer, prefix: str, below: str, change: Change) -> None:
    document = read_document(root, f"{prefix}zarr.json")
    held = _metadata(_metadata(document, "consolidated_metadata"), "metadata")
    entry = _metadata(held, below)
    if document is not None and entry is not None:
        change.apply_v3(entry)
        files.write(f"{prefix}zarr.json", written(document))
    document = read_document(root, f"{prefix}.zmetadata")
    held = _metadata(document, "metadata")
    if document is not None and held is not None and change.apply_v2(held, below):
        files.write(f"{prefix}.zmetadata", written(document))


def _metadata(document: dict[str, Any] | None, name: str) -> dict[str, Any] | None:
    found = None if document is None else document.get(name)
    return found if isinstance(found, dict) else None


def _above(source: Source) -> Iterator[tuple[Root, str, str]]:
    """Root, prefix, and the node's path below it, of each group above, from the innermost to the outermost."""
    parts = source.path.split("/") if source.path else []
    for depth in range(len(parts) - 1, -1, -1):
        yield source.root, "".join(f"{part}/" for part in parts[:depth]), "/".join(parts[depth:])
    place = os.path.realpath(source.root.path)
    while place != (above := os.path.dirname(place)):
        if not any(os.path.isfile(os.path.join(above, name)) for name in _GROUPS):
            return
        parts.insert(0, os.path.basename(place))
        with Root(above, follow_links=source.root.follow_links) as root:
            yield root, "", "/".join(parts)
        place = above
