"""`Doctor`: what the doctor found, with a button to copy each command that mends something."""

from __future__ import annotations

import os

from gpuload.checks import Report
from gpuload.checks import doctor as examine
from gpuload.widgets.shown import Still


class Doctor(Still):
    """What works on this machine and for a store, what does not, and the commands that mend it, to be copied.

    Shown as the last expression of a cell, or by `display`. Where ipywidgets, anywidget or a notebook is missing, the
    same comes as HTML or text. What a button copies is what stands beside it, with all that a terminal would act on
    written as an escape.

    Threads: safe. Fork: the child shows nothing. Pickle: no; its `report` can be.

    Parameters
    ----------
    of
        A report of `gpuload.doctor`; or the path of a store, or None, to have one made.

    Attributes
    ----------
    report
        The report.

    Raises
    ------
    NotFoundError, NotLocalError
        As by `gpuload.doctor`, for a path.

    Examples
    --------
    >>> gpuload.widgets.Doctor("air.zarr")  # doctest: +SKIP
    """

    def __init__(self, of: Report | str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.report = of if isinstance(of, Report) else examine(of)

    def _still(self) -> str:
        return self.report._repr_html_()

    def _text(self) -> str:
        return self.report.to_text()
