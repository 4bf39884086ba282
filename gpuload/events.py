"""Tells whoever listens what was served; the one who serves does not know who listens.

Threads: `publish` may be called from any thread and calls each subscriber on that thread. Fork: the child keeps the
subscribers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuload.request import Filled, Served, Written

Event = Served | Filled | Written
Subscriber = Callable[[Event], None]

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_subscribers: tuple[tuple[Subscriber], ...] = ()
_muted = False


def _unlock_in_child() -> None:
    # The thread that held the lock at the moment of the fork does not exist here.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call `subscriber` with every event from now on; returns the function that ends it (idempotent)."""
    global _subscribers
    subscription = (subscriber,)  # an object of its own: a subscriber may subscribe twice
    with _lock:
        _subscribers = (*_subscribers, subscription)

    def unsubscribe() -> None:
        global _subscribers
        with _lock:
            _subscribers = tuple(s for s in _subscribers if s is not subscription)

    return unsubscribe


def heard() -> bool:
    """Whether anybody listens; if not, whoever serves need not gather what to tell."""
    return bool(_subscribers) and not _muted


@contextmanager
def muted() -> Iterator[None]:
    """Tell nobody in this process what is served meanwhile: for measuring what telling costs. Not to be nested."""
    global _muted
    _muted = True
    try:
        yield
    finally:
        _muted = False


def publish(event: Event) -> None:
    """Hand `event` to every subscriber; a subscriber that raises is logged and never breaks a read."""
    for (subscriber,) in () if _muted else _subscribers:
        try:
            subscriber(event)
        except Exception:
            # Not the event itself: it may name a million files.
            _log.exception("a subscriber to gpuload events failed: %r", subscriber)
