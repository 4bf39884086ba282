"""cuFile through `cuda.bindings.cufile`: what those leave to their caller is done here, once.

What was found of them (cuda-bindings 13.5, cuFile 1.15 to 1.20), each dealt with below: `use_count` returns None
whatever the count, so that is asked of the library itself; a read that the kernel refuses raises a ValueError that
names the errno, for it is no number of cuFile's; the variable CUFILE_ALLOW_COMPAT_MODE means nothing to 1.20, where
only the parameter of that name does; an open of the driver that fails may close descriptor 0; a log is begun in the
working directory. Without NVIDIA's driver `driver_open` may never return: it is called only where CuPy made a device
array.

All calls release the GIL.

Threads: safe. Fork: not to be used in the child.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from gpuload.errors import BackendUnavailableError, VendorError
from gpuload.request import Reason

NAME = "cufile"
ALLOW = "CUFILE_ALLOW_COMPAT_MODE"
LOG = "CUFILE_LOGFILE_PATH"
_CONFIGURATION = "CUFILE_ENV_PATH_JSON"
_LIBRARY = "libcufile.so.0"

_NEEDED = (
    "cuFileBufDeregister",
    "cuFileBufRegister",
    "cuFileDriverOpen",
    "cuFileHandleDeregister",
    "cuFileHandleRegister",
    "cuFileRead",
    "cuFileUseCount",
)
_OPTIONAL = {"write": "cuFileWrite", "stats": "cuFileGetStatsL1", "parameters": "cuFileSetParameterBool"}
_DETOURS = ("PROPERTIES_ALLOW_COMPAT_MODE", "FORCE_COMPAT_MODE", "PROPERTIES_POSIX_IO_MODE", "GDS_FALLBACK_IO")
_LAST_WITH_VARIABLE = (1, 15)  # for certain; 1.20 has the parameter alone
_NO_NUMBER_OF_CUFILE = re.compile(r"(-?\d+) is not a valid")


class Library:
    """The loaded library.

    Parameters
    ----------
    module
        `cuda.bindings.cufile`.
    symbols
        The library itself, for what the bindings lack.

    Attributes
    ----------
    version
        Major and minor number; None where it does not tell.
    features
        Which optional calls it has: ``write``, ``stats``, ``parameters``.
    """

    def __init__(self, module: ModuleType, symbols: Any) -> None:
        self._module, self._symbols = module, symbols
        self._symbols.cuFileUseCount.restype = ctypes.c_long
        self._forbade = False
        self.features = frozenset(name for name, symbol in _OPTIONAL.items() if hasattr(symbols, symbol))
        self.version: tuple[int, int] | None = None
        with suppress(Exception):  # old ones lack the call
            number = int(module.get_version())
            self.version = number // 1000, number % 1000 // 10

    def use_count(self) -> int:
        """How often the driver is open in this process, by whomever."""
        return int(self._symbols.cuFileUseCount())

    def forbid_detour(self) -> bool:
        """Switch off what goes through host memory, before the driver is opened; whether that can be relied on."""
        self._forbade = ALLOW not in os.environ
        os.environ.setdefault(ALLOW, "false")
        if "parameters" in self.features:
            with suppress(Exception):
                self._module.set_parameter_bool(self._parameter(_DETOURS[0]), False)
                return True
        return self.version is not None and self.version <= _LAST_WITH_VARIABLE

    def allow_detour(self) -> None:
        """Undo `forbid_detour`, unless the user had forbidden it: by default cuFile takes it."""
        if not self._forbade:
            return
        os.environ.pop(ALLOW, None)
        if "parameters" in self.features:
            with suppress(Exception):
                self._module.set_parameter_bool(self._parameter(_DETOURS[0]), True)

    def takes_detours(self) -> bool:
        """Whether the open library says that it may go through host memory."""
        for name in _DETOURS:
            with suppress(Exception):  # parameters and calls that this one lacks
                if self._module.get_parameter_bool(self._parameter(name)):
                    return True
        return False

    def _parameter(self, name: str) -> Any:
        return getattr(self._module.BoolConfigParameter, name)

    def open_driver(self) -> None:
        """Open the driver, or count one user more."""
        with _descriptor_0_kept(), _no_log():
            self._call("cuFileDriverOpen", self._module.driver_open)

    def close_driver(self) -> None:
        """Count one user less."""
        self._call("cuFileDriverClose", self._module.driver_close)

    def register_file(self, fd: int) -> int:
        """Register an open file; returns cuFile's handle. `fd` remains the caller's, who closes it after deregistering.

        `fd` must be open with O_DIRECT.
        """
        description = self._module.Descr()
        description.type = self._module.FileHandleType.OPAQUE_FD
        description.handle.fd = fd
        description.fs_ops = 0
        return int(self._call("cuFileHandleRegister", self._module.handle_register, description.ptr))

    def deregister_file(self, handle: int) -> None:
        """Forget a file; its descriptor is still open."""
        self._module.handle_deregister(handle)

    def register_buffer(self, pointer: int, nbytes: int) -> None:
        """Register device memory: reads into it name `pointer` and an offset from there."""
        self._call("cuFileBufRegister", self._module.buf_register, pointer, nbytes, 0)

    def deregister_buffer(self, pointer: int) -> None:
        """Undo `register_buffer`."""
        self._call("cuFileBufDeregister", self._module.buf_deregister, pointer)

    def read(self, handle: int, pointer: int, size: int, file_offset: int, buffer_offset: int) -> int:
        """Read into device memory; returns how many bytes, which may be fewer than `size`.

        Raises
        ------
        VendorError
            `errno` is the kernel's error where it is one, else 0.
        """
        return int(self._call("cuFileRead", self._module.read, handle, pointer, size, file_offset, buffer_offset))

    def write(self, handle: int, pointer: int, size: int, file_offset: int, buffer_offset: int) -> int:
        """Write from device memory, with the errors of `read`; only with the feature ``write``."""
        return int(self._call("cuFileWrite", self._module.write, handle, pointer, size, file_offset, buffer_offset))

    def count(self) -> bool:
        """Have the open library count what it moves, as it may do already; whether it does."""
        if "stats" not in self.features:
            return False
        module, level = self._module, 0
        with suppress(Exception):
            level = int(module.get_stats_level())  # the user's configuration may say more
        if level < 1:
            with suppress(Exception):
                module.set_stats_level(1)
        with suppress(Exception):  # of what counts already
            module.stats_start()
        with suppress(Exception):
            self.counted()
            return True
        return False

    def counted(self) -> tuple[int, int]:
        """Bytes that the library has read and written in this process, as it counts them itself."""
        stats = self._module.StatsLevel1()
        self._call("cuFileGetStatsL1", self._module.get_stats_l1, stats.ptr)
        return int(stats.read_bytes), int(stats.write_bytes)

    def _call(self, call: str, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._module.cuFileError as error:
            raise VendorError(call, abs(int(error.status)), str(error)) from error
        except ValueError as error:
            number = _NO_NUMBER_OF_CUFILE.match(str(error))
            if number is None:
                raise
            errno = abs(int(number[1]))
            raise VendorError(call, -1, f"{os.strerror(errno)} (errno {errno})", errno=errno) from error


@contextmanager
def _descriptor_0_kept() -> Iterator[None]:
    """Open what was open as descriptor 0 again, where it is closed behind the block."""
    try:
        kept, inheritable = os.dup(0), os.get_inheritable(0)
    except OSError:  # there is none, as in a daemon
        yield
        return
    try:
        yield
    finally:
        try:
            os.fstat(0)
        except OSError:
            os.dup2(kept, 0, inheritable=inheritable)
        os.close(kept)


@contextmanager
def _no_log() -> Iterator[None]:
    """Have cuFile begin no log in the working directory, where nobody told it where to."""
    if LOG in os.environ or _CONFIGURATION in os.environ:
        yield
        return
    os.environ[LOG] = os.devnull
    try:
        yield
    finally:
        os.environ.pop(LOG, None)


_lock = threading.Lock()
_found: list[Library | BackendUnavailableError] = []


def load() -> Library:
    """The library, opened once a process. Only for who knows that the GPUs are NVIDIA's.

    Raises
    ------
    BackendUnavailableError
        ``no-library``: cuda-bindings or `libcufile.so.0` is not installed, or is too old.
    """
    with _lock:
        if not _found:
            _found.append(_open())
    if isinstance(_found[0], BackendUnavailableError):
        raise _found[0].with_traceback(None)
    return _found[0]


def forget() -> None:
    """Look again, the next time."""
    _found.clear()


def _open() -> Library | BackendUnavailableError:
    try:
        module = importlib.import_module("cuda.bindings.cufile")
    except Exception as error:  # noqa: BLE001 - its loader raises what it meets, not only ImportError
        what = f"cuda.bindings.cufile of cuda-bindings cannot be imported ({type(error).__name__}: {error})"
        return BackendUnavailableError(NAME, Reason.NO_LIBRARY, what)
    if not hasattr(module, "driver_open"):  # hip-python-interop brings a package of that name, too
        return BackendUnavailableError(NAME, Reason.NO_LIBRARY, "this cuda.bindings.cufile is not NVIDIA's")
    with suppress(Exception):
        module.get_version()  # has the bindings find and open the library, wherever a wheel put it
    try:
        symbols = _symbols()
    except OSError as error:
        what = f"{_LIBRARY} was not found, neither in a wheel (nvidia-cufile) nor by the system's loader: {error}"
        return BackendUnavailableError(NAME, Reason.NO_LIBRARY, what)
    missing = [symbol for symbol in _NEEDED if not hasattr(symbols, symbol)]
    if missing:
        return BackendUnavailableError(NAME, Reason.NO_LIBRARY, f"this {_LIBRARY} lacks {', '.join(missing)}")
    return Library(module, symbols)


def _symbols() -> Any:
    """The library that the bindings opened: it has the same name to the loader."""
    return ctypes.CDLL(_LIBRARY)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
