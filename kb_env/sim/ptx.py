"""Reads PTX text into functions, variables and instructions.

The grammar is that of NVIDIA's PTX ISA (version 9), as nvcc, NVRTC and Triton emit it. The parser
knows statements, scopes and operands; what an opcode means is the lowering's business. It never
executes anything and treats its input as hostile: sizes are bounded, errors name the PTX line.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kb_env.types import KbError

#: Bytes of each PTX fundamental type.
TYPE_BYTES = {
    "pred": 1, "b8": 1, "s8": 1, "u8": 1, "b16": 2, "s16": 2, "u16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "s32": 4, "u32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4,
    "b64": 8, "s64": 8, "u64": 8, "f64": 8, "b128": 16,
}  # fmt: skip
MAX_REGISTERS = 200_000
MAX_INLINED = 32
MAX_VARIABLE_BYTES = 1 << 30


class PtxError(KbError):
    """PTX that this reader does not accept; the message names the PTX line."""


class Op(NamedTuple):
    """An operand. ``kind`` is one of

    ``reg`` (value: unique register name), ``int``, ``float`` (value: bits, extra: 32 or 64), ``mem``
    (value: base Op, extra: byte offset), ``vec`` (value: tuple of Op), ``name`` (label, symbol or special
    register), ``not`` (value: Op), ``pair`` (value: two Op, written ``a|b``), ``sink`` (``_``).
    """

    kind: str
    value: Any
    extra: int = 0


@dataclass
class Instr:
    """One instruction. ``mods`` are the dotted parts after the base opcode, in order."""

    op: str
    mods: tuple[str, ...]
    operands: tuple[Op, ...]
    guard: str | None = None
    negated: bool = False
    line: int = 0  # in the PTX text
    source: int = 0  # line of the CUDA source (0: unknown)
    scope: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return ".".join((self.op, *self.mods))


@dataclass(frozen=True)
class Label:
    name: str
    scope: tuple[int, ...]


@dataclass(frozen=True)
class Variable:
    """A module or function variable, or a parameter (space ``param``)."""

    name: str
    space: str
    type: str
    nbytes: int
    align: int
    #: bytes, and (offset, symbol, addend) for each address among them
    data: bytes = b""
    addresses: tuple[tuple[int, str, int], ...] = ()
    extern: bool = False


@dataclass
class Function:
    name: str
    entry: bool
    params: list[Variable]
    returns: list[Variable]
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Instr | Label] = field(default_factory=list)
    tables: dict[str, list[str]] = field(default_factory=dict)  # .branchtargets
    reqntid: tuple[int, ...] = ()


@dataclass
class Module:
    functions: dict[str, Function]
    variables: dict[str, Variable]
    files: dict[int, str]
    target: str


_LOC = re.compile(
    r"\s*(\d{1,6})\s+(\d{1,9})(?:\s+(\d{1,9}))?(?:.*\binlined_at\s+(\d{1,6})\s+(\d{1,9})\s+(\d{1,9}))?"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LINE_DIRECTIVE = re.compile(r"\s*\.(loc|file|version|target|address_size)\b([^\n]*)")
_STOP = re.compile(r'[;{}:"]')
_LABEL = re.compile(r"^[\w$%]+$")
_GUARD = re.compile(r"^@\s*(!?)\s*([%\w$]+)\s+", re.S)
_OPCODE = re.compile(r"^([\w.:]+)\s*(.*)$", re.S)
_FUNCTION = re.compile(r"\.(entry|func)\s*(\([^)]*\))?\s*([\w$]+)\s*(?:\(([^)]*)\))?", re.S)
_VARIABLE = re.compile(
    r"\.(global|const|shared|local|param)\b(?P<attrs>.*?)\.(?P<type>pred|[bsu](?:8|16|32|64|128)|f(?:16|32|64)|bf16|f16x2)\s+"
    r"(?P<name>[\w$%]+)(?:<(?P<count>\d+)>)?(?P<dims>(?:\s*\[\s*\d*\s*\])*)\s*(?:=(?P<init>.*))?$",
    re.S,
)
_REG = re.compile(r"^([\w$%]+)(?:<(\d+)>)?$")
_INTEGER = re.compile(r"^([+-]?)(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]+|\d+)U?$")


def split_list(text: str) -> list[str]:
    """Split at commas outside brackets, braces and parentheses."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    tail = text[start:].strip()
    if tail:
        parts.append(tail)
    return parts


def parse_integer(text: str) -> int | None:
    match = _INTEGER.match(text)
    if not match:
        return None
    digits = match.group(2)
    base = 16 if digits[:2] in ("0x", "0X") else 2 if digits[:2] in ("0b", "0B") else 10
    if base == 10 and len(digits) > 1 and digits[0] == "0":
        base = 8
    value = int(digits[2:] if base in (16, 2) else digits, base)
    return -value if match.group(1) == "-" else value


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
        self.newlines = [match.start() for match in re.finditer("\n", self.text)]
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        self.files: dict[int, str] = {}
        self.target = ""
        self.source = 0
        self.inlined: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self.function: Function | None = None
        self.scopes: list[dict[str, str]] = []  # written register name -> unique name
        self.path: tuple[int, ...] = ()
        self.next_scope = 0

    def line(self, position: int) -> int:
        return bisect_right(self.newlines, position - 1) + 1

    def error(self, position: int, message: str) -> PtxError:
        return PtxError(f"PTX line {self.line(position)}: {message}")

    def run(self) -> Module:
        position, start, text = 0, 0, self.text
        while True:
            if not text[start:position].strip():
                directive = _LINE_DIRECTIVE.match(text, position)
                if directive:
                    self.directive(directive.group(1), directive.group(2))
                    position = start = directive.end()
                    continue
            match = _STOP.search(text, position)
            if not match:
                break
            stop, mark = match.start(), match.group()
            pending = text[start:stop].strip()
            position = stop + 1
            if mark == '"':
                end = text.find('"', position)
                if end < 0:
                    raise self.error(stop, "string without an end")
                position = end + 1
            elif mark == ";":
                if pending:
                    self.statement(pending, start + len(text[start:stop]) - len(text[start:stop].lstrip()))
                start = position
            elif mark == ":":
                if _LABEL.match(pending) and self.function and text[position : position + 1] != ":":
                    self.label(pending)
                    start = position
            elif mark == "{":
                if not pending:
                    self.open_scope()
                    start = position
                elif self.function is None and re.search(r"\.(entry|func)\b", pending):
                    self.open_function(pending, stop)
                    start = position
                else:
                    position = self.close_of(stop)
                    if pending.startswith(".section"):
                        start = position
            else:
                self.close_scope(stop)
                start = position
        return Module(self.functions, self.variables, self.files, self.target)

    def close_of(self, position: int) -> int:
        depth = 0
        for match in re.finditer(r"[{}]", self.text[position:]):
            depth += 1 if match.group() == "{" else -1
            if depth == 0:
                return position + match.end()
        raise self.error(position, "brace without an end")

    def directive(self, name: str, rest: str) -> None:
        if name == "loc":
            self.source = self.place(rest)
        elif name == "file":
            match = re.match(r'\s*(\d+)\s+"([^"]*)"', rest)
            if match:
                self.files[int(match.group(1))] = match.group(2)
        elif name == "target":
            self.target = rest.split(",")[0].strip()

    def place(self, rest: str) -> int:
        """Line that a .loc names: of the translation unit (file 1), or of the outermost call that was inlined."""
        match = _LOC.match(rest)
        if not match:
            return 0
        at = (int(match.group(1)), int(match.group(2)), int(match.group(3) or 0))
        if match.group(4):
            self.inlined[at] = (int(match.group(4)), int(match.group(5)), int(match.group(6)))
        for _ in range(MAX_INLINED):
            if at[0] == 1 or at not in self.inlined:
                break
            at = self.inlined[at]
        return at[1]

    def open_scope(self) -> None:
        self.scopes.append({})
        self.next_scope += 1
        self.path = (*self.path, self.next_scope)

    def close_scope(self, position: int) -> None:
        if not self.scopes:
            raise self.error(position, "unmatched closing brace")
        self.scopes.pop()
        self.path = self.path[:-1]
        if not self.scopes and self.function:
            self.functions[self.function.name] = self.function
            self.function = None

    def open_function(self, header: str, position: int) -> None:
        self.function = self.header(header, position)
        self.source = 0
        self.open_scope()

    def header(self, text: str, position: int) -> Function:
        match = _FUNCTION.search(text)
        if not match:
            raise self.error(position, "function header not understood")

        def parameters(listed: str | None) -> list[Variable]:
            items = split_list((listed or "").strip().removeprefix("(").removesuffix(")"))
            return [self.variable(item, position) for item in items if item]

        returns, params = parameters(match.group(2)), parameters(match.group(4))
        function = Function(match.group(3), match.group(1) == "entry", params, returns)
        required = re.search(r"\.reqntid\s+([\d,\s]+)", text)
        if required:
            function.reqntid = tuple(int(item) for item in required.group(1).split(",") if item.strip())
        return function

    def variable(self, text: str, position: int) -> Variable:
        text = re.sub(r"\.ptr\b(\s*\.(global|const|shared|local|param))?(\s*\.align\s+\d+)?", " ", text)
        if not text.lstrip().startswith("."):
            raise self.error(position, f"variable not understood: {text[:80]}")
        match = _VARIABLE.search(text)
        if not match:
            raise self.error(position, f"variable not understood: {text[:80]}")
        space, kind = match.group(1), match.group("type")
        size = TYPE_BYTES[kind]
        vector = re.search(r"\.v([24])\b", match.group("attrs"))
        size *= int(vector.group(1)) if vector else 1
        align = re.search(r"\.align\s+(\d+)", match.group("attrs"))
        for dimension in re.findall(r"\[\s*(\d*)\s*\]", match.group("dims")):
            size *= int(dimension) if dimension else 0
        if size > MAX_VARIABLE_BYTES:
            raise self.error(position, f"variable {match.group('name')} of {size} bytes is too large")
        if align and int(align.group(1)) not in [1 << bit for bit in range(11)]:
            raise self.error(position, f"alignment of {match.group('name')} is not a power of two up to 1024")
        data, addresses = self.initial(match.group("init"), TYPE_BYTES[kind], kind, position)
        if len(data) > size:
            if match.group("dims"):
                raise self.error(position, f"too many initialisers for {match.group('name')}")
            data = data[:size]
        return Variable(
            match.group("name"), space, kind, size, int(align.group(1)) if align else TYPE_BYTES[kind],
            data, tuple(addresses), ".extern" in text,
        )  # fmt: skip

    def initial(
        self, text: str | None, size: int, kind: str, position: int
    ) -> tuple[bytes, list[tuple[int, str, int]]]:
        data, addresses = bytearray(), []
        for item in split_list(re.sub(r"[{}]", " ", text or "")):
            number = self.immediate(item)
            if number is not None:
                bits = number.value
                if number.kind == "float" and size == 4 and number.extra == 64:
                    raise self.error(position, "a 64-bit float initialises a 32-bit variable")
                data += (int(bits) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
                continue
            match = re.match(r"^(?:generic\s*\(\s*)?([\w$]+)\s*\)?\s*(?:\+\s*(\d+))?$", item)
            if not match or size != 8:
                raise self.error(position, f"initialiser not understood: {item[:60]}")
            addresses.append((len(data), match.group(1), int(match.group(2) or 0)))
            data += bytes(8)
        return bytes(data), addresses

    def immediate(self, text: str) -> Op | None:
        if text[:2] in ("0f", "0F") and len(text) == 10:
            return Op("float", int(text[2:], 16), 32)
        if text[:2] in ("0d", "0D") and len(text) == 18:
            return Op("float", int(text[2:], 16), 64)
        value = parse_integer(text.replace(" ", ""))
        if value is not None:
            return Op("int", value)
        if re.match(r"^-?\d+\.\d*(e[+-]?\d+)?$", text):
            import struct

            return Op("float", int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
        return None

    def label(self, name: str) -> None:
        assert self.function is not None
        self.function.body.append(Label(name, self.path))

    def statement(self, text: str, position: int) -> None:
        if text.startswith("."):
            self.declaration(text, position)
            return
        if self.function is None:
            raise self.error(position, f"statement outside a function: {text[:60]}")
        self.instruction(text, position)

    def declaration(self, text: str, position: int) -> None:
        function = self.function
        if text.startswith(".reg"):
            self.registers(text, position)
        elif text.startswith(".branchtargets") and function:
            last = function.body.pop()
            assert isinstance(last, Label)
            function.tables[last.name] = split_list(text.removeprefix(".branchtargets"))
        elif re.match(r"^\.(pragma|callprototype|calltargets|alias|noreturn)\b", text):
            return
        elif re.search(r"\.(entry|func)\b", text):
            return  # a prototype: the definition, or nothing, follows
        elif re.match(r"^\.(extern|visible|weak|common|global|const|shared|local|param|loc|file)\b", text):
            item = self.variable(text, position)
            if function is None:
                if item.name not in self.variables or self.variables[item.name].extern:
                    self.variables[item.name] = item
            elif item.space == "param":
                self.scopes[-1][item.name] = self.unique(item.name)
            else:
                function.variables.append(item)
        elif function is not None:
            raise self.error(position, f"directive not understood: {text[:60]}")

    def unique(self, name: str) -> str:
        return name if len(self.scopes) < 2 else f"{name}@{self.path[-1]}"

    def registers(self, text: str, position: int) -> None:
        assert self.function is not None
        match = re.match(r"^\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)$", text, re.S)
        if not match or match.group(1) not in TYPE_BYTES:
            raise self.error(position, f"register declaration not understood: {text[:60]}")
        for item in split_list(match.group(2)):
            named = _REG.match(item)
            if not named:
                raise self.error(position, f"register name not understood: {item[:60]}")
            names = [named.group(1)]
            if named.group(2):
                if int(named.group(2)) + len(self.function.registers) > MAX_REGISTERS:
                    raise self.error(position, "too many registers")
                names = [f"{named.group(1)}{index}" for index in range(int(named.group(2)))]
            for name in names:
                unique = self.unique(name)
                self.scopes[-1][name] = unique
                self.function.registers[unique] = match.group(1)

    def instruction(self, text: str, position: int) -> None:
        assert self.function is not None
        guard = _GUARD.match(text)
        rest = text[guard.end() :] if guard else text
        match = _OPCODE.match(rest)
        if not match:
            raise self.error(position, f"instruction not understood: {text[:60]}")
        parts = match.group(1).split(".")
        operands = tuple(self.operand(item, position) for item in split_list(match.group(2)))
        name = None
        if guard:
            name = self.operand(guard.group(2), position).value
        self.function.body.append(
            Instr(
                parts[0],
                tuple(parts[1:]),
                operands,
                name,
                bool(guard and guard.group(1)),
                self.line(position),
                self.source,
                self.path,
            )
        )

    def resolve(self, name: str) -> str | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def operand(self, text: str, position: int) -> Op:
        text = text.strip()
        if text == "_":
            return Op("sink", None)
        if text[:1] == "{":
            return Op("vec", tuple(self.operand(item, position) for item in split_list(text[1:-1])))
        if text[:1] == "(":
            return Op("vec", tuple(self.operand(item, position) for item in split_list(text[1:-1])))
        if text[:1] == "!":
            return Op("not", self.operand(text[1:], position))
        if text[:1] == "[":
            return self.memory(text[1:-1].strip(), position)
        if "|" in text:
            first, second = text.split("|", 1)
            return Op("pair", (self.operand(first, position), self.operand(second, position)))
        number = self.immediate(text)
        if number is not None:
            return number
        unique = self.resolve(text)
        if unique is not None:
            return Op("reg", unique)
        negative = text[:1] == "-" and self.resolve(text[1:])
        if negative:
            raise self.error(position, f"negated register operand {text}")
        match = re.match(r"^([\w$%.]+?)\s*\+\s*(-?\w+)$", text)
        if match and parse_integer(match.group(2)) is not None:
            return Op("name", match.group(1), parse_integer(match.group(2)) or 0)
        if re.match(r"^[\w$%.:]+$", text):
            return Op("name", text)
        raise self.error(position, f"operand not understood: {text[:60]}")

    def memory(self, text: str, position: int) -> Op:
        parts = split_list(text)
        if len(parts) > 1:
            return Op("vec", tuple(self.operand(item, position) for item in parts))
        match = re.match(r"^([\w$%.]+)\s*(?:([+-])\s*(-?\w+))?$", text)
        if not match:
            raise self.error(position, f"address not understood: [{text[:60]}]")
        offset = parse_integer(match.group(3)) if match.group(3) else 0
        if offset is None:
            raise self.error(position, f"address not understood: [{text[:60]}]")
        return Op("mem", self.operand(match.group(1), position), -offset if match.group(2) == "-" else offset)


def parse(text: str) -> Module:
    """Read a PTX module.

    Raises:
        PtxError: naming the PTX line that is not understood.
    """
    return _Parser(text).run()
