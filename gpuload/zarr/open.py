"""`open`: from a path, a URL or an object of zarr-python to an `Array` or `Dataset`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import zarr

from gpuload.errors import JoinError, NotLocalError, NotZarrError, ReadOnlyError
from gpuload.files.paths import INSTEAD, path_of
from gpuload.memory.device import Device
from gpuload.zarr import _compat
from gpuload.zarr.array import Array
from gpuload.zarr.dataset import Dataset, node_at
from gpuload.zarr.source import Source
from gpuload.zarr.store import DeviceStore
from gpuload.zarr.stores import DOCUMENTS, begins, for_reading, store_at
from gpuload.zarr.view import joined
from gpuload.zarr.virtual_store import VirtualStore

_LOOKED_AT, _NAMED = 1000, 5  # entries of a directory: looked at for stores, and named in a message


_One = str | os.PathLike[str] | zarr.Array[Any] | zarr.Group | _compat.Store


def open(  # noqa: A001 - zarr and h5py call it so
    x: _One | Sequence[_One],
    mode: str = "r",
    device: str | Device = "auto",
    strict: bool | None = None,
    follow_links: bool | None = None,
    roots: Sequence[str | os.PathLike[str]] = (),
    *,
    concat: str | None = None,
) -> Array | Dataset:
    """Open a zarr array or group in local files, or several groups as one dataset.

    Parameters
    ----------
    x
        A path (``~`` is the home directory), a ``file://`` URL, or a local store of zarr-python, or an array or group
        in one. zarr v2 and v3, with consolidated metadata or without. Also the path of kerchunk's JSON references, as
        kerchunk and VirtualiZarr write them: their chunks are ranges of other local files, as HDF5 and NetCDF4. And of
        a zip archive, or a ZipStore of zarr-python: its members are ranges of that one file. Or a list of all these,
        each a group.
    mode
        ``"r"``: reading; ``"r+"``: reading, and writing into what is there.
    device
        Where results are made: ``"cpu"``, ``"cuda:N"``, or ``"auto"``: as configured, else the current GPU if there
        is one, else the CPU.
    strict
        Make every read that the fastpath does not serve a `StrictError` with its reason; None: as configured.
    follow_links
        Let links below the root of the store leave it; None: as a `DeviceStore` that is given, else as configured. The
        root itself may be a link anyhow.
    roots
        Directories that references may lead to, besides their own and those that are configured (`references.roots`).
    concat
        For a list, the dimension that its groups stand one behind the other along; a new one if no variable has it.
        Nothing is copied.

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
    ReadOnlyError
        ``"r+"`` for a store of zarr-python that is for reading only.
    NotLocalError
        A URL or a store of something else than local files; references to such.
    UnsupportedArrayError
        An array that zarr-python cannot open or decode; names the codec or data type.
    EscapesStoreError
        Metadata behind a link that leaves the store; references that leave their directories.
    JoinError
        Groups of a list that do not fit together; names the first two that do not, and what of them.
    """
    if isinstance(x, list | tuple):
        one = partial(open, mode=mode, device=device, strict=strict, follow_links=follow_links, roots=roots)
        return _joined([one(each) for each in x], concat)
    if concat is not None:
        raise TypeError(f"concat={concat!r} joins several stores: give a list of them")
    if mode not in ("r", "r+"):
        raise ValueError(f"mode {mode!r}: 'r' reads, 'r+' writes into what is there, too; gpuload.save makes stores")
    read_only = mode == "r"
    path, zarr_format = "", None
    store: DeviceStore | VirtualStore
    if isinstance(x, zarr.Array | zarr.Group):
        store, path, zarr_format = _local(x.store, follow_links, read_only), x.path, x.metadata.zarr_format
        if isinstance(store, VirtualStore) and store is not x.store:  # a ZipStore, which leaves no directory out
            path = store.entries.within(path)
    elif isinstance(x, _compat.Store):
        store = _local(x, follow_links, read_only)
    else:
        store = store_at(_path_of(x), roots=roots, follow_links=follow_links, read_only=read_only)
    try:
        return node_at(Source(store, path, zarr_format=zarr_format, device=device, strict=strict))
    except NotZarrError as error:
        if path or isinstance(store, VirtualStore) or not (hint := _hint(os.fspath(store.root))):
            raise
        raise NotZarrError(f"{error}{hint}") from error.__cause__


def _joined(nodes: list[Array | Dataset], dim: str | None) -> Dataset:
    if dim is None:
        raise TypeError("several stores are one dataset along a dimension: name it, concat='time'")
    if not nodes:
        raise JoinError(f"no store to join along {dim!r}: the list is empty")
    for node in nodes:
        if not isinstance(node, Dataset):
            raise JoinError(f"{node!r} is a single array: groups are joined, by the names of what they hold")
    views = [node[list(node.variables)] for node in nodes if isinstance(node, Dataset)]
    return joined(views, [repr(node).partition("\n")[0] for node in nodes], dim)


def _local(store: _compat.Store, follow_links: bool | None, read_only: bool) -> DeviceStore | VirtualStore:
    if isinstance(store, VirtualStore):
        return for_reading(store, read_only)
    if isinstance(store, _compat.ZipStore):
        return for_reading(VirtualStore(store.path, follow_links=follow_links), read_only)
    if not isinstance(store, _compat.LocalStore):
        raise NotLocalError(f"{type(store).__name__} {store} is not a store of local files; {INSTEAD}")
    if follow_links is None and isinstance(store, DeviceStore):
        follow_links = store.follow_links
    if store.read_only and not read_only:
        raise ReadOnlyError(f"{store!r} is for reading only: mode 'r+' would write to it")
    return DeviceStore(store.root, read_only=read_only, follow_links=follow_links)


def _path_of(x: Any) -> str:
    try:
        return path_of(x)
    except TypeError as error:
        raise TypeError(
            "gpuload.open takes a path, a file:// URL, a store, array or group of zarr-python, or a list of these, not "
            f"{type(x).__qualname__}"
        ) from error


def _hint(path: str) -> str:
    """What to open instead of `path`, which is no node, for the end of a message."""
    name = os.path.basename(path)
    if name in DOCUMENTS:
        return f"; open {os.path.dirname(path)!r}"
    if begins(path, b"\x89HDF") or begins(path, b"CDF"):
        return ": it is NetCDF or HDF5; make references to it with kerchunk or VirtualiZarr, and open these"
    if not os.path.isdir(path):
        return ", as a store must be"
    with suppress(OSError), os.scandir(path) as entries:
        seen = itertools.islice(entries, _LOOKED_AT)
        below = sorted(e.name for e in seen if any(os.path.isfile(os.path.join(e.path, d)) for d in DOCUMENTS))
        if below:
            return f"; below it are {', '.join(below[:_NAMED])}" + (", ..." if len(below) > _NAMED else "")
    return ""
