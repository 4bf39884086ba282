"""The record of one block of code: ``with gpuload.trace() as trace: ...``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gpuload.events import subscribe
from gpuload.record.columns import Columns, Row
from gpuload.record.recorder import Recorder
from gpuload.record.summary import Summary

if TYPE_CHECKING:
    import pandas as pd


class Trace:
    """What all threads of the process were served while the block ran; made by `trace`.

    It can be looked at while the block runs and after it. Traces can be nested, and each sees what its own block saw.

    Threads: safe. Fork: the child starts empty. Pickle: no; its summary can be.
    """

    def __init__(self, rows: int | None = None) -> None:
        self.recorder = Recorder(rows)
        self._unsubscribe: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        if self._unsubscribe is not None:
            raise RuntimeError("a trace records one block: make another with gpuload.trace()")
        self.recorder.clear()  # the clock of its CPU time starts with the block
        self._unsubscribe = subscribe(self.recorder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._unsubscribe is not None
        self._unsubscribe()
        # A thread may be on its way to the recorder: what arrives after the block is not the block's.
        self.recorder.close()

    def summary(self) -> Summary:
        """The totals up to now, or up to the end of the block."""
        return self.recorder.summary()

    def rows(self, last: int | None = None) -> list[Row]:
        """The newest `last` requests, or all that are kept, oldest first."""
        return self.recorder.rows(last)

    def columns(self, last: int | None = None) -> Columns:
        """The same as `rows`, as arrays."""
        return self.recorder.columns(last)

    def widget(self) -> Any:
        """A `gpuload.widgets.Monitor` of this trace: live in a notebook while the block runs."""
        # The one place where the record knows of what stands above it, and only when it is asked to.
        return importlib.import_module("gpuload.widgets").Monitor(self)

    def to_pandas(self) -> pd.DataFrame:
        """The requests that are kept, one a row, as a `pandas.DataFrame`; ``summary().to_pandas()`` has the totals."""
        from gpuload.record.export import requests_frame

        return requests_frame(self.columns())

    def to_json(self) -> str:
        """The summary as JSON."""
        return self.summary().to_json()

    def __repr__(self) -> str:
        return str(self.summary())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        summary = self.summary()
        return {"text/plain": str(summary), "text/html": summary._repr_html_()}

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def __rich__(self) -> Any:
        return self.summary().__rich__()


def trace(rows: int | None = None) -> Trace:
    """Record who serves what, and why, while a block runs.

    Parameters
    ----------
    rows
        How many of the newest requests to keep; None takes ``record.rows`` of the configuration. The totals count
        all of them.

    Examples
    --------
    >>> with gpuload.trace() as trace:
    ...     array[0:24]
    >>> print(trace.summary())
    """
    return Trace(rows)
