"""`Shown`: what everything that a notebook shows has in common: in the page, as HTML, as text, closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from gpuload.widgets import live
from gpuload.widgets.place import Place


class Shown(ABC):
    """Something to look at, live where it can be.

    Threads: safe. Fork: the child shows nothing. Pickle: no.

    Parameters
    ----------
    scripts
        The page's side.
    """

    def __init__(self, scripts: tuple[str, ...]) -> None:
        self._place = Place(scripts, self._still, self._text)

    @abstractmethod
    def _state(self, *, whole: bool) -> dict[str, Any]:
        """What the page needs to show this moment, as JSON: a `number` that grows, and with `whole` all of it."""

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
        """Leave the last state as HTML; idempotent."""
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

    def _repr_html_(self) -> str:
        return self._place.html()

    def __repr__(self) -> str:
        return self._text()

    def _greet(self) -> None:
        # A page that came after the first messages has missed them.
        self._place.send(self._state(whole=True))


class Still(Shown):
    """Something that stays as it is, in a page with buttons to copy what stands in a ``gpuload-copy`` element."""

    def __init__(self) -> None:
        super().__init__(("dom.js", "places.js", "frame.js", "still.js"))

    def _state(self, *, whole: bool) -> dict[str, Any]:
        return {"number": 0, "html": self._still()}
