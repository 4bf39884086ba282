"""The warming of a made-up planet whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.cli.warming import yearly_means

YEAR = 360 * 24.0
MONTH = YEAR / 12


def test_yearly_steps_weighted_by_latitude() -> None:
    # Half the size at 60 degrees: the mean of 0 K at the equator (weight 1) and 30 K at 60 degrees (1/2) is 10 K.
    hours = (np.arange(-20, 20) + 0.4) * YEAR
    trend = np.repeat(np.arange(40.0), 6).reshape(40, 2, 3)
    pattern = np.array([0.0, 30.0])[:, None]
    course = yearly_means((trend + pattern).astype("float32"), np.array([0, 60], "float32"), hours)
    assert course.years.tolist() == list(range(1950, 1990))
    np.testing.assert_allclose(course.yearly, np.arange(40) + 10)
    assert course.first_decade == pytest.approx(14.5)
    assert course.last_decade == pytest.approx(44.5)
    assert course.warming == pytest.approx(30)


def test_months_make_years() -> None:
    hours = (np.arange(24 * 12) + 0.5) * MONTH
    seasons = np.tile(np.sin(np.arange(12) * np.pi / 6), 24)
    values = (seasons + np.repeat(np.arange(24), 12))[:, None, None] * np.ones((1, 2, 2))
    course = yearly_means(values, np.array([10.0, 20.0]), hours)
    assert course.years.tolist() == list(range(1970, 1994))
    np.testing.assert_allclose(course.yearly, np.arange(24), atol=1e-12)


def test_json_form() -> None:
    hours = (np.arange(30) + 0.5) * YEAR
    values = np.arange(30.0)[:, None, None] + np.full((1, 2, 2), 280.0)
    answer = yearly_means(values, np.array([0.0, 1.0]), hours).to_dict()
    assert list(answer) == ["first_decade", "last_decade", "warming", "years", "yearly"]
    assert answer["warming"] == pytest.approx(20)
    assert answer["yearly"][:2] == pytest.approx([-4.5, -3.5])
    assert {type(year) for year in answer["years"]} == {int}
