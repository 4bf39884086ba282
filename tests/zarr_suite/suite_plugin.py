"""A pytest plugin that has zarr-python's own tests run on gpuload's store and pipeline.

In the modules of the suite `LocalStore` becomes `DeviceStore`, and `MemoryStore` a `DeviceStore` in a folder of its
own, so that arrays that were written to memory are files for gpuload to read. Tests in `excluded.txt` are deselected.
At the end the session fails unless gpuload's pipeline read chunks.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

import gpuload
from gpuload.zarr import DevicePipeline, DeviceStore, pipeline_counts

EXCLUDED = Path(__file__).with_name("excluded.txt")

_number = itertools.count()
_folder = tempfile.mkdtemp(prefix="gpuload-zarr-suite-")


class FolderStore(DeviceStore):
    """Takes what a MemoryStore takes, but a folder holds it."""

    def __init__(self, store_dict: dict[str, Any] | None = None, *, read_only: bool = False, root: Any = None) -> None:
        if root is None:
            root = os.path.join(_folder, str(next(_number)))
            os.mkdir(root)
        super().__init__(root, read_only=read_only)
        for key, value in (store_dict or {}).items():
            path = self.root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value.to_bytes())

    @classmethod
    async def open(cls, *args: Any, **options: Any) -> Self:  # LocalStore's wants a root
        store = cls(*args, **options)
        await store._open()
        return store

    def with_read_only(self, read_only: bool = False) -> Self:
        return type(self)(read_only=read_only, root=self.root)


REPLACED = {LocalStore: DeviceStore, MemoryStore: FolderStore}


def exclusions() -> list[str]:
    """Patterns of node ids that hold for this generation of zarr-python."""
    patterns = []
    for line in EXCLUDED.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            versions, pattern, reason = (part.strip() for part in line.split("|"))
            assert reason, line
            if versions == "all" or zarr.__version__.startswith(versions):
                patterns.append(pattern)
    return patterns


def pytest_configure(config: pytest.Config) -> None:
    gpuload.config.set(poison=True)
    assert zarr.registry.get_pipeline_class() is DevicePipeline


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    patterns = exclusions()
    chosen, excluded, used = [], [], set()
    for item in items:
        matching = [pattern for pattern in patterns if fnmatchcase(item.nodeid, pattern.replace("[", "[[]"))]
        used.update(matching)
        (excluded if matching else chosen).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=excluded)
    config.stash[_unused] = [pattern for pattern in patterns if pattern not in used]
    modules = [module for name, module in sys.modules.items() if name.split(".")[-1] == "conftest"]
    modules += {item.module for item in items if isinstance(item, pytest.Function)}
    for module in modules:
        for name, value in list(vars(module).items()):
            if value in REPLACED if isinstance(value, type) else False:
                setattr(module, name, REPLACED[value])
    for item in items:
        kind = getattr(item, "cls", None)
        if kind is not None and getattr(kind, "store_cls", None) is LocalStore:
            kind.store_cls = DeviceStore


_unused = pytest.StashKey[list[str]]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    shutil.rmtree(_folder, ignore_errors=True)
    counts = pipeline_counts()
    if not counts.get(("read", "gpuload")) and not session.config.option.collectonly:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    terminalreporter.section(f"zarr {zarr.__version__} on gpuload")
    for (what, who), chunks in sorted(pipeline_counts().items()):
        terminalreporter.line(f"{what} by {who}: {chunks} chunks")
    for pattern in config.stash.get(_unused, []):
        terminalreporter.line(f"in excluded.txt but not in this run: {pattern}")
