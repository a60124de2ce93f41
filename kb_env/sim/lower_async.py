"""Lowering of asynchronous copies and of barriers in shared memory."""

from __future__ import annotations

from kb_env.sim.lower import SLOT_SHARED, SLOT_SHIFT, Lowerer, rule
from kb_env.sim.lower_mem import address, space_of
from kb_env.sim.ptx import Instr, Op


@rule("cp")
def copy(low: Lowerer, instr: Instr) -> None:
    low.vector = True
    mods = instr.mods
    if mods[0] != "async":
        raise low.refuse()
    if "bulk" in mods:
        _bulk(low, instr)
    elif mods[1] == "commit_group":
        low.runtime("kb_commit", "void", [("ptr", "%w")])
    elif mods[1] in ("wait_group", "wait_all"):
        keep = int(instr.operands[0].value) if instr.operands else 0xFFFFFFFF
        low.runtime(
            "kb_wait", "void", [("ptr", "%w"), ("i32", str(keep - (1 << 32) if keep >> 31 else keep))]
        )
    elif mods[1] == "mbarrier":
        _barrier_call(low, instr.operands[0], low.const("i32", 1), 5, None, "shared")
    else:
        _element_copy(low, instr)


def _element_copy(low: Lowerer, instr: Instr) -> None:
    target, source, width = instr.operands[:3]
    if width.kind != "int" or int(width.value) not in (4, 8, 16):
        raise low.refuse("copy size")
    where, base = address(low, target, "shared")
    low.spill("A", where, base)
    low.spill("B", address(low, source, "global")[0], "i64")
    size = ("ptr", "null")
    if len(instr.operands) > 3:
        extra = instr.operands[3]
        if extra.kind == "reg" and low.flat.registers[str(extra.value)] == "pred":
            zero = low.choose(low.pred(extra), "i32", low.const("i32", 0), low.const("i32", int(width.value)))
            low.spill("C", zero, "i32")
            size = ("ptr", "%C")
        elif extra.kind == "int" or low.base_of(str(extra.value)) == "i32":
            low.spill("C", low.bits(extra, "b32"), "i32")
            size = ("ptr", "%C")
    arguments = [
        ("ptr", "%w"),
        ("ptr", "%A"),
        ("ptr", "%B"),
        size,
        ("i32", low.active()),
        ("i32", str(width.value)),
    ]
    sites = [low.site("load", "global"), low.site("store", "shared")]
    low.runtime("kb_cp_async", "void", [*arguments, *(("i32", str(site)) for site in sites)])


def shared_address(low: Lowerer, op: Op, space: str, area: str) -> None:
    """Spill an address in shared memory as a generic 64-bit one."""
    where, base = address(low, op, space)
    if base == "i32":
        where = low.cast("zext", "i32", where, "i64")
        where = low.op2("or", "i64", where, low.const("i64", SLOT_SHARED << SLOT_SHIFT))
    low.spill(area, where, "i64")


def _window(low: Lowerer, op: Op, area: str) -> None:
    """Spill an operand that is a shared::cluster address: one in the own block's window, or generic."""
    value, base = address(low, op, "generic")
    window = low.const("i64", SLOT_SHARED << SLOT_SHIFT)
    low_part = low.compare("ult", "i64", value, window)
    low.spill(area, low.choose(low_part, "i64", low.op2("or", "i64", value, window), value), base)


def _barrier_call(low: Lowerer, op: Op, count: str, code: int, state: str | None, space: str) -> None:
    shared_address(low, op, space, "A")
    low.spill("B", count, "i32")
    low.runtime(
        "kb_mbarrier", "void",
        [("ptr", "%w"), ("ptr", "%A"), ("i32", low.active()), ("ptr", "%B"), ("ptr", state or "null"),
         ("i32", str(code)), ("i32", str(low.site("barrier", "shared")))],
    )  # fmt: skip


@rule("mbarrier")
def mbarrier(low: Lowerer, instr: Instr) -> None:
    low.vector = True
    verb, operands = instr.mods[0], list(instr.operands)
    space = space_of(low, instr)
    if verb in ("test_wait", "try_wait"):
        _test(low, instr, space)
        return
    result = None
    if operands[0].kind != "mem":
        result = operands.pop(0)
    if verb == "pending_count" or verb not in (
        "init",
        "inval",
        "arrive",
        "arrive_drop",
        "expect_tx",
        "complete_tx",
    ):
        raise low.refuse()
    if verb == "arrive_drop":
        raise low.refuse()
    count = low.bits(operands[1], "b32") if len(operands) > 1 else low.const("i32", 1)
    code = {"init": 0, "arrive": 1, "expect_tx": 2, "complete_tx": 4, "inval": 6}[verb]
    if verb == "arrive" and "expect_tx" in instr.mods:
        code = 3
    _barrier_call(low, operands[0], count, code, "%V", space)
    if result is not None and result.kind == "reg":
        low.put(result, low.fetch("V", "i64"), "b64")


def _test(low: Lowerer, instr: Instr, space: str) -> None:
    target, memory, state = instr.operands[:3]
    parity = "parity" in instr.mods
    shared_address(low, memory, space, "A")
    value = low.bits(state, "b32" if parity else "b64")
    low.spill("B", low.cast("zext", "i32", value, "i64") if parity else value, "i64")
    bits = low.runtime(
        "kb_mbarrier_test", "i32",
        [("ptr", "%w"), ("ptr", "%A"), ("i32", low.active()), ("ptr", "%B"), ("i32", str(int(parity))),
         ("i32", str(low.site("barrier", "shared")))],
    )  # fmt: skip
    low.put(target, low.emit(f"bitcast i32 {bits} to <32 x i1>"), "pred")


def _bulk(low: Lowerer, instr: Instr) -> None:
    """cp.async.bulk of plain bytes. It completes at once: a missing wait is not seen."""
    mods = instr.mods
    if "commit_group" in mods or "wait_group" in mods:
        return
    if "tensor" in mods or "prefetch" in mods or "reduce" in mods:
        raise low.refuse("tensor maps")
    into = mods.index("global") > 2 if "global" in mods else False
    target, source, size = instr.operands[:3]
    barrier = ("ptr", "null")
    if into:
        _window(low, target, "A")
        low.spill("B", address(low, source, "global")[0], "i64")
        _window(low, instr.operands[3], "D")
        barrier = ("ptr", "%D")
    else:
        low.spill("A", address(low, target, "global")[0], "i64")
        _window(low, source, "B")
    low.spill("C", low.bits(size, "b32"), "i32")
    site = low.site("load" if into else "store", "global")
    low.runtime(
        "kb_bulk", "void",
        [("ptr", "%w"), ("ptr", "%A"), ("ptr", "%B"), ("ptr", "%C"), barrier, ("i32", low.active()),
         ("i32", str(site))],
    )  # fmt: skip
