"""`Panel`: what all live widgets of a record have in common: shown, pushed, at rest, closed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, Self

from gpuload.record.recorder import Recorder, process
from gpuload.record.trace import Trace
from gpuload.widgets import live
from gpuload.widgets.place import Place
from gpuload.widgets.pusher import Pusher


class Panel(ABC):
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
        self._recorder = process if trace is None else trace if isinstance(trace, Recorder) else trace.recorder
        self._place = Place(scripts, self._still, self._text)
        self._lock = threading.Lock()
        self._pusher: Pusher | None = None

    @abstractmethod
    def _state(self, *, whole: bool) -> dict[str, Any]:
        """What the page needs to show this moment, as JSON; with `whole`, to begin with. `done` says it is the last."""

    @abstractmethod
    def _still(self) -> str:
        """The content as HTML."""

    @abstractmethod
    def _text(self) -> str:
        """The content as plain text."""

    @property
    def live(self) -> Any:
        """The widget behind it once it is shown, for layouts of ipywidgets; None where there is none."""
        return self._place.live

    def close(self) -> None:
        """End the updates and leave the last state as HTML; idempotent. Reads are not touched."""
        pusher, self._pusher = self._pusher, None
        if pusher is not None:
            pusher.close()
            live.after_cells(pusher.settle, wanted=False)
        self._place.close()
        self._place.renew()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _ipython_display_(self) -> None:
        if not live.in_kernel():
            print(self._text())  # noqa: T201 - a terminal asked to see it
            return
        self._place.show(lambda: self._state(whole=True), self._greet)
        if self._pusher is None:
            self._pusher = Pusher(self._recorder, self._push, self._place.renew)
            # What a cell has read is in its output when it ends: the kernel may be gone a moment later.
            live.after_cells(self._pusher.settle, wanted=True)

    def _repr_html_(self) -> str:
        return self._place.html()

    def __repr__(self) -> str:
        return self._text()

    def _push(self) -> bool:
        state = self._state(whole=False)
        self._place.send(state)
        if state["done"]:
            self._place.keep(self._state(whole=True))
        return bool(state["done"])

    def _greet(self) -> None:
        # A page that came after the first messages has missed them.
        self._place.send(self._state(whole=True))
