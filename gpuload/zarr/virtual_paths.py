"""From the paths in references to files below directories that references may lead to."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gpuload.errors import EscapesStoreError, NotZarrError
from gpuload.files.paths import path_of
from gpuload.zarr.virtual_refs import LONGEST

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)")


class AllowedRoots:
    """Directories that references may lead to; everything else is refused.

    What a path looks like is decided here. That nothing below a root leads out of it again, by a link, the kernel
    sees to when a file is opened (`files.root.Root`).

    Parameters
    ----------
    directory
        Where the references are: relative paths start there.
    roots
        All that is allowed.
    """

    def __init__(self, directory: str, roots: Sequence[str]) -> None:
        self._directory = directory
        self.roots = tuple(roots)
        # A root may be, or go through, a link, and paths may name it either way.
        spellings = [(name, i) for i, root in enumerate(roots) for name in (root, os.path.realpath(root))]
        self._prefixes = [(name.rstrip("/") + "/", i) for name, i in dict(spellings).items()]

    def find(self, path: str) -> tuple[int, str]:
        """The root that `path` is in, by number, and the key of the file below it.

        Raises
        ------
        NotLocalError
            A URL of something else than local files.
        EscapesStoreError
            It is in none of the roots.
        """
        local = path_of(path) if _URL.match(path) else path
        absolute = self._absolute(path, local)
        for prefix, number in self._prefixes:
            if absolute.startswith(prefix) and len(absolute) > len(prefix):
                return number, absolute[len(prefix) :]
        raise EscapesStoreError(
            f"refers to {path!r}, outside of {', '.join(map(repr, self.roots))}; to allow its directory, name it in "
            "roots=[...], or in the configuration's references.roots"
        )

    def _absolute(self, path: str, local: str) -> str:
        """Without ``.`` and ``..``: these may lead up from where the references are, but not out of a named directory.

        That would mean another file where one of those directories is a link.
        """
        if not local or "\0" in local or len(local) > LONGEST:
            raise NotZarrError(f"refers to {path[:100]!r}, which is no path")
        try:
            os.fsencode(local)
        except UnicodeEncodeError as error:
            raise NotZarrError(f"refers to {path!r}, which is no path: {error}") from error
        names = [name for name in local.split("/") if name not in ("", ".")]
        directory = "/"
        if not local.startswith("/"):
            up = 0
            while up < len(names) and names[up] == "..":
                up += 1
            names = names[up:]
            directory = self._directory
            if up:
                above = os.path.realpath(directory).split("/")
                directory = "/".join(above[: max(1, len(above) - up)])
        if ".." in names:
            raise EscapesStoreError(f"refers to {path!r}: '..' is refused behind the name of a directory")
        return f"{directory.rstrip('/')}/{'/'.join(names)}"
