"""The StoreView is what arrays and groups show of themselves, with a command to copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

import gpuload
from gpuload.widgets import StoreView

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = zarr.create_group(tmp_path / f"{EVIL}.zarr")
    root.create_array(EVIL, shape=(4,), chunks=(2,), dtype="f4")[:] = 1.0
    return tmp_path / f"{EVIL}.zarr"


def test_it_shows_what_the_node_shows_of_itself(store: Path, front_end: Any) -> None:
    for of in (store, str(store), gpuload.open(store, device="cpu")[EVIL]):
        view = StoreView(of)
        view._ipython_display_()
        model = front_end.models[-1]
        output = front_end.outputs[model.place]
        assert model.snapshot["html"] in output["text/html"]
        assert "<img" not in output["text/html"]
        assert "host-codec" in output["text/html"]
        assert 'class="gpuload-copy">gpuload pack ' in output["text/html"]
        assert EVIL in output["text/plain"] == repr(view)
        with view:
            pass
        assert view.live is None
    assert repr(view) == repr(of)


def test_what_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(gpuload.errors.NotFoundError):
        StoreView(tmp_path / "nothing")
