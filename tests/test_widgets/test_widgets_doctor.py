"""The Doctor shows the report, and what its buttons copy is what stands there."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import gpuload
from gpuload.checks.report import BackendState, Report, Section, failed, passed
from gpuload.request import Reason
from gpuload.widgets import Doctor

EVIL = "<img src=x onerror=alert(1)>"
COMMAND = "mount -o data=ordered '/dev/<b>' && echo \"$HOME\"\x1b[2J\n"


def report() -> Report:
    checks = (passed("good", "as it should be"), failed(EVIL, f"{EVIL}\x1b[31m", COMMAND, root=True))
    return Report((Section(f"of {EVIL}", checks),), {"hipfile": BackendState(False, Reason.NO_LIBRARY, EVIL)})


class Copied(HTMLParser):
    """What the page's buttons would copy, and all tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.copied: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if ("class", "gpuload-copy") in attrs:
            self.copied.append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.copied[-1] += data


def test_it_shows_the_report_with_the_command_to_copy(front_end: Any) -> None:
    doctor = Doctor(report())
    doctor._ipython_display_()
    (model,) = front_end.models
    output = front_end.outputs[model.place]
    assert set(output) == {"text/plain", "text/html"}
    assert model.snapshot["html"] in output["text/html"]
    for page in (model.snapshot["html"], doctor._repr_html_()):
        found = Copied(page)
        # No sign of a shell, and nothing that a terminal would act on.
        assert found.copied == ["mount -o data=ordered '/dev/<b>' && echo \"$HOME\"\\x1b[2J\\n"]
        assert not {"img", "b", "script"} & set(found.tags)
        assert "\x1b" not in page
    assert "# mount -o data=ordered '/dev/<b>'" in output["text/plain"]
    model.greeted()
    assert model.messages[-1]["html"] == model.snapshot["html"]
    doctor.close()
    doctor.close()
    assert model.comm is None
    assert "mount" in front_end.outputs[model.place]["text/html"]


def test_it_examines_what_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(gpuload.errors.NotFoundError):
        Doctor(tmp_path / "nothing")
    doctor = gpuload.widgets.Doctor(tmp_path)
    assert doctor.report.store is not None
    assert doctor.report.store.path == str(tmp_path)
    doctor._ipython_display_()
    assert capsys.readouterr().out == doctor.report.to_text() + "\n" == repr(doctor) + "\n"
    assert doctor.live is None
