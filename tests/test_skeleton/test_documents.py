"""What the documents say can be followed: their commands, links, code and notebooks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    headings = HEADING.findall(prose(path.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_within_the_repository_lead_somewhere(document: Path) -> None:
    broken = []
    for target in LINK.findall(prose(document.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        if not path.exists() or not path.is_relative_to(ROOT) or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs/index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text()) if ":" not in target}
    assert {page for page in DOCUMENTS if page.is_relative_to(ROOT / "docs")} - {index} <= linked


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_make_targets_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", document.read_text(), re.MULTILINE))
    assert named <= targets


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.search(r"^make demo\b", text, re.MULTILINE)
    assert re.search(r"^make test\b", text, re.MULTILINE)


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: ([a-z-]+)$", makefile, re.MULTILINE))
    done = subprocess.run(["make", "-C", ROOT, "--no-print-directory"], capture_output=True, text=True, check=True)
    assert {line.split()[1] for line in done.stdout.splitlines()} == phony


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    python: Any = lambda *args: subprocess.run(  # noqa: E731
        [sys.executable, *args], cwd=tmp_path, capture_output=True, text=True
    )
    demo = python("-m", "gpuload", "demo", "--dir", "climate")
    assert demo.returncode == 0, demo.stderr
    done = python("-c", "\n".join(blocks))
    assert done.returncode == 0, done.stderr
    assert "(240, 37, 49) float32" in done.stdout
    assert "fallback" in done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_notebooks_are_stored_without_outputs(notebook: Path) -> None:
    stored = json.loads(notebook.read_text())
    assert stored["metadata"]["kernelspec"]["name"] == "python3"
    for cell in stored["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
@pytest.mark.filterwarnings("default")  # of the notebook machinery, not of gpuload: its cells run in another process
def test_notebooks_run_and_end_with_the_report(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A home of its own: no configuration or kernel of the user's takes part.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("GPULOAD_NOTEBOOK_MB", "4")
    import nbformat
    from nbclient import NotebookClient

    content = nbformat.read(notebook, as_version=4)
    NotebookClient(content, timeout=500, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    last = [cell for cell in content.cells if cell.cell_type == "code"][-1]
    assert "gpuload.report()" in last.source
    shown = last.outputs[-1].data
    assert "<table" in shown["text/html"]
    assert "fallback" in shown["text/html"]
