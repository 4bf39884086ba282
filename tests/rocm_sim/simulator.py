"""The simulated ROCm of this process: what was called, what moved, what lives, and what shall fail."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from .build import FULL
from .libraries import HIP, HIPFILE

DIRECTIONS = ("host_to_host", "host_to_device", "device_to_host", "device_to_device")
SERVED = ("fast_read", "fast_write", "fallback_read", "fallback_write")
KINDS = ("device_memory", "managed_memory", "pinned_memory", "registered_memory", "streams", "events")
HIPFILE_KINDS = ("files", "buffers")


def environment(root: Path, variant: str = FULL, **more: str) -> dict[str, str]:
    """The environment of a child process that finds the simulated ROCm, or one of its variants, under `root`.

    Variants: ``full``, ``no-hipfile``, ``old-hipfile`` (0.2), ``no-ais`` (no `hipAmdFileRead`), ``no-rocm``.
    """
    folder = root / variant
    if not (folder / "lib").is_dir():
        variants = sorted(path.parent.name for path in root.glob("*/lib"))
        raise ValueError(f"no variant {variant!r} of the simulated ROCm; there are {', '.join(variants)}")
    made = dict(os.environ)
    made.pop("ROCM_SIM_FAULT", None)
    made |= {"ROCM_PATH": str(folder), "ROCM_HOME": str(folder), "CUPY_CACHE_DIR": str(root / "kernels")}
    made["PATH"] = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", os.defpath)])
    others = [
        path
        for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        if path and root not in Path(path).parents
    ]
    made["LD_LIBRARY_PATH"] = os.pathsep.join([str(folder / "lib"), *others])
    return made | more


class Simulator:
    """The simulator that is loaded into this process; in a child with one of `environment` too.

    Threads: safe. Fork: the streams of the parent are gone, as with a GPU. Pickle: no.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        self._hip = ctypes.CDLL(HIP.soname)
        self._hip.rocmsim_count.restype = ctypes.c_long
        self._hip.rocmsim_live.restype = ctypes.c_long
        self._hip.rocmsim_report.restype = ctypes.c_size_t
        self._hip.rocmsim_report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._hip.rocmsim_copied.restype = ctypes.c_uint64
        try:
            self._hipfile = ctypes.CDLL(HIPFILE.soname)
        except OSError:  # a variant without it
            self._hipfile = None
        else:
            self._hipfile.rocmsim_hipfile_stat.restype = ctypes.c_uint64
            self._hipfile.rocmsim_hipfile_live.restype = ctypes.c_long

    def count(self, name: str) -> int:
        """Calls of the function `name` since the last `reset`."""
        return int(self._hip.rocmsim_count(name.encode()))

    def counts(self) -> dict[str, int]:
        """Calls of every function that was called since the last `reset`."""
        buffer = ctypes.create_string_buffer(1 << 16)
        self._hip.rocmsim_report(buffer, len(buffer))
        lines = (line.split() for line in buffer.value.decode().splitlines())
        found: dict[str, int] = {}
        for name, count in lines:
            found[name] = found.get(name, 0) + int(count)
        return found

    def stats(self) -> dict[str, int]:
        """Bytes that hipFile moved: fast_read, fast_write, fallback_read, fallback_write."""
        if self._hipfile is None:
            return dict.fromkeys(SERVED, 0)
        return {name: int(self._hipfile.rocmsim_hipfile_stat(i)) for i, name in enumerate(SERVED)}

    def copied(self) -> dict[str, int]:
        """Bytes that HIP's copies moved, each way; those of hipFile's fallback are among them."""
        return {name: int(self._hip.rocmsim_copied(i)) for i, name in enumerate(DIRECTIONS)}

    def live(self) -> dict[str, int]:
        """How many there are now of each kind of resource."""
        found = {kind: int(self._hip.rocmsim_live(kind.encode())) for kind in KINDS}
        if self._hipfile is not None:
            found |= {kind: int(self._hipfile.rocmsim_hipfile_live(kind.encode())) for kind in HIPFILE_KINDS}
        return found

    def fault(self, *specifications: str) -> None:
        """Inject ``NAME:ACTION=VALUE[@N][+]`` from now on, in place of what was injected before; none: nothing.

        Raises
        ------
        ValueError
            Not of that form, or there is no function NAME.
        """
        for specification in ",".join(specifications).replace(" ", ",").split(","):
            name = specification.partition(":")[0]
            if name and name != "stream" and not (self._has(self._hip, name) or self._has(self._hipfile, name)):
                raise ValueError(f"fault {specification!r}: the simulated ROCm has no function {name!r}")
        if self._hip.rocmsim_fault(",".join(specifications).encode()):
            raise ValueError(f"faults {specifications!r}: each must be NAME:ACTION=VALUE[@N][+]")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No stream does anything until the end of the block, whatever was injected: late without a clock.

        Nothing may wait for a stream meanwhile.
        """
        self.fault("stream:hold=1")
        try:
            yield
        finally:
            self.fault()

    def devices(self, count: int) -> None:
        """`count` GPUs from now on, until `reset`."""
        self._hip.rocmsim_set_devices(count)

    def reset(self) -> None:
        """No faults, counters at 0, the GPUs of the environment; hipFile as if it had just been loaded."""
        self.fault()
        self.devices(-1)
        self._hip.rocmsim_reset_counts()
        self._hip.rocmsim_reset_copied()
        self._hip.rocmsim_reset_ais_bytes()
        if self._hipfile is not None:
            self._hipfile.rocmsim_reset_hipfile_stats()
            self._hipfile.rocmsim_hipfile_reset()

    @staticmethod
    def _has(library: ctypes.CDLL | None, name: str) -> bool:
        return library is not None and hasattr(library, name)
