"""Lowering of shuffles, votes, matches, reductions over a warp, atomics, printf and assert."""

from __future__ import annotations

from kb_env.sim.lower import LANES, SLOT_SHARED, SLOT_SHIFT, Lowerer, int_type, rule
from kb_env.sim.lower_mem import address, space_of
from kb_env.sim.ptx import TYPE_BYTES, Instr, Op

_SHUFFLE = {"up": 0, "down": 1, "bfly": 2, "idx": 3}
_VOTE = {"all": 0, "any": 1, "uni": 2, "ballot": 3}
_ATOMIC = {
    "exch": 0, "add": 1, "min": 2, "max": 3, "and": 4, "or": 5, "xor": 6, "inc": 7, "dec": 8, "cas": 9,
}  # fmt: skip
_TYPES = {"f32": 2, "f64": 2, "f16x2": 3, "bf16x2": 4, "f16": 5, "bf16": 6, "s32": 1, "s64": 1}


def predicate_bits(low: Lowerer, op: Op) -> str:
    """A predicate as i32 bits, one a lane."""
    low.vector = True
    return low.emit(f"bitcast <{LANES} x i1> {low.pred(op)} to i32")


def bits_predicate(low: Lowerer, bits: str) -> str:
    return low.emit(f"bitcast i32 {bits} to <{LANES} x i1>")


@rule("shfl")
def shuffle(low: Lowerer, instr: Instr) -> None:
    low.vector = True
    target, value, amount, clamp = instr.operands[:4]
    for area, op in (("B", value), ("C", amount), ("D", clamp)):
        low.spill(area, low.bits(op, "b32"), "i32")
    mode = next(_SHUFFLE[mod] for mod in instr.mods if mod in _SHUFFLE)
    low.runtime(
        "kb_shfl", "void",
        [("ptr", "%w"), ("ptr", "%B"), ("ptr", "%C"), ("ptr", "%D"), ("ptr", "%V"), ("ptr", "%A"),
         ("i32", low.active()), ("i32", str(mode)), ("i32", str(low.site("shuffle")))],
    )  # fmt: skip
    result = low.fetch("V", "i32")
    if target.kind == "pair":
        first, second = target.value
        low.put(second, bits_predicate(low, low.emit("load i32, ptr %A, align 4")), "pred")
        target = first
    low.put(target, result, "b32")


@rule("vote")
def vote(low: Lowerer, instr: Instr) -> None:
    mode = next(_VOTE[mod] for mod in instr.mods if mod in _VOTE)
    bits = predicate_bits(low, instr.operands[1])
    found = low.runtime("kb_vote", "i32", [("i32", bits), ("i32", low.active()), ("i32", str(mode))])
    if mode == 3:
        low.put(instr.operands[0], low.splat(found, "i32"), "b32")
    else:
        low.put(instr.operands[0], low.splat(low.emit(f"trunc i32 {found} to i1"), "i1"), "pred")


@rule("match")
def match(low: Lowerer, instr: Instr) -> None:
    low.vector = True
    kind, target = instr.mods[-1], instr.operands[0]
    value = low.resize(low.bits(instr.operands[1], kind), int_type(kind), "i64")
    low.spill("B", value, "i64")
    everyone = "all" in instr.mods
    low.runtime(
        "kb_match", "void",
        [("ptr", "%B"), ("i32", low.active()), ("ptr", "%V"), ("i32", str(int(everyone))), ("ptr", "%A")],
    )  # fmt: skip
    if target.kind == "pair":
        first, second = target.value
        same = low.emit(f"trunc i32 {low.emit('load i32, ptr %A, align 4')} to i1")
        low.put(second, low.splat(same, "i1"), "pred")
        target = first
    low.put(target, low.fetch("V", "i32"), "b32")


@rule("redux")
def redux(low: Lowerer, instr: Instr) -> None:
    low.vector = True
    kind = instr.mods[-1]
    operation = next((_ATOMIC[mod] for mod in instr.mods if mod in _ATOMIC), None)
    if operation is None or kind not in ("s32", "u32", "b32"):
        raise low.refuse()
    low.spill("B", low.bits(instr.operands[1], "b32"), "i32")
    low.spill("C", low.bits(instr.operands[2], "b32"), "i32")
    low.runtime(
        "kb_redux", "void",
        [("ptr", "%B"), ("ptr", "%C"), ("i32", low.active()), ("ptr", "%V"), ("i32", str(operation)),
         ("i32", str(int(kind == "s32")))],
    )  # fmt: skip
    low.put(instr.operands[0], low.fetch("V", "i32"), "b32")


@rule("elect")
def elect(low: Lowerer, instr: Instr) -> None:
    """The lowest running lane is elected."""
    low.vector = True
    active = low.active()
    lowest = low.emit(f"and i32 {active}, {low.emit(f'sub i32 0, {active}')}")
    target = instr.operands[0]
    first, second = target.value if target.kind == "pair" else (Op("sink", None), target)
    low.declared["llvm.cttz.i32"] = "declare i32 @llvm.cttz.i32(i32, i1)"
    low.put(first, low.splat(low.emit(f"call i32 @llvm.cttz.i32(i32 {active}, i1 false)"), "i32"), "b32")
    low.put(second, bits_predicate(low, lowest), "pred")


@rule("atom", "red")
def atomic(low: Lowerer, instr: Instr) -> None:
    low.vector = True
    operands = list(instr.operands)
    target = operands.pop(0) if instr.op == "atom" else Op("sink", None)
    space, kind = space_of(low, instr), instr.mods[-1]
    if kind == "b128" or "async" in instr.mods:
        raise low.refuse()
    where, base = address(low, operands[0], space)
    if base == "i32":
        where = low.cast("zext", "i32", where, "i64")
    if space == "shared":
        where = low.op2("or", "i64", where, low.const("i64", SLOT_SHARED << SLOT_SHIFT))
    low.spill("A", where, "i64")
    size = TYPE_BYTES[kind]
    count = _spill_wide(low, "B", operands[1], size)
    other = ("ptr", "null")
    if len(operands) > 2 and "cas" in instr.mods:
        _spill_wide(low, "C", operands[2], size)
        other = ("ptr", "%C")
    operation = next((_ATOMIC[mod] for mod in instr.mods if mod in _ATOMIC), None)
    if operation is None:
        raise low.refuse()
    code = operation | _TYPES.get(kind, 0) << 8 | size << 16 | count << 24
    out = ("ptr", "null") if target.kind == "sink" else ("ptr", "%V")
    low.ordered()
    low.runtime(
        "kb_atomic", "void",
        [("ptr", "%w"), ("ptr", "%A"), ("i32", low.active()), ("ptr", "%B"), other, out,
         ("i32", str(low.site("atomic", "shared" if space == "cluster" else space))), ("i32", str(code))],
    )  # fmt: skip
    for position, part in enumerate(target.value if target.kind == "vec" else (target,)):
        if part.kind != "sink":
            low.put(part, low.cast("trunc", "i64", low.fetch("V", "i64", position), f"i{8 * size}") if size < 8
                    else low.fetch("V", "i64", position), f"b{8 * size}")  # fmt: skip


def _spill_wide(low: Lowerer, area: str, op: Op, size: int) -> int:
    """Spill the parts of a value as 64-bit words; returns how many there are."""
    parts = op.value if op.kind == "vec" else (op,)
    for position, part in enumerate(parts):
        value = low.resize(low.bits(part, f"b{8 * size}"), f"i{8 * size}", "i64")
        low.spill(area, value, "i64", position)
    return len(parts)


@rule("printf")
def printf(low: Lowerer, instr: Instr) -> None:
    low.vector = True
    low.spill("B", low.bits(instr.operands[0], "b64"), "i64")
    low.spill("C", low.bits(instr.operands[1], "b64"), "i64")
    low.runtime(
        "kb_printf", "void",
        [("ptr", "%w"), ("ptr", "%B"), ("ptr", "%C"), ("i32", low.active()), ("i32", str(low.site("printf")))],
    )  # fmt: skip


@rule("assertfail")
def assertfail(low: Lowerer, instr: Instr) -> None:
    low.runtime(
        "kb_assertfail", "void", [("ptr", "%w"), ("i32", low.active()), ("i32", str(low.site("assert")))]
    )
