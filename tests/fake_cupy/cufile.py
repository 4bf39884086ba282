"""A `cuda.bindings.cufile` that is none: the calls of the real one, with its traps, in front of the fake driver.

The driver is that of `hipfile.py`: its rules, faults and counts. As in the real bindings `use_count` returns None, and
a read that the kernel refuses is a ValueError, everything else a `cuFileError`. `direct` is whether the machine has a
direct path.
"""

from __future__ import annotations

import itertools
import os
from enum import IntEnum
from types import ModuleType, SimpleNamespace

from gpuload.errors import VendorError

NAME = "cuda.bindings.cufile"


class cuFileError(Exception):
    def __init__(self, status, cuda_error=None):
        super().__init__(f"error {status}")
        self.status, self.cuda_error = status, cuda_error


class FileHandleType(IntEnum):
    OPAQUE_FD = 1


class BoolConfigParameter(IntEnum):
    PROPERTIES_ALLOW_COMPAT_MODE = 1
    FORCE_COMPAT_MODE = 2


class Module(ModuleType):
    """The bindings of one process.

    Parameters
    ----------
    driver
        A `hipfile.Library`.
    version
        As `get_version` has it; from 1200 on the environment's switch means nothing.
    """

    cuFileError, FileHandleType, BoolConfigParameter = cuFileError, FileHandleType, BoolConfigParameter

    def __init__(self, driver, version=1200):
        super().__init__(NAME)
        self.driver, self.version = driver, version
        self.direct, self.wrote_log = True, False
        self.parameters = {BoolConfigParameter.PROPERTIES_ALLOW_COMPAT_MODE: None}
        self.compatible = None  # whether the open driver may take the detour
        self.symbols = SimpleNamespace(
            cuFileUseCount=_Function(lambda: driver.uses),
            **dict.fromkeys(_SYMBOLS),
        )
        self.level, self.started, self.miscounts = 0, False, 0
        self._descriptions, self._handles, self._numbers = {}, {}, itertools.count(0x1000)

    def get_version(self):
        return self.version

    def use_count(self):
        return None

    def set_parameter_bool(self, parameter, value):
        assert not self.driver.uses
        self.parameters[parameter] = value

    def get_parameter_bool(self, parameter):
        if not self.driver.uses:
            return False  # whatever is set, as in the real one
        return self.compatible if parameter == BoolConfigParameter.PROPERTIES_ALLOW_COMPAT_MODE else False

    def driver_open(self):
        self.wrote_log = "CUFILE_LOGFILE_PATH" not in os.environ
        if not self.driver.uses:
            said = self.parameters[BoolConfigParameter.PROPERTIES_ALLOW_COMPAT_MODE]
            if said is None and self.version < 1160:
                said = {"false": False}.get(os.environ.get("CUFILE_ALLOW_COMPAT_MODE"))
            allowed = said is not False
            if not self.direct and not allowed:
                raise cuFileError(5001)
            self.compatible = allowed
        self._told(self.driver.open_driver)

    def driver_close(self):
        self._told(self.driver.close_driver)

    def Descr(self):
        made = SimpleNamespace(type=0, handle=SimpleNamespace(fd=-1), fs_ops=None, ptr=next(self._numbers))
        self._descriptions[made.ptr] = made
        return made

    def handle_register(self, pointer):
        description = self._descriptions.pop(pointer)
        assert (description.type, description.fs_ops) == (FileHandleType.OPAQUE_FD, 0)
        fd = description.handle.fd
        token = self._told(self.driver.register_file, fd)
        number = next(self._numbers)
        self._handles[number] = token
        return number

    def handle_deregister(self, number):
        self.driver.deregister_file(self._handles.pop(number))

    def buf_register(self, pointer, nbytes, flags):
        assert flags == 0
        self._told(self.driver.register_buffer, pointer, nbytes)

    def buf_deregister(self, pointer):
        self._told(self.driver.deregister_buffer, pointer)

    def read(self, number, *arguments):
        return self._told(self.driver.read, self._handles[number], *arguments)

    def write(self, number, *arguments):
        return self._told(self.driver.write, self._handles[number], *arguments)

    def get_stats_level(self):
        return self.level

    def set_stats_level(self, level):
        assert self.driver.uses
        self.level = level

    def stats_start(self):
        if self.started:
            raise cuFileError(5000)
        self.started = self.level > 0
        self._moved = self.driver.moved, self.driver.written

    def StatsLevel1(self):
        self._stats = SimpleNamespace(ptr=id(self), read_bytes=0, write_bytes=0)
        return self._stats

    def get_stats_l1(self, pointer):
        if not self.started:
            raise cuFileError(5000)
        assert pointer == self._stats.ptr
        self._stats.read_bytes = self.driver.moved - self._moved[0] + self.miscounts
        self._stats.write_bytes = self.driver.written - self._moved[1]

    def _told(self, function, *arguments):
        try:
            return function(*arguments)
        except VendorError as error:
            if error.errno:
                raise ValueError(f"{error.errno} is not a valid OpError") from None
            raise cuFileError(error.code) from None


class _Function:
    def __init__(self, function):
        self.function, self.restype = function, None

    def __call__(self):
        assert self.restype is not None, "a long would be cut"
        return self.function()


_SYMBOLS = (
    "cuFileBufDeregister",
    "cuFileBufRegister",
    "cuFileDriverOpen",
    "cuFileGetStatsL1",
    "cuFileHandleDeregister",
    "cuFileHandleRegister",
    "cuFileRead",
    "cuFileSetParameterBool",
    "cuFileWrite",
)
