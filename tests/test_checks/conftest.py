"""What the tests of the doctor share: systems made of a few files, and answers nobody had to give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuload.checks.child import Answers
from gpuload.checks.view import View


@pytest.fixture
def system(tmp_path: Path) -> Callable[..., View]:
    """Makes a system of ``{"/proc/config.gz": b"...", "/sys/...": "..."}``; a value of None makes a directory."""

    def make(files: dict[str, str | bytes | None]) -> View:
        root = tmp_path / "system"
        root.mkdir(exist_ok=True)
        for name, content in files.items():
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        return View(str(root))

    return make


@pytest.fixture
def answers() -> Callable[..., Answers]:
    """Answers with these values; every other step was not asked."""
    return lambda **values: Answers(values)
