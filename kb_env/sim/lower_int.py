"""Lowering of integer, logic, comparison and data-movement instructions."""

from __future__ import annotations

from collections.abc import Callable

from kb_env.sim.lower import Lowerer, int_type, rule
from kb_env.sim.ptx import TYPE_BYTES, Instr, Op

_UNSIGNED = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_FLOAT_TYPES = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")


def is_float(kind: str) -> bool:
    return kind in _FLOAT_TYPES


def bits_of(kind: str) -> int:
    return 8 * TYPE_BYTES[kind]


@rule("mov", "pmov")
def mov(low: Lowerer, instr: Instr) -> None:
    target, source = instr.operands
    kind = instr.mods[-1]
    if target.kind == "vec":
        _unpack(low, target.value, source, kind)
    elif source.kind == "vec":
        _pack(low, target, source.value, kind)
    else:
        value = low.bits(source, kind)
        if instr.op == "pmov":
            kind = {"s8": "s8", "s16": "s16"}.get(kind, f"b{bits_of(kind)}")
        low.put(target, value, f"b{bits_of(kind)}" if is_float(kind) else kind)


def _unpack(low: Lowerer, targets: tuple[Op, ...], source: Op, kind: str) -> None:
    whole, width = int_type(kind), bits_of(kind) // len(targets)
    value = low.bits(source, kind)
    for position, target in enumerate(targets):
        part = low.op2("lshr", whole, value, low.const(whole, position * width)) if position else value
        low.put(target, low.cast("trunc", whole, part, f"i{width}"), f"b{width}")


def _pack(low: Lowerer, target: Op, sources: tuple[Op, ...], kind: str) -> None:
    whole, width = int_type(kind), bits_of(kind) // len(sources)
    total = ""
    for position, source in enumerate(sources):
        part = low.cast("zext", f"i{width}", low.bits(source, f"b{width}"), whole)
        if position:
            part = low.op2("shl", whole, part, low.const(whole, position * width))
        total = low.op2("or", whole, total, part) if total else part
    low.put(target, total, kind)


@rule("cvta")
def cvta(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    base = int_type(kind)
    value = low.bits(instr.operands[1], kind)
    space = next(
        (mod for mod in instr.mods if mod.split("::")[0] in ("shared", "local", "global", "const", "param")),
        "",
    )
    window = {"shared": 1, "local": 2, "param": 3}.get(space.split("::")[0], 0) << 36
    if window and base == "i64":
        if "to" in instr.mods:
            value = low.op2("and", base, value, low.const(base, (1 << 36) - 1))
        else:
            value = low.op2("or", base, value, low.const(base, window))
    low.put(instr.operands[0], value, kind)


@rule("isspacep")
def isspacep(low: Lowerer, instr: Instr) -> None:
    slot = low.op2("lshr", "i64", low.bits(instr.operands[1], "b64"), low.const("i64", 36))
    space = instr.mods[0].split("::")[0]
    if space in ("shared", "local", "param"):
        value = low.compare("eq", "i64", slot, low.const("i64", {"shared": 1, "local": 2, "param": 3}[space]))
    else:
        value = low.compare("uge", "i64", slot, low.const("i64", 16))
    low.put(instr.operands[0], value, "pred")


def carry_in(low: Lowerer, base: str) -> str:
    if low.carry is None:
        raise low.refuse("no carry set earlier in this block")
    return low.cast("zext", "i1", low.carry, base)


@rule("add", "sub", "addc", "subc")
def add(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    if is_float(kind):
        from kb_env.sim.lower_float import arithmetic

        arithmetic(low, instr)
        return
    if kind in ("u16x2", "s16x2"):
        halves(low, instr, lambda a, b: low.op2(instr.op, "i16", a, b))
        return
    base = int_type(kind)
    a, b = low.bits(instr.operands[1], kind), low.bits(instr.operands[2], kind)
    opcode = "add" if instr.op.startswith("add") else "sub"
    if "sat" in instr.mods:
        low.put(instr.operands[0], low.call(f"s{opcode}.sat", base, a, b), kind)
        return
    value = low.op2(opcode, base, a, b)
    carry = low.compare("ult", base, value, a) if opcode == "add" else low.compare("ult", base, a, b)
    if instr.op.endswith("c"):
        extra = carry_in(low, base)
        more = low.op2(opcode, base, value, extra)
        again = (
            low.compare("ult", base, more, value)
            if opcode == "add"
            else low.compare("ult", base, value, extra)
        )
        value, carry = more, low.op2("or", "i1", carry, again)
    if "cc" in instr.mods:
        low.carry = carry
    low.put(instr.operands[0], value, kind)


def halves(low: Lowerer, instr: Instr, apply: Callable[..., str]) -> None:
    """A packed pair of 16-bit integers: the operation on each half."""
    parts = []
    for shift in (0, 16):
        values = []
        for op in instr.operands[1:]:
            value = low.op2("lshr", "i32", low.bits(op, "b32"), low.const("i32", shift))
            values.append(low.cast("trunc", "i32", value, "i16"))
        parts.append(low.cast("zext", "i16", apply(*values), "i32"))
    high = low.op2("shl", "i32", parts[1], low.const("i32", 16))
    low.put(instr.operands[0], low.op2("or", "i32", parts[0], high), "b32")


def product(low: Lowerer, instr: Instr, kind: str) -> tuple[str, str]:
    """The product that a mul or mad forms, and its PTX type."""
    base, signed = int_type(kind), kind[0] == "s"
    a, b = low.bits(instr.operands[1], kind), low.bits(instr.operands[2], kind)
    extend = "sext" if signed else "zext"
    if "wide" in instr.mods:
        wide = f"i{2 * int(base[1:])}"
        value = low.op2("mul", wide, low.cast(extend, base, a, wide), low.cast(extend, base, b, wide))
        return value, f"{kind[0]}{2 * int(base[1:])}"
    if "hi" in instr.mods and base == "i64":
        return high_product(low, a, b, signed), kind
    if "hi" in instr.mods:
        wide, width = f"i{2 * int(base[1:])}", int(base[1:])
        value = low.op2("mul", wide, low.cast(extend, base, a, wide), low.cast(extend, base, b, wide))
        return low.cast("trunc", wide, low.op2("lshr", wide, value, low.const(wide, width)), base), kind
    return low.op2("mul", base, a, b), kind


def high_product(low: Lowerer, a: str, b: str, signed: bool) -> str:
    """Upper 64 bits of a 64 x 64 bit product, from four 32-bit ones."""
    mask, shift = low.const("i64", 0xFFFFFFFF), low.const("i64", 32)

    def op(opcode: str, x: str, y: str) -> str:
        return low.op2(opcode, "i64", x, y)

    al, ah, bl, bh = op("and", a, mask), op("lshr", a, shift), op("and", b, mask), op("lshr", b, shift)
    middle = op("add", op("mul", ah, bl), op("lshr", op("mul", al, bl), shift))
    low_part = op("add", op("mul", al, bh), op("and", middle, mask))
    high = op("add", op("mul", ah, bh), op("add", op("lshr", middle, shift), op("lshr", low_part, shift)))
    if not signed:
        return high
    sign = low.const("i64", 63)
    high = op("sub", high, op("and", op("ashr", a, sign), b))
    return op("sub", high, op("and", op("ashr", b, sign), a))


@rule("mul", "mul24")
def mul(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    if is_float(kind):
        from kb_env.sim.lower_float import arithmetic

        arithmetic(low, instr)
        return
    if instr.op == "mul24":
        raise low.refuse()
    value, kind = product(low, instr, kind)
    low.put(instr.operands[0], value, kind)


@rule("mad", "madc")
def mad(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    if is_float(kind):
        from kb_env.sim.lower_float import arithmetic

        arithmetic(low, instr)
        return
    value, kind = product(low, instr, kind)
    base = int_type(kind)
    c = low.bits(instr.operands[3], kind)
    if "sat" in instr.mods:
        low.put(instr.operands[0], low.call("sadd.sat", base, value, c), kind)
        return
    total = low.op2("add", base, value, c)
    carry = low.compare("ult", base, total, c)
    if instr.op == "madc":
        more = low.op2("add", base, total, carry_in(low, base))
        carry = low.op2("or", "i1", carry, low.compare("ult", base, more, total))
        total = more
    if "cc" in instr.mods:
        low.carry = carry
    low.put(instr.operands[0], total, kind)


@rule("div", "rem")
def divide(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    if is_float(kind):
        from kb_env.sim.lower_float import arithmetic

        arithmetic(low, instr)
        return
    a, b = low.bits(instr.operands[1], kind), low.bits(instr.operands[2], kind)
    if bits_of(kind) == 64:
        low.spill("B", a, "i64"), low.spill("C", b, "i64")
        code = (1 if instr.op == "rem" else 0) | (2 if kind[0] == "s" else 0)
        low.runtime("kb_divide", "void", [("ptr", "%B"), ("ptr", "%C"), ("ptr", "%D"), ("i32", str(code))])
        low.put(instr.operands[0], low.fetch("D", "i64"), kind)
        return
    # 32-bit quotients are exact in double: the error of a/b stays under 1/b (2^64 > 2^53 is no issue).
    base, signed = int_type(kind), kind[0] == "s"
    x, y = low.resize(a, base, "i32", signed), low.resize(b, base, "i32", signed)
    zero = low.compare("eq", "i32", y, low.const("i32", 0))
    safe = low.choose(zero, "i32", low.const("i32", 1), y)
    convert = "sitofp" if signed else "uitofp"
    exact = low.op2(
        "fdiv", "double", low.cast(convert, "i32", x, "double"), low.cast(convert, "i32", safe, "double")
    )
    quotient = low.cast("trunc", "i64", low.cast("fptosi", "double", exact, "i64"), "i32")
    quotient = low.choose(zero, "i32", low.const("i32", -1), quotient)
    if instr.op == "rem":
        quotient = low.op2("sub", "i32", x, low.op2("mul", "i32", quotient, y))
    low.put(instr.operands[0], low.resize(quotient, "i32", base), kind)


@rule("and", "or", "xor")
def logic(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    a, b = (low.bits(op, kind) for op in instr.operands[1:3])
    low.put(instr.operands[0], low.op2(instr.op, int_type(kind), a, b), kind)


@rule("not")
def invert(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    base = int_type(kind)
    low.put(
        instr.operands[0], low.op2("xor", base, low.bits(instr.operands[1], kind), low.const(base, -1)), kind
    )


@rule("cnot")
def cnot(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    base = int_type(kind)
    zero = low.compare("eq", base, low.bits(instr.operands[1], kind), low.const(base, 0))
    low.put(instr.operands[0], low.cast("zext", "i1", zero, base), kind)


def shifted(low: Lowerer, base: str, value: str, amount: Op, opcode: str) -> str:
    """A shift whose amount may exceed the width: then zeros, or the sign."""
    width = int(base[1:])
    if amount.kind == "int":
        count = int(amount.value) & 0xFFFFFFFF
        if count >= width:
            if opcode != "ashr":
                return low.const(base, 0)
            count = width - 1
        return low.op2(opcode, base, value, low.const(base, count))
    count32 = low.bits(amount, "u32")
    inside = low.compare("ult", "i32", count32, low.const("i32", width))
    if opcode == "ashr":
        clamped = low.choose(inside, "i32", count32, low.const("i32", width - 1))
        return low.op2(opcode, base, value, low.resize(clamped, "i32", base))
    clamped = low.choose(inside, "i32", count32, low.const("i32", 0))
    result = low.op2(opcode, base, value, low.resize(clamped, "i32", base))
    return low.choose(inside, base, result, low.const(base, 0))


@rule("shl", "shr")
def shift(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    opcode = "shl" if instr.op == "shl" else "ashr" if kind[0] == "s" else "lshr"
    value = low.bits(instr.operands[1], kind)
    low.put(instr.operands[0], shifted(low, int_type(kind), value, instr.operands[2], opcode), kind)


@rule("shf")
def funnel(low: Lowerer, instr: Instr) -> None:
    a, b = low.bits(instr.operands[1], "b32"), low.bits(instr.operands[2], "b32")
    count = low.bits(instr.operands[3], "u32")
    if "clamp" in instr.mods:
        over = low.compare("ugt", "i32", count, low.const("i32", 32))
        count = low.choose(over, "i32", low.const("i32", 32), count)
    else:
        count = low.op2("and", "i32", count, low.const("i32", 31))
    wide = low.cast("zext", "i32", count, "i64")
    high = low.op2("shl", "i64", low.cast("zext", "i32", b, "i64"), low.const("i64", 32))
    pair = low.op2("or", "i64", high, low.cast("zext", "i32", a, "i64"))
    if instr.mods[0] == "l":
        pair = low.op2("shl", "i64", pair, wide)
        # A shift by 32 of the 64-bit pair leaves a in the upper half, as the clamp mode wants.
        pair = low.op2("lshr", "i64", pair, low.const("i64", 32))
    else:
        pair = low.op2("lshr", "i64", pair, wide)
    low.put(instr.operands[0], low.cast("trunc", "i64", pair, "i32"), "b32")


@rule("min", "max")
def extreme(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    if is_float(kind):
        from kb_env.sim.lower_float import arithmetic

        arithmetic(low, instr)
        return
    if kind in ("u16x2", "s16x2"):
        halves(low, instr, lambda a, b: low.call(f"{kind[0].replace('u', 'u')}{instr.op}", "i16", a, b))
        return
    base = int_type(kind)
    a, b = low.bits(instr.operands[1], kind), low.bits(instr.operands[2], kind)
    value = low.call(f"{'s' if kind[0] == 's' else 'u'}{instr.op}", base, a, b)
    if "relu" in instr.mods:
        value = low.call("smax", base, value, low.const(base, 0))
    low.put(instr.operands[0], value, kind)


@rule("abs", "neg")
def sign(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    if is_float(kind):
        from kb_env.sim.lower_float import sign as float_sign

        float_sign(low, instr)
        return
    base = int_type(kind)
    value = low.bits(instr.operands[1], kind)
    negative = low.op2("sub", base, low.const(base, 0), value)
    if instr.op == "abs":
        negative = low.choose(low.compare("slt", base, value, low.const(base, 0)), base, negative, value)
    low.put(instr.operands[0], negative, kind)


@rule("sad")
def sad(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    base = int_type(kind)
    a, b, c = (low.bits(op, kind) for op in instr.operands[1:4])
    less = low.compare("slt" if kind[0] == "s" else "ult", base, a, b)
    distance = low.choose(less, base, low.op2("sub", base, b, a), low.op2("sub", base, a, b))
    low.put(instr.operands[0], low.op2("add", base, distance, c), kind)


@rule("popc", "clz", "brev")
def count(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    base = int_type(kind)
    value = low.bits(instr.operands[1], kind)
    if instr.op == "brev":
        low.put(instr.operands[0], low.call("bitreverse", base, value), kind)
        return
    found = (
        low.call("ctpop", base, value)
        if instr.op == "popc"
        else low.call("ctlz", base, value, extra="i1 false")
    )
    low.put(instr.operands[0], low.resize(found, base, "i32"), "u32")


@rule("bfind")
def bfind(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    base, width = int_type(kind), bits_of(kind)
    value = low.bits(instr.operands[1], kind)
    if kind[0] == "s":
        negative = low.compare("slt", base, value, low.const(base, 0))
        value = low.choose(negative, base, low.op2("xor", base, value, low.const(base, -1)), value)
    zeros = low.resize(low.call("ctlz", base, value, extra="i1 false"), base, "i32")
    position = low.op2("sub", "i32", low.const("i32", width - 1), zeros)
    none = low.compare("eq", "i32", zeros, low.const("i32", width))
    answer = zeros if "shiftamt" in instr.mods else position
    low.put(instr.operands[0], low.choose(none, "i32", low.const("i32", -1), answer), "u32")


@rule("bfe")
def bfe(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    base, width = int_type(kind), bits_of(kind)
    value = low.bits(instr.operands[1], kind)
    byte = low.const("i32", 255)
    start = low.op2("and", "i32", low.bits(instr.operands[2], "u32"), byte)
    length = low.op2("and", "i32", low.bits(instr.operands[3], "u32"), byte)
    full = low.const("i32", width)
    start = low.call("umin", "i32", start, full)
    length = low.call("umin", "i32", length, full)
    inside = low.compare("ult", "i32", start, full)
    safe = low.resize(low.choose(inside, "i32", start, low.const("i32", 0)), "i32", base)
    moved = low.op2("ashr" if kind[0] == "s" else "lshr", base, value, safe)
    if kind[0] == "s":
        sign = low.op2("ashr", base, value, low.const(base, width - 1))
        moved = low.choose(inside, base, moved, sign)
    else:
        moved = low.choose(inside, base, moved, low.const(base, 0))
    # Keep `length` bits: shift them to the top and back.
    spare = low.op2("sub", "i32", full, length)
    empty = low.compare("eq", "i32", length, low.const("i32", 0))
    spare = low.resize(low.choose(empty, "i32", low.const("i32", 0), spare), "i32", base)
    opcode = "ashr" if kind[0] == "s" else "lshr"
    kept = low.op2(opcode, base, low.op2("shl", base, moved, spare), spare)
    low.put(instr.operands[0], low.choose(empty, base, low.const(base, 0), kept), kind)


@rule("bfi")
def bfi(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    base, width = int_type(kind), bits_of(kind)
    a, b = low.bits(instr.operands[1], kind), low.bits(instr.operands[2], kind)
    byte = low.const("i32", 255)
    start = low.op2("and", "i32", low.bits(instr.operands[3], "u32"), byte)
    length = low.op2("and", "i32", low.bits(instr.operands[4], "u32"), byte)
    length = low.call("umin", "i32", length, low.const("i32", width))
    empty = low.compare("eq", "i32", length, low.const("i32", 0))
    outside = low.compare("uge", "i32", start, low.const("i32", width))
    nothing = low.op2("or", "i1", empty, outside)
    spare = low.op2("sub", "i32", low.const("i32", width), length)
    spare = low.resize(low.choose(nothing, "i32", low.const("i32", 0), spare), "i32", base)
    place = low.resize(low.choose(nothing, "i32", low.const("i32", 0), start), "i32", base)
    mask = low.op2("shl", base, low.op2("lshr", base, low.const(base, -1), spare), place)
    mask = low.choose(nothing, base, low.const(base, 0), mask)
    inserted = low.op2("and", base, low.op2("shl", base, a, place), mask)
    kept = low.op2("and", base, b, low.op2("xor", base, mask, low.const(base, -1)))
    low.put(instr.operands[0], low.op2("or", base, inserted, kept), kind)


@rule("lop3")
def lop3(low: Lowerer, instr: Instr) -> None:
    """Any function of three bits: for a = 1 and a = 0 a function of two, muxed by a."""
    a, b, c = (low.bits(op, "b32") for op in instr.operands[1:4])
    table = int(instr.operands[4].value)
    ones, zeros = _two_input(low, table >> 4, b, c), _two_input(low, table & 15, b, c)
    inverse = low.op2("xor", "i32", a, low.const("i32", -1))
    value = low.op2("or", "i32", low.op2("and", "i32", a, ones), low.op2("and", "i32", inverse, zeros))
    if len(instr.mods) > 1 and instr.mods[0] in ("or", "and"):
        raise low.refuse("lop3 with a predicate result")
    low.put(instr.operands[0], value, "b32")


def _two_input(low: Lowerer, table: int, b: str, c: str) -> str:
    """A function of two bits; bit 2b + c of the table is its value."""
    minus = low.const("i32", -1)
    nb = low.op2("xor", "i32", b, minus)
    nc = low.op2("xor", "i32", c, minus)
    total = low.const("i32", 0)
    for position, (x, y) in enumerate(((nb, nc), (nb, c), (b, nc), (b, c))):
        if table >> position & 1:
            total = low.op2("or", "i32", total, low.op2("and", "i32", x, y))
    return total


@rule("prmt")
def prmt(low: Lowerer, instr: Instr) -> None:
    a, b = low.bits(instr.operands[1], "b32"), low.bits(instr.operands[2], "b32")
    selector = instr.operands[3]
    mode = {"f4e": 1, "b4e": 2, "rc8": 3, "ecl": 4, "ecr": 5, "rc16": 6}.get(
        instr.mods[0] if instr.mods else "", 0
    )
    if mode == 0 and selector.kind == "int" and not int(selector.value) & 0x8888:
        total = low.const("i32", 0)
        for position in range(4):
            pick = int(selector.value) >> (4 * position) & 7
            source, move = (a if pick < 4 else b), 8 * (position - (pick & 3))
            if move:
                source = low.op2("shl" if move > 0 else "lshr", "i32", source, low.const("i32", abs(move)))
            total = low.op2(
                "or", "i32", total, low.op2("and", "i32", source, low.const("i32", 255 << 8 * position))
            )
        low.put(instr.operands[0], total, "b32")
        return
    low.spill("B", a, "i32"), low.spill("C", b, "i32"), low.spill("D", low.bits(selector, "b32"), "i32")
    low.runtime(
        "kb_prmt", "void", [("ptr", "%B"), ("ptr", "%C"), ("ptr", "%D"), ("ptr", "%V"), ("i32", str(mode))]
    )
    low.put(instr.operands[0], low.fetch("V", "i32"), "b32")


@rule("dp4a", "dp2a")
def dot(low: Lowerer, instr: Instr) -> None:
    left, right = instr.mods[-2], instr.mods[-1]
    for area, op in zip("BCD", instr.operands[1:4], strict=True):
        low.spill(area, low.bits(op, "b32"), "i32")
    code = (left[0] == "s") | (right[0] == "s") << 1 | (instr.op == "dp2a") << 2 | ("hi" in instr.mods) << 3
    low.runtime(
        "kb_dot",
        "void",
        [("ptr", "%B"), ("ptr", "%C"), ("ptr", "%D"), ("ptr", "%V"), ("i32", str(int(code)))],
    )
    low.put(instr.operands[0], low.fetch("V", "i32"), "b32")


@rule("fns")
def fns(low: Lowerer, instr: Instr) -> None:
    for area, op in zip("BCD", instr.operands[1:4], strict=True):
        low.spill(area, low.bits(op, "b32"), "i32")
    low.runtime("kb_fns", "void", [("ptr", "%B"), ("ptr", "%C"), ("ptr", "%D"), ("ptr", "%V")])
    low.put(instr.operands[0], low.fetch("V", "i32"), "b32")


_ORDERED = {
    "eq": "oeq",
    "ne": "one",
    "lt": "olt",
    "le": "ole",
    "gt": "ogt",
    "ge": "oge",
    "num": "ord",
    "nan": "uno",
}
_UNORDERED = {"equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge"}


def comparison(low: Lowerer, name: str, kind: str, a: Op, b: Op, flush: bool) -> str:
    if is_float(kind):
        from kb_env.sim.lower_float import flushed, widened

        base, x, y = widened(low, kind, a, b)
        if flush:
            x, y = flushed(low, x, base), flushed(low, y, base)
        return low.compare((_ORDERED | _UNORDERED)[name], base, x, y)
    base = int_type(kind)
    predicate = {"eq": "eq", "ne": "ne"}.get(name) or _UNSIGNED.get(name)
    if predicate is None:
        predicate = ("s" if kind[0] == "s" else "u") + name
    return low.compare(predicate, base, low.bits(a, kind), low.bits(b, kind))


@rule("setp")
def setp(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    target, a, b = instr.operands[:3]
    if kind in ("f16x2", "bf16x2"):
        from kb_env.sim.lower_float import packed_compare

        packed_compare(low, instr)
        return
    value = comparison(low, instr.mods[0], kind, a, b, "ftz" in instr.mods)
    inverse = None
    if target.kind == "pair":
        inverse = low.op2("xor", "i1", value, low.const("i1", 1))
    if len(instr.operands) > 3:
        combine = next(mod for mod in instr.mods if mod in ("and", "or", "xor"))
        other = low.pred(instr.operands[3])
        value = low.op2(combine, "i1", value, other)
        inverse = low.op2(combine, "i1", inverse, other) if inverse else None
    if target.kind == "pair":
        low.put(target.value[0], value, "pred")
        low.put(target.value[1], inverse or "", "pred")
    else:
        low.put(target, value, "pred")


@rule("set")
def set_(low: Lowerer, instr: Instr) -> None:
    result, kind = instr.mods[-2], instr.mods[-1]
    if kind in ("f16x2", "bf16x2"):
        raise low.refuse("packed set")
    value = comparison(low, instr.mods[0], kind, instr.operands[1], instr.operands[2], "ftz" in instr.mods)
    if len(instr.operands) > 3:
        combine = next(mod for mod in instr.mods if mod in ("and", "or", "xor"))
        value = low.op2(combine, "i1", value, low.pred(instr.operands[3]))
    base = int_type(result)
    one = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}.get(result, -1)
    low.put(
        instr.operands[0],
        low.choose(value, base, low.const(base, one), low.const(base, 0)),
        f"b{bits_of(result)}",
    )


@rule("selp")
def selp(low: Lowerer, instr: Instr) -> None:
    kind = f"b{bits_of(instr.mods[-1])}"
    a, b = low.bits(instr.operands[1], kind), low.bits(instr.operands[2], kind)
    low.put(instr.operands[0], low.choose(low.pred(instr.operands[3]), int_type(kind), a, b), kind)


@rule("slct")
def slct(low: Lowerer, instr: Instr) -> None:
    kind, decide = f"b{bits_of(instr.mods[-2])}", instr.mods[-1]
    a, b, c = (
        low.bits(instr.operands[1], kind),
        low.bits(instr.operands[2], kind),
        low.get(instr.operands[3], decide),
    )
    if decide == "f32":
        keep = low.compare("oge", "float", c, low.real("float", 0.0))
    else:
        keep = low.compare("sge", "i32", c, low.const("i32", 0))
    low.put(instr.operands[0], low.choose(keep, int_type(kind), a, b), kind)
