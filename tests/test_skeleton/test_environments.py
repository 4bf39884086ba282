"""pyproject.toml, environment.yml and the README name the same requirements."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
GPU_EXTRAS = {"rocm", "cuda13", "cuda12"}
CONDA_NAMES = {"dask": "dask-core"}  # `dask` of conda-forge brings bokeh and distributed as well

with (ROOT / "pyproject.toml").open("rb") as _file:
    PROJECT: dict[str, Any] = tomllib.load(_file)["project"]


def requirements(lines: list[str]) -> dict[str, str]:
    """Name -> version range, of requirements as pip writes them."""
    parsed = [Requirement(line) for line in lines]
    return {requirement.name: str(requirement.specifier) for requirement in parsed}


def environment() -> tuple[dict[str, str], list[str]]:
    """The conda part as name -> version range, and the lines of the pip part."""
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert content["channels"] == ["conda-forge"]
    conda = [line for line in content["dependencies"] if isinstance(line, str)]
    (pip,) = [line["pip"] for line in content["dependencies"] if isinstance(line, dict)]
    return requirements(conda), pip


def test_conda_and_pip_bring_what_the_package_and_its_extras_need() -> None:
    conda, pip = environment()
    assert pip[-1] == "--editable ."
    wanted = requirements(PROJECT["dependencies"])
    for extra, lines in PROJECT["optional-dependencies"].items():
        if extra not in GPU_EXTRAS | {"all"}:
            wanted |= requirements(lines)
    wanted = {CONDA_NAMES.get(name, name): version for name, version in wanted.items()}
    brought = conda | requirements(pip[:-1])
    tools = {"python": PROJECT["requires-python"], "pip": ">=25.1"}
    assert brought == wanted | tools


def test_all_is_every_extra_but_the_gpu_stacks() -> None:
    extras = PROJECT["optional-dependencies"]
    (all_of_them,) = extras["all"]
    assert Requirement(all_of_them).extras == set(extras) - GPU_EXTRAS - {"all"}


@pytest.mark.parametrize("document", ["README.md", "environment.yml"])
def test_each_gpu_stack_is_one_documented_line(document: str) -> None:
    text = (ROOT / document).read_text()
    for extra in GPU_EXTRAS - {"cuda12"}:
        assert f"python -m pip install -e '.[{extra}]'" in text
    assert "cuda12" in text


def test_the_readme_names_the_oldest_python() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    text = (ROOT / "README.md").read_text()
    assert f"Python >= {oldest}" in text
    assert f"Programming Language :: Python :: {oldest}" in PROJECT["classifiers"]
