"""Imports point down only, and the drawing of the layers is the contract that is checked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LINT_IMPORTS, "--no-cache"], cwd=folder, capture_output=True, text=True)


def test_the_contracts_are_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("planning/upwards.py", "from gpuload.engine import plan"),
        ("files/sideways.py", "from gpuload.memory import device"),
        ("record/stranger.py", "import zarr"),
        ("engine/foreign.py", "import zarr"),
        ("stray/__init__.py", ""),
    ],
)
def test_what_breaks_them_is_noticed(tmp_path: Path, module: str, line: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "gpuload", tmp_path / "gpuload", ignore=shutil.ignore_patterns("__pycache__"))
    broken = tmp_path / "gpuload" / module
    broken.parent.mkdir(exist_ok=True)
    broken.write_text(line + "\n")
    done = lint(tmp_path)
    assert done.returncode != 0, done.stdout
    assert module.partition("/")[0] in done.stdout + done.stderr


def names(line: str) -> set[str]:
    return set(re.findall(r"[a-z]+", line))


def test_the_drawing_is_the_contract() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contract = tomllib.load(file)["tool"]["importlinter"]["contracts"][0]
    text = (ROOT / "docs/explanation/layers.md").read_text()
    drawing = text.partition("```text\n")[2].partition("```")[0].splitlines()
    drawn = [names(re.split(r"\s{3,}", line)[0]) for line in drawing]
    assert drawn == [names(layer) for layer in contract["layers"]]


def test_every_package_has_its_line_in_the_table() -> None:
    text = (ROOT / "docs/explanation/layers.md").read_text()
    table = {
        name for row in text.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    entries = {p.stem for p in (ROOT / "gpuload").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert table == entries - {"__init__", "__main__"}
