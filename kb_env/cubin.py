"""Reads a cubin: an ELF file with one code section per kernel and attributes in ``.nv.info``.

The facts about kernels come from here, not from compiler messages or PTX text, since a candidate
can write what it likes into those. The attribute numbers are those that NVIDIA's ``cuobjdump
--dump-elf`` prints by name. The file itself is made by ptxas from hostile text: all bounds are checked.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass

from kb_env.types import KbError

_PARAMETER = 0x17  # EIATTR_KPARAM_INFO
_MAX_THREADS = 0x05  # EIATTR_MAX_THREADS
_FRAME_SIZE = 0x11  # EIATTR_FRAME_SIZE
_REGISTERS = 0x2F  # EIATTR_REGCOUNT

#: Attribute entries with a size and data behind them; all other forms are four bytes long.
_SIZED = 0x04

#: Names of internal functions hold hashes of the file's path and text: not part of the code.
_VOLATILE = re.compile(rb"(_GLOBAL__N_|_INTERNAL)_[0-9a-f]{8}_\d+_kernel_cu_[0-9a-f]{8}")

#: Sections that decide what runs. Debug and line tables, notes and string tables do not.
_CODE = re.compile(r"\.text\.|\.nv\.constant|\.nv\.global|\.nv\.shared|\.nv\.info|\.rel[a]?\.(text|nv)")


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    size: int
    info: int
    data: bytes


@dataclass(frozen=True)
class Symbol:
    """``section`` is 0 for an undefined symbol."""

    name: str
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class KernelFacts:
    """What the compiler made of one kernel. Sizes in bytes; registers per thread."""

    name: str
    parameters: tuple[int, ...]
    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads: int


@dataclass(frozen=True)
class Elf:
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    @property
    def undefined(self) -> tuple[str, ...]:
        """Functions and variables the code needs from elsewhere (device printf is ``vprintf``)."""
        names = (s.name for s in self.symbols[1:] if s.section == 0)
        return tuple(name for name in names if name and not name.startswith(".nv."))

    def kernels(self) -> tuple[KernelFacts, ...]:
        """Facts of every kernel, in the order of the file."""
        # From Hopper on, a kernel's shared section begins with what the system reserves per block.
        reserved = 1024 if any(s.name.startswith(".nv.reservedSmem") for s in self.symbols) else 0
        shared = {s.name.removeprefix(".nv.shared."): max(0, s.size - reserved) for s in self.sections}
        registers: dict[int, int] = {}
        frames: dict[int, int] = {}
        for section in self.sections:
            if section.name == ".nv.info":
                for attribute, value in _attributes(section.data):
                    if attribute in (_REGISTERS, _FRAME_SIZE) and len(value) >= 8:
                        symbol, number = struct.unpack_from("<II", value)
                        (registers if attribute == _REGISTERS else frames)[symbol] = number
        index = {symbol.name: i for i, symbol in enumerate(self.symbols)}
        found = []
        for section in self.sections:
            name = section.name.removeprefix(".nv.info.")
            if name == section.name or f".text.{name}" not in {s.name for s in self.sections}:
                continue
            parameters, threads = _launch_facts(section.data)
            if parameters is None:
                continue
            symbol = index.get(name, 0)
            found.append(
                KernelFacts(
                    name,
                    parameters,
                    registers.get(symbol, 0),
                    shared.get(name, 0),
                    frames.get(symbol, 0),
                    threads,
                )
            )
        return tuple(found)

    def digest(self) -> str:
        """Hash of code and constants alone: the same for any comments, layout and line numbers."""
        state = hashlib.sha256()
        for section in sorted(self.sections, key=lambda s: (_VOLATILE.sub(b"", s.name.encode()), s.data)):
            if _CODE.match(section.name):
                name = _VOLATILE.sub(b"", section.name.encode())
                for part in (name, str(section.size).encode(), section.data):
                    state.update(struct.pack("<Q", len(part)) + part)
        # Code refers to variables by the number of their symbol: where that symbol lies belongs to it.
        for number, symbol in enumerate(self.symbols):
            place = self.sections[symbol.section].name if symbol.section < len(self.sections) else ""
            if place.startswith((".nv.global", ".nv.constant", ".nv.shared")):
                place = _VOLATILE.sub(b"", place.encode()).decode()
                state.update(f"{number} {place} {symbol.value} {symbol.size}\0".encode())
        return state.hexdigest()[:32]


def stable_name(name: str) -> str:
    """A kernel's name without the hashes of path and text that internal linkage puts into it."""
    return _VOLATILE.sub(b"", name.encode()).decode()


def read_cubin(data: bytes) -> Elf:
    """Parse a 64-bit ELF file: a cubin, or the object file of host code.

    Raises:
        KbError: if it is none or is damaged.
    """
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise KbError(f"the compiler's output is no whole ELF file ({error})") from error


def _read(data: bytes) -> Elf:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("wrong magic number")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, strings = struct.unpack_from("<HHH", data, 58)
    if size != 64:
        raise ValueError("wrong section header size")
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]

    def content(header: tuple[int, ...]) -> bytes:
        if header[1] == 8:  # NOBITS
            return b""
        if header[4] + header[5] > len(data):
            raise ValueError("section leaves the file")
        return data[header[4] : header[4] + header[5]]

    names = content(headers[strings])
    sections = tuple(Section(_string(names, h[0]), h[1], h[5], h[7], content(h)) for h in headers)
    symbols: list[Symbol] = []
    for header in headers:
        if header[1] == 2:  # SYMTAB
            texts = content(headers[header[6]])
            for at in range(0, header[5] - 23, 24):
                name, _, _, section, value, length = struct.unpack_from("<IBBHQQ", content(header), at)
                symbols.append(Symbol(_string(texts, name), section, value, length))
    return Elf(sections, tuple(symbols))


def _string(table: bytes, at: int) -> str:
    # A program chooses names: what is no text must neither raise nor become the name of something else.
    return table[at : table.index(b"\0", at)].decode(errors="backslashreplace")


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            if at + size > len(data):
                raise ValueError("attribute leaves its section")
            found.append((attribute, data[at : at + size]))
            at += size
    return found


def _launch_facts(data: bytes) -> tuple[tuple[int, ...] | None, int]:
    """Parameter sizes and the bound on threads per block; no sizes if this is a device function."""
    parameters: dict[int, int] = {}
    threads = 1024
    kernel = False
    for attribute, value in _attributes(data):
        if attribute == _PARAMETER and len(value) == 12:
            _, ordinal, _, packed = struct.unpack("<IHHI", value)
            parameters[ordinal] = packed >> 18
        elif attribute == _MAX_THREADS and len(value) == 12:
            x, y, z = struct.unpack("<III", value)
            threads = min(1024, x * y * z)
        kernel = kernel or attribute in _KERNEL_ONLY
    if not kernel and not parameters:
        return None, threads
    if sorted(parameters) != list(range(len(parameters))):
        raise ValueError("a kernel's parameters are not numbered in order")
    return tuple(parameters[i] for i in range(len(parameters))), threads


#: EIATTR_CBANK_PARAM_SIZE, EIATTR_PARAM_CBANK, EIATTR_EXIT_INSTR_OFFSETS: present for every kernel.
_KERNEL_ONLY = (0x19, 0x0A, 0x1C)
