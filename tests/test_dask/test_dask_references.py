"""References to ranges of other files, which nothing here can hold to one state yet, are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray

import gpuload
from gpuload.dask import from_zarr
from gpuload.errors import UnsupportedArrayError


def test_references_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(np.arange(4, dtype="<i4").tobytes())
    array = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i4", "order": "C", "fill_value": 0}
    refs = {
        ".zgroup": json.dumps({"zarr_format": 2}),
        "a/.zarray": json.dumps({**array, "compressor": None, "filters": None}),
        "a/0": [str(tmp_path / "data"), 0, 16],
    }
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": refs}))
    opened = gpuload.open(path, device="cpu", follow_links=True)
    with pytest.raises(UnsupportedArrayError, match="references"):
        from_zarr(opened, "a")
    with pytest.raises(UnsupportedArrayError, match="references"):
        xarray.open_dataset(opened, engine="gpuload")
