"""kerchunk's JSON references: from a document to which bytes of which file each key of a zarr store is.

Versions 0 and 1, as kerchunk and VirtualiZarr write them. A document is not trusted: it is data, and nothing in it is
run. Templates are text put in place of their names; what would have to be computed (`gen`, templates with arguments) is
refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import EscapesStoreError, NotZarrError, UnsupportedArrayError
from gpuload.request import Int64
from gpuload.zarr.virtual_members import Members

INLINE = -1  # in place of a file: the bytes are in the document itself
WHOLE = -1  # in place of a size: all of the file

LONGEST = 4096  # characters of a key or a path, as Linux has it
_DEEPEST = 128  # names in a key

_TEMPLATE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_CODE = re.compile(r"\{[{%#]")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class References:
    """Where the n entries of a store are.

    Parameters
    ----------
    rows
        The number of each key's entry.
    file
        int64 (n,): the entry of `paths` that has the bytes; `INLINE`: `inline` has.
    offset, size
        int64 (n,): where they begin and how many they are; `WHOLE`: the file from its beginning to its end.
    paths
        As the document has them.
    inline
        What the document itself holds, one entry after the other.
    members
        Where the one file is a zip archive: what is known of its members, which are the entries. Then `offset` is where
        each begins as far as that has been found.
    """

    rows: Mapping[str, int]
    file: Int64
    offset: Int64
    size: Int64
    paths: tuple[str, ...]
    inline: bytes
    members: Members | None = None


def parse(document: bytes) -> References:
    """The references of a document.

    Raises
    ------
    NotZarrError
        It is none of the two versions, or has an entry that is no reference; names its key.
    EscapesStoreError
        A key with ``..``, or an absolute one.
    UnsupportedArrayError
        It would have to be computed.
    """
    try:
        content = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise NotZarrError(f"is no JSON: {str(error)[:200]}") from error
    entries, templates = _entries(content)
    check_keys(list(entries))
    return _Table(templates).fill(_with_scalars(entries))


def _entries(content: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Entries by key, and templates by name."""
    if not isinstance(content, dict):
        raise NotZarrError(f"holds a JSON {type(content).__name__}, not references by key")
    version = content.get("version", 0)
    if "refs" not in content and "version" not in content:
        return content, {}
    if version not in (0, 1) or isinstance(version, bool):
        raise NotZarrError(f"has references of version {str(version)[:50]}; gpuload reads 0 and 1")
    if "gen" in content:
        raise UnsupportedArrayError(
            "has references that are to be computed (gen), which gpuload does not do: write them out with kerchunk"
        )
    entries, templates = content.get("refs"), content.get("templates", {})
    if not isinstance(entries, dict) or not isinstance(templates, dict):
        raise NotZarrError("has no refs, or templates that are no texts by name")
    for name, text in templates.items():
        if not isinstance(text, str) or len(text) > LONGEST:
            raise NotZarrError(f"the template {name[:100]!r} is no text of at most {LONGEST} characters")
        if _CODE.search(text):
            raise UnsupportedArrayError(
                f"the template {name[:100]!r} is to be computed: {text[:100]!r}; gpuload puts plain text in its place"
            )
    return entries, templates


def check_keys(keys: Sequence[str]) -> None:
    """Refuse keys that no store has; all are looked at together, and each only where that finds something odd."""
    joined = "\0".join(keys)
    odd = (
        joined.count("\0") != max(0, len(keys) - 1)
        or joined[:1] == "/"
        or any(part in joined for part in ("..", "//", "\0/", "/./", "\0./"))
        or max(map(len, keys), default=0) > _DEEPEST  # what is shorter cannot be deeper either
    )
    if not odd:
        return
    for key in keys:
        if len(key) > LONGEST or key.count("/") >= _DEEPEST:
            raise NotZarrError(f"the key {key[:100]!r}... is too long: {len(key)} characters, {key.count('/')} names")
        if key.startswith("/") or "\0" in key or any(part in ("", ".", "..") for part in key.split("/")[:-1]):
            raise EscapesStoreError(f"the key {key!r} is none of a store")
        if key.rpartition("/")[2] == "..":
            raise EscapesStoreError(f"the key {key!r} leaves the store")


def _with_scalars(entries: dict[str, Any]) -> dict[str, Any]:
    """The same, where the one chunk of a scalar has its key: VirtualiZarr leaves it out behind the slash."""
    odd = [key for key in entries if key.endswith("/") or not key]
    if not odd:
        return entries
    entries = dict(entries)
    for key in odd:
        entry = entries.pop(key)
        if _shape(entries.get(f"{key}.zarray")) != []:
            raise NotZarrError(f"the key {key!r} names no chunk, and no scalar is there")
        entries.setdefault(f"{key}0", entry)
    return entries


def _shape(document: Any) -> Any:
    """The shape in the metadata of an array, if that is what it is."""
    try:
        content = json.loads(document) if isinstance(document, str) else document
    except (ValueError, RecursionError):
        return None
    return content.get("shape") if isinstance(content, dict) else None


class _Table:
    """Entries on their way into columns."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        self._templates = templates
        self._files: dict[str, int] = {}  # by path as written
        self._inline: list[bytes] = []

    def fill(self, entries: Mapping[str, Any]) -> References:
        file, offset, size = [], [], []
        inline = 0
        for key, entry in entries.items():
            if type(entry) is list:
                number, start, length = self._range(key, entry)
            else:
                data = _inline(key, entry)
                self._inline.append(data)
                number, start, length = INLINE, inline, len(data)
                inline += length
            file.append(number)
            offset.append(start)
            size.append(length)
        paths = tuple(self._expanded(path) for path in self._files)
        return References(
            rows=dict(zip(entries, range(len(file)), strict=True)),
            file=np.array(file, np.int64),
            offset=np.array(offset, np.int64),
            size=np.array(size, np.int64),
            paths=paths,
            inline=b"".join(self._inline),
        )

    def _range(self, key: str, entry: list[Any]) -> tuple[int, int, int]:
        if len(entry) == 3:
            path, start, length = entry
            fits = type(path) is str and type(start) is int and type(length) is int
            if not fits or start < 0 or length < 0 or start + length >= 2**63:
                raise _no_reference(key, entry)
        elif len(entry) == 1 and type(entry[0]) is str:
            path, start, length = entry[0], 0, WHOLE
        else:
            raise _no_reference(key, entry)
        number = self._files.get(path)
        if number is None:
            number = self._files[path] = len(self._files)
        return number, start, length

    def _expanded(self, path: str) -> str:
        """A path with its templates filled in."""
        if len(path) > LONGEST:
            raise NotZarrError(f"has a path of {len(path)} characters: {path[:100]!r}...")
        if self._templates:
            path = _TEMPLATE.sub(lambda found: self._templates.get(found[1], found[0]), path)
            if _CODE.search(path):
                raise UnsupportedArrayError(f"the path {path[:200]!r} is to be computed, or names no template")
        return path


def _inline(key: str, entry: Any) -> bytes:
    """The bytes that stand in the document itself."""
    if type(entry) is dict:  # metadata that were not made text
        return json.dumps(entry).encode()
    if type(entry) is not str:
        raise _no_reference(key, entry)
    if not entry.startswith("base64:"):
        return entry.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(entry[7:], validate=True)
    except (binascii.Error, ValueError) as error:
        raise NotZarrError(f"the entry of {key!r} is no base64: {error}") from error


def _no_reference(key: str, entry: Any) -> NotZarrError:
    return NotZarrError(
        f"the entry of {key!r} is neither text nor [path] nor [path, offset, size] with numbers of at least 0: "
        f"{repr(entry)[:100]}"
    )
