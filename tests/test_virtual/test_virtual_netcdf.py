"""NetCDF4 and HDF5 files by references of kerchunk and VirtualiZarr: what h5netcdf reads of them, bit for bit."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpuload
from gpuload import config
from gpuload.request import Reason
from gpuload.zarr import Array, Dataset

MAKERS = ("kerchunk", "virtualizarr", "virtualizarr-all")
FILES = 14


def opened(path: Path, **options: Any) -> Dataset:
    found = gpuload.open(path, device="cpu", **options)
    assert isinstance(found, Dataset)
    return found


def array(dataset: Dataset, name: str) -> Array:
    found = dataset[name]
    assert isinstance(found, Array)
    return found


def raw(variable: Any) -> Any:
    """What a variable holds as it is stored, in the byte order it is stored in."""
    return np.asarray(variable[...])


def check_equal(got: Any, expected: Any, what: str) -> None:
    if expected.dtype.kind == "O":
        assert got.tolist() == expected.tolist(), what
        return
    assert got.dtype == expected.dtype, what
    assert got.shape == expected.shape, what
    assert got.tobytes() == expected.tobytes(), what


@pytest.mark.parametrize(
    ("maker", "backend"), [*((maker, "io_uring") for maker in MAKERS), ("kerchunk", "posix")], indirect=["backend"]
)
def test_all_files_equal_h5netcdf(netcdf: Path, maker: str, backend: str) -> None:
    files = [path for path in sorted(netcdf.glob("*.nc")) if Path(f"{path}.{maker}.json").exists()]
    assert len(files) == (3 if maker == "virtualizarr" else FILES)
    scalars = strings = 0
    for path in files:
        dataset = opened(Path(f"{path}.{maker}.json"))
        with h5netcdf.File(path, "r", decode_vlen_strings=True) as truth:
            for name in dataset:
                read = array(dataset, name)
                check_equal(read[...], raw(truth[name]), f"{path.name}: {name}")
                scalars += read.ndim == 0
                strings += read.dtype.kind == "T"
            kinds = "OSUT" if maker.startswith("virtualizarr") else ""
            # What the makers leave out: dimensions without values, strings (VirtualiZarr), checksums (kerchunk), and
            # arrays of no bytes at all (VirtualiZarr).
            left_out = set(truth.variables) - set(dataset)
            assert left_out <= {n for n, v in truth.variables.items() if v.dtype.kind in kinds} | {
                "checked", "only_checked", "unwritten", "dim0",
            }  # fmt: skip
    assert scalars >= (6 if maker == "virtualizarr" else 20)
    assert strings == (1 if maker == "kerchunk" else 0)


@pytest.mark.parametrize("maker", ["kerchunk", "virtualizarr"])
def test_a_dataset_of_several_files(netcdf: Path, maker: str) -> None:
    dataset = opened(netcdf / f"nemo.{maker}.json")
    months = []
    for path in sorted(netcdf.glob("nemo_*.nc")):
        with h5netcdf.File(path, "r") as truth:
            months.append(raw(truth["tos"]))
    expected = np.concatenate(months)
    assert expected.shape == (3, 330, 360)
    tos = array(dataset, "tos")
    check_equal(tos[...], expected, "tos")
    with gpuload.trace() as trace:
        check_equal(tos[2, ::-7, 5], expected[2, ::-7, 5], "one month")
    assert [row["requests"] for row in trace.summary().to_dict()["rows"]] == [1]


def test_filters_are_decoded_by_the_engine(netcdf: Path) -> None:
    dataset = opened(netcdf / "filtered.nc.virtualizarr-all.json")
    with gpuload.trace() as trace:
        for name in ("zlib", "shuffled", "checked", "only_checked", "big"):
            assert array(dataset, name).layout.decoder is not None
            array(dataset, name)[...]
    rows = trace.summary().to_dict()["rows"]
    assert {(row["backend"] == "zarr", row["reason"]) for row in rows} == {(False, Reason.HOST_CODEC)}


def test_attributes_are_left_as_they_are(netcdf: Path) -> None:
    for maker in MAKERS:
        read = array(opened(netcdf / f"filtered.nc.{maker}.json"), "shuffled")
        assert (read.attrs["scale_factor"], read.attrs["add_offset"]) == (0.5, 100.0)
        assert read.dtype == np.dtype("<i2")
        assert read.dims == ("y", "x")
        assert read[22, 30] == 7  # never written


def test_chunks_of_one_file_are_ranges_of_one_handle(netcdf: Path) -> None:
    dataset = opened(netcdf / "E1_north_america.nc.virtualizarr-all.json")
    with gpuload.trace() as trace:
        array(dataset, "air_temperature")[10:20]
    rows = trace.rows()
    assert {row.key for row in rows} == {"E1_north_america.nc"}
    assert sum(row.bytes for row in rows) == 10 * 37 * 49 * 4
    assert min(row.file_offset for row in rows) == 13424 + 10 * 7252


NAMES = ("plain", "zlib", "checked", "big", "contiguous", "scalar")


@pytest.fixture(scope="module")
def filtered(netcdf: Path) -> tuple[dict[str, Dataset], dict[str, Any]]:
    """The file of all filters, by who made the references; and its values, by name."""
    with h5netcdf.File(netcdf / "filtered.nc", "r") as truth:
        values = {name: raw(truth[name]) for name in NAMES}
    return {maker: opened(netcdf / f"filtered.nc.{maker}.json") for maker in MAKERS}, values


@settings(max_examples=60)
@given(data=st.data())
def test_any_selection(filtered: tuple[dict[str, Dataset], dict[str, Any]], data: st.DataObject) -> None:
    maker = data.draw(st.sampled_from(MAKERS))
    name = data.draw(st.sampled_from(NAMES if maker != "kerchunk" else tuple(set(NAMES) - {"checked"})))
    read, expected = array(filtered[0][maker], name), filtered[1][name]
    selection = data.draw(hnp.basic_indices(expected.shape, allow_newaxis=True, allow_ellipsis=True))
    straight = data.draw(st.sampled_from(["always", "never"]))
    with config.set({"direct.host": straight, "backend": data.draw(st.sampled_from(["posix", None]))}):
        right = np.asarray(expected[selection], expected.dtype)
        check_equal(np.asarray(read[selection]), right, f"{name}[{selection!r}]")
        if expected.ndim == 2:
            rows = data.draw(st.lists(st.integers(-expected.shape[0], expected.shape[0] - 1), min_size=1, max_size=9))
            columns = data.draw(st.lists(st.integers(0, expected.shape[1] - 1), min_size=len(rows), max_size=len(rows)))
            check_equal(read.oindex[rows, columns], expected[np.ix_(rows, columns)], "orthogonal")
            check_equal(read.vindex[rows, columns], expected[rows, columns], "points")


def test_pickled_and_in_another_form(netcdf: Path, tmp_path: Path) -> None:
    """What is pickled opens again; and version 0 is the refs of version 1, without what is around them."""
    path = netcdf / "E1_north_america.nc.kerchunk.json"
    content = json.loads(path.read_text())
    (tmp_path / "zero.json").write_text(json.dumps(content["refs"]))
    one = array(opened(path), "air_temperature")
    zero = array(opened(tmp_path / "zero.json", roots=[netcdf]), "air_temperature")
    again = pickle.loads(pickle.dumps(zero))
    for read, sel in itertools.product((zero, again), (..., (slice(None, None, 50), 3))):
        check_equal(read[sel], one[sel], "as another")
