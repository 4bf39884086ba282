"""The record as pandas data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuload.record.wording import declined

if TYPE_CHECKING:
    import pandas as pd

    from gpuload.record.columns import Columns
    from gpuload.record.summary import Summary

_SUMMARY = ("path", "backend", "reason", "decode", "requests", "bytes", "moved", "seconds", "p50", "p99", "key")


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ModuleNotFoundError(
            "to_pandas() needs pandas, which is not installed: pip install 'gpuload[pandas]'", name="pandas"
        ) from error
    return pandas


def summary_frame(summary: Summary) -> pd.DataFrame:
    """One line for each way; `reason` and `declined` are text, `declined` empty where nothing was passed over."""
    rows = [
        {name: _plain(getattr(row, name)) for name in _SUMMARY} | {"declined": declined(row.declined)}
        for row in summary.rows
    ]
    frame: pd.DataFrame = _pandas().DataFrame(rows, columns=[*_SUMMARY[:4], "declined", *_SUMMARY[4:]])
    return frame


def requests_frame(columns: Columns) -> pd.DataFrame:
    """One line for each request, oldest first; what the requests of one way share is categorical."""
    pandas = _pandas()

    def categorical(words: list[str | None]) -> Any:
        present = sorted({word for word in words if word is not None})
        codes = [present.index(word) if word is not None else -1 for word in words]
        return pandas.Categorical.from_codes([codes[way] for way in columns.way.tolist()], categories=present)

    ways = columns.ways
    frame: pd.DataFrame = pandas.DataFrame(
        {
            "key": columns.key,
            "file_offset": columns.file_offset,
            "bytes": columns.bytes,
            "moved": columns.moved,
            "read_path": categorical([str(way.path) for way in ways]),
            "backend": categorical([way.backend for way in ways]),
            "reason": categorical([_plain(way.reason) for way in ways]),
            "declined": categorical([declined(way.declined_by) for way in ways]),
            "decode": categorical([str(way.decode) for way in ways]),
            "latency": columns.latency,
            "started": columns.started,
            "ended": columns.ended,
            "purpose": columns.purpose,
        }
    )
    return frame


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value
