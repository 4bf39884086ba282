"""Reads: a planned selection into one array, whole files into bytes, and the handles both stand on.

Threads: safe, each caller waits for its own job. Fork: a child's host reads start afresh, its device reads are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.backends import registry
from gpuload.backends.base import Batch, DirectBackend
from gpuload.bindings import runtime
from gpuload.config import config, flag, integer
from gpuload.engine import cold
from gpuload.engine.decode import Places, decode, decode_chunk
from gpuload.engine.fastpath import DirectRead, Unsuited
from gpuload.engine.handles import handle_cache, lease
from gpuload.engine.job import Job, missing_pieces, place
from gpuload.engine.plan import Decoder, Part, Plan, ReadRequest
from gpuload.engine.scatter import DeviceSink, HostSink, Sink
from gpuload.engine.transfer import IoThread, io_thread
from gpuload.errors import BackendUnavailableError, ChunkDecodeError, ChunkSizeError, StrictError
from gpuload.files.blocks import direct_reason
from gpuload.files.geometry import geometry
from gpuload.files.handle import FileHandle
from gpuload.files.root import Root, not_regular
from gpuload.memory.device import HOST, Device, GpuDevice, check_process, of
from gpuload.planning.batch import parts
from gpuload.planning.grid import Pieces
from gpuload.request import Int64, Reason

__all__ = ["Decoder", "ReadRequest", "fetch", "handle_cache", "lease", "read"]

_BATCHES = 16  # a read is divided into, if its batches are not smaller or larger than they may be
_SMALL_BATCH = 4 << 20
_APART = 64  # fetched ranges start at multiples of this in their common buffer


def read(request: ReadRequest) -> None:
    """Read one planned selection into its destination.

    When it returns, the result is ready for whatever the caller's current stream does next.

    Raises
    ------
    ChunkError
        A chunk could not be read or decoded; names it. The destination's content is undefined then.
    StrictError
        ``strict`` is on, and the fastpath does not serve this.
    EscapesStoreError
        A key leads out of the store.
    """
    if not len(request.pieces):
        return
    device = of(request.out)
    if isinstance(device, GpuDevice):
        check_process(device.name)
    request = replace(request, strict=flag("strict") if request.strict is None else request.strict)
    road = _road(device, request.reason)
    if road.backend is None:
        request = _refused(request, road, bool((request.file[request.pieces.chunk] >= 0).any()))
    request.root.refresh()
    request.root.check_keys(request.keys)
    if road.backend is not None:
        _read_by_fastpath(request, device, road)
    elif request.handles is not None or request.whole:
        _read_once(request, device)
    else:
        _read_in_waves(request, device, _read_once)


def _road(device: Device, reason: Reason | None) -> registry.Fastpath:
    """What fastpath there is for a device; none for a request that has a `reason` of its own."""
    if reason is not None:
        return registry.Fastpath(None, registry.fastpath_name(device), reason)
    return registry.fastpath(device, config.get("backend"))


def _refused(request: ReadRequest, road: registry.Fastpath, some: bool, reason: Reason | None = None) -> ReadRequest:
    """The request as the fallback serves it: why, and in place of whom. An error where that must not be."""
    why, declined = road.refusal(reason)
    if request.strict and some:
        raise StrictError(why, road.detail)
    return replace(request, reason=why, declined=declined)


def _read_by_fastpath(request: ReadRequest, device: Device, road: registry.Fastpath) -> None:
    """By the fastpath what it takes, the rest by the fallback, each with its reason."""

    def serve(part: ReadRequest, to: Device) -> None:
        _divide(part, to, road)

    if request.handles is not None:
        serve(request, device)
        return
    reason = _refusal_at_once(request, device, road) if request.whole else None
    if reason is None:
        _read_in_waves(request, device, serve)
    else:
        _read_once(_refused(request, road, True, reason), device)


def _refusal_at_once(request: ReadRequest, device: Device, road: registry.Fastpath) -> Reason | None:
    """Why no file of this store goes by the fastpath, if its file system is no good: then none needs a handle."""
    if request.root.follow_links or direct_reason(geometry(request.root.fd)) is None:
        return None
    for key in request.keys:
        with lease(request.root, [key]) as (handle,):
            if handle is not None:
                return _score(handle, request, device, road)
    return None


def _score(handle: FileHandle, request: ReadRequest, device: Device, road: registry.Fastpath) -> Reason | None:
    assert road.backend is not None
    plain = runtime.is_plain_device_memory(device.xp, request.out.data.ptr)
    assert isinstance(device, GpuDevice)
    return road.backend.score(handle, device_memory=plain, gpu=device.index)


def _divide(request: ReadRequest, device: Device, road: registry.Fastpath) -> None:
    """Serve a request whose files are open."""
    assert request.handles is not None
    assert road.backend is not None
    file = request.file
    if (file < 0).any():
        missing = request.part(file < 0)
        if len(missing.pieces):
            _read_once(_refused(missing, road, False, Reason.MISSING_CHUNK), device)
    # All conditions hold, or do not, for all files of one file system.
    devices = np.array([-1 if handle is None else handle.identity.device for handle in request.handles], np.int64)
    for number in np.unique(devices[devices >= 0]).tolist():
        chosen = file >= 0
        chosen[chosen] = devices[file[chosen]] == number
        part = request.part(chosen)
        if not len(part.pieces):
            continue
        handle = request.handles[int(np.flatnonzero(devices == number)[0])]
        assert handle is not None
        reason = _score(handle, request, device, road)
        if reason is None:
            reason = _read_direct(part, device, road.backend)
        if reason is not None:
            _read_once(_refused(part, road, True, reason), device)


def _read_direct(request: ReadRequest, device: Device, backend: DirectBackend) -> Reason | None:
    """Serve a request whose files are eligible; returns why that could not be done."""
    assert isinstance(device, GpuDevice)
    strict = bool(request.strict)
    opened = registry.open_driver(backend)
    against = opened.refusal or opened.doubt
    if strict and against is not None:
        raise StrictError(against, opened.detail)
    if opened.refusal is not None:
        return opened.refusal
    try:
        DirectRead(request, device, backend, doubt=opened.doubt, strict=strict, read_ranges=_read_ranges).run()
    except Unsuited as refusal:
        return refusal.reason
    return None


def _read_in_waves(request: ReadRequest, device: Device, serve: Callable[[ReadRequest, Device], None]) -> None:
    """Lease as many handles at a time as the budget of descriptors allows, and have what is in those files served."""
    used = np.unique(request.file[request.pieces.chunk])
    missing, used = used[used < 0], used[used >= 0]
    wave = handle_cache().wave_size
    if len(missing) or not len(used):
        serve(replace(request.part(request.file < 0), handles=[None] * len(request.keys)), device)
    for start in range(0, len(used), wave):
        files = used[start : start + wave]
        number = np.full(len(request.keys) + 1, -1, np.int64)  # the last entry serves the files of -1
        number[files] = np.arange(len(files))
        chosen = np.isin(request.file, files)
        with lease(request.root, [request.keys[i] for i in files.tolist()]) as handles:
            number[files] = [-1 if handle is None else i for i, handle in enumerate(handles)]
            part = request.part(chosen)
            serve(_with_handles(part, number[request.file], [request.keys[i] for i in files], handles), device)


def _with_handles(
    request: ReadRequest, file: Int64, keys: Sequence[str], handles: Sequence[FileHandle | None]
) -> ReadRequest:
    if request.whole:
        for key, number, size in zip(keys, range(len(keys)), _expected(request, file, len(keys)), strict=True):
            handle = handles[number]
            if handle is not None and size >= 0 and handle.size != size:
                raise ChunkSizeError(key, size, handle.size, "the chunk file was cut, overwritten or replaced")
    return replace(request, keys=keys, file=file, handles=handles)


def _expected(request: ReadRequest, file: Int64, n: int) -> list[int]:
    """Bytes each file must have."""
    size = np.full(n, -1, np.int64)
    there = file >= 0
    size[file[there]] = request.size[there]
    return size.tolist()


def _read_once(request: ReadRequest, device: Device, *, nested: bool = False) -> None:
    if isinstance(device, GpuDevice):
        check_process(device.name)
    io = io_thread()
    choice, (batch_bytes, max_files) = _choose(io, device)
    batch_bytes = _share(request, batch_bytes)
    # A nested read is small, and its caller may hold all the handles there are.
    past_cache = cold.Road() if choice.name != "io_uring" or nested else cold.road(request)
    if past_cache.reason is not None:
        request = replace(request, declined={**request.declined, "o_direct": past_cache.reason})
    plan = Plan(
        request,
        batch_bytes=batch_bytes,
        piece_bytes=integer("piece_bytes"),
        max_files=max_files,
        on_host=not isinstance(device, GpuDevice),
        direct=past_cache.align,
    )
    if request.handles is None and (plan.needs_handles or past_cache.align):
        _read_in_waves(request, device, _read_once)
        return
    sink: Sink = DeviceSink(plan, device) if isinstance(device, GpuDevice) else HostSink(plan)
    inline = plan.vectors is not None or (isinstance(device, GpuDevice) and request.decoder is None)
    job = Job(plan, choice, sink, inline=inline, nested=nested)
    if plan.live < len(plan.pieces):
        sink.fill(plan.live, len(plan.pieces))
        job.ledger.fill(np.arange(plan.live, len(plan.pieces)))
        job.ledger.advance(plan.live, len(plan.pieces))
    try:
        _run(io, job)
        if not job.inline:
            sink.finish()
    except BaseException:
        sink.abandon()
        raise
    sink.ready()


def _share(request: ReadRequest, most: int) -> int:
    """Bytes of a batch: enough batches to read one while the last is placed, as few as that needs, at most `most`."""
    stored = int(request.pieces.size.sum())
    return min(most, max(_SMALL_BATCH, -(-stored // _BATCHES)))


def _choose(io: IoThread, device: Device) -> tuple[registry.Choice, tuple[int, int]]:
    """The backend that serves, and the bytes and files of its batches."""
    while True:
        choice = registry.choose(config.get("backend"))
        try:
            return choice, io.prepare(choice.name, device)
        except BackendUnavailableError:
            if registry.available(choice.name).usable:
                raise


def _run(io: IoThread, job: Job) -> None:
    """Hand a job over, decode and place its batches as they come; leave only when the I/O thread is done with it."""
    interrupted: BaseException | None = None
    while True:
        try:
            while True:  # a round more after each Ctrl-C: what the kernel still writes to must stay until it is done
                try:
                    _serve(io, job, interrupted is None)
                    break
                except BaseException as error:
                    job.cancelled = True
                    interrupted = interrupted or error
            break
        except BaseException as error:  # CPython looks for signals where a loop begins anew, outside of the inner try
            interrupted = interrupted or error
    if interrupted is not None:
        raise interrupted
    if job.error is not None:
        raise job.error


def _serve(io: IoThread, job: Job, wanted: bool) -> None:
    """One round of `_run`. Whatever it was doing when it was interrupted, the next one can do once more."""
    io.submit(job)
    while not (job.ended and job.ready.empty()):
        batch = job.ready.get()
        if batch is None:
            break
        event = None
        try:
            if wanted and job.error is None:
                event = _consume(job, batch)
        finally:
            io.give(job, batch, event)
    if not wanted:
        io.give_all(job)  # those whose batch was lost between the queue and here


def _consume(job: Job, batch: Batch) -> Any:
    if job.plan.request.decoder is not None:
        part = job.parts[batch.index]
        places = _Places(job.sink, part.first, batch) if isinstance(job.sink, HostSink) else None
        _decode(job.plan, batch, part, places)
    return place(job, batch)


class _Places:
    """Where the chunks of one batch go in a host array."""

    def __init__(self, sink: HostSink, first: int, batch: Batch) -> None:
        self._sink, self._first, self._memory = sink, first, batch.block.array

    def room(self, chunk: int) -> npt.NDArray[np.uint8] | None:
        return self._sink.room(self._first + chunk)

    def put(self, chunk: int) -> None:
        self._sink.put(self._first + chunk, self._memory)


def _decode(plan: Plan, batch: Batch, part: Part, places: Places | None) -> None:
    """Decode the chunks of a batch inside its block, or straight into place."""
    decoder = plan.request.decoder
    assert decoder is not None
    first, last = part.first, part.last
    n = last - first
    size = np.bincount(batch.piece[: batch.proofs_from], batch.got[: batch.proofs_from], n).astype(np.int64)
    key = np.zeros(n, np.int64)
    key[batch.piece] = batch.file
    keys = [batch.keys[i] for i in key.tolist()]
    missing = missing_pieces(batch, part)
    if missing is not None:
        size[missing] = -1
    start, out = plan.stored_offset[first:last], plan.data_offset[first:last]
    if part.open_ended:
        for i in np.flatnonzero(size >= plan.want[first:last]).tolist():  # it may go on beyond what was expected
            _decode_large(plan, keys[i], batch.block.array[int(out[i]) : int(out[i]) + decoder.decoded_size])
            if places is not None:
                places.put(i)
            size[i] = -1
    try:
        decode(decoder, batch.block.array, keys, (start, size), out, places)
    except ChunkDecodeError as error:
        # A FIFO that nobody writes, or a device, may give no bytes at all.
        irregular = not_regular(plan.request.root, error.key) if batch.handles is None else None
        if irregular is not None:
            raise irregular from error
        raise


def _decode_large(plan: Plan, key: str, out: npt.NDArray[np.uint8]) -> None:
    """A chunk whose stored bytes are more than its decoder expects: read it again, whole."""
    decoder = plan.request.decoder
    assert decoder is not None
    stored = fetch(plan.request.root, [key], nested=True)[0]
    if stored is None:
        raise ChunkSizeError(key, decoder.capacity, 0, "the file vanished while it was read")
    decode_chunk(decoder, key, stored, out)


def fetch(
    root: Root,
    keys: Sequence[str],
    offsets: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
    *,
    device: Device = HOST,
    handles: Sequence[FileHandle | None] | None = None,
    nested: bool = False,
    reason: Reason | None = None,
) -> list[Any]:
    """Whole files or byte ranges of files.

    Parameters
    ----------
    root, keys
        One file an entry; a key may occur several times.
    offsets
        Where each range starts; a negative one counts from the end of the file. None: at 0.
    sizes
        Bytes of each range; -1: to the end. None: all to the end. Ranges are cut at the end of the file.
    device
        Where the bytes go.
    handles
        Open handles of `keys`, leased by the caller.
    nested
        The caller holds blocks of the pool meanwhile.
    reason
        Why the fastpath cannot serve this whatever the machine.

    Returns
    -------
    arrays
        uint8 (bytes,) arrays on `device`; None where there is no such file.
    """
    root.refresh()
    root.check_keys(keys)
    starts = list(offsets) if offsets is not None else [0] * len(keys)
    lengths = list(sizes) if sizes is not None else [-1] * len(keys)
    if handles is not None:
        return _fetch(root, keys, starts, lengths, device, handles, nested, reason)
    result: list[Any] = []
    wave = handle_cache().wave_size
    for at in range(0, len(keys), wave):
        part = slice(at, at + wave)
        distinct = list(dict.fromkeys(keys[part]))
        with lease(root, distinct) as leased:
            by_key = dict(zip(distinct, leased, strict=True))
            held = [by_key[key] for key in keys[part]]
            result += _fetch(root, keys[part], starts[part], lengths[part], device, held, nested, reason)
    return result


def _fetch(
    root: Root,
    keys: Sequence[str],
    starts: Sequence[int],
    lengths: Sequence[int],
    device: Device,
    handles: Sequence[FileHandle | None],
    nested: bool,
    reason: Reason | None,
) -> list[Any]:
    ranges = [None if h is None else _clip(h.size, a, n) for h, a, n in zip(handles, starts, lengths, strict=True)]
    offset = np.array([0 if r is None else r[0] for r in ranges], np.int64)
    size = np.array([0 if r is None else r[1] for r in ranges], np.int64)
    room = -(-size // _APART) * _APART
    place = np.cumsum(room) - room
    out = device.empty((int(room.sum()),), np.uint8)
    read_ranges(root, keys, handles, offset, size, place, out, nested=nested, reason=reason)
    return [
        None if r is None else out[at : at + n] for r, at, n in zip(ranges, place.tolist(), size.tolist(), strict=True)
    ]


def read_ranges(
    root: Root,
    keys: Sequence[str],
    handles: Sequence[FileHandle | None],
    offset: Int64,
    size: Int64,
    place: Int64,
    out: Any,
    *,
    nested: bool = False,
    reason: Reason | None = None,
    strict: bool = False,
) -> None:
    """Read byte ranges of open files into one uint8 array of one dimension, by the fastpath what it takes.

    Parameters
    ----------
    keys, handles
        One file a range.
    offset, size
        int64 (n,): the ranges; empty ones are left out.
    place
        int64 (n,): the element of `out` where each goes.
    nested
        The caller holds blocks of the pool meanwhile.
    reason
        Why no fastpath can serve this, whatever the machine.
    strict
        Raise an error where the fastpath does not serve.

    Raises
    ------
    ChunkSizeError
        A file ends before its range does.
    StrictError
        The fastpath does not serve this, and must.
    """
    device = of(out)
    if isinstance(device, GpuDevice):
        check_process(device.name)
    request = _request_of_ranges(root, keys, handles, offset, size, place, out)
    if request is None:
        return
    request = replace(request, strict=strict)
    road = _road(device, reason)
    if road.backend is not None:
        _divide(request, device, road)
    else:
        _read_once(_refused(request, road, True), device, nested=nested)


def _read_ranges(
    root: Root,
    keys: Sequence[str],
    handles: Sequence[FileHandle | None],
    offset: Int64,
    size: Int64,
    place: Int64,
    out: Any,
    *,
    reason: Reason,
    declined: str,
) -> None:
    """`read_ranges` by the fallback alone: what the fastpath backend `declined` leaves to it, for `reason`."""
    request = _request_of_ranges(root, keys, handles, offset, size, place, out)
    if request is not None:
        _read_once(replace(request, reason=reason, declined={declined: reason}), of(out))


def _request_of_ranges(
    root: Root,
    keys: Sequence[str],
    handles: Sequence[FileHandle | None],
    offset: Int64,
    size: Int64,
    place: Int64,
    out: Any,
) -> ReadRequest | None:
    """Byte ranges as a request; None where nothing is wanted."""
    which, skip, length = parts(size, integer("piece_bytes"))
    step = int(out.strides[0])
    pieces = Pieces(
        chunks=np.arange(len(size), dtype=np.int64)[:, None],
        chunk=which,
        offset=skip,
        size=length,
        source=np.zeros(len(which), np.int64),
        place=(place[which] + skip) * step,
        count=length[:, None],
        source_strides=(1,),
        place_strides=(step,),
    )
    if not len(pieces):
        return None
    file = np.arange(len(size), dtype=np.int64)
    return ReadRequest(root, keys, file, offset, size, False, pieces, 1, 0, None, b"\0", out, handles=handles)


def _clip(size: int, start: int, length: int) -> tuple[int, int]:
    """A range inside a file of `size` bytes: offset and bytes."""
    start = max(0, size + start) if start < 0 else min(start, size)
    room = size - start
    return start, room if length < 0 else min(length, room)
