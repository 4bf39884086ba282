"""`open`: from a path, a URL or an object of zarr-python to an `Array` or `Dataset`."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit

import zarr

from gpuload.config import config
from gpuload.errors import NotLocalError
from gpuload.memory.device import Device
from gpuload.zarr import _compat
from gpuload.zarr.array import Array
from gpuload.zarr.dataset import Dataset, node_at
from gpuload.zarr.source import Source
from gpuload.zarr.store import DeviceStore

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)")


def open(  # noqa: A001 - zarr and h5py call it so
    x: str | os.PathLike[str] | zarr.Array[Any] | zarr.Group,
    mode: str = "r",
    device: str | Device = "auto",
    strict: bool | None = None,
    follow_links: bool | None = None,
) -> Array | Dataset:
    """Open a zarr array or group in local files.

    Parameters
    ----------
    x
        A path, a ``file://`` URL, or an array or group of zarr-python on a local store. zarr v2 and v3, with
        consolidated metadata or without.
    mode
        ``"r"``: reading.
    device
        Where results are made: ``"cpu"``, ``"cuda:N"``, or ``"auto"``: as configured, else the current GPU if there
        is one, else the CPU.
    strict
        Make every read that the fastpath does not serve a `StrictError` with its reason; None: as configured.
    follow_links
        Let links below the root of the store leave it; None: as configured. The root itself may be a link anyhow.

    Returns
    -------
    node
        `Array` or `Dataset`.

    Raises
    ------
    NotFoundError
        There is no such path.
    NotZarrError
        It holds no zarr array or group.
    NotLocalError
        A URL or a store of something else than local files.
    UnsupportedArrayError
        An array that zarr-python cannot open or decode; names the codec or data type.
    EscapesStoreError
        Metadata behind a link that leaves the store.
    """
    if mode != "r":
        raise ValueError(f"mode {mode!r}: only 'r', reading, is possible")
    links = bool(config.get("follow_links")) if follow_links is None else follow_links
    where = config.get("device") if device == "auto" else device
    if isinstance(x, zarr.Array | zarr.Group):
        store, path, zarr_format = _local(x, links), x.path, x.metadata.zarr_format
    else:
        store, path, zarr_format = DeviceStore(_path_of(x), read_only=True, follow_links=links), "", None
    return node_at(Source(store, path, zarr_format=zarr_format, device=where, strict=strict))


def _local(node: zarr.Array[Any] | zarr.Group, follow_links: bool) -> DeviceStore:
    store = node.store
    if isinstance(store, _compat.LocalStore):
        return DeviceStore(store.root, read_only=True, follow_links=follow_links)
    raise NotLocalError(f"{type(store).__name__} {store} is not a store of local files")


def _path_of(x: str | os.PathLike[str]) -> str:
    path = os.fsdecode(x)
    if not isinstance(x, str) or not _URL.match(x):
        return path
    parts = urlsplit(path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise NotLocalError(f"{path!r} is not a local path: only paths and file:// URLs are")
    return unquote(parts.path)
