"""The demo's data: two climate projections for North America, written as zarr v3 stores.

They are the NetCDF files of the package iris-sample-data: yearly means of the air temperature near the ground from 1860
to 2099, as the Met Office's model projects them for the emission scenarios E1 (emissions fall) and A1B (they grow).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click
import numpy as np

SCENARIOS = ("E1", "A1B")
VARIABLE = "air_temperature"

CHUNK_YEARS = 12
SHARD_YEARS = 120

_MARK = {"made_by": "gpuload demo"}


def source(scenario: str) -> Path:
    """Where the installed sample data has the NetCDF file of `scenario`."""
    try:
        import h5netcdf  # noqa: F401 - asked for here, so that one message names all that is missing
        import iris_sample_data
    except ImportError as error:
        raise click.ClickException(
            f"the demo's data is not installed ({error.name}): python -m pip install 'gpuload[demo]'"
        ) from error
    return Path(iris_sample_data.path) / f"{scenario}_north_america.nc"


def write_stores(folder: Path) -> dict[str, Path]:
    """Write both projections into `folder`, once for each way of storing them.

    Returns
    -------
    dict
        ``"uncompressed"``: shards of 120 years with inner chunks of 12 years, no codec. ``"zstd"``: chunks of 12 years
        with zarr's default compression. Each is a group with a group for each scenario.

    Raises
    ------
    click.ClickException
        Where a store would be written over something that is not the demo's.
    """
    stores = {form: folder / f"{form}.zarr" for form in ("uncompressed", "zstd")}
    sources = {scenario: source(scenario) for scenario in SCENARIOS}
    for form, path in stores.items():
        _clear(path)
        _write(path, sources, sharded=form == "uncompressed")
    return stores


def _clear(path: Path) -> None:
    import zarr

    if not path.exists():
        return
    try:
        mine = zarr.open_group(str(path), mode="r").attrs.asdict().items() >= _MARK.items()
    except (FileNotFoundError, ValueError):
        mine = False
    if not mine:
        raise click.ClickException(f"{path} exists and was not written by gpuload demo; choose another --dir")
    shutil.rmtree(path)


def _write(path: Path, sources: dict[str, Path], *, sharded: bool) -> None:
    import h5netcdf
    import zarr

    root = zarr.create_group(str(path), zarr_format=3, attributes=_MARK)
    for scenario, file_path in sources.items():
        with h5netcdf.File(str(file_path), "r") as file:
            group = root.create_group(scenario, attributes=_attributes(file))
            for name, variable in file.variables.items():
                values = variable[...]
                main = name == VARIABLE
                array = group.create_array(
                    name,
                    shape=values.shape,
                    dtype=values.dtype,
                    chunks=(CHUNK_YEARS, *values.shape[1:]) if main else values.shape,
                    shards=(SHARD_YEARS, *values.shape[1:]) if main and sharded else None,
                    compressors=None if sharded else "auto",
                    dimension_names=variable.dimensions,
                    attributes=_attributes(variable),
                )
                array[...] = values


def _attributes(node: Any) -> dict[str, Any]:
    """The attributes of a NetCDF file or variable as JSON has them."""
    plain: dict[str, Any] = {}
    for name, value in node.attrs.items():
        native = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        plain[name] = native.decode() if isinstance(native, bytes) else native
    return plain
