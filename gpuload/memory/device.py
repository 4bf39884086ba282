"""The device a result lives on: NumPy on the host, CuPy on a GPU, through one small interface.

Threads: safe. Fork: a GPU runtime does not survive fork(), so a device used in a forked child raises `AfterForkError`;
the host device works. Pickle: by name.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.bindings import runtime
from gpuload.errors import AfterForkError, DeviceError

_LINE = 64
_CACHED = 4096  # bytes below which it does not matter

_gpus_seen: int | None = None  # what CuPy last said; None: nobody asked
_forked_with_gpu = False
_making = threading.RLock()  # of what there must be one of


def _after_fork_in_child() -> None:
    global _forked_with_gpu, _making
    _making = threading.RLock()  # another thread of the parent may have held it
    # Whether CuPy has touched its runtime cannot be asked without touching it, so imported counts as used.
    _forked_with_gpu = _forked_with_gpu or ("cupy" in sys.modules and _gpus_seen != 0)


os.register_at_fork(after_in_child=_after_fork_in_child)


def check_process(name: str) -> None:
    """Raise `AfterForkError` in a child that was forked from a process with a GPU runtime."""
    if _forked_with_gpu:
        raise AfterForkError(
            f"device {name!r} in a forked process: no GPU runtime works after fork(). Start the workers with "
            "multiprocessing's 'spawn' method, or read with device='cpu' here"
        )


class Device(ABC):
    """Where a result is made.

    Attributes
    ----------
    name
        ``"cpu"`` or ``"cuda:N"``; CuPy calls AMD's devices cuda too.
    is_host
        True for ``"cpu"``.
    xp
        The array module: NumPy or CuPy.
    """

    name: str
    is_host: bool
    xp: ModuleType

    @abstractmethod
    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike, order: str = "C") -> Any:
        """An uninitialised array of `shape` and `dtype` on this device, from the current allocator and stream."""

    @abstractmethod
    def holds(self, dtype: np.dtype[Any]) -> bool:
        """Whether an array on this device can have `dtype` (a device holds native bool, integer, float, complex)."""

    @abstractmethod
    def owns(self, array: Any) -> bool:
        """Whether `array` lives on this device."""

    def __repr__(self) -> str:
        return f"<gpuload device {self.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return resolve, (self.name,)


class HostDevice(Device):
    """Host memory, as NumPy arrays."""

    name = "cpu"
    is_host = True
    xp = np

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike, order: str = "C") -> Any:
        try:
            return _aligned(tuple(shape), np.dtype(dtype), order)
        except ValueError as error:  # more than addresses can tell apart
            raise MemoryError(f"no array can have shape {tuple(shape)} and dtype {np.dtype(dtype)}: {error}") from error

    def holds(self, dtype: np.dtype[Any]) -> bool:
        return True

    def owns(self, array: Any) -> bool:
        return isinstance(array, np.ndarray)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any], order: Any) -> Any:
    """`np.empty`, from a cache line's start on: into other places the kernel's copy is several times as slow."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _CACHED or dtype.hasobject or dtype.kind == "T":
        return np.empty(shape, dtype, order)
    memory = np.empty(nbytes + _LINE, np.uint8)
    return np.ndarray(shape, dtype, memory, -memory.ctypes.data % _LINE, order=order)


class GpuDevice(Device):
    """One GPU, as CuPy arrays: CUDA's, or ROCm's where CuPy was built for it."""

    is_host = False

    def __init__(self, index: int) -> None:
        import cupy

        self.index = index
        self.name = f"cuda:{index}"
        self.xp = cupy
        self.handle = cupy.cuda.Device(index)
        self._streams: dict[str, Any] = {}

    @property
    def stream(self) -> Any:
        """The stream all transfers to this device run on; it never blocks, nor waits for, the default stream."""
        return self._stream("transfers")

    @property
    def loading_stream(self) -> Any:
        """The stream that memory is taken from for what is read ahead, apart from that of transfers and of users."""
        return self._stream("loading")

    def _stream(self, purpose: str) -> Any:
        """One of a purpose: what is ordered by it would not be on two, which threads at once would make."""
        found = self._streams.get(purpose)
        if found is None:
            with _making:
                found = self._streams.get(purpose)
                if found is None:
                    with self.handle:
                        found = self._streams[purpose] = self.xp.cuda.Stream(non_blocking=True)
        return found

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike, order: str = "C") -> Any:
        check_process(self.name)
        try:
            with self.handle:
                return self.xp.empty(tuple(shape), dtype, order)
        except self.xp.cuda.memory.OutOfMemoryError as error:
            raise DeviceError(f"{self.name} is out of memory for a result of shape {tuple(shape)}: {error}") from error

    def holds(self, dtype: np.dtype[Any]) -> bool:
        return fits_device(dtype)

    def owns(self, array: Any) -> bool:
        return isinstance(array, self.xp.ndarray) and array.device.id == self.index

    def pin(self, address: int, nbytes: int) -> None:
        """Page-lock host memory for copies to every device."""
        if self.xp.cuda.runtime.is_hip and runtime.hip() is None:
            return  # CuPy's ROCm wheel has no call for it; copies work without, only slower
        with self.handle:
            runtime.host_register(self.xp, address, nbytes)

    def unpin(self, address: int) -> None:
        """Undo `pin`."""
        if self.xp.cuda.runtime.is_hip and runtime.hip() is None:
            return
        with self.handle:
            runtime.host_unregister(self.xp, address)

    def caller_streams(self) -> list[Any]:
        """The streams whose next work must see the result: the current one of this device and of the current device."""
        here = self.xp.cuda.get_current_stream()
        if self.xp.cuda.runtime.getDevice() == self.index:
            return [here]
        with self.handle:
            return [here, self.xp.cuda.get_current_stream()]


def fits_device(dtype: np.dtype[Any]) -> bool:
    """Whether arrays on a GPU can have `dtype`, in native byte order; asks no GPU."""
    return dtype.kind in "biufc" and dtype.itemsize <= 16 and dtype.char not in "gG"


HOST = HostDevice()


def _gpu_of(index: int) -> GpuDevice:
    """The device of that number; one a process, and one only where threads ask at once."""
    with _making:
        return _gpu(index)


@cache
def _gpu(index: int) -> GpuDevice:
    return GpuDevice(index)


@lru_cache(maxsize=1)
def _cupy_missing() -> str | None:
    """Why CuPy cannot be imported here, or None."""
    try:
        import cupy  # noqa: F401
    except Exception as error:  # CuPy without its runtime libraries raises whatever its loader meets
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
    return None


def gpu_count() -> int:
    """GPUs that CuPy sees; 0 without CuPy, driver or GPU. In a forked child the parent's runtime is not touched."""
    global _gpus_seen
    if _forked_with_gpu:
        return 0
    if _cupy_missing() is not None:
        _gpus_seen = 0
        return 0
    import cupy

    try:
        _gpus_seen = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        _gpus_seen = 0
    return _gpus_seen


def gpus_seen() -> int | None:
    """What `gpu_count` said last; None: nobody asked."""
    return _gpus_seen


def resolve(spec: str | Device = "auto") -> Device:
    """The device that `spec` names.

    Parameters
    ----------
    spec
        ``"cpu"``; ``"cuda"`` (the current GPU) or ``"cuda:N"``; ``"auto"``: the current GPU where there is one, else
        the host.

    Raises
    ------
    DeviceError
        `spec` is no such name, or that GPU is not there; says what is.
    AfterForkError
        A GPU in a forked child.
    """
    if isinstance(spec, Device):
        return spec
    text = str(spec)
    if text == "cpu":
        return HOST
    if text == "auto" and not _forked_with_gpu and gpu_count() == 0:
        return HOST
    name, colon, number = text.partition(":")
    if name not in ("auto", "cuda") or (colon and not number.isdecimal()) or (name == "auto" and colon):
        raise DeviceError(f"no device named {text!r}: give 'auto', 'cpu', 'cuda' or 'cuda:N'")
    check_process(text)
    count = gpu_count()
    if count == 0:
        missing = _cupy_missing()
        why = f"CuPy cannot be imported ({missing})" if missing else "CuPy sees no GPU"
        raise DeviceError(f"device {text!r}: {why}; install gpuload[cuda13] or gpuload[rocm], or use device='cpu'")
    index = int(number) if number else _current_index()
    if index >= count:
        raise DeviceError(f"device {text!r}: this process sees {count} GPU(s), cuda:0 to cuda:{count - 1}")
    return _gpu_of(index)


def of(array: Any) -> Device:
    """The device `array` lives on.

    Raises
    ------
    DeviceError
        It is neither a NumPy nor a CuPy array.
    """
    if isinstance(array, np.ndarray):
        return HOST
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return _gpu_of(array.device.id)
    raise DeviceError(f"{type(array).__module__}.{type(array).__qualname__} is neither a NumPy nor a CuPy array")


def _current_index() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDevice())
