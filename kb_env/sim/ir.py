"""From parsed PTX to one flat control-flow graph a kernel: calls inlined, blocks split, memory laid out."""

from __future__ import annotations

from dataclasses import dataclass, field

from kb_env.sim.ptx import TYPE_BYTES, Function, Instr, Label, Module, Op, PtxError, Variable

MAX_INSTRUCTIONS = 200_000
MAX_DEPTH = 24
#: Functions that one call through a pointer may mean.
MAX_CANDIDATES = 64

#: Base opcodes whose first operand is not written.
NO_RESULT = {
    "st", "red", "bar", "barrier", "membar", "fence", "cp", "prefetch", "prefetchu", "trap", "exit", "ret",
    "nanosleep", "brkpt", "stmatrix", "bra", "brx", "printf", "assertfail", "griddepcontrol", "setmaxnreg",
    "discard", "applypriority", "pmevent", "tensormap", "fault", "wgmma", "createpolicy_none",
}  # fmt: skip


@dataclass
class Block:
    """Straight-line instructions and how they end.

    ``end`` is ``jump`` (targets: next), ``branch`` (taken, other), ``exit`` (none), ``exitif`` (next),
    ``brx`` (table) or ``barrier`` (next). ``ender`` is the instruction behind it, if there is one.
    """

    instrs: list[Instr] = field(default_factory=list)
    end: str = "jump"
    targets: list[int] = field(default_factory=list)
    ender: Instr | None = None


@dataclass
class Flat:
    """One kernel, ready for analysis and lowering."""

    name: str
    params: list[Variable]
    registers: dict[str, str]
    blocks: list[Block]
    local: dict[str, int]
    local_bytes: int
    shared: dict[str, int]
    shared_bytes: int
    reqntid: tuple[int, ...] = ()


def results(instr: Instr) -> list[str]:
    """Registers that an instruction writes."""
    if instr.op in NO_RESULT:
        if instr.op == "wgmma" and instr.mods[0] == "mma_async":
            return _names(instr.operands[:1])
        return []
    if instr.op == "wmma" and instr.mods[0] == "store":
        return []
    if instr.op == "mbarrier" and instr.mods[0] in ("init", "inval", "expect_tx", "complete_tx"):
        return []
    if instr.op == "mbarrier" and instr.operands and instr.operands[0].kind in ("mem", "sink"):
        return []
    return _names(instr.operands[:1])


def arguments(instr: Instr) -> list[str]:
    """Registers that an instruction reads (its guard, and a guarded result, included)."""
    written = results(instr)
    skipped = bool(written) or (instr.op in ("bar", "barrier") and "red" in instr.mods)
    names = _names(instr.operands[1:] if skipped else instr.operands)
    if instr.guard is not None:
        names += [instr.guard, *written]
    if instr.op == "wgmma" or (instr.op == "cvt_half"):
        names += written
    return names


def _names(operands: tuple[Op, ...]) -> list[str]:
    found: list[str] = []
    for op in operands:
        if op.kind == "reg":
            found.append(op.value)
        elif op.kind in ("mem", "not"):
            found += _names((op.value,))
        elif op.kind in ("vec", "pair"):
            found += _names(op.value)
    return found


class _Flattener:
    """Copies a kernel's body with every call replaced by the callee's body."""

    def __init__(self, module: Module, kernel: Function) -> None:
        self.module = module
        self.kernel = kernel
        self.registers: dict[str, str] = {}
        self.code: list[Instr | str] = []  # a string is a label
        self.tables: dict[str, list[str]] = {}
        self.local: dict[str, int] = {}
        self.local_bytes = 0
        self.variables: dict[str, Variable] = {}
        self.instances = 0

    def fresh(self, name: str, kind: str) -> str:
        self.registers[name] = kind
        return name

    def body(self, function: Function, suffix: str, objects: dict[str, str], depth: int) -> None:
        if depth > MAX_DEPTH:
            raise PtxError(
                f"calls deeper than {MAX_DEPTH} (recursion) in {self.kernel.name} are not supported"
            )
        if len(self.code) + len(function.body) > MAX_INSTRUCTIONS:
            raise PtxError(f"kernel {self.kernel.name} has more than {MAX_INSTRUCTIONS} instructions")
        for name, kind in function.registers.items():
            self.registers[name + suffix] = kind
        renamed = self.function_variables(function, suffix)
        labels: dict[str, list[tuple[int, ...]]] = {}
        for item in function.body:
            if isinstance(item, Label):
                labels.setdefault(item.name, []).append(item.scope)
        frame = _Frame(function, suffix, objects, renamed, labels)
        for table, targets in function.tables.items():
            self.tables[table + suffix] = [frame.label(name, ()) for name in targets]
        for item in function.body:
            if isinstance(item, Label):
                self.code.append(frame.label(item.name, item.scope))
            else:
                self.instr(item, frame, depth)
        if suffix:
            self.code.append("return" + suffix)

    def function_variables(self, function: Function, suffix: str) -> dict[str, str]:
        renamed = {}
        for item in function.variables:
            if item.space == "local":
                renamed[item.name] = item.name + suffix
                start = -(-self.local_bytes // item.align) * item.align
                self.local[item.name + suffix] = start
                self.local_bytes = start + item.nbytes
            else:
                renamed[item.name] = item.name if item.space == "shared" else item.name + suffix
                self.variables[renamed[item.name]] = item
        return renamed

    def instr(self, item: Instr, frame: _Frame, depth: int) -> None:
        if item.op == "call":
            self.call(item, frame, depth)
            return
        if item.op in ("ld", "st") and "param" in item.mods and self.object_access(item, frame):
            return
        guard = item.guard + frame.suffix if item.guard else None
        operands = tuple(frame.rename(op, item.scope) for op in item.operands)
        op, mods = item.op, item.mods
        if op == "ret" and frame.suffix:
            op, mods, operands = "bra", (), (Op("name", "return" + frame.suffix),)
        self.code.append(Instr(op, mods, operands, guard, item.negated, item.line, item.source))

    def object_access(self, item: Instr, frame: _Frame) -> bool:
        """ld.param or st.param of a call's argument: a move to or from a register of its own."""
        memory = item.operands[1 if item.op == "ld" else 0]
        key = frame.object(memory.value)
        if key is None:
            return False
        kind = item.mods[-1]
        value = item.operands[0 if item.op == "ld" else 1]
        parts = value.value if value.kind == "vec" else (value,)
        for index, part in enumerate(parts):
            offset = memory.extra + index * TYPE_BYTES[kind]
            name = f"{key}+{offset}"
            width = f"b{8 * max(2, TYPE_BYTES[kind])}"
            if self.registers.setdefault(name, width) != width:
                raise PtxError(f"PTX line {item.line}: parameter read and written with unlike sizes")
            slot, renamed = Op("reg", name), frame.rename(part, item.scope)
            pair = (renamed, slot) if item.op == "ld" else (slot, renamed)
            guard = item.guard + frame.suffix if item.guard else None
            self.code.append(Instr("pmov", (kind,), pair, guard, item.negated, item.line, item.source))
        return True

    def call(self, item: Instr, frame: _Frame, depth: int) -> None:
        operands = list(item.operands)
        outs = operands.pop(0).value if operands and operands[0].kind == "vec" else ()
        target = operands.pop(0) if operands else Op("sink", None)
        ins = operands.pop(0).value if operands and operands[0].kind == "vec" else ()
        if target.kind == "reg":
            self.indirect_call(item, frame, depth, target, outs, ins)
            return
        if target.kind != "name":
            raise PtxError(f"PTX line {item.line}: this form of call is not supported")
        name = str(target.value)
        guard = item.guard + frame.suffix if item.guard else None
        self.instances += 1
        suffix = f"#{self.instances}"
        if name in ("vprintf", "__assertfail"):
            keys = [frame.object(op) for op in ins]
            values = tuple(Op("reg", f"{key}+0") for key in keys)
            op = "printf" if name == "vprintf" else "assertfail"
            self.code.append(Instr(op, (), values, guard, item.negated, item.line, item.source))
            for out in outs:
                register = self.fresh(f"{frame.object(out)}+0", "b32")
                self.code.append(Instr("mov", ("u32",), (Op("reg", register), Op("int", 0))))
            return
        callee = self.module.functions.get(name)
        if callee is None or callee.entry:
            raise PtxError(f"PTX line {item.line}: call of {name}, which has no body here, is not supported")
        if guard:
            skip = f"skip{suffix}"
            self.code.append(
                Instr("bra", (), (Op("name", skip),), guard, not item.negated, item.line, item.source)
            )
        self.inline(item, frame, depth, callee, suffix, outs, ins)
        if guard:
            self.code.append(skip)

    def indirect_call(
        self, item: Instr, frame: _Frame, depth: int, target: Op, outs: tuple[Op, ...], ins: tuple[Op, ...]
    ) -> None:
        """A call through a pointer: each function that it may mean, chosen by comparing addresses."""
        candidates = [
            function
            for function in self.module.functions.values()
            if not function.entry and len(function.params) == len(ins) and len(function.returns) == len(outs)
        ]
        if not candidates or len(candidates) > MAX_CANDIDATES:
            raise PtxError(f"PTX line {item.line}: an indirect call with {len(candidates)} possible targets")
        self.instances += 1
        done = f"called#{self.instances}"
        where = frame.rename(target, item.scope)
        if item.guard:
            guard = item.guard + frame.suffix
            self.code.append(
                Instr("bra", (), (Op("name", done),), guard, not item.negated, item.line, item.source)
            )
        for function in candidates:
            self.instances += 1
            suffix, other = f"#{self.instances}", self.fresh(f"other#{self.instances}", "pred")
            pair = (Op("reg", other), where, Op("name", function.name))
            self.code.append(Instr("setp", ("ne", "u64"), pair, None, False, item.line, item.source))
            skip = f"next{suffix}"
            self.code.append(Instr("bra", (), (Op("name", skip),), other, False, item.line, item.source))
            self.inline(item, frame, depth, function, suffix, outs, ins)
            self.code.append(Instr("bra", (), (Op("name", done),), None, False, item.line, item.source))
            self.code.append(skip)
        self.code.append(Instr("trap", (), (), None, False, item.line, item.source))
        self.code.append(done)

    def inline(
        self, item: Instr, frame: _Frame, depth: int, callee: Function, suffix: str,
        outs: tuple[Op, ...], ins: tuple[Op, ...],
    ) -> None:  # fmt: skip
        objects = {}
        pairs = list(zip(callee.params, ins, strict=False)) + list(zip(callee.returns, outs, strict=False))
        for variable, argument in pairs:
            key = frame.object(argument)
            if key is None:
                raise PtxError(f"PTX line {item.line}: call with a register argument is not supported")
            objects[variable.name] = key
        self.body(callee, suffix, objects, depth + 1)


@dataclass
class _Frame:
    """Names of one inlined instance of a function."""

    function: Function
    suffix: str
    objects: dict[str, str]
    variables: dict[str, str]
    labels: dict[str, list[tuple[int, ...]]]

    def label(self, name: str, scope: tuple[int, ...]) -> str:
        """The label as seen from a scope: innermost definition that encloses it."""
        best: tuple[int, ...] | None = None
        for where in self.labels.get(name, ()):
            if scope[: len(where)] == where and (best is None or len(where) > len(best)):
                best = where
        if best is None and self.labels.get(name):
            best = self.labels[name][0]
        return f"{name}{self.suffix}@{best[-1] if best else ''}"

    def object(self, op: Op) -> str | None:
        """Key of the parameter object an operand names, or None if it is none of a call's."""
        if op.kind == "reg" and op.value not in self.function.registers:
            return f"param:{op.value}{self.suffix}"
        if op.kind == "name":
            return self.objects.get(str(op.value))
        return None

    def rename(self, op: Op, scope: tuple[int, ...]) -> Op:
        if op.kind == "reg":
            return Op("reg", f"{op.value}{self.suffix}", op.extra)
        if op.kind in ("mem", "not"):
            return Op(op.kind, self.rename(op.value, scope), op.extra)
        if op.kind in ("vec", "pair"):
            return Op(op.kind, tuple(self.rename(item, scope) for item in op.value))
        if op.kind == "name":
            name = str(op.value)
            if name in self.labels:
                return Op("name", self.label(name, scope), op.extra)
            if name in self.variables:
                return Op("name", self.variables[name], op.extra)
            if name in self.function.tables:
                return Op("name", name + self.suffix)
        return op


def _split(code: list[Instr | str], tables: dict[str, list[str]], kernel: str) -> list[Block]:
    """Cut flat code into blocks; labels become block numbers."""
    blocks, where = [Block()], {}
    fixes: list[tuple[Block, list[str]]] = []

    def start() -> int:
        blocks.append(Block())
        return len(blocks) - 1

    for item in code:
        current = blocks[-1]
        if isinstance(item, str):
            if current.instrs or current.ender or item in where:
                current.targets = [start()]
            where[item] = len(blocks) - 1
        elif item.op in ("bra", "brx", "ret", "exit", "bar", "barrier"):
            _end(item, current, len(blocks), fixes, tables)
            start()
            if (
                item.op in ("bar", "barrier") and "red" in item.mods
            ):  # the result is there once all have arrived
                kind = next((mod for mod in item.mods if mod in ("popc", "and", "or")), "or")
                blocks[-1].instrs.append(Instr("barresult", (kind,), item.operands[:1], line=item.line))
        else:
            current.instrs.append(item)
    blocks[-1].end = "exit"
    for block, names in fixes:
        for position, name in enumerate(names):
            if name not in where:
                raise PtxError(f"kernel {kernel} branches to {name}, which is not defined")
            block.targets[position] = where[name]
    return blocks


def _end(item: Instr, block: Block, following: int, fixes: list, tables: dict[str, list[str]]) -> None:
    block.ender = item
    if item.op == "bra":
        names = [str(item.operands[0].value)]
        block.end, block.targets = ("branch", [-1, following]) if item.guard else ("jump", [-1])
        fixes.append((block, names))
    elif item.op == "brx":
        names = tables.get(str(item.operands[1].value), [])
        if item.guard or not names:
            raise PtxError(f"PTX line {item.line}: this form of brx is not supported")
        block.end, block.targets = "brx", [-1] * len(names)
        fixes.append((block, names))
    elif item.op in ("ret", "exit"):
        block.end, block.targets = ("exitif", [following]) if item.guard else ("exit", [])
    elif item.mods[:1] == ("warp",):
        block.end, block.targets, block.ender = "jump", [following], None
        block.instrs.append(item)
    else:
        if item.guard:
            raise PtxError(f"PTX line {item.line}: a barrier under a predicate is not supported")
        block.end, block.targets = "barrier", [following]


def _shared_layout(flattener: _Flattener, module: Module) -> tuple[dict[str, int], int]:
    """Offsets of the shared variables that the kernel names: static ones in order, then the dynamic one."""
    used: set[str] = set()

    def visit(op: Op) -> None:
        if op.kind == "name":
            used.add(str(op.value))
        elif op.kind in ("mem", "not"):
            visit(op.value)
        elif op.kind in ("vec", "pair"):
            for item in op.value:
                visit(item)

    for item in flattener.code:
        if isinstance(item, Instr):
            for op in item.operands:
                visit(op)
    layout, size = {}, 0
    candidates = [*module.variables.values(), *flattener.variables.values()]
    shared = [item for item in candidates if item.space == "shared" and item.name in used]
    for one in [each for each in shared if each.nbytes and not each.extern]:
        start = -(-size // one.align) * one.align
        layout[one.name] = start
        size = start + one.nbytes
    dynamic = [one for one in shared if one.extern or not one.nbytes]
    align = max((one.align for one in dynamic), default=1)
    for one in dynamic:
        layout[one.name] = -(-size // align) * align
    return layout, -(-size // align) * align if dynamic else size


def flatten(module: Module, kernel: Function) -> Flat:
    """Inline, split and lay out one kernel.

    Raises:
        PtxError: for what the engine does not support (recursion, indirect calls).
    """
    work = _Flattener(module, kernel)
    work.body(kernel, "", {}, 0)
    blocks = _split(work.code, work.tables, kernel.name)
    for instr in (item for block in blocks for item in (*block.instrs, block.ender) if item):
        for name in (*results(instr), *arguments(instr)):
            if name not in work.registers:
                raise PtxError(f"PTX line {instr.line}: register {name} is not declared or never written")
    shared, shared_bytes = _shared_layout(work, module)
    local_bytes = -(-work.local_bytes // 16) * 16
    return Flat(
        kernel.name, kernel.params, work.registers, blocks, work.local, local_bytes, shared, shared_bytes,
        kernel.reqntid,
    )  # fmt: skip
