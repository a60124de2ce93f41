"""Lowering of the tensor-core instructions: mma, wmma, wgmma, ldmatrix, stmatrix."""

from __future__ import annotations

import re

from kb_env.sim.lower import LANES, SLOT_SHARED, SLOT_SHIFT, Lowerer, rule
from kb_env.sim.lower_mem import address, space_of
from kb_env.sim.ptx import Instr, Op

_TYPES = {"f16": 0, "bf16": 1, "f32": 2, "s8": 3, "u8": 4, "e4m3": 5, "e5m2": 6, "tf32": 7, "s32": 8}
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1, "f32": 4, "s32": 4}
_SHAPE = re.compile(r"^m(\d+)n(\d+)k(\d+)$")


def parts(op: Op) -> tuple[Op, ...]:
    return op.value if op.kind == "vec" else (op,)


def shape(low: Lowerer, instr: Instr) -> tuple[int, int, int]:
    for mod in instr.mods:
        match = _SHAPE.match(mod)
        if match:
            rows, columns, depth = (int(group) for group in match.groups())
            return rows, columns, depth
    raise low.refuse("shape")


def spill_all(low: Lowerer, area: str, ops: tuple[Op, ...], kind: str = "b32") -> None:
    """Registers side by side in scratch memory: [register][lane]."""
    for position, op in enumerate(ops):
        low.spill(area, low.bits(op, kind), f"i{kind[1:]}", position)


def element_types(low: Lowerer, instr: Instr, count: int) -> list[str]:
    kinds = [mod for mod in instr.mods if mod in _TYPES][-count:]
    if len(kinds) != count:
        raise low.refuse("element types")
    return kinds


@rule("mma")
def mma(low: Lowerer, instr: Instr) -> None:
    low.vector = True
    rows, columns, depth = shape(low, instr)
    result, a, b, c = (parts(op) for op in instr.operands[:4])
    if instr.mods[-4:] == ("f64",) * 4 and (rows, columns, depth) == (8, 8, 4):
        for area, ops in (("B", a), ("C", b), ("D", c)):
            spill_all(low, area, ops, "b64")
        low.runtime("kb_mma_double", "void", [("ptr", f"%{area}") for area in "BCDV"])
        for position, op in enumerate(result):
            low.put(op, low.fetch("V", "i64", position), "b64")
        return
    if columns != 8 or rows not in (8, 16) or "sp" in instr.mods or "row" not in instr.mods:
        raise low.refuse("shape")
    d_type, a_type, b_type, c_type = element_types(low, instr, 4)
    sizes = len(b), len(c), len(result)
    results = tuple(rows * 8 * (2 if kind == "f16" else 4) // 128 for kind in (c_type, d_type))
    if sizes != (depth * 8 * _BYTES[b_type] // 128, *results) or depth > 64:
        raise low.refuse("fragment sizes")
    if len(a) != rows * depth * _BYTES[a_type] // 128 or (rows == 8 and a_type in ("f16",)):
        raise low.refuse("fragment sizes")
    for area, ops in (("B", a), ("C", b), ("D", c)):
        spill_all(low, area, ops)
    types = _TYPES[a_type] | _TYPES[b_type] << 8 | _TYPES[c_type] << 16 | _TYPES[d_type] << 24
    arguments = [("ptr", f"%{area}") for area in "BCDV"]
    low.runtime(
        "kb_mma", "void",
        [*arguments, ("i32", str(rows | depth << 8)), ("i32", str(types)), ("i32", str(int("satfinite" in instr.mods))),
        ],
    )  # fmt: skip
    for position, op in enumerate(result):
        low.put(op, low.fetch("V", "i32", position), "b32")


@rule("ldmatrix", "stmatrix")
def matrix(low: Lowerer, instr: Instr) -> None:
    low.vector = True
    if "m8n8" not in instr.mods or instr.mods[-1] != "b16":
        raise low.refuse()
    loading = instr.op == "ldmatrix"
    registers, memory = (parts(instr.operands[0]), instr.operands[1]) if loading else (
        parts(instr.operands[1]), instr.operands[0])  # fmt: skip
    where, base = address(low, memory, "shared")
    low.spill("A", where, base)
    if not loading:
        spill_all(low, "V", registers)
    if len(registers) not in (1, 2, 4):
        raise low.refuse("matrix count")
    code = len(registers) | ("trans" in instr.mods) << 8 | (not loading) << 9
    site = low.site("load" if loading else "store", "shared")
    arguments = [("ptr", "%w"), ("ptr", "%A"), ("i32", low.active()), ("ptr", "%V")]
    low.runtime("kb_matrix", "void", [*arguments, ("i32", str(site)), ("i32", str(int(code)))])
    if loading:
        for position, op in enumerate(registers):
            low.put(op, low.fetch("V", "i32", position), "b32")


@rule("wmma")
def wmma(low: Lowerer, instr: Instr) -> None:
    low.vector = True
    if shape(low, instr) not in ((16, 16, 16), (16, 16, 8)):
        raise low.refuse("shape")
    if instr.mods[0] == "mma":
        _wmma_multiply(low, instr)
    else:
        _wmma_move(low, instr)


def _wmma_multiply(low: Lowerer, instr: Instr) -> None:
    """Two mma of 8 columns each; half fragments hold every element twice, the first copy counts."""
    result, a, b, c = (parts(op) for op in instr.operands[:4])
    depth = shape(low, instr)[2]
    kinds = [mod for mod in instr.mods if mod in _TYPES]
    if len(kinds) == 2:  # d and c only: the factors are halves
        kinds = [kinds[0], "f16", "f16", kinds[1]]
    d_type, a_type, b_type, c_type = kinds
    each = depth * _BYTES[b_type] // 16  # registers of b for 8 columns
    types = _TYPES[a_type] | _TYPES[b_type] << 8 | _TYPES[c_type] << 16 | _TYPES[d_type] << 24
    layout = instr.mods.index("row") if "row" in instr.mods else -1
    if layout < 0 and "col" not in instr.mods:
        raise low.refuse("layout")
    spill_all(low, "B", a[: 16 * depth * _BYTES[a_type] // 128])
    halves = []
    for half in range(2):
        spill_all(low, "C", b[half * each : (half + 1) * each])
        count = len(c) // 2
        spill_all(low, "D", c[half * count : (half + 1) * count])
        arguments = [("ptr", f"%{area}") for area in "BCDV"]
        satfinite = str(int("satfinite" in instr.mods))
        low.runtime(
            "kb_mma",
            "void",
            [*arguments, ("i32", str(16 | depth << 8)), ("i32", str(types)), ("i32", satfinite)],
        )
        halves += [low.fetch("V", "i32", position) for position in range(len(result) // 2)]
    for op, value in zip(result, halves, strict=True):
        low.put(op, value, "b32")


def _wmma_move(low: Lowerer, instr: Instr) -> None:
    storing = instr.mods[0] == "store"
    which = {"a": 0, "b": 1, "c": 2, "d": 2}[instr.mods[1]]
    memory, fragment = (
        (instr.operands[0], instr.operands[1]) if storing else (instr.operands[1], instr.operands[0])
    )
    registers, kind, space = parts(fragment), instr.mods[-1], space_of(low, instr)
    depth = shape(low, instr)[2]
    where, base = address(low, memory, space)
    if base == "i32":
        where = low.cast("zext", "i32", where, "i64")
    if space == "shared":
        where = low.op2("or", "i64", where, low.const("i64", SLOT_SHARED << SLOT_SHIFT))
    low.spill("A", where, "i64")
    if len(instr.operands) > 2:
        stride = low.bits(instr.operands[2], "b32")
    else:
        stride = low.const("i32", depth if which == 0 else 16)
    low.spill("B", stride, "i32")
    distinct = len(registers)
    if which < 2:
        distinct = 16 * depth * _BYTES[kind] // 128
    each = depth * _BYTES[kind] // 16 if which == 1 else 1
    site = low.site("store" if storing else "load", "global" if space == "generic" else space)
    for position in range(distinct):
        if storing:
            low.spill("V", low.bits(registers[position], "b32"), "i32", position)
        code = (
            which
            | position << 4
            | ("col" in instr.mods) << 12
            | storing << 13
            | _TYPES[kind] << 16
            | each << 24
        )
        place = low.emit(f"getelementptr i8, ptr %V, i64 {position * 4 * LANES}")
        low.runtime(
            "kb_wmma", "void",
            [("ptr", "%w"), ("ptr", "%A"), ("ptr", "%B"), ("i32", low.active()), ("ptr", place), ("i32", str(site)),
             ("i32", str(int(code)))],
        )  # fmt: skip
    if not storing:
        for position, op in enumerate(registers):
            low.put(op, low.fetch("V", "i32", position % distinct), "b32")


@rule("wgmma")
def wgmma(low: Lowerer, instr: Instr) -> None:
    """Each warp computes its 16 rows when it issues; fences and groups order nothing that could go wrong here."""
    low.vector = True
    if instr.mods[0] in ("fence", "commit_group", "wait_group"):
        return
    rows, columns, depth = shape(low, instr)
    kinds = [mod for mod in instr.mods if mod in _TYPES]
    if rows != 64 or len(kinds) != 3 or instr.mods[0] != "mma_async" or "sp" in instr.mods:
        raise low.refuse()
    d_type, a_type, b_type = kinds
    operands = list(instr.operands)
    if columns > 256 or columns % 8 or depth not in (8, 16, 32):
        raise low.refuse("shape")
    result, a, b, add = parts(operands[0]), operands[1], operands[2], operands[3]
    if len(result) != columns * (1 if d_type == "f16" else 2) // 4 or (a.kind == "vec" and len(a.value) != 4):
        raise low.refuse("fragment sizes")
    if depth * _BYTES[a_type] != 32 or _BYTES[b_type] != _BYTES[a_type]:
        raise low.refuse("element types")
    signs = [int(op.value) for op in operands[4:]]
    negate = sum((value < 0) << position for position, value in enumerate(signs[:2]))
    turns = signs[2:] if a.kind != "vec" else [0, *signs[2:]]
    flags = negate | sum(value << (2 + position) for position, value in enumerate(turns))
    spill_all(low, "V", result)
    registers, descriptor = ("ptr", "null"), ("ptr", "null")
    if a.kind == "vec":
        spill_all(low, "B", parts(a))
        registers = ("ptr", "%B")
    else:
        low.spill("B", low.bits(a, "b64"), "i64")
        descriptor = ("ptr", "%B")
    low.spill("C", low.bits(b, "b64"), "i64")
    if add.kind == "int":
        adding = str(int(int(add.value) != 0))
    else:
        adding = low.emit(f"and i32 1, {low.emit(f'bitcast <{LANES} x i1> {low.pred(add)} to i32')}")
    types = _TYPES[a_type] | _TYPES[b_type] << 8 | _TYPES[d_type] << 16 | _TYPES[d_type] << 24
    site = low.site("tensor", "shared")
    low.runtime(
        "kb_wgmma", "void",
        [("ptr", "%w"), ("ptr", "%V"), registers, descriptor, ("ptr", "%C"), ("i32", str(columns | depth << 16)),
         ("i32", str(types)), ("i32", str(flags)), ("i32", adding), ("i32", low.active()), ("i32", str(site))],
    )  # fmt: skip
    for position, op in enumerate(result):
        low.put(op, low.fetch("V", "i32", position), "b32")
