"""The files in which the kernel and the system tell of themselves, read so that nothing missing is an error.

A value without state. Tests give it a root of their own.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """The system's files below `root`; all paths are absolute, as on the system itself."""

    root: str = ""

    def text(self, path: str) -> str | None:
        """What a file holds, or None where it cannot be read."""
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "replace").strip("\0\n ")

    def data(self, path: str) -> bytes | None:
        """The bytes of a file, unpacked where its name ends in ``.gz``, or None where it cannot be read."""
        try:
            with open(self.root + path, "rb") as file:
                data = file.read()
            return gzip.decompress(data) if path.endswith(".gz") else data
        except (OSError, EOFError):
            return None

    def names(self, path: str) -> list[str]:
        """What a directory holds, sorted; nothing where it cannot be read."""
        try:
            return sorted(os.listdir(self.root + path))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.root + path)

    def allowed(self, path: str) -> bool:
        """Whether this process may read and write the file."""
        return os.access(self.root + path, os.R_OK | os.W_OK)

    @property
    def sys(self) -> str:
        return f"{self.root}/sys"

    @property
    def proc(self) -> str:
        return f"{self.root}/proc"
