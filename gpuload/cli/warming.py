"""How much warmer it gets: the mean temperature of each year, computed where the values are.

The mean over the region is weighted by the cosine of the latitude, since the cells of a regular grid shrink towards the
pole. NumPy's functions on CuPy arrays run on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.cli.digest import to_host

EPOCH_YEAR = 1970
HOURS_OF_A_YEAR = 360 * 24  # calendar 360_day
DECADE = 10


@dataclass(frozen=True, slots=True, eq=False)
class Warming:
    """The course of one scenario.

    Attributes
    ----------
    years
        int64 (n,): the years.
    yearly
        float64 (n,): mean temperature of each year, in kelvin.
    """

    years: npt.NDArray[np.int64]
    yearly: npt.NDArray[np.float64]

    @property
    def first_decade(self) -> float:
        """Mean temperature of the first ten years, in kelvin."""
        return float(self.yearly[:DECADE].mean())

    @property
    def last_decade(self) -> float:
        """Mean temperature of the last ten years, in kelvin."""
        return float(self.yearly[-DECADE:].mean())

    @property
    def warming(self) -> float:
        """The last decade above the first, in kelvin."""
        return self.last_decade - self.first_decade

    def to_dict(self) -> dict[str, Any]:
        """All of it for JSON; ``yearly`` is each year's mean above that of the first decade, in kelvin."""
        return {
            "first_decade": self.first_decade,
            "last_decade": self.last_decade,
            "warming": self.warming,
            "years": self.years.tolist(),
            "yearly": (self.yearly - self.first_decade).tolist(),
        }


def yearly_means(temperature: Any, latitude: Any, hours: npt.NDArray[np.float64]) -> Warming:
    """Compute the mean temperature of each year on the device that `temperature` is on.

    Parameters
    ----------
    temperature
        float (time, latitude, longitude), in kelvin, on any device.
    latitude
        float (latitude,), in degrees, on the same device.
    hours
        float64 (time,) on the host: the middle of each step in hours since 1970 in a calendar of 360 days.
    """
    weights = np.cos(np.deg2rad(latitude.astype("float64")))
    zonal = temperature.astype("float64").mean(axis=2)
    regional = to_host((zonal * weights).sum(axis=1) / weights.sum())
    year = EPOCH_YEAR + np.floor(hours / HOURS_OF_A_YEAR).astype(np.int64)
    years, step_year = np.unique(year, return_inverse=True)
    yearly = np.bincount(step_year, weights=regional) / np.bincount(step_year)
    return Warming(years, yearly)
