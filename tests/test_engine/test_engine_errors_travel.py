"""Errors come out of a pickle as they went in: a pool of processes hands them over, or hangs."""

from __future__ import annotations

import pickle

import pytest

from gpuload import errors
from gpuload.bindings.uring import UringUnavailable
from gpuload.request import Reason

ERRORS = [
    errors.ChunkError("c/0", "is odd"),
    errors.ChunkSizeError("c/0", 8, 5, "a hint"),
    errors.ChunkDecodeError("c/0", "no zlib"),
    errors.ChunkReadError("c/0", 13, "denied"),
    errors.ChunkWriteError("c/0", 28, "full"),
    errors.NotRegularFileError("c/0", "is a FIFO"),
    errors.BackendUnavailableError("io_uring", Reason.SECCOMP, "filtered"),
    UringUnavailable(Reason.MEMLOCK, "too little", 12),
    errors.RegistrationError("too large", Reason.MEMLOCK),
    errors.StrictError(Reason.NO_LIBRARY, "none"),
    errors.TransportError("ended"),
    errors.NotFoundError(2, "no such file", "x"),
    errors.SelectionError("out of bounds"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_a_pickle(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)
    assert getattr(again, "errno", None) == getattr(error, "errno", None)
