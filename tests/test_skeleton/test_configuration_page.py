"""The page on configuration names each setting, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuload.config import DEFAULTS

PAGE = Path(__file__).parents[2] / "docs/reference/configuration.md"


def leaves(branch: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in branch.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_the_page_names_each_setting_and_no_other() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([a-z_.]+)`", row)]
    assert sorted(named) == sorted(leaves(DEFAULTS))


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    told = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`|none) \|", PAGE.read_text(), re.MULTILINE)
    assert told
    for name, value in told:
        assert str(DEFAULTS[name]).lower() == (value or "none")
