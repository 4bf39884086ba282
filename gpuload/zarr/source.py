"""`Source`: where a node is and how to read it; all that an `Array` or `Dataset` needs to be opened again elsewhere."""

from __future__ import annotations

import os
from typing import Any

import zarr

from gpuload.config import config
from gpuload.errors import GpuloadError, NotZarrError, UnsupportedArrayError
from gpuload.files.root import Root
from gpuload.memory.device import Device, resolve
from gpuload.zarr import _compat
from gpuload.zarr.store import DeviceStore

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
        self, store: DeviceStore, path: str, *, zarr_format: int | None, device: str | Device, strict: bool | None
    ) -> None:
        self.store = store
        self.path = path.strip("/")
        self.zarr_format = zarr_format
        self.strict = strict
        self._spec = device
        self.device = resolve(config.get("device") if device == "auto" else device)

    @property
    def root(self) -> Root:
        return self.store.directory

    @property
    def name(self) -> str:
        """What people call the node: its path, or the name of the store at the root."""
        return self.path or os.path.basename(self.root.path.rstrip("/"))

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
            Neither an array nor a group is there, or its metadata are larger than `MAX_DOCUMENT`.
        UnsupportedArrayError
            Something is, but zarr-python does not understand it.
        """
        self._check_documents()
        try:
            return _compat.open_node(self.store, self.path, self.zarr_format)
        except (GpuloadError, MemoryError):
            raise
        except FileNotFoundError as error:
            raise NotZarrError(f"{self!r} holds neither a zarr array nor a group") from error
        except Exception as error:
            if _compat.is_json_error(error):
                raise NotZarrError(f"{self!r}: its metadata is not JSON: {error}") from error
            raise UnsupportedArrayError(f"{self!r}: {type(error).__name__}: {error}") from error

    def _check_documents(self) -> None:
        """Refuse metadata that would take minutes and gigabytes to parse."""
        keys = [self.prefix + name for name in _DOCUMENTS]
        for key, status in zip(keys, self.root.stats(keys), strict=True):
            if status is not None and status.st_size > MAX_DOCUMENT:
                raise NotZarrError(
                    f"{self!r}: {key!r} has {status.st_size} bytes, metadata may have {MAX_DOCUMENT} at most"
                )

    def __repr__(self) -> str:
        return f"'{self.root.path}'" + (f" at {self.path!r}" if self.path else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.store, self.path, self.zarr_format, self._spec, self.strict)


def _unpickle(
    store: DeviceStore, path: str, zarr_format: int | None, device: str | Device, strict: bool | None
) -> Source:
    return Source(store, path, zarr_format=zarr_format, device=device, strict=strict)
