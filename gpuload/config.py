"""Configuration as zarr and dask do it: `gpuload.config`, `GPULOAD_*` variables, YAML (donfig).

``GPULOAD_STRICT=1`` sets ``strict``; ``GPULOAD_SLAB__LIMIT=1073741824`` sets ``slab.limit``. Sizes are in bytes.
"""

from __future__ import annotations

from typing import Any

from donfig import Config

DEFAULTS: dict[str, Any] = {
    "device": "auto",  # "auto" | "cpu" | "cuda:N"
    "backend": None,  # force one fallback backend: "io_uring" | "posix"
    "strict": False,  # every fallback becomes a StrictError
    "follow_links": False,  # let links below a store's root leave it
    "slab": {
        "size": 64 << 20,  # one slab, at most; the first is half of it
        "limit": 512 << 20,  # all slabs of the process
    },
    "batch_bytes": 32 << 20,  # ranges that are read, copied and placed together, at most
    "piece_bytes": 1 << 20,  # the longest single read
    "uring": {
        "entries": 2048,
        "slots": 8192,  # fixed files
        "mode": "auto",  # "window" | "chains" | "auto": chains for short reads
        "window": None,  # reads in flight; None: chosen from the size of the pieces
    },
    "posix": {"threads": None},  # None: twice the cores, at most 16
    "decode": {"threads": None},  # None: the cores
    "handles": {"budget": None},  # descriptors in the handle cache; None: from RLIMIT_NOFILE
    "poison": False,  # for tests: fill memory with 0xA5 before it is read into
    "record": {"rows": 100_000},  # rows kept; totals are always exact
}

config = Config("gpuload", defaults=[DEFAULTS])
