"""`Listing`: what is below a prefix, of keys that do not change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence


class Listing:
    """Keys in their order, and the names right below each prefix; both are made when they are first asked for.

    Threads: safe, two that come at once make the same. Fork: a copy. Pickle: none, it is made anew with its store.

    Parameters
    ----------
    keys
        All there are.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = keys
        self._sorted: list[str] | None = None
        self._directories: dict[str, dict[str, None]] | None = None

    def below(self, prefix: str) -> Sequence[str]:
        """The keys that start with `prefix`, in their order."""
        keys = self._sorted
        if keys is None:
            keys = self._sorted = sorted(self._keys)
        first = bisect_left(keys, prefix)
        return keys[first : bisect_left(keys, True, first, key=lambda key: not key.startswith(prefix))]

    def names(self, prefix: str) -> Iterable[str]:
        """The names right below `prefix`."""
        if self._directories is None:
            self._directories = _directories(self._keys)
        return self._directories.get(prefix.strip("/"), ())


def _directories(keys: Iterable[str]) -> dict[str, dict[str, None]]:
    """The names right below each prefix."""
    found: dict[str, dict[str, None]] = {}
    for key in keys:
        rest: str = key
        while rest:
            above, _, name = rest.rpartition("/")
            names = found.get(above)
            if names is None:
                found[above] = {name: None}
            elif name in names:
                break
            else:
                names[name] = None
                break
            rest = above
    return found
