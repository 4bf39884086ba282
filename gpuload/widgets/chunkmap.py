"""`ChunkMap`: the chunk grid of an array as a picture, each chunk coloured by who served it."""

from __future__ import annotations

import math
import os
from collections import Counter
from html import escape
from typing import Any

from gpuload.record import wording
from gpuload.record.recorder import Recorder
from gpuload.record.trace import Trace
from gpuload.request import ReadPath
from gpuload.widgets.chunks import Chunks
from gpuload.widgets.panel import Panel
from gpuload.zarr.array import Array
from gpuload.zarr.where import edges_of

_SCRIPTS = ("dom.js", "places.js", "frame.js", "grid.js", "chunkmap.js")
_CELLS = 64  # along a side of the still picture, at most


class ChunkMap(Panel):
    """Which chunks of an array were read, and by which path, live in a notebook.

    Two dimensions are drawn, the others have sliders; where there are more chunks than fit, a cell stands for several.
    Hovering a cell tells its requests, clicking it the code that reads it.

    Threads: safe. Fork: the child shows nothing. Pickle: no.

    Parameters
    ----------
    array
        The array.
    trace
        Whose requests to show; None: those of the process. What the trace no longer keeps (``record.rows``) when the
        map is first shown is not in it.
    """

    def __init__(self, array: Array, trace: Trace | Recorder | None = None) -> None:
        super().__init__(trace, _SCRIPTS)
        self._chunks = Chunks(array)
        self._seen = 0
        self._generation = -1
        self._number = 0
        self._missing: list[int] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many chunks were served by the ``"fastpath"``, the ``"fallback"``, by ``"both"``, are ``"missing"``, or
        were ``"never read"`` so far.
        """
        with self._lock:
            self._advance()
            return self._counts()

    def _counts(self) -> dict[str, int]:
        kinds = Counter("both" if len(paths) > 1 else next(iter(paths)) for paths in self._chunks.paths().values())
        missing = len(set(self._gone()) - {chunk for chunk, _ in self._chunks.tallies})
        read = kinds.total()
        counts = {kind: kinds[kind] for kind in (*map(str, ReadPath), "both")}
        return counts | {"missing": missing, "never read": math.prod(self._chunks.grid) - read - missing}

    def _gone(self) -> list[int]:
        if self._missing is None:
            self._missing = self._chunks.missing()
        return self._missing

    def _advance(self) -> list[tuple[int, int]] | None:
        """Count what is new; returns what changed, None: everything."""
        look = self._recorder.look(after=self._seen)
        if look.generation != self._generation:
            self._generation = look.generation
            self._chunks.clear()
            look = self._recorder.look()
            self._seen = look.summary.requests
            self._chunks.add(look.newest)
            return None
        self._seen = look.summary.requests
        return self._chunks.add(look.newest)

    def _state(self, *, whole: bool) -> dict[str, Any]:
        with self._lock:
            changed = self._advance()
            self._number += 1
            array = self._chunks.array
            state: dict[str, Any] = {
                "number": self._number,
                "generation": self._generation,
                "done": self._recorder.closed,
                "counts": self._counts(),
                "whole": whole or changed is None,
                "ways": self._chunks.ways,
                "tallies": self._chunks.rows(None if whole else changed),
            }
            if state["whole"]:
                state |= {
                    "name": self._name(),
                    "grid": self._chunks.grid,
                    "edges": [_shown(edges, n) for edges, n in zip(edges_of(array), array.shape, strict=True)],
                    "dims": [wording.printable(dim) if dim else f"axis {i}" for i, dim in enumerate(array.dims)],
                    "missing": self._gone(),
                }
            return state

    def _name(self) -> str:
        array = self._chunks.array
        return wording.printable(array.name or os.path.basename(array.source.place.rstrip("/")))

    def _sentence(self) -> str:
        counts = [f"{n:,} {kind}" for kind, n in self._counts().items() if n]
        return f"{self._name()}: {' × '.join(map(str, self._chunks.grid)) or '1'} chunks · {' · '.join(counts)}"

    def _text(self) -> str:
        with self._lock:
            self._advance()
            return self._sentence()

    def _still(self) -> str:
        with self._lock:
            self._advance()
            return _picture(self._chunks, set(self._gone()), self._sentence())


def _shown(edges: range | list[int], extent: int) -> dict[str, int] | list[int]:
    """Where chunks begin: by step and extent, or one by one."""
    return {"step": edges.step, "extent": extent} if isinstance(edges, range) else [min(edge, extent) for edge in edges]


_STYLE = (
    ".gpuload-grid{font-size:13px}.gpuload-grid svg{display:block;max-width:100%;height:auto;margin:4px 0}"
    ".gpuload-grid rect{stroke:currentColor;stroke-width:.06;stroke-opacity:.4;fill:none}"
    ".gpuload-grid .fastpath,.gpuload-grid .both{fill:#0072b2}"
    ".gpuload-grid .missing{fill:currentColor;fill-opacity:.25}"
    ".gpuload-grid .stripes{stroke:#d98200;stroke-width:.22;fill:none}"
)


def _picture(chunks: Chunks, missing: set[int], sentence: str) -> str:
    """The first two-dimensional slice as SVG, several chunks a cell where there are many."""
    rows, columns = (1, 1, *chunks.grid)[-2:]
    step = max(1, -(-max(rows, columns) // _CELLS))
    kinds: dict[tuple[int, int], set[str]] = {}
    for chunk, paths in chunks.paths().items():
        if chunk < rows * columns:
            row, column = divmod(chunk, columns)
            kinds.setdefault((row // step, column // step), set()).update(paths)
    for chunk in missing:
        if chunk < rows * columns:
            row, column = divmod(chunk, columns)
            kinds.setdefault((row // step, column // step), {"missing"})
    high, wide = -(-rows // step), -(-columns // step)
    cells = "".join(
        _cell(row, column, kinds.get((row, column), set())) for row in range(high) for column in range(wide)
    )
    size = f'width="{min(14, 900 // max(1, wide)) * wide}" viewBox="-0.1 -0.1 {wide + 0.2:g} {high + 0.2:g}"'
    words = f"<b>{escape(sentence)}</b>" + (f"<div>{step} × {step} chunks a cell</div>" if step > 1 else "")
    svg = f'<svg {size} role="img" aria-label="{escape(sentence)}">{cells}</svg>'
    return f'<style>{_STYLE}</style><div class="gpuload-grid">{words}{svg}</div>'


def _cell(row: int, column: int, kinds: set[str]) -> str:
    paths = kinds - {"missing"}
    name = "both" if len(paths) > 1 else next(iter(paths or kinds), "never")
    cell = f'<rect class="{name}" x="{column}.1" y="{row}.1" width=".8" height=".8"/>'
    if "fallback" in paths:
        x, y = column, row
        cell += (
            f'<path class="stripes" d="M{x}.1 {y}.5L{x}.5 {y}.1M{x}.15 {y}.85L{x}.85 {y}.15M{x}.5 {y}.9L{x}.9 {y}.5"/>'
        )
    return cell
