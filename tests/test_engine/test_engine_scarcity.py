"""Too little memory, too few threads, a caller that would wait for itself: served all the same, or refused by name."""

from __future__ import annotations

import errno
import logging
import threading
from typing import Any

import numpy as np
import pytest

from gpuload import config, events
from gpuload.engine import transfer
from gpuload.errors import TransportError
from gpuload.memory import slabs

DATA = np.arange(2_000_000, dtype="<i4")


def test_slabs_that_cannot_be_had_are_done_without(
    stored: Any, backend: str, fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = slabs.syscalls.map_anonymous

    def map_once(nbytes: int) -> Any:
        if made:
            raise OSError(errno.ENOMEM, "no memory, on purpose")
        made.append(real(nbytes))
        return made[0]

    monkeypatch.setattr(slabs.syscalls, "map_anonymous", map_once)
    array = stored(DATA, (250_000,))
    with config.set({"slab.size": 4 << 20, "batch_bytes": 3 << 20}):
        assert np.array_equal(array.read(), DATA)
        assert len(transfer.io_thread().pool.slabs) == 1


def test_no_slab_at_all_is_a_memory_error(
    stored: Any, backend: str, fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(nbytes: int) -> Any:
        raise OSError(errno.ENOMEM, "no memory, on purpose")

    array = stored(DATA[:40], (10,))
    with monkeypatch.context() as patch:
        patch.setattr(slabs.syscalls, "map_anonymous", fail)
        with pytest.raises(MemoryError, match="bytes of host memory"):
            array.read()
    array.check()


def test_fewer_threads_than_asked_for(stored: Any, fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("gpuload-posix"):
            if started:
                raise RuntimeError("can't start new thread")
            started.append(self)
        real(self)

    array = stored(DATA, (50_000,))
    with config.set({"backend": "posix", "posix.threads": 8}):
        monkeypatch.setattr(threading.Thread, "start", start)
        assert np.array_equal(array.read(), DATA)
    assert len(started) == 1


def test_a_subscriber_that_reads_is_refused_and_never_waits(
    stored: Any, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    array = stored(DATA[:40], (10,))
    array.read()
    refused = []

    def read(event: Any) -> None:
        with pytest.raises(TransportError, match="subscriber") as failure:
            array.read()
        refused.append(failure)

    end = events.subscribe(read)
    try:
        with caplog.at_level(logging.ERROR):
            array.check()
    finally:
        end()
    assert refused
    assert not caplog.records
