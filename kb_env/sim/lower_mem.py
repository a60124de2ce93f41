"""Lowering of loads, stores and their kin: addresses go to a checked helper of the runtime."""

from __future__ import annotations

from kb_env.sim.lower import SLOT_PARAM, SLOT_SHARED, SLOT_SHIFT, Lowerer, int_type, rule
from kb_env.sim.ptx import TYPE_BYTES, Instr, Op

SPACES = {"global": "global", "shared": "shared", "shared::cta": "shared", "local": "local", "const": "const"}


def space_of(low: Lowerer, instr: Instr) -> str:
    """global, shared, cluster (shared memory of any block of the cluster), local, const, param or generic."""
    for mod in instr.mods:
        if mod in SPACES:
            return SPACES[mod]
        if mod in ("param", "param::entry"):
            return "param"
        if mod == "shared::cluster":
            return "cluster"
    return "generic"


def address(low: Lowerer, op: Op, space: str) -> tuple[str, str]:
    """An address operand as a vector, and its LLVM element type (i32 in shared space)."""
    low.vector = True
    base, offset = (op.value, op.extra) if op.kind == "mem" else (op, 0)
    width = "i32" if space == "shared" else "i64"
    if base.kind in ("name", "int"):
        number = int(base.value) if base.kind == "int" else low.symbol(str(base.value)) + base.extra
        window = {"param": SLOT_PARAM, "cluster": SLOT_SHARED}.get(space, 0)
        number += offset + (window << SLOT_SHIFT)
        return low.const(width, number), width
    kind = "u32" if low.base_of(str(base.value)) == "i32" else "u64"
    value = low.bits(base, kind)
    if offset:
        value = low.op2("add", int_type(kind), value, low.const(int_type(kind), offset))
    if space == "shared" and kind == "u64":
        # Out-of-range addresses stay out of range; an address through the generic window loses it.
        value = low.op2("and", "i64", value, low.const("i64", (1 << SLOT_SHIFT) - 1))
        value = low.call("umin", "i64", value, low.const("i64", 0xFFFFFF00))
        return low.cast("trunc", "i64", value, "i32"), "i32"
    if space != "shared" and kind == "u32":
        value = low.cast("zext", "i32", value, "i64")
    if space == "cluster":  # an address in the window of shared memory, whole or without its upper half
        value = low.op2("or", "i64", value, low.const("i64", SLOT_SHARED << SLOT_SHIFT))
    if space == "param":
        value = low.op2("or", "i64", value, low.const("i64", SLOT_PARAM << SLOT_SHIFT))
    return value, width


def shape_of(instr: Instr) -> tuple[str, int]:
    """Element type and element count of a load or store."""
    count = next((int(mod[1:]) for mod in instr.mods if mod in ("v2", "v4", "v8")), 1)
    return instr.mods[-1], count


def access(low: Lowerer, instr: Instr, verb: str, space: str, op: Op) -> tuple[str, list[tuple[str, str]]]:
    """Spill the addresses; returns the helper's name and its arguments up to the values."""
    value, base = address(low, op, space)
    low.spill("A", value, base)
    helper = {"param": "const", "cluster": "generic"}.get(space, space)
    return f"kb_{verb}_{helper}", [("ptr", "%w"), ("ptr", "%A"), ("i32", low.active())]


@rule("ld", "ldu")
def load(low: Lowerer, instr: Instr) -> None:
    space = space_of(low, instr)
    kind, count = shape_of(instr)
    target, source = instr.operands[0], instr.operands[1]
    if kind == "b128":
        raise low.refuse("128-bit scalars")
    if space == "param" and source.value.kind == "name":
        _parameter(low, target, source, kind)
        return
    if len(target.value if target.kind == "vec" else (target,)) != count:
        raise low.refuse("vector size")
    name, arguments = access(low, instr, "load", space, source)
    size = TYPE_BYTES[kind]
    shape = size.bit_length() - 1 | count << 8
    site = low.site("load", "shared" if space == "cluster" else space)
    low.ordered()
    low.runtime(name, "void", [*arguments, ("ptr", "%V"), ("i32", str(site)), ("i32", str(shape))])
    base = f"i{8 * size}"
    for position, part in enumerate(target.value if target.kind == "vec" else (target,)):
        if part.kind == "sink":
            continue
        low.put(part, low.fetch("V", base, position), kind if kind[0] in "su" else f"b{8 * size}")


def _parameter(low: Lowerer, target: Op, source: Op, kind: str) -> None:
    """A kernel parameter at a fixed offset: the same for all lanes."""
    offset = low.symbol(str(source.value.value)) + source.extra
    total = max((low.parameters[item.name] + item.nbytes for item in low.flat.params), default=0)
    size = TYPE_BYTES[kind]
    params = low.emit("getelementptr i8, ptr %w, i64 8")
    params = low.emit(f"load ptr, ptr {params}, align 8")
    for position, part in enumerate(target.value if target.kind == "vec" else (target,)):
        where = offset + position * size
        if where < 0 or where + size > total:
            raise low.refuse("parameter out of range")
        keep, low.vector = low.vector, not low.is_scalar(str(part.value))
        place = low.emit(f"getelementptr i8, ptr {params}, i64 {where}")
        value = low.emit(f"load i{8 * size}, ptr {place}, align 1")
        if low.vector:
            value = low.splat(value, f"i{8 * size}")
        low.put(part, value, kind if kind[0] in "su" else f"b{8 * size}")
        low.vector = keep


@rule("st")
def store(low: Lowerer, instr: Instr) -> None:
    space = space_of(low, instr)
    if space == "param":
        raise low.refuse()
    kind, count = shape_of(instr)
    if kind == "b128":
        raise low.refuse("128-bit scalars")
    size = TYPE_BYTES[kind]
    name, arguments = access(low, instr, "store", space, instr.operands[0])
    source = instr.operands[1]
    if len(source.value if source.kind == "vec" else (source,)) != count:
        raise low.refuse("vector size")
    for position, part in enumerate(source.value if source.kind == "vec" else (source,)):
        low.spill("V", low.bits(part, f"b{8 * size}"), f"i{8 * size}", position)
    site = low.site("store", "shared" if space == "cluster" else space)
    low.ordered()
    low.runtime(
        name, "void",
        [*arguments, ("ptr", "%V"), ("i32", str(site)), ("i32", str(size.bit_length() - 1 | count << 8))],
    )  # fmt: skip


@rule("createpolicy")
def policy(low: Lowerer, instr: Instr) -> None:
    """Cache policies change nothing here."""
    low.vector = True
    low.put(instr.operands[0], low.const("i64", 0), "b64")


@rule("prefetch", "prefetchu", "discard", "applypriority")
def hint(low: Lowerer, instr: Instr) -> None:
    """Cache hints change nothing here; they are counted as instructions."""
