"""The JavaScript and CSS files of the package, put together as one module for the page."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


def _text(name: str) -> str:
    return files("gpuload.widgets").joinpath("static", name).read_text(encoding="utf-8")


@cache
def module(*names: str) -> str:
    """The files `names`, one after the other: each is plain functions, and the last one exports.

    Put together here and not by a build step, for a page takes a widget's code as one module.
    """
    return "\n".join(map(_text, names))


@cache
def style() -> str:
    """The style sheet of all widgets."""
    return _text("gpuload.css")
