"""Which keys of a store are decoded on the host, whatever memory the reader asked for.

Plain zarr-python with buffers on a device asks a store for every key there, then copies the bytes of a chunk with
codecs back to the host, where these run. `HostKeys` knows such keys, so that their bytes need not make the detour.
"""

from __future__ import annotations

import os

from gpuload.errors import GpuloadError
from gpuload.files.root import Root
from gpuload.zarr import _compat
from gpuload.zarr.keys import DOCUMENTS
from gpuload.zarr.layout import Road, layout_of

_ARRAY = ("zarr.json", ".zarray")
_MOST = 1000  # arrays that are remembered
_LARGEST = 64 << 20  # bytes of a document that is looked at, as `Source` has it
_Identity = tuple[int, int, int, int]


class HostKeys:
    """Remembers of the arrays of one store which are decoded on the host. Threads: safe. Fork: safe. Pickle: empty."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Identity, bool]] = {}

    def has(self, root: Root, key: str) -> bool:
        """Whether `key` is metadata, or a chunk with codecs that run on the host."""
        parts = key.split("/")
        if parts[-1] in DOCUMENTS:
            return True
        candidates = ["/".join([*parts[:depth], name]) for depth in range(len(parts) - 1, -1, -1) for name in _ARRAY]
        for document, status in zip(candidates, root.stats(candidates), strict=True):
            if status is not None:
                return self._decodes_on_host(root, document, status)
        return False

    def __reduce__(self) -> tuple[type[HostKeys], tuple[()]]:
        return HostKeys, ()

    def _decodes_on_host(self, root: Root, document: str, status: os.stat_result) -> bool:
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._known.get(document)
        if known is not None and known[0] == identity:
            return known[1]
        found = status.st_size <= _LARGEST and _is_decoded_on_host(_read(root, document))
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[document] = (identity, found)
        return found


def _read(root: Root, document: str) -> bytes:
    try:
        with os.fdopen(root.open(document), "rb") as file:
            return file.read(_LARGEST)
    except OSError:  # gone since, or a directory: the chunk's own read says what there is to say
        return b""


def _is_decoded_on_host(document: bytes) -> bool:
    try:
        layout = layout_of(_compat.describe(_compat.parsed(document)))
    except (GpuloadError, ValueError, TypeError, KeyError):
        return False  # a group, or what zarr-python itself has to say what is wrong with
    return layout.road is not Road.RAW
