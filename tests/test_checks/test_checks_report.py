"""The forms of a report: text, HTML, JSON, and what a bug report may say."""

from __future__ import annotations

import getpass
import io
import json
import os
import pickle
import socket
from html.parser import HTMLParser

import pytest
from rich.console import Console

from gpuload.checks import bug
from gpuload.checks.report import (
    BackendState,
    Check,
    MountRow,
    Report,
    Section,
    Status,
    Verdict,
    failed,
    passed,
    unknown,
)
from gpuload.request import Reason

EVIL = "<script>x()</script> [red]&\x1b[2J\n"


def report(text: str = "value") -> Report:
    checks = (
        passed("good", text),
        failed("bad", text, f"mend {text}", root=True),
        unknown("dim", text, f"look {text}"),
    )
    backends = {
        "hipfile": BackendState(False, Reason.NO_LIBRARY, f"detail {text}"),
        "posix": BackendState(True, None),
    }
    mounts = (
        MountRow(f"/data {text}", "xfs", "259:1", ("dm-0 (LVM)", "nvme0n1 (NVMe)"), True, None, True),
        MountRow("/shm", "tmpfs", "0:5", (), None, Reason.FILE_SYSTEM, None),
        MountRow("/odd", "xfs", "259:9", (), None, None, None),
    )
    return Report((Section(f"section {text}", checks),), backends, mounts, Verdict(f"/data {text}"))


def test_a_failed_check_has_a_fix() -> None:
    for fix in (None, ""):
        with pytest.raises(ValueError, match="has no fix"):
            Check("x", Status.FAIL, "value", fix)


def test_json_has_the_documented_form() -> None:
    found = json.loads(report().to_json())
    assert list(found) == ["checks", "backends", "mounts", "path"]
    assert found["checks"][1] == {
        "name": "bad",
        "status": "fail",
        "value": "value",
        "fix": "mend value",
        "needs_root": True,
    }
    assert found["backends"]["hipfile"] == {"usable": False, "reason": "no-library", "detail": "detail value"}
    assert found["backends"]["posix"] == {"usable": True, "reason": None, "detail": ""}
    assert [row["fastpath"] for row in found["mounts"]] == ["yes", "file-system", "unknown"]
    assert found["path"]["path"] == "/data value"
    assert found["path"]["fastpath"] == {"eligible": None, "backend": None, "reasons": []}
    assert Report((), {}).to_dict()["path"] is None


def test_values() -> None:
    made = report()
    assert pickle.loads(pickle.dumps(made)) == made
    assert made["bad"].status is Status.FAIL
    with pytest.raises(KeyError):
        made["nothing"]
    assert made.headline == "reads go by posix · 1 checks pass, 1 fail, 1 unknown"
    assert Report((), {}).headline.startswith("no backend can read here")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_text_fits_and_says_everything(width: int) -> None:
    text = report().to_text(width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    assert "✗ fail bad value # mend value" in words
    assert "? unknown dim value $ look value" in words
    assert "✓ pass good value" in words
    if width >= 80:
        for cell in ("MOUNTPOINT", "FSTYPE", "BACKING", "O_DIRECT", "FASTPATH", "dm-0 (LVM) → nvme0n1 (NVMe)"):
            assert cell in words
    assert str(report()) == repr(report())


def test_text_from_files_can_do_nothing_to_a_terminal() -> None:
    text = report(EVIL).to_text(200)
    assert "\x1b" not in text
    assert "[red]" in text  # it is not taken for markup
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    with console.capture() as capture:
        console.print(report(EVIL))
    assert "\x1b[2J" not in capture.get()


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_well_formed_and_escaped() -> None:
    page = report(EVIL)._repr_html_()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "&lt;script&gt;" in page
    for word in ("✗ fail", "? unknown", "✓ pass", "MOUNTPOINT", '# </span><span class="gpuload-copy">mend'):
        assert word in page


# ---------------------------------------------------------------------------------------- bug reports


def test_what_names_a_person_or_a_host_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(socket, "gethostname", lambda: "node7.cluster.example")
    monkeypatch.setenv("HOME", "/users/alice")
    text = (
        "/home/bob/x /users/alice/data.zarr /users/alices /mnt/alice/y 'alice' node7 node7.cluster.example /data/home/z"
    )
    assert bug.private(text) == "~/x ~/data.zarr /users/alices /mnt/USER/y 'USER' HOST HOST /data/home/z"


def test_a_user_without_a_name_and_short_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr(socket, "gethostname", lambda: "vm")
    monkeypatch.setenv("HOME", "/")
    assert bug.private("vm /x") == "vm /x"


def test_variables_that_matter_and_no_secrets() -> None:
    environment = {
        "GPULOAD_BACKEND": "posix",
        "HIPFILE_ALLOW_COMPAT_MODE": "true",
        "CUDA_VISIBLE_DEVICES": "0",
        "LD_LIBRARY_PATH": "/opt/rocm/lib",
        "GPULOAD_TOKEN": "x",
        "AMD_API_KEY": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "SHELL": "/bin/sh",
    }
    assert [name for name, _ in bug.variables(environment)] == [
        "CUDA_VISIBLE_DEVICES",
        "GPULOAD_BACKEND",
        "HIPFILE_ALLOW_COMPAT_MODE",
        "LD_LIBRARY_PATH",
    ]


def test_a_bug_report_has_versions_variables_and_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOAD_BACKEND", f"{os.path.expanduser('~')}/odd")
    text = bug.bug_report(report())
    for words in ("gpuload 0.", "zarr 3.", "- `GPULOAD_BACKEND=~/odd`", "✗ fail", "mend value", "```text"):
        assert words in text
