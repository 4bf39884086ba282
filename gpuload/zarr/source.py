"""`Source`: where a node is and how to read it; all that an `Array` or `Dataset` needs to be opened again elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import zarr

from gpuload.config import config
from gpuload.engine.reader import fetch
from gpuload.errors import GpuloadError, NotZarrError, UnsupportedArrayError
from gpuload.files.root import Root
from gpuload.memory.device import Device, resolve
from gpuload.request import Reason
from gpuload.zarr import _compat
from gpuload.zarr.store import DeviceStore
from gpuload.zarr.virtual_entries import Entries
from gpuload.zarr.virtual_store import VirtualStore

MAX_DOCUMENT = 64 << 20  # bytes of one metadata document; consolidated metadata have about one KiB an array
_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


class Source:
    """A node of a store, and the options it was opened with.

    Threads: safe. Fork: safe. Pickle: by path and options; the device is looked up again where it arrives.

    Parameters
    ----------
    store
        The store.
    path
        Of the node, below the store's root.
    zarr_format
        2, 3, or None for whichever is there.
    device
        As `memory.device.resolve` takes it; ``"auto"`` is as configured, in each process that it is pickled to.
    strict
        Whether a read that the fastpath does not serve is an error; None: as configured at the time of the read.
    """

    def __init__(
        self,
        store: DeviceStore | VirtualStore,
        path: str,
        *,
        zarr_format: int | None,
        device: str | Device,
        strict: bool | None,
    ) -> None:
        self.store = store
        self.path = path.strip("/")
        self.zarr_format = zarr_format
        self.strict = strict
        self._spec = device
        self.device = resolve(config.get("device") if device == "auto" else device)

    @property
    def root(self) -> Root:
        """The directory whose files the keys are; only where there are no `references`."""
        assert isinstance(self.store, DeviceStore)
        return self.store.directory

    @property
    def name(self) -> str:
        """What people call the node: its path, or the name of the store at the root."""
        return self.path or os.path.basename(self.place.rstrip("/"))

    @property
    def references(self) -> Entries | None:
        """The entries of the store, where these are ranges of other files; None where each is a file."""
        return self.store.entries if isinstance(self.store, VirtualStore) else None

    @property
    def place(self) -> str:
        """The path of the store."""
        return self.store.path if isinstance(self.store, VirtualStore) else self.root.path

    @property
    def prefix(self) -> str:
        """What all keys of the node start with."""
        return f"{self.path}/" if self.path else ""

    def child(self, name: str, zarr_format: int | None) -> Source:
        """The node `name` below this one."""
        return Source(self.store, self.prefix + name, zarr_format=zarr_format, device=self._spec, strict=self.strict)

    def node(self) -> zarr.Array[Any] | zarr.Group:
        """The node as zarr-python understands it.

        Raises
        ------
        NotZarrError
            Neither an array nor a group is there; or as `look` does.
        UnsupportedArrayError
            As `look` does.
        """
        node = self.look()
        if node is None:
            raise NotZarrError(f"{self!r} holds neither a zarr array nor a group")
        return node

    def look(self) -> zarr.Array[Any] | zarr.Group | None:
        """The same, or None where neither an array nor a group is there.

        Raises
        ------
        NotZarrError
            Its metadata are no JSON, or larger than `MAX_DOCUMENT`; names the document.
        UnsupportedArrayError
            Something is there, but zarr-python does not understand it.
        """
        self._check_documents()
        try:
            return _compat.open_node(self.store, self.path, self.zarr_format)
        except (GpuloadError, MemoryError):
            raise
        except FileNotFoundError:
            return None
        except Exception as error:
            if _compat.is_json_error(error):
                raise NotZarrError(f"{self!r}: {self._damaged()} is not JSON: {error}") from error
            raise UnsupportedArrayError(f"{self!r}: {type(error).__name__}: {error}") from error

    def fetch(self, keys: Sequence[str], reason: Reason | None = None, most: int | None = None) -> list[Any]:
        """The bytes of each key, on the host; None where there is none.

        Parameters
        ----------
        reason
            Why the fastpath cannot serve this, whatever the machine.
        most
            Bytes that one may have, where references tell how many they are.
        """
        if self.references is not None:
            return self.references.fetch(keys, reason=reason, most=most)
        return fetch(self.root, keys, reason=reason)

    def present(self, keys: Sequence[str]) -> list[bool]:
        """Whether each key is there."""
        if self.references is not None:
            return [self.references.has(key) for key in keys]
        return [status is not None for status in self.root.stats(keys)]

    def stats(self, keys: Sequence[str]) -> list[os.stat_result | None]:
        """The status of the file that each key is, or is in; None where there is none."""
        if self.references is not None:
            return self.references.stats(keys)
        return list(self.root.stats(keys))

    def made_of(self, keys: Sequence[str]) -> list[os.stat_result | None]:
        """The files that tell, by their status, whether what the keys hold is still the same."""
        return ([] if self.references is None else [self.references.status()]) + self.stats(keys)

    def sizes(self, keys: Sequence[str]) -> list[int | None]:
        """Bytes of each key; None where there is none."""
        if self.references is not None:
            return self.references.sizes(keys)
        return [None if status is None else status.st_size for status in self.root.stats(keys)]

    def _check_documents(self) -> None:
        """Refuse metadata that would take minutes and gigabytes to parse."""
        keys = [self.prefix + name for name in _DOCUMENTS]
        for key, size in zip(keys, self.sizes(keys), strict=True):
            if size is not None and size > MAX_DOCUMENT:
                raise NotZarrError(f"{self!r}: {key!r} has {size} bytes, metadata may have {MAX_DOCUMENT} at most")

    def _damaged(self) -> str:
        """Which of the documents is no JSON."""
        keys = [self.prefix + name for name in _DOCUMENTS]
        for key, content in zip(keys, self.fetch(keys), strict=True):
            try:
                json.loads(b"{}" if content is None else content.tobytes())
            except ValueError:
                return repr(key)
        return "its metadata"

    def __repr__(self) -> str:
        return f"'{self.place}'" + (f" at {self.path!r}" if self.path else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.store, self.path, self.zarr_format, self._spec, self.strict)


def _unpickle(
    store: DeviceStore | VirtualStore, path: str, zarr_format: int | None, device: str | Device, strict: bool | None
) -> Source:
    return Source(store, path, zarr_format=zarr_format, device=device, strict=strict)
