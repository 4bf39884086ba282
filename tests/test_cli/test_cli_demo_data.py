"""The stores that the demo writes are the projections of its sample data, and nothing else is written over."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import click
import h5netcdf
import numpy as np
import pytest
import zarr

from gpuload.cli import climate
from gpuload.cli.demo import compare


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return climate.write_stores(tmp_path_factory.mktemp("climate"))


def everything(path: Path) -> dict[str, dict[str, Any]]:
    return {
        scenario: {name: array[...] for name, array in zarr.open_group(path, path=scenario, mode="r").arrays()}
        for scenario in climate.SCENARIOS
    }


@pytest.mark.parametrize("form", ["uncompressed", "zstd"])
@pytest.mark.parametrize("scenario", climate.SCENARIOS)
def test_values_dimensions_and_attributes_are_those_of_the_netcdf_file(
    stores: dict[str, Path], form: str, scenario: str
) -> None:
    group = zarr.open_group(stores[form], path=scenario, mode="r")
    with h5netcdf.File(climate.source(scenario)) as file:
        assert set(group.array_keys()) == set(file.variables)
        for name, variable in file.variables.items():
            array = group[name]
            assert isinstance(array, zarr.Array)
            assert tuple(array.metadata.dimension_names or ()) == variable.dimensions
            assert array.dtype == variable.dtype
            np.testing.assert_array_equal(array[...], variable[...])
    temperature = group["air_temperature"]
    assert temperature.shape == (240, 37, 49)
    assert temperature.attrs["units"] == "K"
    assert temperature.attrs["Model scenario"] == scenario


def test_forms(stores: dict[str, Path]) -> None:
    plain = zarr.open_array(stores["uncompressed"] / "E1" / "air_temperature", mode="r")
    assert plain.shards == (120, 37, 49)
    assert plain.chunks == (12, 37, 49)
    assert plain.compressors == ()
    packed = zarr.open_array(stores["zstd"] / "E1" / "air_temperature", mode="r")
    assert packed.shards is None
    assert "zstd" in str(packed.compressors).lower()


def test_its_own_stores_are_written_anew(tmp_path: Path) -> None:
    first = climate.write_stores(tmp_path)
    damaged = next((first["zstd"] / "E1" / "air_temperature" / "c").rglob("0"))
    stale = first["zstd"] / "stale"
    stale.touch()
    climate.write_stores(tmp_path)
    assert damaged.exists()
    assert not stale.exists()


@pytest.mark.parametrize("made_by_zarr", [False, True])
def test_what_is_not_its_own_stays(tmp_path: Path, made_by_zarr: bool) -> None:
    theirs = tmp_path / "zstd.zarr"
    if made_by_zarr:
        zarr.create_group(theirs)
    else:
        theirs.mkdir()
    precious = theirs / "precious"
    precious.touch()
    with pytest.raises(click.ClickException, match="was not written by gpuload demo"):
        climate.write_stores(tmp_path)
    assert precious.exists()


def test_missing_sample_data_names_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "iris_sample_data":
            raise ModuleNotFoundError(name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(click.ClickException, match=r"iris_sample_data.*pip install 'gpuload\[demo\]'"):
        climate.source("E1")


def test_equal_reads_compare_equal(stores: dict[str, Path]) -> None:
    comparison = compare(stores, {form: everything(path) for form, path in stores.items()})
    assert comparison.equal
    assert comparison.arrays == 2 * 2 * 9
    assert comparison.values > 4 * 240 * 37 * 49


@pytest.mark.parametrize("harm", ["one bit", "NaN", "dtype", "shape", "missing"])
def test_any_difference_is_found_and_named(stores: dict[str, Path], harm: str) -> None:
    reads = {form: everything(path) for form, path in stores.items()}
    arrays = reads["zstd"]["A1B"]
    values = arrays["air_temperature"].copy()
    expected = "1 of 435120"
    if harm == "one bit":
        values.view(np.uint32)[7, 8, 9] ^= 1
    elif harm == "NaN":
        values[0, 0, 0] = np.nan
    elif harm == "dtype":
        values, expected = values.astype("float64"), "435120 of 435120"
    elif harm == "shape":
        values, expected = values[:-1], "435120 of 435120"
    arrays["air_temperature"] = values
    if harm == "missing":
        del arrays["air_temperature"]
        expected = "435120 of 435120"
    comparison = compare(stores, reads)
    assert not comparison.equal
    assert comparison.differences == (f"zstd.zarr/A1B/air_temperature: {expected} values",)


def test_byte_order_alone_is_no_difference(stores: dict[str, Path]) -> None:
    reads = {form: everything(path) for form, path in stores.items()}
    values = reads["uncompressed"]["E1"]["air_temperature"]
    reads["uncompressed"]["E1"]["air_temperature"] = values.astype(values.dtype.newbyteorder("S"))
    assert compare(stores, reads).equal
