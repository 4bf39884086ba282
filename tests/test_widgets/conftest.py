"""Blocks of served ranges, and a kernel's front end that only remembers what it is sent."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuload.request import Served
from gpuload.widgets import live

_PATH = Path(__file__).parents[1] / "test_record" / "conftest.py"
_specification = importlib.util.spec_from_file_location("record_blocks", _PATH)
assert _specification is not None
assert _specification.loader is not None
_blocks = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(_blocks)


@pytest.fixture(scope="session")
def block() -> Callable[..., Served]:
    made: Callable[..., Served] = _blocks.served_block
    return made


class FrontEnd:
    """What a page would have got: models, messages and outputs by their display id. It never answers."""

    def __init__(self) -> None:
        self.models: list[Model] = []
        self.outputs: dict[str, dict[str, Any]] = {}
        self.shown: list[str] = []

    def model(
        self, scripts: tuple[str, ...], place: str, snapshot: dict[str, Any], greeted: Callable[[], None]
    ) -> Model:
        self.models.append(Model(place, snapshot, greeted))
        return self.models[-1]

    def display(self, bundle: dict[str, Any], *, raw: bool, display_id: str) -> None:
        assert raw
        self.shown.append(display_id)
        self.outputs[display_id] = bundle

    def update_display(self, bundle: dict[str, Any], *, raw: bool, display_id: str) -> None:
        assert raw
        assert display_id in self.outputs
        self.outputs[display_id] = bundle


class Model:
    """The page's side of one widget."""

    comm: str | None = "open"
    closed = False

    def __init__(self, place: str, snapshot: dict[str, Any], greeted: Callable[[], None]) -> None:
        self.place, self.snapshot, self.greeted = place, snapshot, greeted
        self.messages: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    def close(self) -> None:
        self.comm = None


@pytest.fixture
def front_end(monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    """This process as if it were a kernel."""
    end = FrontEnd()
    monkeypatch.setattr(live, "in_kernel", lambda: True)
    monkeypatch.setattr(live, "possible", lambda: True)
    monkeypatch.setattr(live, "model", end.model)
    monkeypatch.setattr("IPython.display.display", end.display)
    monkeypatch.setattr("IPython.display.update_display", end.update_display)
    return end
