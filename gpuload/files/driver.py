"""What a handle asks of a driver that keeps state of open files, as hipFile and cuFile do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuload.files.handle import FileHandle


class Driver(Protocol):
    """Something that a file is registered with while it is open.

    Both calls may come from any thread, and may use the handle they are given; never from a forked child.
    """

    @property
    def name(self) -> str:
        """What the driver is registered under: one of a name a handle."""
        ...

    @property
    def descriptors(self) -> int:
        """How many descriptors the driver itself opens for a file."""
        ...

    def register(self, handle: FileHandle) -> object:
        """Make the file known; what is returned comes back in `deregister`."""
        ...

    def deregister(self, token: object) -> None:
        """Forget the file; its descriptors are still open."""
        ...
