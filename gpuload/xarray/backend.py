"""`GpuloadBackend`: ``xarray.open_dataset(path, engine="gpuload")``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, ClassVar

import xarray
from xarray.backends import BackendEntrypoint, StoreBackendEntrypoint

from gpuload.errors import UnsupportedArrayError


class GpuloadBackend(BackendEntrypoint):
    """zarr groups in local files: data variables on the device, coordinates and indexes on the host.

    Everything but the reading is xarray's and zarr-python's own: consolidated metadata or not, v2 and v3, attributes,
    encodings, and the decoding by CF. Dates and durations that xarray decodes are decoded, and stay, on the host; so
    does what no device can hold, as strings.
    """

    description = "Open zarr groups in local files on the GPU, with gpuload"
    url = ""
    supports_groups = True
    open_dataset_parameters: ClassVar[Any] = None

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Never: it is used where it is asked for."""
        return False

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        consolidated: bool | None = None,
        zarr_format: int | None = None,
        device: Any = "auto",
        strict: bool | None = None,
        follow_links: bool | None = None,
    ) -> xarray.Dataset:
        """Open one group.

        Parameters
        ----------
        filename_or_obj
            What `gpuload.open` takes, or a `gpuload.zarr.Dataset`; an array is refused.
        mask_and_scale, decode_times, concat_characters, decode_coords, drop_variables, use_cftime, decode_timedelta
            As `xarray.open_dataset` has them.
        group
            Path of the group below `filename_or_obj`.
        consolidated, zarr_format
            As `xarray.open_zarr` has them.
        device, strict, follow_links
            As `gpuload.open` has them; ``"auto"`` is decided by each process that reads.
        """
        source = _group(filename_or_obj, device, strict, follow_links)
        decoding = _decoding(
            mask_and_scale, decode_times, concat_characters, decode_coords, drop_variables, use_cftime, decode_timedelta
        )
        from gpuload.xarray.store import Store

        below = _below(source.path, group)
        store = Store.open_group(
            source.store,
            group=below,
            mode="r",
            consolidated=_consolidated(source, below, zarr_format) if consolidated is None else consolidated,
            zarr_format=zarr_format or source.zarr_format,
        )
        return _dataset(store, decoding, device, strict)

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        consolidated: bool | None = None,
        zarr_format: int | None = None,
        device: Any = "auto",
        strict: bool | None = None,
        follow_links: bool | None = None,
    ) -> dict[str, xarray.Dataset]:
        """Open a group and all groups below it; parameters as for `open_dataset`."""
        source = _group(filename_or_obj, device, strict, follow_links)
        decoding = _decoding(
            mask_and_scale, decode_times, concat_characters, decode_coords, drop_variables, use_cftime, decode_timedelta
        )
        from gpuload.xarray.store import Store

        below = _below(source.path, group)
        top = "/" + (below or "")
        stores = Store.open_store(
            source.store,
            group=top,
            mode="r",
            consolidated=_consolidated(source, below, zarr_format) if consolidated is None else consolidated,
            zarr_format=zarr_format or source.zarr_format,
        )
        return {
            "/" + os.path.relpath("/" + path.strip("/"), top).removeprefix("."): _dataset(
                store, decoding, device, strict
            )
            for path, store in stores.items()
        }

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xarray.DataTree:
        """Open a group and all groups below it as a tree; parameters as for `open_dataset`."""
        return xarray.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def to_xarray(dataset: Any, **options: Any) -> xarray.Dataset:
    """A `gpuload.zarr.Dataset` as `xarray.open_dataset` opens it; `options` are those of `open_dataset`."""
    return xarray.open_dataset(dataset, engine="gpuload", **options)


def _decoding(*given: Any) -> dict[str, Any]:
    names = ("mask_and_scale", "decode_times", "concat_characters", "decode_coords", "drop_variables", "use_cftime")
    return dict(zip((*names, "decode_timedelta"), given, strict=True))


def _group(x: Any, device: Any, strict: bool | None, follow_links: bool | None) -> Any:
    from gpuload.zarr import Array, Dataset
    from gpuload.zarr import open as open_node

    node = (
        x if isinstance(x, Array | Dataset) else open_node(x, device=device, strict=strict, follow_links=follow_links)
    )
    if isinstance(node, Array):
        raise UnsupportedArrayError(f"{node.source!r} is an array: xarray opens the group that holds it")
    return node.source


def _below(path: str, group: str | None) -> str | None:
    return "/".join(part for part in (path, (group or "").strip("/")) if part) or None


def _consolidated(source: Any, below: str | None, zarr_format: int | None) -> bool | None:
    """False where there are no consolidated metadata: None lets xarray try, and warn of what only writers can mend."""
    from gpuload.zarr.source import Source

    zarr_format = zarr_format or source.zarr_format
    for path in {"", below or ""}:
        node = Source(source.store, path, zarr_format=zarr_format, device="cpu", strict=False).look()
        if getattr(getattr(node, "metadata", None), "consolidated_metadata", False) is not None:
            return None  # there are some; or no group is there, of which xarray says so
    return False


def _dataset(store: Any, decoding: dict[str, Any], device: Any, strict: bool | None) -> xarray.Dataset:
    from gpuload.xarray.decode import on_device
    from gpuload.xarray.store import Options
    from gpuload.xarray.variable import ZarrVariable, leaf_of

    times, durations = decoding["decode_times"], decoding["decode_timedelta"]
    store.options = Options(device, strict, times is not False, bool(durations is None and times) or bool(durations))
    dataset = StoreBackendEntrypoint().open_dataset(store, **decoding)
    for name, variable in list(dataset.variables.items()):
        data = variable._data  # noqa: SLF001 - xarray's own backends go here, too
        leaf = leaf_of(data)
        if leaf is None:  # an index, which is loaded already
            continue
        if name in dataset.coords:
            leaf.to_host()
        on_device(data)
        lazy = ZarrVariable(variable.dims, data, variable.attrs, variable.encoding, fastpath=True)
        dataset._variables[name] = lazy  # noqa: SLF001 - assigning it would merge and align all of them
    return dataset
