"""What a process has one of: made by whoever asks first, while others who ask at once wait.

`functools` holds no lock while it makes something: threads of a cold process would have one each.

Threads: safe. Fork: the child makes its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801 - it is a decorator
    """Decorator: a function without arguments is called once a process, whoever calls it.

    Where it raises an error nothing was made, and the next caller tries again.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self.__doc__ = make.__doc__
        self._make = make
        self._made: list[T] = []
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._in_child)

    def __call__(self) -> T:
        made = self._made
        if not made:
            with self._lock:
                made = self._made
                if not made:
                    made.append(self._make())
        return made[0]

    def forget(self) -> None:
        """Let the next caller make another."""
        with self._lock:
            self._made = []

    def _in_child(self) -> None:
        self._made, self._lock = [], threading.RLock()  # another thread of the parent may have held it
