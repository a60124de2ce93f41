"""Lowering of barriers, fences, warp primitives and what ends a kernel."""

from __future__ import annotations

from kb_env.sim.lower import LANES, WARP, Lowerer, int_type, rule
from kb_env.sim.ptx import Instr, Op

_REDUCE = {"popc": 2, "and": 3, "or": 4}


def barrier_arguments(low: Lowerer, instr: Instr, following: int) -> list[tuple[str, str]]:
    """Arguments of kb_barrier for bar.sync, bar.arrive and bar.red (whose result a later instruction fetches)."""
    operands = list(instr.operands)
    kind, predicate = 0, "0"
    if "arrive" in instr.mods:
        kind = 1
    if "red" in instr.mods:
        kind = next(code for name, code in _REDUCE.items() if name in instr.mods)
        operands = operands[1:]
        low.vector = True
        predicate = low.emit(f"bitcast <{LANES} x i1> {low.pred(operands.pop())} to i32")
    number = _uniform(low, operands[0]) if operands else "0"
    threads = _uniform(low, operands[1]) if len(operands) > 1 else "0"
    if instr.op == "barrier" and "aligned" not in instr.mods:
        kind |= 16
    site = low.site("barrier")
    return [
        ("ptr", "%w"), ("i32", str(following)), ("i32", number), ("i32", threads), ("i32", str(kind)),
        ("i32", predicate), ("i32", str(site)),
    ]  # fmt: skip


def _uniform(low: Lowerer, op: Op) -> str:
    """An operand that is the same in all lanes, taken from the first running one."""
    if op.kind == "int":
        return str(op.value)
    if op.kind == "reg" and low.is_scalar(str(op.value)):
        keep, low.vector = low.vector, False
        value = low.bits(op, "u32")
        low.vector = keep
        return value
    low.vector = True
    value = low.bits(op, "u32")
    low.declared["llvm.cttz.i32"] = "declare i32 @llvm.cttz.i32(i32, i1)"
    lane = low.emit(f"call i32 @llvm.cttz.i32(i32 {low.mask_name()}, i1 true)")
    return low.emit(f"extractelement <{LANES} x i32> {value}, i32 {lane}")


@rule("barresult")
def barrier_result(low: Lowerer, instr: Instr) -> None:
    """What bar.red left for each lane: count in the low word, and in bit 32, or in bit 33."""
    place = low.emit(f"getelementptr i8, ptr %w, i64 {WARP['result']}")
    value = low.emit(f"load <{LANES} x i64>, ptr {place}, align 8")
    if instr.mods[0] == "popc":
        low.put(instr.operands[0], low.cast("trunc", "i64", value, "i32"), "u32")
        return
    moved = low.op2("lshr", "i64", value, low.const("i64", 32 if instr.mods[0] == "and" else 33))
    low.put(instr.operands[0], low.cast("trunc", "i64", moved, "i1"), "pred")


@rule("membar", "fence")
def fence(low: Lowerer, instr: Instr) -> None:
    """Memory is sequentially consistent here: fences matter to the sanitizer only."""
    if low.sanitize and "proxy" not in instr.mods:
        wide = int(not {"cta", "mbarrier_init"} & set(instr.mods))
        low.runtime("kb_fence", "void", [("ptr", "%w"), ("i32", str(wide))])


@rule("nanosleep", "griddepcontrol", "setmaxnreg", "pmevent")
def order(low: Lowerer, instr: Instr) -> None:
    """Power and register hints change nothing."""


@rule("bar", "barrier")
def warp_barrier(low: Lowerer, instr: Instr) -> None:
    """bar.warp.sync: lanes of a warp already run together; the mask is not checked."""


@rule("mapa")
def map_to_rank(low: Lowerer, instr: Instr) -> None:
    """The address of a shared variable in another block of the cluster: its rank + 1 goes to bits 24 and up."""
    low.vector = True
    kind = instr.mods[-1]
    base = int_type(kind)
    rank = low.resize(low.bits(instr.operands[2], "u32"), "i32", base)
    rank = low.op2("shl", base, low.op2("add", base, rank, low.const(base, 1)), low.const(base, 24))
    place = low.op2("and", base, low.bits(instr.operands[1], kind), low.const(base, ~0xFF000000))
    low.put(instr.operands[0], low.op2("or", base, place, rank), kind)


@rule("trap", "brkpt")
def trap(low: Lowerer, instr: Instr) -> None:
    arguments = [("ptr", "%w"), ("i32", low.active()), ("i32", str(low.site("trap")))]
    low.runtime("kb_trap", "void", arguments)


@rule("activemask")
def activemask(low: Lowerer, instr: Instr) -> None:
    low.put(instr.operands[0], low.splat(low.active(), "i32"), "b32")
