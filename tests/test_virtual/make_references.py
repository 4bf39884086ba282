"""Writes references to HDF5 and NetCDF4 files, with kerchunk and with VirtualiZarr: python make_references.py DIR.

A program of its own: what these libraries warn of, or leave open, is not gpuload's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import xarray
from kerchunk.combine import MultiZarrToZarr
from kerchunk.hdf import SingleHdf5ToZarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser


def strings(path: Path) -> list[str]:
    """Variables of strings, which VirtualiZarr's parser does not take."""
    with h5py.File(path) as file:
        return [name for name, node in file.items() if isinstance(node, h5py.Dataset) and node.dtype.kind == "O"]


def virtual(path: Path, **options: Any) -> Any:
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    parser = HDFParser(drop_variables=strings(path))
    return open_virtual_dataset(f"file://{path}", registry=registry, parser=parser, decode_times=False, **options)


def main(folder: Path) -> None:
    for path in sorted(folder.glob("*.nc")):
        with open(f"{path}.kerchunk.json", "w") as file:
            json.dump(SingleHdf5ToZarr(str(path)).translate(), file)
        if path.stem in ("E1_north_america", "filtered", "ostia_monthly"):
            with virtual(path) as dataset:
                dataset.vz.to_kerchunk(f"{path}.virtualizarr.json", format="json")
        with virtual(path, loadable_variables=[]) as dataset:
            dataset.vz.to_kerchunk(f"{path}.virtualizarr-all.json", format="json")
    months = sorted(folder.glob("nemo_*.nc"))
    datasets = [virtual(path, loadable_variables=[])[["tos"]] for path in months]
    combined = xarray.concat(
        datasets, dim="time_counter", coords="minimal", compat="override", combine_attrs="override", join="override"
    )
    combined.vz.to_kerchunk(str(folder / "nemo.virtualizarr.json"), format="json")
    refs = MultiZarrToZarr(
        [SingleHdf5ToZarr(str(path)).translate() for path in months],
        concat_dims=["time_counter"],
        coo_map={"time_counter": "INDEX"},
        preprocess=lambda refs: {key: value for key, value in refs.items() if key.split("/")[0] in ("tos", ".zgroup")},
    ).translate()
    (folder / "nemo.kerchunk.json").write_text(json.dumps(refs))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
