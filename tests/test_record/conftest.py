"""Blocks of served ranges, made to order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gpuload.request import Decode, ReadPath, Reason, Served


def served_block(
    n: int = 4, *, keys: Sequence[str] | None = None, size: int = 100, moved: int | None = None, **changes: Any
) -> Served:
    """`n` ranges by the fallback of a machine without a GPU library; `changes` are fields of `Served`."""
    keys = [f"c/{i}" for i in range(n)] if keys is None else keys
    fields: dict[str, Any] = {
        "backend": "io_uring",
        "read_path": ReadPath.FALLBACK,
        "reason": Reason.NO_LIBRARY,
        "decode": Decode.NONE,
        "keys": keys,
        "key_index": np.arange(n) % max(1, len(keys)),
        "file_offset": np.arange(n) * 1000,
        "size": np.full(n, size),
        "moved": np.full(n, size if moved is None else moved),
        "latency": np.full(n, 1e-3),
        "started": 10.0,
        "ended": 11.0,
    }
    return Served(**(fields | changes))


@pytest.fixture(scope="session")
def block() -> Callable[..., Served]:
    return served_block
