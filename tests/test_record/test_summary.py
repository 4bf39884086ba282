"""A summary says the same in text, HTML, JSON and data frames, and nothing in it can act on a terminal or page."""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from gpuload.record import EXPLANATIONS, Recorder, Summary, wording
from gpuload.request import Decode, Filled, ReadPath, Reason, Served

Make = Callable[..., Served]

EVIL = "<img src=x onerror=alert(1)>&\"'[red]\x1b[31m\n\udcff\u202e"


def summary_of(*events: Served | Filled) -> Summary:
    recorder = Recorder()
    for event in events:
        recorder(event)
    return recorder.summary()


def fastpath(block: Make, n: int, **changes: Any) -> Served:
    return block(n, backend="hipfile", read_path=ReadPath.FASTPATH, reason=None, **changes)


@pytest.fixture
def mixed(block: Make) -> Summary:
    return summary_of(
        fastpath(block, 8, size=10**6, moved=2 * 10**6),
        block(1, size=300_000, reason=Reason.TAIL, keys=["air/c/0"], started=11.0, ended=12.0),
        block(2, size=100_000, reason=Reason.UNALIGNED_OFFSET, decode=Decode.HOST, declined={"posix": Reason.FD_LIMIT}),
        Filled(12, 4096),
    )


def test_the_headline_of_a_machine_without_a_library(block: Make) -> None:
    summary = summary_of(block(4, size=31 * 10**8))
    assert summary.headline == "io_uring · fallback 100 % of bytes (no-library 100.0) · 12.4 GB/s"


def test_the_headline_of_both_paths(mixed: Summary) -> None:
    assert mixed.headline == (
        "hipfile · fastpath 94.1 % of bytes · fallback 5.9 % (tail 3.5, unaligned-offset 2.4) · 4.25 MB/s"
    )


def test_the_headline_of_the_fastpath_alone_and_of_nothing(block: Make) -> None:
    assert summary_of(fastpath(block, 1, size=1000)).headline == "hipfile · fastpath 100 % of bytes · 1.00 kB/s"
    assert summary_of().headline == summary_of(Filled(1, 1)).headline == "nothing was read"
    assert "100 % of requests" in summary_of(block(2, size=0)).headline


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [(0, 5, "0.0"), (5, 5, "100.0"), (1, 10**6, "<0.1"), (10**6 - 1, 10**6, ">99.9"), (1, 3, "33.3")],
)
def test_a_share_is_not_rounded_away(part: int, whole: int, words: str) -> None:
    assert wording.percent(part, whole) == words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (wording.size(0), "0 B"),
        (wording.size(999), "999 B"),
        (wording.size(1000), "1.00 kB"),
        (wording.size(999_999), "1.00 MB"),
        (wording.size(1_073_741_824), "1.07 GB"),
        (wording.size(5 * 10**21), "5,000,000 PB"),
        (wording.duration(0), "0 µs"),
        (wording.duration(1.23e-5), "12.3 µs"),
        (wording.duration(0.9999), "1.00 s"),
        (wording.duration(12345), "12,345 s"),
        (wording.duration(math.nan), "-"),
        (wording.speed(None), "-"),
        (wording.speed(12.4e9), "12.4"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(words: str, expected: str) -> None:
    assert words == expected


def test_the_text_holds_every_column_note_and_reason(mixed: Summary) -> None:
    text = mixed.to_text(200)
    lines = text.splitlines()
    assert lines[0] == mixed.headline
    heads = re.split(r"\s{2,}", lines[1].strip())
    assert heads == [
        *("path", "backend", "reason", "decode", "requests", "bytes", "moved", "time", "GB/s", "p50", "p99"),
        "example key",
    ]
    assert re.split(r"\s{2,}", lines[3].strip())[:8] == [
        *("█ fastpath", "hipfile", "-", "none", "8", "8.00 MB", "16.0 MB", "1.00 s"),
    ]
    assert "12 chunks without a file: 4.10 kB of fill value, nothing read" in lines
    assert "posix passed over: fd-limit (2 requests)" in lines
    for reason in (Reason.TAIL, Reason.UNALIGNED_OFFSET, Reason.FD_LIMIT):
        assert any(line.startswith(f"{reason} ") and EXPLANATIONS[reason][:20] in line for line in lines)
    assert EXPLANATIONS[Reason.NO_LIBRARY][:20] not in text


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_no_line_is_wider_than_asked_for_and_no_figure_is_cut(block: Make, width: int) -> None:
    long = "a/very/long/group/" * 20 + "c/0"
    summary = summary_of(block(3, keys=[long]), fastpath(block, 10**5, size=10**9))
    lines = summary.to_text(width).splitlines()
    assert max(len(line) for line in lines) <= width
    table = [line for line in lines if line.startswith(("█", "▒"))]
    assert len(table) == 2
    assert "100,000" in table[0]
    assert "100 TB" in table[0]
    assert "no-library" in table[1]
    assert table[1].endswith("group/c/0") == ("example key" in lines[1])
    assert ("…" in table[1]) == ("example key" in summary.to_text(width))


def test_printing_shows_the_table_and_so_does_rich(mixed: Summary) -> None:
    from rich.console import Console

    assert str(mixed) == repr(mixed)
    assert "hipfile" in str(mixed)
    console = Console(file=io.StringIO(), width=200, color_system=None)
    with console.capture() as capture:
        console.print(mixed)
    assert [line.rstrip() for line in capture.get().splitlines()] == mixed.to_text(200).splitlines()


def test_names_from_files_are_text_in_the_terminal(block: Make) -> None:
    text = summary_of(block(1, keys=[EVIL], backend="[bold]x[/bold]\x07")).to_text(250)
    assert "<img src=x onerror=alert(1)>&\"'[red]\\x1b[31m\\n\\udcff\\u202e" in text
    assert "[bold]x[/bold]\\x07" in text
    assert all(c.isprintable() or c == "\n" for c in text)
    text.encode()


TABLE = ("table", "thead", "tbody", "tr", "th", "td")


class Page(HTMLParser):
    """Collects the tags, the words and what would load or run something."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_html_is_balanced_self_contained_and_tells_the_same(mixed: Summary) -> None:
    html = mixed._repr_html_()
    page = Page(html)
    assert page.open == []
    assert set(page.tags) <= {"div", "style", "p", "span", *TABLE, "dl", "dt", "dd"}
    assert {name for name, _ in page.attributes} <= {"class", "style", "title", "role", "aria-label", "scope"}
    assert "http" not in html
    assert "url(" not in html
    assert "@import" not in html
    for words in (mixed.headline, "8.00 MB", "16.0 MB", "air/c/0", "posix passed over: fd-limit (2 requests)"):
        assert words in page.words
    assert EXPLANATIONS[Reason.TAIL] in page.words


def test_names_from_files_are_escaped_in_html(block: Make) -> None:
    html = summary_of(block(1, keys=[EVIL], backend="<script>alert(1)</script>"))._repr_html_()
    page = Page(html)
    assert "img" not in page.tags
    assert "script" not in page.tags
    assert not {name for name, _ in page.attributes} & {"onerror", "src", "href"}
    assert any(words.startswith("<img src=x onerror=alert(1)>&\"'") for words in page.words)
    html.encode()


def test_the_paths_differ_without_colour_in_html(mixed: Summary) -> None:
    page = Page(mixed._repr_html_())
    assert "fastpath" in page.words
    assert "fallback" in page.words
    style = page.words[0]
    assert "repeating-linear-gradient" in style.split(".fallback.fill")[1].split("}")[0]
    assert "gradient" not in style.split(".fastpath.fill")[1].split("}")[0]
    shares = [value for name, value in page.attributes if name == "style"]
    assert shares == ["width:94.118%", "width:5.882%"]


def test_html_of_nothing_is_a_sentence() -> None:
    assert "nothing was read" in Page(summary_of()._repr_html_()).words
    assert "table" not in Page(summary_of(Filled(1, 10))._repr_html_()).tags


def test_json_has_plain_values(mixed: Summary) -> None:
    read = json.loads(mixed.to_json())
    assert read == mixed.to_dict()
    assert {name: read[name] for name in ("requests", "bytes", "moved", "filled")} == {
        "requests": 11,
        "bytes": 8_500_000,
        "moved": 16_500_000,
        "filled": {"chunks": 12, "bytes": 4096},
    }
    assert read["rows"][0] == {
        "path": "fastpath",
        "backend": "hipfile",
        "reason": None,
        "decode": "none",
        "declined": {},
        "requests": 8,
        "bytes": 8_000_000,
        "moved": 16_000_000,
        "seconds": 1.0,
    }
    assert read["rows"][2]["declined"] == {"posix": "fd-limit"}


def test_seconds_are_wall_time_in_flight(block: Make) -> None:
    summary = summary_of(
        block(1, started=0.0, ended=2.0),
        block(1, started=1.0, ended=3.0),
        block(1, started=5.0, ended=6.0),
        block(1, started=2.5, ended=5.5, backend="posix"),
    )
    assert {row.backend: row.seconds for row in summary.rows} == {"io_uring": 4.0, "posix": 3.0}
    assert summary.seconds == 6.0
    assert summary.bytes_per_second == 400 / 6


def test_latencies_are_percentiles_over_all_requests(block: Make) -> None:
    latency = np.concatenate([np.full(980, 1e-3), np.full(20, 1.0)])
    (row,) = summary_of(block(1000, latency=latency)).rows
    assert row.p50 == pytest.approx(1e-3, rel=0.01)
    assert row.p99 == pytest.approx(1.0, rel=0.01)


def test_a_summary_survives_pickling(mixed: Summary) -> None:
    assert pickle.loads(pickle.dumps(mixed)) == mixed


def test_pandas_has_one_line_for_each_way(mixed: Summary) -> None:
    pytest.importorskip("pandas")
    frame = mixed.to_pandas()
    assert list(frame["bytes"]) == [8_000_000, 300_000, 200_000]
    assert list(frame["declined"]) == ["", "", "posix: fd-limit"]
    assert list(frame["path"]) == ["fastpath", "fallback", "fallback"]
    assert list(summary_of().to_pandas().columns) == list(frame.columns)


def test_without_pandas_the_error_names_the_extra(mixed: Summary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=re.escape("gpuload[pandas]")):
        mixed.to_pandas()


def test_every_reason_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Reason)
    assert list(EXPLANATIONS) == list(Reason)
    for text in EXPLANATIONS.values():
        assert text.endswith(".")
        assert "  " not in text
        assert len(text) > 60
    assert len(set(EXPLANATIONS.values())) == len(EXPLANATIONS)


def test_importing_the_record_loads_neither_rich_nor_pandas() -> None:
    code = "import sys, gpuload.record; print(sorted({'rich', 'pandas', 'zarr', 'cupy'} & {*sys.modules}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
