"""The side of a widget that lives in the page: made where ipywidgets, anywidget and a kernel are, else None."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from gpuload.widgets import assets


def _shell() -> Any:
    """IPython's shell, if this process has one."""
    interactive = sys.modules.get("IPython")
    return None if interactive is None else interactive.get_ipython()


def in_kernel() -> bool:
    """Whether there is a front end that could show a widget: this process is the kernel of a notebook."""
    return getattr(_shell(), "kernel", None) is not None


def after_cells(act: Callable[[], None], *, wanted: bool) -> None:
    """Call `act` whenever a cell has run, from now on or no longer."""
    events = getattr(_shell(), "events", None)
    if events is not None and wanted:
        events.register("post_execute", act)
    elif events is not None and act in events.callbacks["post_execute"]:
        events.unregister("post_execute", act)


def possible() -> bool:
    """Whether a widget can live here."""
    return in_kernel() and all(importlib.util.find_spec(name) for name in ("ipywidgets", "anywidget"))


def model(scripts: tuple[str, ...], place: str, snapshot: dict[str, Any], greeted: Callable[[], None]) -> Any:
    """An `anywidget.AnyWidget` whose page runs `scripts`.

    Parameters
    ----------
    place
        Names the places in the page where it shows: elements with ``data-gpuload="<place>"``.
    snapshot
        What to show first; it is sent again whenever the trait `snapshot` is set.
    greeted
        Called when a page has begun to show it, once the kernel has time.
    """
    live = _kind(scripts)(place=place, snapshot=snapshot)
    live.on_msg(lambda _widget, _content, _buffers: greeted())
    return live


@cache
def _kind(scripts: tuple[str, ...]) -> type[Any]:
    import anywidget
    import traitlets

    class Live(anywidget.AnyWidget):
        _esm = assets.module(*scripts)
        _css = assets.style()
        place = traitlets.Unicode().tag(sync=True)
        snapshot = traitlets.Dict().tag(sync=True)
        closed = traitlets.Bool(False).tag(sync=True)

    return Live
