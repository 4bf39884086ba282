"""Whether a read goes past the page cache: large reads of files that are not in it.

What comes by O_DIRECT leaves nothing in the page cache, and pushes nothing out of it. So by itself gpuload takes this
road only where the page cache could not have kept the read anyway.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from gpuload.bindings.pagecache import cached_pages
from gpuload.config import one_of
from gpuload.engine.handles import lease
from gpuload.engine.plan import ReadRequest
from gpuload.files.handle import FileHandle
from gpuload.request import Reason

SHORTEST = 128 << 10  # bytes of a range, on average: shorter ones come faster by the kernel's reading ahead
LEAST = 8 << 20  # bytes of a read
FILE_SYSTEMS = ("ext4", "xfs")  # whose direct reads see what was just written, and whose page cache is their own
LOOKS = 16  # ranges that are looked up, spread evenly over the read
WARM = 1 / 16  # of the pages that are looked up may be cached, and the read still counts as cold
_PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Road:
    """How a read goes.

    Attributes
    ----------
    align
        Bytes that file offsets, sizes and addresses of direct reads must be multiples of; 0: by the page cache.
    reason
        Why not past it, where that would have been better.
    """

    align: int = 0
    reason: Reason | None = None


def road(request: ReadRequest) -> Road:
    """How the fallback reads this request.

    Raises
    ------
    ConfigError
        ``direct.cold`` is none of the ways there are.
    """
    way = one_of("direct.cold", "auto", "always", "never")
    if way == "never":
        return Road()
    live = np.flatnonzero(request.file[request.pieces.chunk] >= 0)
    total = _bytes(request, live)
    if total < LEAST or total < SHORTEST * len(live) or (way == "auto" and total <= available_memory() // 2):
        return Road()
    looks = live[np.arange(min(LOOKS, len(live))) * len(live) // min(LOOKS, len(live))]
    files = request.file[request.pieces.chunk[looks]].tolist()
    distinct = list(dict.fromkeys(files))
    leased: AbstractContextManager[list[FileHandle | None]]
    if request.handles is None:
        leased = lease(request.root, [request.keys[i] for i in distinct])
    else:
        leased = nullcontext([request.handles[i] for i in distinct])
    with leased as handles:
        by_file = dict(zip(distinct, handles, strict=True))
        align = 1
        for handle in handles:
            if handle is not None:
                found = _suits(handle)
                if found.reason is not None:
                    return found
                align = max(align, found.align)
        if align == 1:
            return Road()  # no file is there
        if way == "always":
            return Road(align)
        return _cold(request, looks.tolist(), [by_file[i] for i in files], align)


def _bytes(request: ReadRequest, live: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    """Stored bytes of the read; decoded ones, which are more, where nobody knows."""
    if request.decoder is None:
        return int(request.pieces.size[live].sum())
    size = request.size[request.pieces.chunk[live]]
    return int(np.where(size < 0, request.decoder.decoded_size, size).sum())


def _suits(handle: FileHandle) -> Road:
    geometry = handle.geometry
    align = max(geometry.dio_offset_align, geometry.dio_mem_align)
    if geometry.file_system not in FILE_SYSTEMS:
        return Road(reason=Reason.FILE_SYSTEM)
    if not 0 < align <= _PAGE:  # blocks of slabs start at pages
        return Road(reason=Reason.ODIRECT_REFUSED)
    lacking = handle.unbuffered_reason
    return Road(align) if lacking is None else Road(reason=lacking)


def _cold(request: ReadRequest, looks: Sequence[int], handles: Sequence[FileHandle | None], align: int) -> Road:
    cached = pages = 0
    for piece, handle in zip(looks, handles, strict=True):
        if handle is None:
            continue
        chunk = int(request.pieces.chunk[piece])
        offset, size = int(request.offset[chunk]), int(request.size[chunk])
        if request.decoder is None:
            offset, size = offset + int(request.pieces.offset[piece]), int(request.pieces.size[piece])
        elif size < 0:
            size = handle.size
        if size > 0:
            try:
                cached += cached_pages(handle.buffered_fd, offset, size)
            except OSError as error:
                return Road(reason=Reason.KERNEL_TOO_OLD if error.errno == errno.ENOSYS else None)
            pages += (offset + size - 1) // _PAGE - offset // _PAGE + 1
    return Road(align if cached <= WARM * pages else 0)


def available_memory() -> int:
    """Bytes that the kernel says it could give to programs without swapping, its page cache among them."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 1 << 62
