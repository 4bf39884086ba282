"""Configuration that cannot be used is refused by name, whoever reads it; words and variables mean what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpuload
from gpuload.backends import registry
from gpuload.config import config, flag, integer, integer_or_none
from gpuload.engine import decode, transfer
from gpuload.engine.reader import handle_cache
from gpuload.errors import ConfigError

NUMBERS = ["piece_bytes", "batch_bytes", "slab.size", "slab.limit", "uring.entries", "uring.slots"]
OPTIONAL = ["uring.window", "uring.pollers", "posix.threads", "decode.threads", "handles.budget"]


@pytest.mark.parametrize("value", ["false", "False", "no", "off", "0", 0, False, np.False_])
def test_a_switch_that_says_no_is_off(value: Any) -> None:
    with config.set(follow_links=value):
        assert flag("follow_links") is False


@pytest.mark.parametrize("value", ["true", "YES", " on ", "1", 1, True])
def test_a_switch_that_says_yes_is_on(value: Any) -> None:
    with config.set(strict=value):
        assert flag("strict") is True


@pytest.mark.parametrize("value", ["", "maybe", 2, None, [], "None"])
def test_a_switch_that_says_neither_is_refused(value: Any) -> None:
    with config.set(strict=value), pytest.raises(ConfigError, match="strict"):
        flag("strict")


@pytest.mark.parametrize("name", [*NUMBERS, *OPTIONAL])
@pytest.mark.parametrize("value", [0, -1, "abc", "32MiB", 1.5, True, [1], float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused_by_name(name: str, value: Any) -> None:
    with config.set({name: value}), pytest.raises(ConfigError, match=name):
        integer_or_none(name) if name in OPTIONAL else integer(name)


def test_a_number_may_be_left_open_where_gpuload_chooses() -> None:
    with config.set({"uring.window": None, "piece_bytes": None}):
        assert integer_or_none("uring.window") is None
        with pytest.raises(ConfigError, match="piece_bytes"):
            integer("piece_bytes")


def test_whole_numbers_of_any_type_are_numbers() -> None:
    with config.set({"piece_bytes": 1e6, "batch_bytes": np.int64(7)}):
        assert (integer("piece_bytes"), integer("batch_bytes")) == (1_000_000, 7)


def test_a_value_in_the_place_of_a_branch_is_refused() -> None:
    with config.set(slab=5), pytest.raises(ConfigError, match=r"slab\.size"):
        integer("slab.size")


@pytest.mark.parametrize("backend", ["io_uring", "posix"])
@pytest.mark.parametrize("name", [*NUMBERS, *OPTIONAL, "strict", "poison", "backend"])
def test_a_read_names_what_is_configured_wrong_and_the_next_one_is_right(
    tmp_path: Path, name: str, backend: str
) -> None:
    if name.startswith(("uring", "posix")) and not name.startswith(backend.removeprefix("io_")):
        return  # the other backend's own
    if registry.available(backend).reason is not None:
        return
    values = np.arange(100_000, dtype="<i4")
    zarr.create_array(tmp_path / "a", data=values, chunks=(10_000,), compressors=zarr.codecs.ZstdCodec())
    with config.set({"backend": backend, name: ["posix"]}):
        _forget()
        with pytest.raises(ConfigError, match=name):
            gpuload.open(tmp_path / "a", device="cpu")[...]
    with config.set(backend=backend):
        np.testing.assert_array_equal(gpuload.open(tmp_path / "a", device="cpu")[...], values)


def _forget() -> None:
    """End what was configured when it was made."""
    transfer.stop()
    handle_cache().clear()
    handle_cache.forget()
    decode._pool.forget()


def test_variables_that_say_no_keep_links_inside_and_reads_allowed(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=np.arange(4), compressors=None)
    (tmp_path / "secret").write_bytes(b"12345678" * 4)
    (tmp_path / "a" / "c" / "0").unlink()
    (tmp_path / "a" / "c" / "0").symlink_to("../../secret")
    code = (
        "import sys, gpuload\n"
        "try:\n    gpuload.open(sys.argv[1], device='cpu')[...]\n"
        "except gpuload.errors.EscapesStoreError:\n    print('refused')\n"
    )
    environment = {**os.environ, "GPULOAD_FOLLOW_LINKS": "false", "GPULOAD_STRICT": "no"}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n", done.stderr
