"""`Place`: where a widget is shown, as HTML that stays readable without a kernel, and alive where the page can be.

The output of the cell is plain HTML: a notebook that was saved, or converted, shows it without a kernel or a network.
In a page of JupyterLab or Notebook the widget's model finds this output by its ``data-gpuload`` and puts the living
view in its place. VS Code wakes widgets only for an output of their own type, so its outputs have both types.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from html import escape
from typing import Any

from gpuload.widgets import live

_VIEW = "application/vnd.jupyter.widget-view+json"


class Place:
    """The outputs of one widget.

    Threads: safe, calls may come from any thread. Fork: the child's front end is the parent's; do not use it there.
    Pickle: no.

    Parameters
    ----------
    scripts
        Files of `gpuload.widgets.static` that are the page's side.
    still
        Makes the content as HTML; text from files is escaped in it.
    text
        Makes the content as plain text.
    """

    def __init__(self, scripts: tuple[str, ...], still: Callable[[], str], text: Callable[[], str]) -> None:
        self._scripts, self._still, self._text = scripts, still, text
        self._name = uuid.uuid4().hex
        self._model: Any = None
        self._leaving: Any = None
        self._greeted = False
        self.shown = False

    @property
    def live(self) -> Any:
        """The `anywidget.AnyWidget` behind it, to put into layouts of ipywidgets; None where none can be."""
        return self._model

    def show(self, snapshot: Callable[[], dict[str, Any]], greeted: Callable[[], None]) -> None:
        """Display in the cell that runs, once more if it is displayed already."""
        from IPython.display import display

        if self._model is None and live.possible():
            self._model = live.model(self._scripts, self._name, snapshot(), lambda: self._greet(greeted))
        self.shown = True
        display(self._bundle(), raw=True, display_id=self._name)  # type: ignore[no-untyped-call]

    def _greet(self, greeted: Callable[[], None]) -> None:
        self._greeted = True
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.close()
        greeted()

    def renew(self) -> None:
        """Bring the HTML and text of all outputs up to date."""
        if self.shown and live.in_kernel():
            from IPython.display import update_display

            update_display(self._bundle(), raw=True, display_id=self._name)  # type: ignore[no-untyped-call]

    def send(self, message: dict[str, Any]) -> None:
        """Tell the page, if there is one; nobody waits for an answer."""
        if self._model is not None and self._model.comm is not None:
            self._model.send(message)

    def keep(self, snapshot: dict[str, Any]) -> None:
        """Let pages that come later begin with `snapshot`."""
        if self._model is not None and self._model.comm is not None:
            self._model.snapshot = snapshot

    def close(self) -> None:
        """Leave the HTML alone in the page; idempotent."""
        model, self._model = self._model, None
        if model is None:
            return
        model.closed = True
        if self._greeted:
            model.close()
        else:
            # anywidget reports an error of a model that is gone before its page was ready: it goes when it is.
            self._leaving = model

    def html(self) -> str:
        """The output as HTML."""
        return f'<div class="gpuload-place" data-gpuload="{escape(self._name)}">{self._still()}</div>'

    def _bundle(self) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self._text(), "text/html": self.html()}
        if self._model is not None and "VSCODE_PID" in os.environ:
            bundle[_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self._model.model_id}
        return bundle
