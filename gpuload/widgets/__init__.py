"""What a notebook shows of reads: live where ipywidgets and anywidget are installed, as HTML or text elsewhere.

Nothing here is imported before it is asked for, and no front end has to answer for a read to go on.
"""

from __future__ import annotations

from gpuload.widgets.monitor import Monitor

__all__ = ["Monitor"]
