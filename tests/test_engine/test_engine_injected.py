"""Faults put in on the way: short reads, interruptions, errors of the kernel, of the copy and of the I/O thread."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gpuload import config
from gpuload.backends import posix, registry
from gpuload.bindings import uring_abi as abi
from gpuload.bindings.vectors import IOVEC
from gpuload.engine import reader, transfer
from gpuload.engine.job import Job
from gpuload.engine.scatter import HostSink
from gpuload.errors import ChunkReadError, TransportError

READS = (abi.OP_READ, abi.OP_READ_FIXED, abi.OP_READV)


class Fault:
    """Makes the backend's reads (and the ring's opens) come short or fail; what failed leaves rubbish in memory."""

    def __init__(self, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend, self.monkeypatch = backend, monkeypatch
        self.injected: Counter[str] = Counter()
        self.shorten: Callable[[int], int] = lambda nbytes: nbytes
        self.fail_read: Callable[[int], int] = lambda number: 0  # from the number of the read to an errno
        self.fail_open: Callable[[int], int] = lambda number: 0
        self._reads = self._opens = self.vectored = 0
        self._where: dict[int, tuple[int, np.ndarray]] = {}
        if backend == "io_uring":
            with config.set(backend=backend):
                transfer.io_thread().prepare(backend, reader.HOST)
            serving: Any = transfer.io_thread()._backends[backend]
            if config.get("uring.mode") == "polled":
                assert transfer.io_thread().call(serving.polled.ready)
            for ring in [serving.ring, *(serving.polled.pollers.rings if serving.polled.pollers else [])]:
                self._come_between(ring)
        else:
            self._preadv = os.preadv
            monkeypatch.setattr(os, "preadv", self._posix_preadv)
            self._preadv_by_table = posix.preadv
            monkeypatch.setattr(posix, "preadv", self._posix_preadv_by_table)

    def _come_between(self, ring: Any) -> None:
        put, reap = ring.put, ring.reap
        self.monkeypatch.setattr(ring, "put", lambda rows: put(self._altered(rows)))
        self.monkeypatch.setattr(ring, "reap", lambda: self._failed(reap()))

    def _code(self, kind: str) -> int:
        if kind == "read":
            self._reads += 1
            code = self.fail_read(self._reads)
        else:
            self._opens += 1
            code = self.fail_open(self._opens)
        if code:
            self.injected[errno.errorcode[code]] += 1
        return code

    def _altered(self, rows: Any) -> Any:
        rows = rows.copy()
        for row in rows:
            places = np.zeros(0, IOVEC)
            if row["opcode"] == abi.OP_READV:
                self.vectored += 1
                places = self._shortened(_table(int(row["addr"]), int(row["len"])))
                row["addr"], row["len"] = places.ctypes.data, len(places)
            elif row["opcode"] in READS:
                places = self._shortened(np.array([(row["addr"], row["len"])], IOVEC))
                row["len"] = places["length"][0]
            self._where[int(row["user_data"])] = (int(row["opcode"]), places)
        return rows

    def _shortened(self, places: np.ndarray) -> np.ndarray:
        """A table of the first of the bytes that a table is for, as many as `shorten` says."""
        asked = int(places["length"].sum())
        nbytes = self.shorten(asked)
        self.injected["short"] += nbytes < asked
        places = places.copy()
        ends = np.cumsum(places["length"].astype(np.int64))
        places["length"] = np.clip(places["length"].astype(np.int64) - (ends - nbytes), 0, places["length"])
        return places

    def _failed(self, done: Any) -> Any:
        for completion in done:
            opcode, places = self._where[int(completion["user_data"])]
            code = 0
            if completion["res"] == -errno.ECANCELED:
                continue  # it never started: the open before it failed
            if opcode in READS:
                code = self._code("read")
                if code:
                    _spoil(places)
            elif opcode == abi.OP_OPENAT2:
                code = self._code("open")
            if code:
                completion["res"] = -code
        return done

    def _posix_preadv(self, fd: int, buffers: Any, offset: int) -> int:
        code = self._code("read")
        if code:
            buffers[0][:] = b"\x5a" * len(buffers[0])
            raise OSError(code, os.strerror(code))
        asked = len(buffers[0])
        nbytes = self.shorten(asked)
        self.injected["short"] += nbytes < asked
        return self._preadv(fd, [buffers[0][:nbytes]], offset)

    def _posix_preadv_by_table(self, fd: int, table: int, count: int, offset: int) -> int:
        self.vectored += 1
        places = _table(table, count)
        code = self._code("read")
        if code:
            _spoil(places)
            raise OSError(code, os.strerror(code))
        places = self._shortened(places)
        return self._preadv_by_table(fd, places.ctypes.data, count, offset)


def _table(address: int, count: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * (count * IOVEC.itemsize)).from_address(address), IOVEC)


def _spoil(places: np.ndarray) -> None:
    """Leave rubbish where a read that failed may have; the last byte asked for may be the next chunk's first."""
    for base, length in places.tolist():
        ctypes.memset(base, 0x5A, max(0, length - 1))


@pytest.fixture(params=["io_uring", "io_uring, polled", "posix"])
def backend(request: pytest.FixtureRequest, fresh: Any) -> Iterator[str]:
    """Each fallback backend in turn, the ring also with threads of its own."""
    name, _, mode = request.param.partition(", ")
    state = registry.available(name)
    if state.reason is not None:
        pytest.skip(f"{name} is not available here: {state.reason} {state.detail}")
    with config.set({"backend": name, "uring.mode": mode or "auto", "uring.pollers": 2 if mode else None}):
        yield name


@pytest.fixture
def fault(backend: str, monkeypatch: pytest.MonkeyPatch, fresh: Any) -> Fault:
    return Fault(backend, monkeypatch)


@pytest.fixture
def ring_fault(monkeypatch: pytest.MonkeyPatch, fresh: Any) -> Iterator[Fault]:
    """What can happen in the ring only: Python repeats interrupted calls, and posix opens by the store's root."""
    with config.set(backend="io_uring"):
        yield Fault("io_uring", monkeypatch)


@pytest.fixture(params=["raw", "zlib", "shard", "zshard", "raw, straight", "shard, straight"])
def array(stored: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    data = np.random.default_rng(8).integers(0, 1 << 60, (6, 9000), np.int64)
    kind, _, straight = request.param.partition(", ")
    with config.set({"direct.host": "always" if straight else "never"}):
        yield stored(data, (1, 5000), kind=kind, missing=(5,))


def test_short_reads_go_on_where_they_stopped(array: Any, fault: Fault, served: Any, totals: Any) -> None:
    random = np.random.default_rng(2)
    fault.shorten = lambda nbytes: int(random.integers(1, nbytes + 1)) if nbytes > 500 else nbytes
    array.check()
    array.check(np.s_[::-1, 77:8000:3])
    assert fault.injected["short"] > 10
    assert bool(fault.vectored) == (config.get("direct.host") == "always")
    assert totals(served)["size"] <= totals(served)["moved"]


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN, errno.ECANCELED])
def test_interrupted_reads_are_tried_again(code: int, array: Any, ring_fault: Fault) -> None:
    ring_fault.fail_read = lambda number: code if number % 3 else 0
    array.check()
    array.check(np.s_[2:4, 4000:6000])
    assert ring_fault.injected[errno.errorcode[code]] > 10


def test_short_and_interrupted_together(array: Any, fault: Fault) -> None:
    random = np.random.default_rng(2)
    fault.shorten = lambda nbytes: int(random.integers(1, nbytes + 1)) if nbytes > 5000 else nbytes
    if fault.backend == "io_uring":
        fault.fail_read = lambda number: errno.EINTR if number % 2 else 0
    array.check()
    assert fault.injected["short"] > 5


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
def test_interrupted_opens_are_tried_again(code: int, stored: Any, ring_fault: Fault) -> None:
    array = stored(np.arange(50), (1,), missing=(3, 7))
    ring_fault.fail_open = lambda number: code if number % 4 == 1 else 0
    array.check()
    assert ring_fault.injected[errno.errorcode[code]] > 10


@pytest.mark.parametrize("number", [1, 4, 9])
def test_an_error_of_the_kernel_names_the_chunk(array: Any, fault: Fault, number: int, lent_bytes: Any) -> None:
    for _ in range(2):
        fault._reads = 0
        fault.fail_read = lambda n: errno.EIO if n == number else 0
        with pytest.raises(ChunkReadError, match="Input/output error") as raised:
            array.read()
        assert raised.value.errno == errno.EIO
        assert raised.value.key in array.keys
        assert lent_bytes() == 0
        fault.fail_read = lambda n: 0
        array.check()
    assert fault.injected["EIO"] == 2


def test_an_error_of_an_open_names_the_chunk(stored: Any, ring_fault: Fault, lent_bytes: Any) -> None:
    array = stored(np.arange(50), (1,), missing=(3, 7))
    ring_fault.fail_open = lambda number: errno.ENFILE if number == 20 else 0
    with pytest.raises(ChunkReadError, match="Too many open files in system") as raised:
        array.read()
    assert raised.value.errno == errno.ENFILE
    assert lent_bytes() == 0
    ring_fault.fail_open = lambda number: 0
    array.check()


def test_an_open_that_never_succeeds_is_an_error(stored: Any, ring_fault: Fault) -> None:
    array = stored(np.arange(5), (1,))
    ring_fault.fail_open = lambda number: errno.EAGAIN
    with pytest.raises(ChunkReadError, match="Resource temporarily unavailable"):
        array.read()


@pytest.mark.parametrize("number", [0, 1, 3])
def test_an_error_of_the_copy(
    number: int, array: Any, backend: str, monkeypatch: pytest.MonkeyPatch, lent_bytes: Any, fresh: Any
) -> None:
    calls = []
    original = HostSink.place

    def place(self: HostSink, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == number + 1:
            raise MemoryError("no room to copy")
        return original(self, *arguments)

    with config.set({"batch_bytes": 64 << 10}):
        array.check()
        with monkeypatch.context() as patch:
            patch.setattr(HostSink, "place", place)
            with pytest.raises(MemoryError, match="no room to copy"):
                array.read()
        assert lent_bytes() == 0
        array.check()


def test_an_error_of_a_decoder_in_many_threads(stored: Any, backend: str, lent_bytes: Any) -> None:
    data = np.random.default_rng(8).integers(0, 1 << 60, (20, 9000), np.int64)
    array = stored(data, (1, 9000), kind="zlib")
    array.path(13, 0).write_bytes(b"rubbish")
    for _ in range(3):
        with pytest.raises(Exception, match=r"c/13/0.*cannot be decoded"):
            array.read()
        assert lent_bytes() == 0
    array.check(np.s_[:13])


@pytest.mark.parametrize("where", ["advance", "begin"])
def test_an_error_in_the_io_thread_reaches_every_caller(
    where: str, stored: Any, backend: str, monkeypatch: pytest.MonkeyPatch, caplog: Any, fresh: Any, lent_bytes: Any
) -> None:
    array = stored(np.arange(4000), (10,))
    array.check()
    io = transfer.io_thread()
    failing = io._backends[backend]
    waiting = threading.Barrier(5)

    def fail(*arguments: Any) -> Any:
        raise RuntimeError("the I/O thread is broken on purpose")

    def call() -> None:
        waiting.wait()
        try:
            array.read()
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    errors: list[BaseException] = []
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    io.call(lambda: setattr(failing, where, fail))
    waiting.wait()
    for thread in threads:
        thread.join()
    # One that came late enough was served by the next thread.
    assert 1 <= len(errors) <= 4
    for error in errors:
        assert isinstance(error, TransportError)
        assert "broken on purpose" in str(error)
        assert isinstance(error.__cause__, RuntimeError)
    array.check()
    assert transfer.io_thread() is not io
    assert not io.thread.is_alive()
    assert lent_bytes() == 0
    assert "the I/O thread failed" in caplog.text


def test_an_error_at_the_end_of_a_job_reaches_its_caller(
    stored: Any, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuload.engine.ledger import Ledger

    def fail(self: Ledger) -> None:
        raise ValueError("the record is broken on purpose")

    array = stored(np.arange(40), (10,))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "close", fail)
        with pytest.raises(ValueError, match="broken on purpose"):
            array.read()
    array.check()


def test_a_call_that_fails_on_the_io_thread_fails_for_its_caller_only(fresh: Any) -> None:
    io = transfer.io_thread()
    with pytest.raises(ZeroDivisionError):
        io.call(lambda: 1 // 0)
    assert io.call(threading.current_thread) is io.thread


def test_a_stopped_thread_refuses_and_the_next_read_starts_another(stored: Any, backend: str) -> None:
    array = stored(np.arange(40), (10,))
    array.check()
    io = transfer.io_thread()
    transfer.stop()
    transfer.stop()
    assert not io.thread.is_alive()
    with pytest.raises(TransportError, match="it was stopped"):
        io.call(lambda: None)
    request, _ = array.request()
    plan = reader.Plan(request, batch_bytes=1 << 20, piece_bytes=1 << 20, max_files=4)
    job = Job(plan, reader.registry.choose(backend), HostSink(plan))
    with pytest.raises(TransportError, match="it was stopped"):
        reader._run(io, job)
    array.check()
