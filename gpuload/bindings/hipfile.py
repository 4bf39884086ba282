"""hipFile through hip-python's generated bindings: what they leave to their caller is done here, once.

The bindings call through a null pointer where the library or a symbol of it is missing, so nothing is called before it
was asked for by name; they answer with tuples and negative numbers, which become `VendorError`. All calls release the
GIL.

Threads: safe. Fork: not to be used in the child.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from gpuload.bindings import runtime
from gpuload.errors import BackendUnavailableError, VendorError
from gpuload.request import Reason

NAME = "hipfile"
HIP_ERROR = 5011  # hipFileOpError that has one of HIP beside it
NOT_SUPPORTED = 5008

_NEEDED = (
    "hipFileBufDeregister",
    "hipFileBufRegister",
    "hipFileDriverClose",
    "hipFileDriverOpen",
    "hipFileHandleDeregister",
    "hipFileHandleRegister",
    "hipFileRead",
    "hipFileUseCount",
)
_OPTIONAL = {
    "version": ("hipFileGetVersion",),
    "write": ("hipFileWrite",),
    "async": ("hipFileReadAsync", "hipFileWriteAsync", "hipFileStreamRegister"),
    "batch": ("hipFileBatchIOSetUp", "hipFileBatchIOSubmit", "hipFileBatchIOGetStatus"),
    "stats": ("hipFileGetStatsL1",),
}


class Library:
    """The loaded library.

    Attributes
    ----------
    version
        Major, minor and patch number; None where it does not tell.
    features
        Which groups of optional calls it has: ``write``, ``async``, ``batch``, ``stats``.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.features = frozenset(
            name for name, symbols in _OPTIONAL.items() if all(module.has_symbol(symbol) for symbol in symbols)
        )
        self.version: tuple[int, int, int] | None = None
        if "version" in self.features:
            error, *numbers = module.hipFileGetVersion()
            if not int(error.err):
                self.version = (int(numbers[0]), int(numbers[1]), int(numbers[2]))

    def use_count(self) -> int:
        """How often the driver is open in this process, by whomever."""
        (count,) = self._module.hipFileUseCount()
        return int(count)

    def open_driver(self) -> None:
        """Open the driver, or count one user more."""
        self._check("hipFileDriverOpen", self._module.hipFileDriverOpen()[0])

    def close_driver(self) -> None:
        """Count one user less."""
        self._check("hipFileDriverClose", self._module.hipFileDriverClose()[0])

    def register_file(self, fd: int) -> Any:
        """Register an open file; returns hipFile's handle.

        hipFile keeps `fd` and reopens the file, with O_DIRECT where `fd` is without, and without where it is with. What
        it opened it closes in `deregister_file`; `fd` remains the caller's, who closes it after that.
        """
        module = self._module
        description = module.hipFileDescr()
        description.type = module.hipFileFileHandleType.hipFileHandleTypeOpaqueFD
        description.handle.fd = fd
        error, handle = module.hipFileHandleRegister(description)
        self._check("hipFileHandleRegister", error)
        return handle

    def deregister_file(self, handle: Any) -> None:
        """Forget a file; its descriptor is still open."""
        self._module.hipFileHandleDeregister(handle)

    def register_buffer(self, pointer: int, nbytes: int) -> None:
        """Register device memory: reads into it name `pointer` and an offset from there."""
        self._check("hipFileBufRegister", self._module.hipFileBufRegister(pointer, nbytes, 0)[0])

    def deregister_buffer(self, pointer: int) -> None:
        """Undo `register_buffer`."""
        self._check("hipFileBufDeregister", self._module.hipFileBufDeregister(pointer)[0])

    def read(self, handle: Any, pointer: int, size: int, file_offset: int, buffer_offset: int) -> int:
        """Read into device memory; returns how many bytes, which may be fewer than `size`.

        Raises
        ------
        VendorError
            `errno` is the kernel's error where it is one, else 0.
        """
        return self._moved("hipFileRead", self._module.hipFileRead(handle, pointer, size, file_offset, buffer_offset))

    def write(self, handle: Any, pointer: int, size: int, file_offset: int, buffer_offset: int) -> int:
        """Write from device memory, with the errors of `read`; only with the feature ``write``."""
        return self._moved("hipFileWrite", self._module.hipFileWrite(handle, pointer, size, file_offset, buffer_offset))

    def count(self) -> bool:
        """Whether the library counts what it moves: hip-python has no call that would tell."""
        return False

    def counted(self) -> tuple[int, int]:
        """Bytes read and written, where `count` is so."""
        raise VendorError("hipFileGetStatsL1", NOT_SUPPORTED, "hip-python has no such call")

    def _moved(self, call: str, answer: tuple[Any, ...]) -> int:
        moved, errno, device_error = answer
        if moved >= 0:
            return int(moved)
        if moved == -1:
            raise VendorError(call, -1, f"{os.strerror(errno)} (errno {errno})", errno=errno)
        raise self._error(call, -int(moved), int(device_error))

    def _check(self, call: str, error: Any) -> None:
        code = int(error.err)
        if code:
            raise self._error(call, code, int(error.hip_drv_err))

    def _error(self, call: str, code: int, device_error: int) -> VendorError:
        try:
            name = self._module.hipFileOpError(code).name
        except ValueError:  # some calls answer with a bare HIP error
            name = f"error {code}"
        return VendorError(call, code, f"{name}, HIP error {device_error}" if code == HIP_ERROR else name)


_found: list[Library | BackendUnavailableError] = []


def load() -> Library:
    """The library, opened once a process.

    Raises
    ------
    BackendUnavailableError
        ``no-library``: hip-python or `libhipfile.so` is not installed, or is too old.
    """
    if not _found:
        with runtime.first_use:
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
        from rocm.bindings import hipfile as module
    except Exception as error:  # noqa: BLE001 - its loader raises what it meets, not only ImportError
        what = f"rocm.bindings.hipfile of hip-python[systems] cannot be imported ({type(error).__name__}: {error})"
        return BackendUnavailableError(NAME, Reason.NO_LIBRARY, what)
    missing = [symbol for symbol in _NEEDED if not module.has_symbol(symbol)]
    if len(missing) == len(_NEEDED):
        what = "libhipfile.so was not found, neither below ROCM_PATH nor by the system's loader"
        return BackendUnavailableError(NAME, Reason.NO_LIBRARY, what)
    if missing:
        return BackendUnavailableError(NAME, Reason.NO_LIBRARY, f"this libhipfile.so lacks {', '.join(missing)}")
    return Library(module)
