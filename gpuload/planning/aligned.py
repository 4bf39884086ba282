"""Encloses byte ranges in ranges of whole blocks, as direct I/O wants them, and leaves the last bytes of a file out.

A direct read starts and ends at multiples of the alignment and never crosses the end of its file: the block that holds
the end may be answered with an error. What of a range lies behind the last whole block is its *tail*; another path
reads it.
"""

from __future__ import annotations

import numpy as np

from gpuload.files.geometry import DIRECT_ALIGN
from gpuload.request import Int64

__all__ = ["DIRECT_ALIGN", "enclose"]


def enclose(offset: Int64, size: Int64, file_size: Int64, align: int) -> tuple[Int64, Int64]:
    """The blocks that hold each range.

    Parameters
    ----------
    offset, size
        int64 (n,): the first byte of each range in its file, and its bytes.
    file_size
        int64 (n,): bytes of the file each range is in.
    align
        Bytes of a block: a power of two.

    Returns
    -------
    start, stop
        int64 (n,): multiples of `align`; ``stop <= file_size // align * align``. Equal where nothing of the range lies
        in a whole block of its file: because it is empty, because it is all tail, or because it begins behind the end.
        Then both are the last boundary that is not behind the range's first byte, or the file's last one.
    """
    if align < 1 or align & (align - 1):
        raise ValueError(f"{align=} must be a power of two")
    low = ~np.int64(align - 1)
    last = file_size & low
    start = np.minimum(offset & low, last)
    stop = np.minimum((offset + size + (align - 1)) & low, last)
    return start, np.where(size > 0, np.maximum(stop, start), start)
