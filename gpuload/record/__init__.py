"""Who served what and why: kept in columns, shown as text, HTML, JSON or a data frame.

Importing this package starts the record of the process, which `report` shows.
"""

from __future__ import annotations

from gpuload.record.columns import Columns, Row
from gpuload.record.reasons import EXPLANATIONS
from gpuload.record.recorder import Look, Recorder, report
from gpuload.record.summary import Summary, SummaryRow
from gpuload.record.trace import Trace, trace
from gpuload.record.ways import Way

__all__ = [
    "EXPLANATIONS",
    "Columns",
    "Look",
    "Recorder",
    "Row",
    "Summary",
    "SummaryRow",
    "Trace",
    "Way",
    "report",
    "trace",
]
