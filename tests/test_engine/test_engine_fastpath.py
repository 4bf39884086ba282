"""The fastpath on fakes of CuPy, hipFile and cuFile: what goes which way, byte for byte, whatever fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload
from gpuload import config
from gpuload.engine import fastpath, reader
from gpuload.errors import (
    BackendUnavailableError,
    ChunkReadError,
    ChunkSizeError,
    StrictError,
)
from gpuload.request import ReadPath, Reason, Served

Make = Callable[..., Any]
BLOCK = 64
VENDORS = ("hipfile", "cufile")
SELECTIONS: list[Any] = [
    ...,
    (slice(3, 50, 7), slice(None, None, -1)),
    (slice(None, None, -3), 5),
    (slice(10, 40), slice(30, 2, -2)),
    ([29, 0, 7, 0, 13],),
    (7, 9),
]


def random(shape: tuple[int, ...], dtype: str = "<i4") -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind).reshape(shape)


def read(hip: ModuleType, array: Any, selection: Any = ..., out: Any = None, **how: Any) -> Any:
    shape = np.empty(array.shape)[selection].shape
    target = hip.fake.cupy.empty(shape, array.dtype) if out is None else out
    request, _ = array.request(selection, target, **how)
    reader.read(request)
    return target


def right(array: Any, selection: Any = ...) -> bytes:
    return np.asarray(array.full[selection], array.dtype).tobytes()


def ways(served: list[Any]) -> dict[tuple[str, str, str | None], tuple[int, int, int]]:
    """Rows, bytes and moved by path, backend and reason."""
    found: dict[tuple[str, str, str | None], tuple[int, int, int]] = {}
    for event in served:
        if isinstance(event, Served):
            key = (str(event.read_path), event.backend, event.reason and str(event.reason))
            rows, size, moved = found.get(key, (0, 0, 0))
            found[key] = rows + len(event), size + int(event.size.sum()), moved + int(event.moved.sum())
    return found


def by_fastpath(served: list[Any]) -> tuple[int, int, int]:
    (found,) = [row for row in ways(served).items() if row[0][0] == "fastpath"] or [((), (0, 0, 0))]
    return found[1]


def by_fallback(served: list[Any]) -> dict[str | None, int]:
    """Moved bytes of the fallback by reason."""
    found: dict[str | None, int] = {}
    for (path, backend, reason), (_, _, moved) in ways(served).items():
        if path == "fallback" and backend not in VENDORS:
            found[reason] = found.get(reason, 0) + moved
    return found


@pytest.fixture(params=["hipfile-late", "hipfile-eager", "cufile-late"])
def hip(request: pytest.FixtureRequest) -> ModuleType:
    """Either vendor's library, on a GPU that is late with its work or not."""
    vendor, _, pace = request.param.partition("-")
    fake: ModuleType = request.getfixturevalue(f"fake_{vendor}")
    fake.fake.cupy.eager = pace == "eager"
    return fake


@pytest.mark.parametrize("kind", ["raw", "shard"])
@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_equal(hip: ModuleType, stored: Make, served: list[Any], kind: str, selection: Any) -> None:
    array = stored(random((60, 44)), (16, 12), kind=kind, missing=(2, 7))
    assert read(hip, array, selection).get().tobytes() == right(array, selection)
    assert by_fastpath(served)[2] == hip.fake.moved > 0


@settings(max_examples=60)
@given(data=st.data())
def test_random_arrays(fake_hipfile: ModuleType, stored: Make, data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 30)] * 2))
    chunks = data.draw(st.tuples(*[st.integers(1, 17)] * 2))
    selection = tuple(data.draw(st.lists(st.slices(30), max_size=2)))
    kind, order = data.draw(st.sampled_from(["raw", "shard"])), data.draw(st.sampled_from("CF"))
    dtype, swap = data.draw(st.sampled_from([("<i2", 0), ("<f8", 0), (">f4", 4), (">c16", 8)]))
    array = stored(random(shape, dtype), chunks, kind=kind, order=order, missing=(1,), per_shard=4)
    piece_bytes = data.draw(st.sampled_from([16, 100, 1 << 20]))
    with config.set(piece_bytes=piece_bytes):
        out = fake_hipfile.fake.cupy.empty(array.full[selection].shape, np.dtype(dtype).newbyteorder("="))
        read(fake_hipfile, array, selection, out, swap=swap)
        assert out.get().tobytes() == array.full[selection].astype(out.dtype).tobytes()


@pytest.mark.parametrize("layout", ["C", "F", "strided", "shifted"])
def test_into_any_strides(hip: ModuleType, stored: Make, layout: str) -> None:
    array, cupy = stored(random((40, 36)), (8, 16), missing=(1,)), hip.fake.cupy
    out = {
        "C": lambda: cupy.empty((40, 36), array.dtype),
        "F": lambda: cupy.empty((40, 36), array.dtype, "F"),
        "strided": lambda: cupy.empty((80, 72), array.dtype)[::2, ::-2],
        "shifted": lambda: cupy.empty((40, 37), array.dtype)[:, 1:],
    }[layout]()
    assert read(hip, array, ..., out).get().tobytes() == right(array)


def test_aligned_chunks_go_straight_into_the_result(hip: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((64, 32)), (8, 32))
    hip.fake.cupy.log.clear()
    assert read(hip, array).get().tobytes() == right(array)
    assert by_fastpath(served) == (8, array.full.nbytes, array.full.nbytes)
    assert hip.fake.calls["read"] == 8
    assert not {"kernel", "copy"} & {what for _, what in hip.fake.cupy.log}
    assert not hip.fake.buffers


def test_a_result_still_in_use_by_the_gpu_is_not_written_to_yet(fake_vendor: ModuleType, stored: Make) -> None:
    cupy = fake_vendor.fake.cupy
    array = stored(random((64, 32)), (8, 32))
    out = cupy.empty((64, 32), array.dtype)
    out[...] = 7  # on the caller's stream, and late
    assert read(fake_vendor, array, ..., out).get().tobytes() == right(array)


def test_the_end_of_an_odd_file_comes_by_the_fallback(hip: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((333,), "<i2"), (333,))  # 666 bytes: ten blocks and 26 bytes
    assert read(hip, array).get().tobytes() == right(array)
    assert by_fastpath(served) == (1, 640, 640)
    assert by_fallback(served) == {"tail": 26}
    (tail,) = [event for event in served if isinstance(event, Served) and event.reason is Reason.TAIL]
    assert tail.declined == {hip.name: Reason.TAIL}
    assert tail.file_offset.tolist() == [640]


def test_no_block_of_neighbours_is_read_twice(hip: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((40, 50)), (5, 7), kind="shard", per_shard=16)  # 140 bytes each, at odd offsets
    assert read(hip, array).get().tobytes() == right(array)
    blocks = [(inode, block) for inode, start, stop in hip.fake.spans for block in range(start // BLOCK, stop // BLOCK)]
    assert len(blocks) == len(set(blocks))
    files = sum((array.folder / key).stat().st_size for key in array.keys)
    assert by_fastpath(served)[2] > files - 64 * len(array.keys) - BLOCK * len(array.keys)
    assert by_fastpath(served)[0] == len(array.keys)  # one call a shard


def test_many_slots_of_scratch(fake_vendor: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((300, 31)), (7, 5), missing=(3,))
    with config.set({"fastpath.scratch": 4096, "piece_bytes": 64}):
        assert read(fake_vendor, array).get().tobytes() == right(array)
    with config.set({"fastpath.scratch": 1, "fastpath.threads": 1}):
        assert read(fake_vendor, array, (slice(None, None, 3), slice(1, None))).get().tobytes() == right(
            array, (slice(None, None, 3), slice(1, None))
        )


def test_plain_files(hip: ModuleType, tmp_path: Any, served: list[Any]) -> None:
    content = np.random.default_rng(0).integers(0, 256, 5000, np.uint8)
    (tmp_path / "x").write_bytes(content.tobytes())
    out = hip.fake.cupy.empty((6000,), "u1")
    with gpuload.RegisteredFile(tmp_path / "x") as file:
        for offset, size, place in ((0, 5000, 0), (1, 4000, 17), (64, 640, 128), (4990, 10, 5), (77, 3, 0)):
            assert file.read_into(out, offset, size, place) == size
            assert (out.get()[place : place + size] == content[offset : offset + size]).all()
        assert file.handle.descriptors == 2  # its own, and the library's
        assert file.read_into(out, 4900, 500) == 100
    assert not hip.fake.files
    assert by_fastpath(served)[2] == hip.fake.moved


# ---------------------------------------------------------------------- what is declined


@pytest.mark.parametrize(
    ("set_up", "reason"),
    [
        (lambda lib: setattr(lib, "managed", True), Reason.NOT_DEVICE_MEMORY),
        (lambda lib: setattr(lib, "file_system", Reason.FILE_SYSTEM), Reason.FILE_SYSTEM),
        (lambda lib: setattr(lib, "file_system", Reason.BLOCK_LAYER), Reason.BLOCK_LAYER),
    ],
    ids=["managed", "file system", "block layer"],
)
def test_a_condition_that_fails_is_named(
    fake_vendor: ModuleType, stored: Make, served: list[Any], set_up: Any, reason: Reason
) -> None:
    array = stored(random((60, 44)), (16, 12))
    set_up(fake_vendor.fake)
    assert read(fake_vendor, array).get().tobytes() == right(array)
    assert set(by_fallback(served)) == {str(reason)}
    assert all(event.declined[fake_vendor.name] is reason for event in served)
    assert not fake_vendor.fake.calls["read"]
    assert not fake_vendor.fake.uses  # the driver is opened for eligible files only
    assert fake_vendor.allow not in os.environ
    with config.set(strict=True), pytest.raises(StrictError, match=str(reason)):
        read(fake_vendor, array)


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.EINVAL, Reason.ODIRECT_REFUSED), (errno.EMFILE, Reason.FD_LIMIT)]
)
def test_no_unbuffered_descriptor(
    fake_vendor: ModuleType,
    stored: Make,
    served: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    reason: Reason,
) -> None:
    from gpuload.backends import vendor

    def refuse(fd: int, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(vendor, "reopen_unbuffered", refuse)
    array = stored(random((60, 44)), (16, 12))
    assert read(fake_vendor, array).get().tobytes() == right(array)
    assert set(by_fallback(served)) == {str(reason)}


def test_another_backend_was_asked_for(fake_vendor: ModuleType, stored: Make, served: list[Any], backend: str) -> None:
    array = stored(random((60, 44)), (16, 12))
    assert read(fake_vendor, array).get().tobytes() == right(array)
    assert {event.backend for event in served} == {backend}
    assert {(event.reason, event.declined[fake_vendor.name]) for event in served} == {(Reason.FORCED_OFF,) * 2}


def test_the_fastpath_was_asked_for(
    fake_vendor: ModuleType, stored: Make, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuload.backends import registry
    from gpuload.bindings import runtime

    array = stored(random((60, 44)), (16, 12))
    with config.set(backend=fake_vendor.name):
        read(fake_vendor, array)
        assert by_fastpath(served)[2] > 0
        monkeypatch.setattr(runtime, "has_call", lambda name: False)
        monkeypatch.setenv("CUFILE_FORCE_COMPAT_MODE", "true")
        registry.forget()
        with pytest.raises(BackendUnavailableError, match=r"no-driver|forced-off"):
            read(fake_vendor, array)


def test_encoded_chunks_are_for_the_host(fake_vendor: ModuleType, stored: Make, served: list[Any]) -> None:
    from dataclasses import replace

    array = stored(random((60, 44)), (16, 12), kind="zlib")
    out = fake_vendor.fake.cupy.empty((60, 44), array.dtype)
    reader.read(replace(array.request(..., out)[0], reason=Reason.HOST_CODEC))
    assert out.get().tobytes() == right(array)
    assert set(by_fallback(served)) == {"host-codec"}
    assert all(event.declined[fake_vendor.name] is Reason.HOST_CODEC for event in served)


# ---------------------------------------------------------------------- certainty


def test_the_detour_is_off_from_the_first_eligible_file_on(fake_vendor: ModuleType, stored: Make) -> None:
    seen: list[str | None] = []
    open_driver = fake_vendor.fake.open_driver
    fake_vendor.fake.open_driver = lambda: (seen.append(os.environ.get(fake_vendor.allow)), open_driver())
    array = stored(random((60, 44)), (16, 12))
    assert fake_vendor.allow not in os.environ
    read(fake_vendor, array)
    read(fake_vendor, array)
    assert seen == ["false"]


@pytest.mark.parametrize("who", ["opened before", "switch on", "switch odd"])
def test_what_cannot_be_known_is_unverified(
    fake_vendor: ModuleType, stored: Make, served: list[Any], monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    if who == "opened before":
        fake_vendor.fake.uses = 1
    else:
        monkeypatch.setenv(fake_vendor.allow, "true" if who == "switch on" else "maybe")
    array = stored(random((60, 44)), (16, 12))
    assert read(fake_vendor, array).get().tobytes() == right(array)
    assert by_fastpath(served) == (0, 0, 0)
    assert ways(served)["fallback", fake_vendor.name, "unverified"][2] == fake_vendor.fake.moved
    with config.set(strict=True), pytest.raises(StrictError, match="unverified"):
        read(fake_vendor, array)
    fastpath.stop()
    fake_vendor.fake.uses = 0


def test_the_switch_of_the_user_counts_where_it_is_the_same(
    fake_vendor: ModuleType, stored: Make, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fake_vendor.allow, "FALSE")
    read(fake_vendor, stored(random((60, 44)), (16, 12)))
    assert by_fastpath(served)[2] > 0


def test_strict_takes_tails_but_no_file_that_is_all_tail(
    fake_vendor: ModuleType, stored: Make, served: list[Any]
) -> None:
    with config.set(strict=True):
        array = stored(random((333,), "<i2"), (333,))
        assert read(fake_vendor, array).get().tobytes() == right(array)
        assert by_fallback(served) == {"tail": 26}
        with pytest.raises(StrictError, match="tail"):
            read(fake_vendor, stored(random((30,), "i1"), (30,)))


# ---------------------------------------------------------------------- what fails


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EREMOTEIO])
@pytest.mark.parametrize("kind", ["raw", "shard"])
def test_no_route_to_the_drive_is_tried_again_by_the_fallback(
    hip: ModuleType, stored: Make, served: list[Any], kind: str, number: int
) -> None:
    array = stored(random((64, 64)), (16, 16), kind=kind)
    hip.fake.faults["read"] = hip.at(2, hip.error(number))
    assert read(hip, array).get().tobytes() == right(array)
    assert by_fastpath(served)[2] == hip.fake.moved
    assert by_fallback(served)["p2p-route"] >= 16 * 64
    hip.fake.faults["read"] = hip.always(hip.error(number))
    with config.set(strict=True), pytest.raises(StrictError, match="p2p-route"):
        read(hip, array)


def test_a_drive_without_a_route_is_asked_once_a_gpu(fake_vendor: ModuleType, stored: Make, served: list[Any]) -> None:
    array, fake = stored(random((64, 64)), (16, 16)), fake_vendor.fake
    fake.faults["read"] = fake_vendor.always(fake_vendor.error(errno.ENODEV))
    with config.set({"fastpath.threads": 1}):
        for _ in range(3):
            assert read(fake_vendor, array).get().tobytes() == right(array)
        assert fake.calls["read"] == 1
        with fake.cupy.cuda.Device(1):
            out = fake.cupy.empty((64, 64), array.dtype)
            assert read(fake_vendor, array, ..., out).get().tobytes() == right(array)
        assert fake.calls["read"] == 2
    assert set(by_fallback(served)) == {"p2p-route"}
    assert all(event.declined == {fake_vendor.name: Reason.P2P_ROUTE} for event in served)


def test_a_route_that_was_taken_is_tried_on(fake_vendor: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((64, 64)), (16, 16))
    fake_vendor.fake.faults["read"] = fake_vendor.at(2, fake_vendor.error(errno.ENODEV))
    with config.set({"fastpath.threads": 1}):
        assert read(fake_vendor, array).get().tobytes() == right(array)
    assert fake_vendor.fake.calls["read"] == 16
    assert by_fallback(served) == {"p2p-route": 16 * 16 * 4}


def test_a_decline_is_served_by_the_fallback(hip: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((64, 64)), (16, 16))
    hip.fake.faults["read"] = hip.always(hip.error(code=5030))
    assert read(hip, array).get().tobytes() == right(array)
    assert by_fallback(served) == {"driver-error": array.full.nbytes}
    assert by_fastpath(served) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["raw", "shard"])
def test_any_other_error_names_the_key(hip: ModuleType, stored: Make, served: list[Any], kind: str) -> None:
    array = stored(random((64, 64)), (16, 16), kind=kind)
    hip.fake.faults["read"] = hip.at(3, hip.error(errno.EIO))
    with pytest.raises(ChunkReadError) as caught:
        read(hip, array)
    assert caught.value.errno == errno.EIO
    assert caught.value.key in array.keys
    assert by_fastpath(served)[2] == hip.fake.moved
    hip.fake.faults["read"] = hip.always(hip.error(code=5011))
    with pytest.raises(ChunkReadError):
        read(hip, array)
    hip.fake.faults.clear()
    assert read(hip, array).get().tobytes() == right(array)


@pytest.mark.parametrize("short", [BLOCK, 100, 3 * BLOCK - 1])
def test_a_short_read_goes_on(hip: ModuleType, stored: Make, served: list[Any], short: int) -> None:
    array = stored(random((64, 64)), (16, 16), kind="shard")
    hip.fake.faults["read"] = hip.always(short)
    assert read(hip, array).get().tobytes() == right(array)
    assert by_fastpath(served)[2] == hip.fake.moved
    assert by_fastpath(served)[1] == array.full.nbytes - by_fallback(served).get("tail", 0)


@pytest.mark.parametrize("short", [0, 10])
def test_a_driver_that_does_not_go_on(hip: ModuleType, stored: Make, served: list[Any], short: int) -> None:
    array = stored(random((64, 64)), (16, 16))
    hip.fake.faults["read"] = hip.always(short)
    assert read(hip, array).get().tobytes() == right(array)
    assert by_fallback(served) == {"driver-error": array.full.nbytes}
    assert by_fastpath(served)[2] == hip.fake.moved


def test_a_part_then_no_route(hip: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((64, 64)), (64, 64))
    hip.fake.faults["read"] = lambda n: BLOCK if n == 1 else hip.error(errno.ENODEV)
    assert read(hip, array).get().tobytes() == right(array)
    assert by_fastpath(served) == (1, BLOCK, BLOCK)
    assert by_fallback(served) == {"p2p-route": array.full.nbytes - BLOCK}


@pytest.mark.parametrize("code", [5030, 5031])
def test_a_registration_that_fails_leaks_nothing(hip: ModuleType, stored: Make, served: list[Any], code: int) -> None:
    array = stored(random((64, 64)), (16, 64))
    hip.fake.faults["register_file"] = hip.at(2, hip.error(code=code, call="hipFileHandleRegister"))
    assert read(hip, array).get().tobytes() == right(array)
    assert by_fallback(served) == {"fd-limit" if code == 5031 else "driver-error": 16 * 64 * 4}
    assert len(hip.fake.files) == 3
    assert read(hip, array).get().tobytes() == right(array)
    assert len(hip.fake.files) == 4


def test_a_driver_that_does_not_open(hip: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((64, 64)), (16, 64))
    hip.fake.faults["open_driver"] = hip.always(hip.error(code=5010, call="hipFileDriverOpen"))
    assert read(hip, array).get().tobytes() == right(array)
    assert set(by_fallback(served)) == {"driver-error" if hip.name == "hipfile" else "no-driver"}


def test_scratch_that_cannot_be_registered_works_too(hip: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((64, 50)), (16, 7))
    hip.fake.faults["register_buffer"] = hip.always(hip.error(code=5013, call="hipFileBufRegister"))
    assert read(hip, array).get().tobytes() == right(array)
    assert by_fastpath(served)[2] > 0


def test_no_memory_for_scratch(hip: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((64, 50)), (16, 7))
    cupy = hip.fake.cupy
    out = cupy.empty((64, 50), array.dtype)

    class None_(cupy.Memory):
        def __init__(self, nbytes: int) -> None:
            raise cupy.CUDARuntimeError("hipErrorOutOfMemory")

    cupy.cuda.Memory = None_
    assert read(hip, array, ..., out).get().tobytes() == right(array)
    assert set(by_fallback(served)) == {"driver-error"}


@pytest.mark.parametrize("operation", ["launch", "malloc"])
def test_an_error_of_the_gpu_leaves_nothing(hip: ModuleType, stored: Make, operation: str) -> None:
    array, cupy = stored(random((64, 50)), (16, 7)), hip.fake.cupy
    assert read(hip, array).get().tobytes() == right(array)
    out = cupy.empty((64, 50), array.dtype)
    cupy.refuse[operation] = 0
    with pytest.raises((cupy.CUDARuntimeError, cupy.OutOfMemoryError)):
        read(hip, array, ..., out)
    cupy.refuse.clear()
    assert all(pool.lent == 0 for pool, _ in fastpath._pools.values())
    assert read(hip, array, ..., out).get().tobytes() == right(array)


def test_a_file_that_was_cut_is_named(hip: ModuleType, stored: Make) -> None:
    array = stored(random((64, 64)), (16, 64))
    path = array.path(1, 0)
    os.truncate(path, 1000)
    with pytest.raises(ChunkSizeError) as caught:
        read(hip, array)
    assert (caught.value.key, caught.value.expected, caught.value.actual) == ("c/1/0", 4096, 1000)


def test_a_file_that_is_cut_while_it_is_read_is_named(hip: ModuleType, stored: Make) -> None:
    array = stored(random((64, 64)), (16, 64))
    original = hip.fake.register_file
    cut = threading.Event()

    def cut_and_register(fd: int) -> Any:
        if not cut.is_set():
            cut.set()
            os.truncate(array.path(2, 0), 1000)
        return original(fd)

    hip.fake.register_file = cut_and_register
    with config.set({"fastpath.threads": 1}), pytest.raises(ChunkSizeError) as caught:
        read(hip, array)
    assert (caught.value.key, caught.value.actual) == ("c/2/0", 1000)


def test_ctrl_c_leaves_nothing_behind(hip: ModuleType, stored: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    array = stored(random((64, 50)), (16, 7))
    monkeypatch.setattr(fastpath._Reads, "complete", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        read(hip, array)
    monkeypatch.undo()
    assert all(pool.lent == 0 for pool, _ in fastpath._pools.values())


def test_many_callers_at_once(hip: ModuleType, stored: Make, served: list[Any]) -> None:
    arrays = [stored(random((64, 50), kind), (16, 7), kind=how) for kind in ("<i2", "<f8") for how in ("raw", "shard")]
    failures: list[BaseException] = []
    barrier = threading.Barrier(16)

    def run(i: int) -> None:
        try:
            array = arrays[i % len(arrays)]
            barrier.wait()
            assert read(hip, array).get().tobytes() == right(array)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert by_fastpath(served)[2] == hip.fake.moved
    assert hip.fake.calls["open_driver"] == 1
    assert hip.fake.calls["register_file"] == len(hip.fake.files)


def test_all_is_told_that_was_read(hip: ModuleType, stored: Make, served: list[Any]) -> None:
    array = stored(random((64, 49)), (16, 7), missing=(3, 4))
    with gpuload.trace() as trace:
        read(hip, array)
    (row,) = [row for row in trace.summary().rows if row.path is ReadPath.FASTPATH]
    assert (row.backend, row.reason, row.declined) == (hip.name, None, {})
    assert trace.summary().filled.chunks == 2
    assert trace.summary().bytes == (len(array.keys) - 2) * 16 * 7 * 4
