"""What shared objects ask of others: the undefined symbols of ELF files, with their versions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SHT_DYNSYM, _SHT_GNU_VERNEED, _SHT_GNU_VERSYM = 11, 0x6FFFFFFE, 0x6FFFFFFF
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_NEEDED = struct.Struct("<HHIII")  # Elf64_Verneed
_VERSION = struct.Struct("<IHHII")  # Elf64_Vernaux
_NO_HIDDEN = 0x7FFF  # the top bit of a version's number hides it


@dataclass(frozen=True)
class Symbol:
    """A symbol that another object must define; `version` is empty where it has none."""

    name: str
    version: str


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    info: int


class _Elf:
    """A 64-bit little-endian ELF file."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no 64-bit little-endian ELF file")
        (start,) = struct.unpack_from("<Q", self.data, 40)
        size, count, _ = struct.unpack_from("<HHH", self.data, 58)
        self.sections = []
        for i in range(count):
            _, kind, _, _, offset, nbytes, link, info, _, _ = _SECTION.unpack_from(self.data, start + i * size)
            self.sections.append(_Section(kind, offset, nbytes, link, info))

    def section(self, kind: int) -> _Section | None:
        return next((section for section in self.sections if section.kind == kind), None)

    def string(self, table: int, offset: int) -> str:
        start = self.sections[table].offset + offset
        return self.data[start : self.data.index(b"\0", start)].decode()

    def versions(self) -> dict[int, str]:
        """Number -> name of the versions this file wants of others."""
        section = self.section(_SHT_GNU_VERNEED)
        found: dict[int, str] = {}
        at = section.offset if section else 0
        for _ in range(section.info if section else 0):
            _, count, _, first, following = _NEEDED.unpack_from(self.data, at)
            one = at + first
            for _ in range(count):
                _, _, number, name, step = _VERSION.unpack_from(self.data, one)
                found[number & _NO_HIDDEN] = self.string(section.link, name)
                one += step
            at += following
        return found


def undefined(path: Path) -> Iterator[Symbol]:
    """The symbols that `path` does not define itself."""
    elf = _Elf(path)
    table, numbers = elf.section(_SHT_DYNSYM), elf.section(_SHT_GNU_VERSYM)
    versions = elf.versions()
    for i in range(table.size // _SYMBOL.size if table else 0):
        name, _, _, section, _, _ = _SYMBOL.unpack_from(elf.data, table.offset + i * _SYMBOL.size)
        if section or not name:
            continue
        (number,) = struct.unpack_from("<H", elf.data, numbers.offset + 2 * i) if numbers else (0,)
        yield Symbol(elf.string(table.link, name), versions.get(number & _NO_HIDDEN, ""))
