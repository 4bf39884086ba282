"""What else is done with virtual stores: zarr-python and xarray read them, inspect and pack take them, devices too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import h5netcdf
import numpy as np
import pytest
import xarray
import zarr
from click.testing import CliRunner

import gpuload
from gpuload.cli import main
from gpuload.errors import ChangedError, ChunkReadError, StrictError
from gpuload.request import Reason
from gpuload.zarr import Array, VirtualStore, inspect
from gpuload.zarr.where import chunks_of

E1 = "E1_north_america.nc"


@pytest.fixture(scope="module")
def truth(netcdf: Path) -> dict[str, Any]:
    with h5netcdf.File(netcdf / E1, "r") as file:
        return {name: np.asarray(file[name][...]) for name in ("air_temperature", "height", "time", "latitude")}


def array(path: Path, name: str, **options: Any) -> Array:
    found = gpuload.open(path, **({"device": "cpu"} | options))[name]  # type: ignore[index]
    assert isinstance(found, Array)
    return found


@pytest.mark.parametrize("maker", ["kerchunk", "virtualizarr-all"])
def test_zarr_python_and_xarray_read_the_store(netcdf: Path, truth: dict[str, Any], maker: str) -> None:
    store = VirtualStore(netcdf / f"{E1}.{maker}.json")
    group = zarr.open_group(store, mode="r")
    for name, expected in truth.items():
        assert np.asarray(group[name][...]).tobytes() == expected.tobytes(), name  # type: ignore[index]
    assert np.array_equal(group["air_temperature"].oindex[[3, 1], :, [5]], truth["air_temperature"][[3, 1]][:, :, [5]])  # type: ignore[union-attr]
    assert set(dict(group.arrays())) >= set(truth)
    with xarray.open_dataset(store, engine="zarr", consolidated=False, decode_times=False, chunks=None) as dataset:  # type: ignore[arg-type]
        assert np.array_equal(dataset["air_temperature"].isel(time=7), truth["air_temperature"][7])
        assert float(dataset["height"]) == truth["height"]


async def test_the_store_lists_what_it_has(netcdf: Path) -> None:
    path = netcdf / f"{E1}.kerchunk.json"
    keys = set(json.loads(path.read_text())["refs"])
    store = VirtualStore(path)
    assert {key async for key in store.list()} == keys
    assert {key async for key in store.list_prefix("time")} == {key for key in keys if key.startswith("time")}
    assert {name async for name in store.list_dir("")} == {key.split("/")[0] for key in keys}
    below = {key.removeprefix("time/") for key in keys if key.startswith("time/")}
    assert {name async for name in store.list_dir("time/")} == below
    assert [name async for name in store.list_dir("none")] == []
    assert await store.exists("height/0")
    assert not await store.exists("height/1")
    assert await store.getsize("height/0") == 8
    with pytest.raises(FileNotFoundError):
        await store.getsize("height/1")
    assert (store.supports_writes, store.supports_deletes, store.read_only) == (False, False, True)
    assert store == VirtualStore(path)
    assert store != VirtualStore(path, roots=[netcdf.parent])


def test_opened_from_objects_of_zarr_python(netcdf: Path, truth: dict[str, Any]) -> None:
    store = VirtualStore(netcdf / f"{E1}.kerchunk.json")
    for x in (store, zarr.open_group(store, mode="r")):
        node = gpuload.open(x, device="cpu")  # type: ignore[arg-type]
        assert np.array_equal(node["time"][::9], truth["time"][::9])  # type: ignore[index]
    one = gpuload.open(zarr.open_group(store, mode="r")["time"], device="cpu")  # type: ignore[arg-type]
    assert np.array_equal(one[...], truth["time"])  # type: ignore[index]


def test_inspect_reads_no_chunk(netcdf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["gpuload.zarr.inspect"], "direct_reason", lambda geometry: None)
    with gpuload.trace() as trace:
        found = {each.name: each for each in inspect(netcdf / f"{E1}.virtualizarr-all.json")}
    assert trace.rows() == []
    air = found["air_temperature"]
    # All of it lies in whole blocks of the file, which is 1824028 bytes long.
    assert (air.fastpath_bytes, air.fallback_bytes) == (240 * 7252, 0)
    end = 1824028 // 4096 * 4096
    assert found["height"].fastpath_bytes == (8 if end >= 1812144 + 8 else 0)
    filtered = {each.name: each for each in inspect(netcdf / "filtered.nc.virtualizarr-all.json")}
    assert set(filtered["checked"].reasons) == {Reason.HOST_CODEC}
    assert filtered["checked"].codecs == ("shuffle", "zlib", "fletcher32")


def test_inspect_of_what_is_inline(netcdf: Path) -> None:
    found = {each.name: each for each in inspect(netcdf / f"{E1}.kerchunk.json")}
    assert found["time"].reasons == {Reason.TAIL: 240 * 8}
    assert found["time"].fastpath_bytes == 0


def test_pack_makes_a_store_of_them(netcdf: Path, tmp_path: Path, truth: dict[str, Any]) -> None:
    path = netcdf / f"{E1}.virtualizarr.json"
    done = CliRunner().invoke(main, ["pack", "--verify", str(path), str(tmp_path / "packed.zarr")])
    assert done.exit_code == 0, done.output
    for name, expected in truth.items():
        assert array(tmp_path / "packed.zarr", name)[...].tobytes() == expected.tobytes(), name
    assert array(tmp_path / "packed.zarr", "air_temperature").attrs["units"] == "K"


def test_a_file_that_vanished_stops_pack_and_inspect(tmp_path: Path) -> None:
    zarray = {"shape": [2], "chunks": [2], "dtype": "|u1", "fill_value": 0, "order": "C", "filters": None,
              "compressor": None, "zarr_format": 2}  # fmt: skip
    (tmp_path / "refs.json").write_text(json.dumps({".zarray": zarray, "0": ["gone", 0, 2]}))
    with pytest.raises(ChunkReadError, match="gone"):
        inspect(tmp_path / "refs.json")
    with pytest.raises(ChunkReadError, match="gone"):
        gpuload.zarr.pack(tmp_path / "refs.json", tmp_path / "packed.zarr")
    assert not (tmp_path / "packed.zarr" / "zarr.json").exists()


@pytest.mark.parametrize("maker", ["kerchunk", "virtualizarr-all"])
def test_on_a_device(netcdf: Path, truth: dict[str, Any], maker: str, fake_cupy: ModuleType) -> None:
    path = netcdf / f"{E1}.{maker}.json"
    for name, expected in truth.items():
        got = array(path, name, device="cuda:0")[...]
        assert isinstance(got, fake_cupy.ndarray)
        assert got.get().tobytes() == expected.tobytes()
    got = array(path, "air_temperature", device="cuda:1")[::-3, [5, 2], 4]
    assert np.array_equal(got.get(), truth["air_temperature"][::-3, [5, 2], 4])
    filtered = array(netcdf / f"filtered.nc.{maker}.json", "big", device="cuda:0")
    assert filtered.result_dtype == np.dtype("f8")
    host = array(netcdf / f"filtered.nc.{maker}.json", "big")[...]
    assert np.array_equal(filtered[...].get(), host)


def test_by_the_fastpath(netcdf: Path, truth: dict[str, Any], fake_hipfile: ModuleType) -> None:
    """Ranges inside of a file take it as ranges of shards do, wherever they begin."""
    read = array(netcdf / f"{E1}.virtualizarr-all.json", "air_temperature", device="cuda:0")
    with gpuload.trace() as trace:
        got = read[...]
    assert got.get().tobytes() == truth["air_temperature"].tobytes()
    summary = trace.summary().to_dict()
    by_path = {(row["path"], row["reason"]): row["bytes"] for row in summary["rows"]}
    assert by_path[("fastpath", None)] > 0.99 * truth["air_temperature"].nbytes
    strict = array(netcdf / "filtered.nc.virtualizarr-all.json", "zlib", device="cuda:0", strict=True)
    with pytest.raises(StrictError, match="codec"):
        strict[...]


BOUNDED = """
import json, sys, time
sys.path[:0] = {path!r}
import numpy, zarr
import gpuload
from gpuload.zarr import inspect
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) >> 10
before = peak()
dataset = gpuload.open({refs!r}, device="cpu")
array = dataset["a"]
assert list(dataset) == ["a"]
assert (array[::1000] == numpy.arange(0, 1_000_000, 1000)).all()
assert array[999_999] == 999_999
assert (array[5:7] == [5, 6]).all()
print(peak() - before)
"""


def test_a_million_references(tmp_path: Path) -> None:
    np.arange(1_000_000, dtype="<i4").tofile(tmp_path / "x.bin")
    zarray = {"shape": [1_000_000], "chunks": [1], "dtype": "<i4", "fill_value": 0, "order": "C", "filters": None,
              "compressor": None, "zarr_format": 2}  # fmt: skip
    entries = ",".join(f'"a/{i}": ["{{{{u}}}}", {4 * i}, 4]' for i in range(1_000_000))
    head = f'".zgroup": {{"zarr_format": 2}}, "a/.zarray": {json.dumps(zarray)}'
    content = f'{{"version": 1, "templates": {{"u": "x.bin"}}, "refs": {{{head}, {entries}}}}}'
    (tmp_path / "refs.json").write_text(content)
    script = BOUNDED.format(path=sys.path, refs=str(tmp_path / "refs.json"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1200  # MiB


def test_as_a_dask_array(netcdf: Path, truth: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / f"{E1}.virtualizarr-all.json"
    content = json.dumps(json.loads((netcdf / path.name).read_text()))
    path.write_text(content.replace(str(netcdf), str(tmp_path)))
    (tmp_path / E1).write_bytes((netcdf / E1).read_bytes())
    lazy = gpuload.dask.from_zarr(path, component="air_temperature", device="cpu")
    assert np.array_equal(lazy[::24].compute(), truth["air_temperature"][::24])
    assert gpuload.dask.from_zarr(path, component="air_temperature", device="cpu").name == lazy.name
    (tmp_path / E1).touch()
    assert gpuload.dask.from_zarr(path, component="air_temperature", device="cpu").name != lazy.name
    with pytest.raises(ChangedError, match=r"air_temperature/0\.0\.0"):
        lazy[0].compute()
    again = gpuload.dask.from_zarr(path, component="air_temperature", device="cpu")
    path.write_text(path.read_text() + " ")
    with pytest.raises(ChangedError, match="metadata"):
        again[0].compute()


def test_shown_in_a_notebook(netcdf: Path) -> None:
    dataset = gpuload.open(netcdf / f"{E1}.kerchunk.json", device="cpu")
    assert isinstance(dataset, gpuload.Dataset)
    page = dataset._repr_html_()
    assert "air_temperature" in page
    assert "cannot be" not in page
    assert f"{E1}.kerchunk.json" in page


@pytest.mark.parametrize("maker", ["kerchunk", "virtualizarr-all"])
def test_ranges_are_told_back_to_chunks(netcdf: Path, maker: str) -> None:
    """What the record has of a read, a picture of the chunks shows where it belongs."""
    read = array(netcdf / f"{E1}.{maker}.json", "air_temperature")
    with gpuload.trace() as trace:
        read[[3, 100, 239], 5]
        array(netcdf / f"{E1}.{maker}.json", "height")[...]
    rows = trace.rows()
    found = chunks_of(read, [row.key for row in rows], np.array([row.file_offset for row in rows], np.int64))
    assert set(found.tolist()) == {3, 100, 239, -1}


@pytest.mark.parametrize("maker", ["kerchunk", "virtualizarr-all"])
def test_as_an_xarray_dataset(netcdf: Path, truth: dict[str, Any], maker: str) -> None:
    path = netcdf / f"{E1}.{maker}.json"
    for chunks in (None, {}):
        with xarray.open_dataset(path, engine="gpuload", decode_times=False, chunks=chunks, device="cpu") as dataset:
            assert np.array_equal(dataset["air_temperature"][5:9].to_numpy(), truth["air_temperature"][5:9])
            assert float(dataset["height"]) == truth["height"]
            assert dataset["air_temperature"].dims == ("time", "latitude", "longitude")
