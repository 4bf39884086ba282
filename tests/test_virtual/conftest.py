"""What the tests of virtual stores share: real and made-up HDF5 files, references to them, and both backends."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gpuload import config
from gpuload.backends import registry


@pytest.fixture(scope="session")
def zips() -> ModuleType:
    """The module `zips.py` beside this one, which makes archives."""
    specification = importlib.util.spec_from_file_location("zips", Path(__file__).parent / "zips.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def netcdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of all HDF5 files of iris-sample-data and one with every filter, with references to each beside it.

    To ``x.nc``: ``x.nc.kerchunk.json`` and ``x.nc.virtualizarr-all.json``, and to some ``x.nc.virtualizarr.json``, with
    coordinates inline. To the months of NEMO together: ``nemo.kerchunk.json`` and ``nemo.virtualizarr.json``.
    """
    import h5py
    import iris_sample_data

    folder = tmp_path_factory.mktemp("netcdf").resolve()
    for path in Path(iris_sample_data.path).rglob("*.nc"):
        if h5py.is_hdf5(path):
            shutil.copy(path, folder)
    make_filtered(folder / "filtered.nc")
    script = Path(__file__).parent / "make_references.py"
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return folder


def make_filtered(path: Path) -> None:
    """Variables of every filter, with edges, and chunks never written."""
    rng = np.random.default_rng(5)
    import h5netcdf

    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"y": 23, "x": 31, "few": 3, "four": 4}
        for name, dtype, options in (
            ("plain", "<f4", {}),
            ("zlib", "<f4", {"compression": "gzip", "compression_opts": 1}),
            ("shuffled", "<i2", {"compression": "gzip", "shuffle": True}),
            ("only_shuffled", "<f8", {"shuffle": True}),
            ("checked", "<i4", {"compression": "gzip", "shuffle": True, "fletcher32": True}),
            ("only_checked", "<u8", {"fletcher32": True}),
            ("big", ">f8", {"compression": "gzip", "shuffle": True}),
            ("bytes", "u1", {"compression": "gzip", "shuffle": True}),
        ):
            data = rng.integers(0, 200, (23, 31)).astype(dtype)
            fill = np.dtype(dtype).type(7)
            made = file.create_variable(name, ("y", "x"), dtype, chunks=(5, 8), fillvalue=fill, **options)
            made[:15, :24] = data[:15, :24]  # the rest of the chunks is not there
            made.attrs["scale_factor"], made.attrs["add_offset"] = 0.5, 100.0
        file.create_variable("contiguous", ("few", "x"), data=rng.normal(size=(3, 31)))
        file.create_variable("scalar", (), data=np.float32(2.5))
        file.create_variable("unwritten", ("four", "few"), "<f4", chunks=(2, 2), fillvalue=np.float32(-1.5))


@pytest.fixture(params=["io_uring", "posix"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each fallback backend in turn."""
    state = registry.available(request.param)
    if state.reason is not None:
        pytest.skip(f"{request.param} is not available here: {state.reason} {state.detail}")
    with config.set({"backend": request.param}):
        yield request.param
