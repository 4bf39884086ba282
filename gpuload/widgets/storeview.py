"""`StoreView`: a store's tree in a notebook: how it is stored, and what of it can take the fastpath."""

from __future__ import annotations

import os

import gpuload.zarr
from gpuload.widgets.shown import Still
from gpuload.zarr import Array, Dataset


class StoreView(Still):
    """Arrays and groups with their shapes, chunks and codecs, and the share of the bytes that can take the fastpath.

    That share is of the store as it lies in its files, from no more of them than takes an instant:
    `gpuload.zarr.inspect` looks at them all, and `gpuload.trace` tells who served. No chunk is read. It is what arrays
    and groups show of themselves, with a button to copy the command that mends what can be mended.

    Threads: safe. Fork: the child shows nothing. Pickle: no.

    Parameters
    ----------
    of
        An array or group, or what `gpuload.open` takes.

    Raises
    ------
    NotFoundError, NotZarrError, UnsupportedArrayError
        As `gpuload.open` does.

    Examples
    --------
    >>> gpuload.widgets.StoreView("air.zarr")  # doctest: +SKIP
    """

    def __init__(self, of: Array | Dataset | str | os.PathLike[str]) -> None:
        super().__init__()
        node = of if isinstance(of, Array | Dataset) else gpuload.zarr.open(of)
        shown = node._repr_mimebundle_()
        self._as_text, self._as_html = shown["text/plain"], shown["text/html"]

    def _still(self) -> str:
        return self._as_html

    def _text(self) -> str:
        return self._as_text
