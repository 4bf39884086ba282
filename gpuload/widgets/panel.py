"""`Panel`: what all live widgets of a record have in common: shown, pushed, at rest, closed."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import Any

from gpuload.record.recorder import Recorder, process
from gpuload.record.trace import Trace
from gpuload.widgets import live
from gpuload.widgets.pusher import Pusher
from gpuload.widgets.shown import Shown


class Panel(Shown):
    """A view of a record, live where it can be.

    Threads: safe. Fork: the child shows nothing. Pickle: no.

    Parameters
    ----------
    trace
        The record to show; None: that of the process.
    scripts
        The page's side.
    """

    def __init__(self, trace: Trace | Recorder | None, scripts: tuple[str, ...]) -> None:
        super().__init__(scripts)
        self._recorder = process if trace is None else trace if isinstance(trace, Recorder) else trace.recorder
        self._lock = threading.Lock()
        self._pusher: Pusher | None = None

    @abstractmethod
    def _state(self, *, whole: bool) -> dict[str, Any]:
        """What the page needs to show this moment, as JSON; with `whole`, to begin with. `done` says it is the last."""

    def close(self) -> None:
        """End the updates and leave the last state as HTML; idempotent. Reads are not touched."""
        pusher, self._pusher = self._pusher, None
        if pusher is not None:
            pusher.close()
            live.after_cells(pusher.settle, wanted=False)
        super().close()

    def _ipython_display_(self) -> None:
        super()._ipython_display_()
        if self._pusher is None and live.in_kernel():
            self._pusher = Pusher(self._recorder, self._push, self._place.renew)
            # What a cell has read is in its output when it ends: the kernel may be gone a moment later.
            live.after_cells(self._pusher.settle, wanted=True)

    def _push(self) -> bool:
        state = self._state(whole=False)
        self._place.send(state)
        if state["done"]:
            self._place.keep(self._state(whole=True))
        return bool(state["done"])
