"""LLVM IR text for one kernel: a function that runs a warp until it ends, waits at a barrier or uses up its slice.

Virtual registers are vectors of 32 lanes, or scalars where the analysis shows them uniform. Inside a
block values are SSA; across blocks they live in the warp's register file. Blocks that may run while
other lanes of the warp wait elsewhere write the file under the lane mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kb_env.sim.flow import Flow, scalar_capable
from kb_env.sim.ir import Block, Flat, results
from kb_env.sim.ptx import TYPE_BYTES, Instr, Op, PtxError

LANES = 32
#: Byte offsets in struct Warp (native/runtime.h).
WARP = {
    "registers": 0, "params": 8, "executed": 32, "limit": 40, "mask": 48, "next_waiting": 56, "index": 60,
    "tid": 256, "ctaid": 640, "nctaid": 652, "ntid": 664, "block_counts": 704, "shared_total": 720,
    "clusterid": 724, "nclusterid": 736, "cluster_ctaid": 748, "cluster_nctaid": 760, "cluster_ctarank": 772,
    "cluster_nctarank": 776, "result": 912,
}  # fmt: skip
SLOT_SHIFT = 36
SLOT_SHARED, SLOT_LOCAL, SLOT_PARAM = 1, 2, 3
CODE_SLICE = 2
#: Slots of the grid's own memory (cooperative groups), and of the addresses of functions.
GRID_SLOT, CODE_SLOT = 4, 6


class Refused(PtxError):
    """An instruction or form that the engine does not implement."""


@dataclass(frozen=True)
class Site:
    """An instruction that may fault or is counted: what the runtime's site number stands for."""

    kind: str  # load, store, atomic, barrier, ...
    space: str
    line: int
    source: int
    opcode: str


Rule = Callable[["Lowerer", Instr], None]
#: Base opcode -> how to emit it. Filled by the lower_* modules.
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a lowering for base opcodes."""

    def add(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return add


def int_type(kind: str) -> str:
    """LLVM integer type as wide as a PTX type."""
    if kind == "pred":
        return "i1"
    return f"i{8 * TYPE_BYTES[kind]}"


def float_type(kind: str) -> str | None:
    return {"f32": "float", "f64": "double", "f16": "half"}.get(kind)


def register_type(kind: str) -> str:
    if kind == "b128":
        raise Refused("128-bit registers are not supported")
    return "i16" if TYPE_BYTES[kind] == 1 and kind != "pred" else int_type(kind)


class Lowerer:
    """Emits one kernel. ``vector`` says whether the instruction at hand is emitted on vectors or scalars."""

    def __init__(
        self, flat: Flat, flow: Flow, symbols: dict[str, int], sites: list[Site], sanitize: bool = False
    ) -> None:
        self.flat, self.flow = flat, flow
        self.sanitize = sanitize  # also tell the sanitizer of fences and of the order of accesses
        self.symbols = symbols  # module symbol -> virtual address
        self.sites = sites
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.counter = 0
        self.vector = True
        self.slots, self.register_bytes = self._assign_slots()
        self.parameters = self._parameter_offsets()
        self.current: dict[str, str] = {}
        self.cache: dict[tuple, str] = {}
        self.dirty: dict[str, None] = {}
        self.carry: str | None = None
        self.block_number = 0
        self.instr: Instr | None = None
        self.tables: list[str] = []

    # -- naming ----------------------------------------------------------------------------------

    def new(self) -> str:
        self.counter += 1
        return f"%v{self.counter}"

    def emit(self, text: str) -> str:
        """Append an instruction with a result; returns the result's name."""
        name = self.new()
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self.lines.append("  " + text)

    def t(self, base: str) -> str:
        """LLVM type of the current shape."""
        return f"<{LANES} x {base}>" if self.vector else base

    def const(self, base: str, value: int) -> str:
        """An integer constant of the current shape."""
        bits = int(base[1:])
        value &= (1 << bits) - 1
        if value >> (bits - 1) and bits > 1:
            value -= 1 << bits
        text = ("true" if value else "false") if bits == 1 else str(value)
        if not self.vector:
            return text
        if value == 0:
            return "zeroinitializer"
        return "<" + ", ".join([f"{base} {text}"] * LANES) + ">"

    def real(self, base: str, value: float) -> str:
        import struct

        text = "0x" + struct.pack(">d", value).hex().upper()
        if not self.vector:
            return text
        return "<" + ", ".join([f"{base} {text}"] * LANES) + ">"

    def call(self, intrinsic: str, base: str, *values: str, extra: str = "") -> str:
        """An LLVM intrinsic on values of one type, overloaded on it."""
        kind = {"float": "f32", "double": "f64", "half": "f16"}.get(base, base)
        name = f"llvm.{intrinsic}.{f'v{LANES}' if self.vector else ''}{kind}"
        kinds = ", ".join([self.t(base)] * len(values))
        self.declared[name] = f"declare {self.t(base)} @{name}({kinds}{', i1' if extra else ''})"
        arguments = ", ".join(f"{self.t(base)} {value}" for value in values)
        return self.emit(f"call {self.t(base)} @{name}({arguments}{', ' + extra if extra else ''})")

    def op2(self, opcode: str, base: str, a: str, b: str) -> str:
        return self.emit(f"{opcode} {self.t(base)} {a}, {b}")

    def cast(self, opcode: str, source: str, value: str, target: str) -> str:
        return self.emit(f"{opcode} {self.t(source)} {value} to {self.t(target)}")

    def choose(self, condition: str, base: str, a: str, b: str) -> str:
        return self.emit(f"select {self.t('i1')} {condition}, {self.t(base)} {a}, {self.t(base)} {b}")

    def compare(self, predicate: str, base: str, a: str, b: str) -> str:
        opcode = "fcmp" if base in ("float", "double", "half") else "icmp"
        return self.emit(f"{opcode} {predicate} {self.t(base)} {a}, {b}")

    def refuse(self, why: str = "") -> Refused:
        assert self.instr is not None
        return Refused(
            f"PTX line {self.instr.line}: {self.instr.text} is not supported{': ' + why if why else ''}"
        )

    # -- registers -------------------------------------------------------------------------------

    def _assign_slots(self) -> tuple[dict[str, tuple[int, str, bool]], int]:
        slots, offset = {}, 0
        for name, position in self.flow.index.items():
            if not self.flow.crossing >> position & 1:
                continue
            base = register_type(self.flat.registers[name])
            uniform = name in self.flow.uniform
            size = 8 if uniform else 4 if base == "i1" else LANES * int(base[1:]) // 8
            align = 8 if uniform else min(64, size)
            offset = -(-offset // align) * align
            slots[name] = (offset, base, uniform)
            offset += size
        return slots, -(-offset // 64) * 64

    def _parameter_offsets(self) -> dict[str, int]:
        offsets, offset = {}, 0
        for item in self.flat.params:
            offset = -(-offset // item.align) * item.align
            offsets[item.name] = offset
            offset += item.nbytes
        return offsets

    def base_of(self, register: str) -> str:
        return register_type(self.flat.registers[register])

    def is_scalar(self, register: str) -> bool:
        return register in self.flow.uniform

    def raw(self, register: str) -> str:
        """Current value of a register, in the register's own type and shape."""
        if register in self.current:
            return self.current[register]
        if register not in self.slots:
            base = self.base_of(register)
            keep, self.vector = self.vector, not self.is_scalar(register)
            value = self.const(base, 0)  # never written before: any value will do
            self.vector = keep
        else:
            value = self._load_slot(register)
        self.current[register] = value
        return value

    def _slot_address(self, offset: int) -> str:
        return self.emit(f"getelementptr i8, ptr %regs, i64 {offset}")

    def _load_slot(self, register: str) -> str:
        offset, base, uniform = self.slots[register]
        address = self._slot_address(offset)
        if uniform:
            stored = "i32" if base == "i1" else base
            value = self.emit(f"load {stored}, ptr {address}, align 8")
            return self.emit(f"trunc i32 {value} to i1") if base == "i1" else value
        if base == "i1":
            value = self.emit(f"load i32, ptr {address}, align 4")
            return self.emit(f"bitcast i32 {value} to <{LANES} x i1>")
        return self.emit(f"load <{LANES} x {base}>, ptr {address}, align 64")

    def _store_slot(self, register: str, masked: bool) -> None:
        offset, base, uniform = self.slots[register]
        value = self.current[register]
        address = self._slot_address(offset)
        if uniform:
            stored = base
            if base == "i1":
                value, stored = self.emit(f"zext i1 {value} to i32"), "i32"
            self.do(f"store {stored} {value}, ptr {address}, align 8")
            return
        if base == "i1":
            bits = self.emit(f"bitcast <{LANES} x i1> {value} to i32")
            if masked:
                old = self.emit(f"load i32, ptr {address}, align 4")
                keep = self.emit(f"xor i32 {self.mask_name()}, -1")
                old = self.emit(f"and i32 {old}, {keep}")
                bits = self.emit(f"or i32 {old}, {self.emit(f'and i32 {bits}, {self.mask_name()}')}")
            self.do(f"store i32 {bits}, ptr {address}, align 4")
            return
        kind = f"<{LANES} x {base}>"
        if masked:
            old = self.emit(f"load {kind}, ptr {address}, align 64")
            value = self.emit(f"select <{LANES} x i1> {self.mask_vector()}, {kind} {value}, {kind} {old}")
        self.do(f"store {kind} {value}, ptr {address}, align 64")

    def mask_name(self) -> str:
        return f"%m{self.block_number}"

    def mask_vector(self) -> str:
        key = ("maskvector",)
        if key not in self.cache:
            self.cache[key] = self.emit(f"bitcast i32 {self.mask_name()} to <{LANES} x i1>")
        return self.cache[key]

    def splat(self, value: str, base: str) -> str:
        """A vector with the scalar in every lane."""
        if not value.startswith("%"):
            keep, self.vector = self.vector, True
            number = {"true": 1, "false": 0}.get(value)
            text = self.const(base, number if number is not None else int(value))
            self.vector = keep
            return text
        key = ("splat", value)
        if key not in self.cache:
            one = self.emit(f"insertelement <{LANES} x {base}> poison, {base} {value}, i32 0")
            self.cache[key] = self.emit(
                f"shufflevector <{LANES} x {base}> {one}, <{LANES} x {base}> poison, <{LANES} x i32> zeroinitializer"
            )
        return self.cache[key]

    def shaped(self, value: str, base: str, scalar: bool) -> str:
        return self.splat(value, base) if scalar and self.vector else value

    def bits(self, op: Op, kind: str) -> str:
        """An operand as an integer as wide as the PTX type, in the current shape."""
        base = int_type(kind)
        if op.kind == "reg":
            name = str(op.value)
            have = self.base_of(name)
            value = self.shaped(self.raw(name), have, self.is_scalar(name))
            return self.resize(value, have, base, kind[0] == "s" and int(have[1:]) < int(base[1:]))
        if op.kind in ("int", "float"):
            bits = int(op.value)
            if op.kind == "float" and op.extra == 64 and base == "i32":
                import struct

                bits = struct.unpack(
                    "<I", struct.pack("<f", struct.unpack("<d", struct.pack("<Q", bits))[0])
                )[0]
            return self.const(base, bits)
        if op.kind == "not":
            return self.op2("xor", base, self.bits(op.value, kind), self.const(base, -1))
        if op.kind == "name":
            return self.special(str(op.value), base, op.extra)
        raise self.refuse(f"operand {op.kind}")

    def resize(self, value: str, have: str, want: str, signed: bool = False) -> str:
        if have == want:
            return value
        narrow = int(have[1:]) > int(want[1:])
        return self.cast("trunc" if narrow else "sext" if signed else "zext", have, value, want)

    def get(self, op: Op, kind: str) -> str:
        """An operand as a value of the PTX type (floats as LLVM floats), in the current shape."""
        value = self.bits(op, kind)
        target = float_type(kind)
        if target is None:
            return value
        key = ("cast", value, target, self.vector)
        if key not in self.cache:
            self.cache[key] = self.cast("bitcast", int_type(kind), value, target)
        return self.cache[key]

    def pred(self, op: Op) -> str:
        return self.bits(op, "pred")

    def put(self, op: Op, value: str, kind: str) -> None:
        """Write a result of the PTX type, in the current shape, under the guard."""
        if op.kind == "sink":
            return
        if op.kind != "reg":
            raise self.refuse("result is not a register")
        name = str(op.value)
        base, want = int_type(kind), self.base_of(name)
        if float_type(kind):
            value = self.cast("bitcast", float_type(kind) or "", value, base)
        value = self.resize(value, base, want, kind[0] == "s")
        scalar = self.is_scalar(name)
        assert scalar != self.vector, f"shape of {name}"
        assert self.instr is not None
        if self.instr.guard is not None:
            value = self.choose(self.guard(), want, value, self.shaped(self.raw(name), want, scalar))
        self.current[name] = value
        self.dirty[name] = None

    def guard(self) -> str:
        """The guard of the instruction at hand, as a condition of the current shape."""
        assert self.instr is not None and self.instr.guard is not None
        value = self.pred(Op("reg", self.instr.guard))
        return self.op2("xor", "i1", value, self.const("i1", 1)) if self.instr.negated else value

    def active(self) -> str:
        """i32 bits of the lanes that execute the instruction at hand."""
        assert self.instr is not None
        if self.instr.guard is None:
            return self.mask_name()
        keep, self.vector = self.vector, True
        bits = self.emit(f"bitcast <{LANES} x i1> {self.guard()} to i32")
        self.vector = keep
        return self.emit(f"and i32 {bits}, {self.mask_name()}")

    # -- special registers and symbols ---------------------------------------------------------------

    def warp_field(self, name: str, kind: str = "i32", extra: int = 0) -> str:
        address = self.emit(f"getelementptr i8, ptr %w, i64 {WARP[name] + extra}")
        return self.emit(f"load {kind}, ptr {address}, align 4")

    def special(self, name: str, base: str, addend: int) -> str:
        if name.startswith("%"):
            value, scalar = self._special_register(name)
            value = (
                self.shaped(value, "i32", scalar) if name not in _WIDE else self.shaped(value, "i64", scalar)
            )
            return self.resize(value, "i64" if name in _WIDE else "i32", base)
        return self.const(base, self.symbol(name) + addend)

    def symbol(self, name: str) -> int:
        """The address that an operand naming a symbol stands for (its offset, in shared and local space)."""
        for table in (self.flat.shared, self.flat.local, self.symbols, self.parameters):
            if name in table:
                return table[name]
        if name == "WARP_SZ":
            return LANES
        raise self.refuse(f"symbol {name} is not known")

    def _special_register(self, name: str) -> tuple[str, bool]:
        stem, _, axis = name[1:].partition(".")
        position = {"x": 0, "y": 1, "z": 2}.get(axis, 0)
        if stem == "tid":
            address = self.emit(f"getelementptr i8, ptr %w, i64 {WARP['tid'] + 128 * position}")
            return self.emit(f"load <{LANES} x i32>, ptr {address}, align 64"), False
        if stem == "laneid":
            return self._lanes(lambda lane: lane), False
        if stem.startswith("lanemask_"):
            full = (1 << LANES) - 1
            masks = {
                "eq": lambda lane: 1 << lane,
                "lt": lambda lane: (1 << lane) - 1,
                "le": lambda lane: (2 << lane) - 1,
                "gt": lambda lane: full & ~((2 << lane) - 1),
                "ge": lambda lane: full & ~((1 << lane) - 1),
            }
            return self._lanes(masks[stem[9:]]), False
        if stem in ("clock64", "globaltimer"):
            return self.warp_field("executed", "i64"), True
        if stem in ("clock", "globaltimer_lo"):
            return self.emit(f"trunc i64 {self.warp_field('executed', 'i64')} to i32"), True
        fixed = {
            "smid": 0,
            "nsmid": 132,
            "gridid": 0,
            "nwarpid": 64,
            "clock_hi": 0,
            "globaltimer_hi": 0,
            "is_explicit_cluster": 0,
            "envreg1": GRID_SLOT << (SLOT_SHIFT - 32),  # where cooperative groups keep the grid's barrier
            "envreg2": 0,
        }
        if stem in fixed:
            return str(fixed[stem]), True
        fields = {"warpid": "index", "total_smem_size": "shared_total", "dynamic_smem_size": "shared_total"}
        stem = fields.get(stem, stem)
        if stem == "aggr_smem_size" or stem not in WARP:
            raise self.refuse(f"special register {name}")
        value = self.warp_field(stem, "i32", 4 * position)
        if name == "%dynamic_smem_size":
            value = self.emit(f"sub i32 {value}, {self.flat.shared_bytes}")
        return value, True

    def _lanes(self, value: Callable[[int], int]) -> str:
        return "<" + ", ".join(f"i32 {value(lane)}" for lane in range(LANES)) + ">"

    # -- helpers of the runtime ------------------------------------------------------------------------

    def site(self, kind: str, space: str = "") -> int:
        assert self.instr is not None
        self.sites.append(Site(kind, space, self.instr.line, self.instr.source, self.instr.text))
        return len(self.sites) - 1

    def spill(self, area: str, value: str, base: str, element: int = 0) -> str:
        """Store a vector to scratch memory for a runtime helper; returns its address."""
        self._room(area, base, element)
        address = f"%{area}"
        if element:
            address = self.emit(f"getelementptr i8, ptr %{area}, i64 {element * LANES * int(base[1:]) // 8}")
        self.do(f"store <{LANES} x {base}> {value}, ptr {address}, align 64")
        return address

    def _room(self, area: str, base: str, element: int) -> None:
        """Scratch memory is finite: an instruction with more registers than any real one has is refused."""
        if (element + 1) * LANES * int(base[1:]) // 8 > _SCRATCH[area]:
            raise self.refuse("too many registers")

    def fetch(self, area: str, base: str, element: int = 0) -> str:
        self._room(area, base, element)
        address = f"%{area}"
        if element:
            address = self.emit(f"getelementptr i8, ptr %{area}, i64 {element * LANES * int(base[1:]) // 8}")
        return self.emit(f"load <{LANES} x {base}>, ptr {address}, align 16")

    def runtime(self, name: str, result: str, arguments: list[tuple[str, str]]) -> str:
        """Call a function of the runtime."""
        kinds = ", ".join(kind for kind, _ in arguments)
        self.declared[name] = f"declare {result} @{name}({kinds})"
        text = f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})"
        if result == "void":
            self.do(text)
            return ""
        return self.emit(text)

    def ordered(self) -> None:
        """Tell the sanitizer that the access at hand is volatile or atomic, and whether it acquires or releases."""
        assert self.instr is not None
        mods = set(self.instr.mods)
        if not self.sanitize or not (mods & _STRONG or self.instr.op in ("atom", "red")):
            return
        order = (
            1
            | (2 if mods & {"acquire", "acq_rel", "sc"} else 0)
            | (4 if mods & {"release", "acq_rel", "sc"} else 0)
        )
        self.runtime("kb_order", "void", [("ptr", "%w"), ("i32", str(order))])

    # -- blocks ----------------------------------------------------------------------------------------

    def function(self, name: str) -> str:
        """The whole function's IR text."""
        for number, block in enumerate(self.flat.blocks):
            self.block(number, block)
        body = self.lines
        cases = " ".join(f"i32 {number}, label %b{number}" for number in range(len(self.flat.blocks)))
        arrivals = "".join(f", [ {value}, %{label} ]" for value, label in self.arrivals)
        head = [
            f"define i32 @{name}(ptr %w) {{",
            "entry:",
            *(f"  %{area} = alloca [{size} x i8], align 64" for area, size in _SCRATCH.items()),
            "  %regs = load ptr, ptr %w, align 8",
            f"  %countsp = getelementptr i8, ptr %w, i64 {WARP['block_counts']}",
            "  %counts = load ptr, ptr %countsp, align 8",
            f"  %executedp = getelementptr i8, ptr %w, i64 {WARP['executed']}",
            f"  %limitp = getelementptr i8, ptr %w, i64 {WARP['limit']}",
            f"  %maskp = getelementptr i8, ptr %w, i64 {WARP['mask']}",
            f"  %waitp = getelementptr i8, ptr %w, i64 {WARP['next_waiting']}",
            "  %first = call i32 @kb_enter(ptr %w)",
            "  br label %dispatch",
            "dispatch:",
            f"  %next = phi i32 [ %first, %entry ]{arrivals}",
            f"  switch i32 %next, label %leave [ {cases} ]",
            "leave:",
            "  ret i32 0",
        ]
        self.declared["kb_enter"] = "declare i32 @kb_enter(ptr)"
        return "\n".join([*head, *body, "}", *self.tables])

    @property
    def arrivals(self) -> list[tuple[str, str]]:
        return self._arrivals

    _arrivals: list[tuple[str, str]]

    def block(self, number: int, block: Block) -> None:
        if number == 0:
            self._arrivals = []
        self.block_number = number
        self.current, self.cache, self.dirty, self.carry = {}, {}, {}, None
        self.lines.append(f"b{number}:")
        self.do(f"%m{number} = load i32, ptr %maskp, align 4")
        self._count(number, len(block.instrs) + (block.ender is not None))
        for instr in block.instrs:
            self.instruction(instr)
        self.instr = block.ender
        self.vector = True
        self._end(number, block)

    def instruction(self, instr: Instr) -> None:
        self.instr = instr
        emit = RULES.get(instr.op)
        if emit is None:
            raise self.refuse()
        written = results(instr)
        self.vector = not (written and all(name in self.flow.uniform for name in written))
        if not self.vector and not scalar_capable(instr):
            raise self.refuse("uniform result of a vector operation")
        try:
            emit(self, instr)
            if self.sanitize and "sync" in instr.mods:
                self.runtime("kb_warp_sync", "void", [("ptr", "%w")])
        except (
            IndexError,
            KeyError,
            AttributeError,
            TypeError,
            ValueError,
            StopIteration,
            AssertionError,
        ) as error:
            raise self.refuse(f"operands not understood ({type(error).__name__} {error})") from error

    def _count(self, number: int, length: int) -> None:
        lanes = self.emit(f"call i32 @llvm.ctpop.i32(i32 %m{number})")
        self.declared["llvm.ctpop.i32"] = "declare i32 @llvm.ctpop.i32(i32)"
        wide = self.emit(f"zext i32 {lanes} to i64")
        for offset, amount in ((16 * number, "1"), (16 * number + 8, wide)):
            address = self.emit(f"getelementptr i8, ptr %counts, i64 {offset}")
            old = self.emit(f"load i64, ptr {address}, align 8")
            self.do(f"store i64 {self.emit(f'add i64 {old}, {amount}')}, ptr {address}, align 8")
        old = self.emit("load i64, ptr %executedp, align 8")
        self.do(f"store i64 {self.emit(f'add i64 {old}, {length}')}, ptr %executedp, align 8")

    def write_back(self, number: int) -> None:
        """Store the registers that later blocks need."""
        masked = bool(self.flow.shared_with_waiters >> number & 1)
        for name in self.dirty:
            if name in self.slots and self.flow.live_out[number] >> self.flow.index[name] & 1:
                self._store_slot(name, masked)

    def _dispatch(self, value: str, label: str) -> None:
        self._arrivals.append((value, label))
        self.do("br label %dispatch")

    def _start(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def _jump(self, number: int, target: int, label: str) -> None:
        """From the open LLVM block `label`, go to a block, unless others wait there or the slice is used up."""
        waiting = bool(self.flow.shared_with_waiters >> number & 1)
        if target <= number:
            used = self.emit("load i64, ptr %executedp, align 8")
            limit = self.emit("load i64, ptr %limitp, align 8")
            over = self.emit(f"icmp ugt i64 {used}, {limit}")
            self.do(f"br i1 {over}, label %{label}.stop, label %{label}.go, !prof !0")
            self._start(f"{label}.stop")
            self.runtime("kb_slice", "void", [("ptr", "%w"), ("i32", str(target))])
            self.do(f"ret i32 {CODE_SLICE}")
            self._start(f"{label}.go")
        if not waiting:
            self.do(f"br label %b{target}")
            return
        lowest = self.emit("load i32, ptr %waitp, align 4")
        meet = self.emit(f"icmp ule i32 {lowest}, {target}")
        self.do(f"br i1 {meet}, label %{label}.park, label %b{target}")
        self._start(f"{label}.park")
        self._dispatch(self.runtime("kb_park", "i32", [("ptr", "%w"), ("i32", str(target))]), f"{label}.park")

    def _end(self, number: int, block: Block) -> None:
        kind, targets, label = block.end, block.targets, f"b{number}"
        if kind == "jump":
            self.write_back(number)
            self._start_tail(label)
            self._jump(number, targets[0], f"{label}.t")
        elif kind == "branch":
            self._branch(number, block)
        elif kind in ("exit", "exitif"):
            lanes = self.active() if kind == "exitif" else self.mask_name()
            self.write_back(number)
            self._start_tail(label)
            following = str(targets[0]) if targets else "0"
            if kind == "exitif":
                self.do(
                    f"br i1 {self.emit(f'icmp eq i32 {lanes}, 0')}, label %{label}.stay, label %{label}.out"
                )
                self._start(f"{label}.stay")
                self._jump(number, targets[0], f"{label}.stay")
                self._start(f"{label}.out")
            value = self.runtime("kb_exit", "i32", [("ptr", "%w"), ("i32", lanes), ("i32", following)])
            self._dispatch(value, f"{label}.out" if kind == "exitif" else f"{label}.t")
        elif kind == "brx":
            self._indexed(number, block)
        else:
            self._barrier(number, block)

    def _start_tail(self, label: str) -> None:
        self.do(f"br label %{label}.t")
        self._start(f"{label}.t")

    def _branch(self, number: int, block: Block) -> None:
        label, (taken, other) = f"b{number}", block.targets
        assert block.ender is not None and block.ender.guard is not None
        if self.is_scalar(block.ender.guard):
            self.vector = False
            condition = self.guard()
            self.vector = True
            self.write_back(number)
            self.do(f"br i1 {condition}, label %{label}.y, label %{label}.n")
        else:
            lanes = self.active()
            self.write_back(number)
            self._start_tail(label)
            all_of = self.emit(f"icmp eq i32 {lanes}, {self.mask_name()}")
            self.do(f"br i1 {all_of}, label %{label}.y, label %{label}.some")
            self._start(f"{label}.some")
            none = self.emit(f"icmp eq i32 {lanes}, 0")
            self.do(f"br i1 {none}, label %{label}.n, label %{label}.split")
            self._start(f"{label}.split")
            arguments = [("ptr", "%w"), ("i32", lanes), ("i32", str(taken)), ("i32", str(other))]
            self._dispatch(self.runtime("kb_split", "i32", arguments), f"{label}.split")
        self._start(f"{label}.y")
        self._jump(number, taken, f"{label}.y")
        self._start(f"{label}.n")
        self._jump(number, other, f"{label}.n")

    def _indexed(self, number: int, block: Block) -> None:
        assert block.ender is not None
        index = self.spill("A", self.bits(block.ender.operands[0], "u32"), "i32")
        self.write_back(number)
        self._start_tail(f"b{number}")
        table = f"@table.{len(self.tables)}.{self.flat.name}"
        items = ", ".join(f"i32 {target}" for target in block.targets)
        self.tables.append(f"{table} = internal constant [{len(block.targets)} x i32] [{items}]")
        arguments = [("ptr", "%w"), ("ptr", index), ("ptr", table), ("i32", str(len(block.targets)))]
        value = self.runtime("kb_indexed", "i32", [*arguments, ("i32", str(self.site("branch")))])
        self._dispatch(value, f"b{number}.t")

    def _barrier(self, number: int, block: Block) -> None:
        from kb_env.sim.lower_sync import barrier_arguments

        assert block.ender is not None
        if "cluster" in block.ender.mods:
            kind, name = str(int("wait" in block.ender.mods)), "kb_cluster"
            arguments = [
                ("ptr", "%w"),
                ("i32", str(block.targets[0])),
                ("i32", kind),
                ("i32", str(self.site("barrier"))),
            ]
        else:
            arguments, name = barrier_arguments(self, block.ender, block.targets[0]), "kb_barrier"
        self.write_back(number)
        self._start_tail(f"b{number}")
        value = self.runtime(name, "i32", arguments)
        self._dispatch(value, f"b{number}.t")


#: Accesses that count as one indivisible step and never race with one another.
_STRONG = {"volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio"}
_WIDE = {"%clock64", "%globaltimer"}
#: Scratch memory of a warp function for what runtime helpers read and write.
_SCRATCH = {"A": 256, "B": 4096, "C": 4096, "D": 4096, "V": 32768}
