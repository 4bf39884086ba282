"""A basic selection written as text, as one writes it between the brackets: ``0:24,:,::2``."""

from __future__ import annotations

import re
from types import EllipsisType

import click

Index = int | slice | EllipsisType | None

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


def parse_selection(text: str) -> tuple[Index, ...]:
    """Turn `text` into the tuple of indices that Python makes of it between brackets.

    Parameters
    ----------
    text
        Integers, slices, ``...`` and ``None`` (or ``newaxis``), separated by commas; spaces and one comma at the end
        are allowed.

    Raises
    ------
    ValueError
        Says which part is not understood.

    Examples
    --------
    >>> parse_selection("0:24, ..., ::-2, None")
    (slice(0, 24, None), Ellipsis, slice(None, None, -2), None)
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    if parts == [""]:
        raise ValueError("an empty selection; '...' is the whole array")
    selection = tuple(_index(part) for part in parts)
    if sum(index is ... for index in selection) > 1:
        raise ValueError("'...' may occur once")
    return selection


def _index(part: str) -> Index:
    if part == "...":
        return ...
    if part in ("None", "newaxis"):
        return None
    if ":" not in part:
        return _integer(part, part)
    fields = [field.strip() for field in part.split(":")]
    if len(fields) > 3:
        raise ValueError(f"{part!r} has more than two colons")
    bounds = [_integer(field, part) if field else None for field in fields]
    if len(bounds) == 3 and bounds[2] == 0:
        raise ValueError(f"{part!r} has step 0")
    return slice(*bounds)


def _integer(text: str, part: str) -> int:
    if not _INTEGER.fullmatch(text):
        where = "" if text == part else f" in {part!r}"
        raise ValueError(f"{text!r}{where} is not an integer, a slice, '...' or 'None'")
    return int(text)


def selection_callback(ctx: click.Context, param: click.Parameter, text: str) -> tuple[Index, ...]:
    """Parse the selection of a command-line option; text that is none is wrong usage."""
    try:
        return parse_selection(text)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
