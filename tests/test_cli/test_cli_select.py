"""Selections as text mean what they mean between NumPy's brackets."""

from __future__ import annotations

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.cli.select import parse_selection, selection_callback

SHAPE = (5, 4, 3)

spaces = st.sampled_from(["", " ", "  "])


@st.composite
def spaced(draw: st.DrawFn, parts: list[str]) -> str:
    return "".join(draw(spaces) + part for part in parts) + draw(spaces)


@st.composite
def slices(draw: st.DrawFn) -> str:
    bound = st.one_of(st.just(""), st.integers(-7, 7).map(str))
    parts = [draw(bound), ":", draw(bound)]
    if draw(st.booleans()):
        parts += [":", draw(st.one_of(st.just(""), st.integers(-3, 3).filter(bool).map(str)))]
    return draw(spaced(parts))


@st.composite
def selections(draw: st.DrawFn) -> str:
    """Text of a selection that fits SHAPE: an index an axis, a hole at the ellipsis, new axes anywhere."""
    axes = [
        draw(st.one_of(slices(), st.integers(-size, size - 1).map(str))) for size in SHAPE[: draw(st.integers(0, 3))]
    ]
    if draw(st.booleans()):
        axes.append("...")
    for _ in range(draw(st.integers(0, 2))):
        axes.insert(draw(st.integers(0, len(axes))), draw(st.sampled_from(["None", "newaxis"])))
    if not axes:
        axes = ["..."]
    return draw(spaced([axes[0], *(piece for axis in axes[1:] for piece in (",", axis))])) + draw(
        st.sampled_from(["", ","])
    )


@given(selections())
def test_text_selects_what_the_brackets_select(text: str) -> None:
    values = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    expected = eval(f"values[{text}]", {"values": values, "newaxis": None})
    found = values[parse_selection(text)]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@given(st.integers(-(2**70), 2**70))
def test_integers_of_any_length(number: int) -> None:
    assert parse_selection(f"{number}") == (number,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty selection"),
        ("  ", "empty selection"),
        ("a", "'a' is not an integer"),
        ("1.5", "'1.5' is not an integer"),
        ("1_0", "'1_0' is not an integer"),
        ("٣", "is not an integer"),
        ("0:x", "'x' in '0:x' is not an integer"),
        ("1:2:3:4", "more than two colons"),
        ("::0", "step 0"),
        ("1,,2", "'' is not an integer"),
        ("...,...", "may occur once"),
        ("[0]", "is not an integer"),
        ("True", "is not an integer"),
        ("__import__('os')", "is not an integer"),
    ],
)
def test_other_text_is_wrong_usage(text: str, message: str) -> None:
    option = click.Option(["--select"])
    with pytest.raises(click.BadParameter, match=message):
        selection_callback(click.Context(click.Command("read")), option, text)
