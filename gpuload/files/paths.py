"""From how a user names a store, a path or a ``file://`` URL, to a path of this machine."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from gpuload.errors import NotLocalError

INSTEAD = "copy it to a local disk, or read it with zarr-python"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)")


def path_of(x: str | os.PathLike[str]) -> str:
    """The path, with ``~`` as the home directory.

    Raises
    ------
    NotLocalError
        A URL of something else than local files.
    TypeError
        Neither text nor a path.
    """
    path = os.fsdecode(x)
    if not isinstance(x, str) or not _URL.match(x):
        return os.path.expanduser(path)
    parts = urlsplit(path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise NotLocalError(f"{path!r} is not a local path: only paths and file:// URLs are; {INSTEAD}")
    return unquote(parts.path)


def place_of(x: str | os.PathLike[str]) -> str:
    """Where a store is to be made: absolute, and behind any links, so that what they name is replaced, not they.

    Raises
    ------
    NotLocalError, TypeError
        As `path_of` does.
    """
    return os.path.realpath(path_of(x))
