"""Lowering of floating-point arithmetic. Halves and bfloat16 are computed so that each result is rounded once."""

from __future__ import annotations

from kb_env.sim.lower import LANES, Lowerer, float_type, int_type, rule
from kb_env.sim.ptx import Instr, Op

_MODES = {"rn": 0, "rz": 1, "rm": 2, "rp": 3}
_HALF = {"f16": 0, "f16x2": 0, "bf16": 1, "bf16x2": 1}
_HALF_OPS = {
    "add": 0,
    "sub": 1,
    "mul": 2,
    "fma": 3,
    "min": 4,
    "max": 5,
    "neg": 6,
    "abs": 7,
    "ex2": 8,
    "tanh": 9,
    "mad": 3,
}


def flushed(low: Lowerer, value: str, base: str) -> str:
    """Subnormal floats become zeros of their sign (.ftz)."""
    if base != "float":
        return value
    bits = low.cast("bitcast", "float", value, "i32")
    exponent = low.op2("and", "i32", bits, low.const("i32", 0x7F800000))
    tiny = low.compare("eq", "i32", exponent, low.const("i32", 0))
    zero = low.op2("and", "i32", bits, low.const("i32", 0x80000000))
    return low.cast("bitcast", "i32", low.choose(tiny, "i32", zero, bits), "float")


def saturated(low: Lowerer, value: str, base: str) -> str:
    """Clamp to [0, 1]; NaN becomes 0 (.sat)."""
    positive = low.compare("ogt", base, value, low.real(base, 0.0))
    value = low.choose(positive, base, value, low.real(base, 0.0))
    inside = low.compare("olt", base, value, low.real(base, 1.0))
    return low.choose(inside, base, value, low.real(base, 1.0))


def bf16_to_float(low: Lowerer, bits: str) -> str:
    wide = low.op2("shl", "i32", low.cast("zext", "i16", bits, "i32"), low.const("i32", 16))
    return low.cast("bitcast", "i32", wide, "float")


def half_to_float(low: Lowerer, bits: str) -> str:
    return low.cast("fpext", "half", low.cast("bitcast", "i16", bits, "half"), "float")


def widened(low: Lowerer, kind: str, *operands: Op) -> tuple[str, ...]:
    """Operands as LLVM floats in which they are exact, after the type's name."""
    if kind == "f16":
        return ("float", *(half_to_float(low, low.bits(op, "b16")) for op in operands))
    if kind == "bf16":
        return ("float", *(bf16_to_float(low, low.bits(op, "b16")) for op in operands))
    base = float_type(kind)
    if base is None:
        raise low.refuse()
    return (base, *(low.get(op, kind) for op in operands))


def packed_compare(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    predicate = {"eq": "oeq", "ne": "one", "num": "ord", "nan": "uno", "neu": "une", "equ": "ueq"}.get(
        instr.mods[0]
    )
    if predicate is None:
        predicate = instr.mods[0][:2] if instr.mods[0].endswith("u") else "o" + instr.mods[0]
        predicate = ("u" + predicate) if instr.mods[0].endswith("u") else predicate
    results = []
    for shift in (0, 16):
        values = []
        for op in instr.operands[1:3]:
            bits = low.op2("lshr", "i32", low.bits(op, "b32"), low.const("i32", shift))
            bits = low.cast("trunc", "i32", bits, "i16")
            values.append(half_to_float(low, bits) if kind == "f16x2" else bf16_to_float(low, bits))
        value = low.compare(predicate, "float", *values)
        if len(instr.operands) > 3:
            combine = next(mod for mod in instr.mods if mod in ("and", "or", "xor"))
            value = low.op2(combine, "i1", value, low.pred(instr.operands[3]))
        results.append(value)
    target = instr.operands[0]
    for op, value in zip(target.value, results, strict=True):
        low.put(op, value, "pred")


def arithmetic(low: Lowerer, instr: Instr) -> None:
    """add, sub, mul, mad, fma, div, min, max."""
    kind = instr.mods[-1]
    if kind in _HALF:
        _half(low, instr, kind)
        return
    base = float_type(kind)
    assert base is not None
    values = [low.get(op, kind) for op in instr.operands[1:]]
    flush = "ftz" in instr.mods
    if flush:
        values = [flushed(low, value, base) for value in values]
    mode = next((_MODES[mod] for mod in instr.mods if mod in _MODES), 0)
    if mode and instr.op in ("add", "sub", "mul", "fma", "mad"):
        result = _directed(low, instr, values, mode, base)
    else:
        result = _nearest(low, instr, values, base)
    if flush:
        result = flushed(low, result, base)
    if "sat" in instr.mods:
        result = saturated(low, result, base)
    low.put(instr.operands[0], result, kind)


def _nearest(low: Lowerer, instr: Instr, values: list[str], base: str) -> str:
    op = instr.op
    if op in ("add", "sub", "mul", "div"):
        return low.op2("f" + op, base, values[0], values[1])
    if op in ("fma", "mad"):
        return low.call("fma", base, *values)
    result = values[0]
    for other in values[1:]:
        result = low.call(
            ("minimum" if op == "min" else "maximum") if "NaN" in instr.mods else op + "num",
            base,
            result,
            other,
        )
    if "xorsign" in instr.mods:
        raise low.refuse("xorsign")
    return result


def _directed(low: Lowerer, instr: Instr, values: list[str], mode: int, base: str) -> str:
    """Rounding toward zero, down or up, in the runtime."""
    if instr.op == "sub":
        values[1] = low.emit(f"fneg {low.t(base)} {values[1]}")
    for area, value in zip("BCD", values, strict=False):
        low.do(f"store <{LANES} x {base}> {value}, ptr %{area}, align 64")
    op = {"fma": 0, "mad": 0, "add": 1, "sub": 1, "mul": 2}[instr.op]
    name = "kb_rounded" if base == "float" else "kb_rounded64"
    low.runtime(
        name, "void", [("ptr", f"%{area}") for area in "BCDV"] + [("i32", str(op)), ("i32", str(mode))]
    )
    return low.emit(f"load <{LANES} x {base}>, ptr %V, align 64")


def _half(low: Lowerer, instr: Instr, kind: str) -> None:
    """f16, bf16 and their pairs, in the runtime: 32 or 64 values that are 16 bits wide."""
    packed = kind.endswith("x2")
    bits = "b32" if packed else "b16"
    operands = instr.operands[1:]
    if instr.op in ("min", "max") and len(operands) > 2:
        raise low.refuse("three-operand half min/max")
    for area, op in zip("BCD", operands, strict=False):
        low.spill(area, low.bits(op, bits), int_type(bits))
    flags = (
        ("sat" in instr.mods)
        | ("relu" in instr.mods) << 1
        | ("ftz" in instr.mods) << 2
        | ("NaN" in instr.mods) << 3
    )
    if instr.op not in _HALF_OPS or any(mod in _MODES and mod != "rn" for mod in instr.mods):
        raise low.refuse()
    code = _HALF_OPS[instr.op] | _HALF[kind] << 8 | int(flags) << 16
    low.runtime(
        "kb_half", "void",
        [("ptr", f"%{area}") for area in "BCDV"] + [("i32", str(code)), ("i32", str(LANES * (2 if packed else 1)))],
    )  # fmt: skip
    low.put(instr.operands[0], low.fetch("V", int_type(bits)), bits)


@rule("fma")
def fma(low: Lowerer, instr: Instr) -> None:
    arithmetic(low, instr)


def sign(low: Lowerer, instr: Instr) -> None:
    """abs and neg: the sign bit alone."""
    kind = instr.mods[-1]
    if kind in _HALF:
        _half(low, instr, kind)
        return
    base, real = int_type(kind), float_type(kind) or ""
    value = low.get(instr.operands[1], kind)
    if "ftz" in instr.mods:
        value = flushed(low, value, real)
    value = low.cast("bitcast", real, value, base)
    top = 1 << (int(base[1:]) - 1)
    if instr.op == "neg":
        value = low.op2("xor", base, value, low.const(base, top))
    else:
        value = low.op2("and", base, value, low.const(base, top - 1))
    low.put(instr.operands[0], value, f"b{base[1:]}")


@rule("sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def special(low: Lowerer, instr: Instr) -> None:
    kind, op = instr.mods[-1], instr.op
    if kind in _HALF:
        _half(low, instr, kind)
        return
    base = float_type(kind)
    if base is None:
        raise low.refuse()
    value, flush = low.get(instr.operands[1], kind), "ftz" in instr.mods
    if any(mod in ("rz", "rm", "rp") for mod in instr.mods):
        raise low.refuse("directed rounding")
    if op in ("sqrt", "rcp"):
        value = flushed(low, value, base) if flush else value
        if op == "sqrt":
            result = low.call("sqrt", base, value)
        else:
            result = low.op2("fdiv", base, low.real(base, 1.0), value)
        result = flushed(low, result, base) if flush else result
    elif base == "double":
        if op != "rsqrt":
            raise low.refuse()
        result = low.op2("fdiv", base, low.real(base, 1.0), low.call("sqrt", base, value))
    else:
        low.do(f"store <{LANES} x float> {value}, ptr %B, align 64")
        low.runtime(f"kb_{op}", "void", [("ptr", "%B"), ("ptr", "%V"), ("i32", str(int(flush)))])
        result = low.emit(f"load <{LANES} x float>, ptr %V, align 64")
    low.put(instr.operands[0], result, kind)


@rule("copysign")
def copysign(low: Lowerer, instr: Instr) -> None:
    kind = instr.mods[-1]
    base = int_type(kind)
    top = 1 << (int(base[1:]) - 1)
    a, b = low.bits(instr.operands[1], kind), low.bits(instr.operands[2], kind)
    value = low.op2(
        "or",
        base,
        low.op2("and", base, a, low.const(base, top)),
        low.op2("and", base, b, low.const(base, top - 1)),
    )
    low.put(instr.operands[0], value, f"b{base[1:]}")


@rule("testp")
def testp(low: Lowerer, instr: Instr) -> None:
    kind, what = instr.mods[-1], instr.mods[0]
    base, real = int_type(kind), float_type(kind) or ""
    bits = low.bits(instr.operands[1], kind)
    exponent = {"i32": 0x7F800000, "i64": 0x7FF0000000000000}[base]
    field = low.op2("and", base, bits, low.const(base, exponent))
    top = low.compare("eq", base, field, low.const(base, exponent))
    bottom = low.compare("eq", base, field, low.const(base, 0))
    rest = low.op2("and", base, bits, low.const(base, (1 << (int(base[1:]) - 1)) - 1))
    nonzero = low.compare("ne", base, rest, low.const(base, 0))
    infinite = low.compare("eq", base, rest, low.const(base, exponent))
    value = low.cast("bitcast", base, bits, real)
    one = low.const("i1", 1)
    answers = {
        "finite": lambda: low.op2("xor", "i1", top, one),
        "infinite": lambda: infinite,
        "number": lambda: low.compare("ord", real, value, value),
        "notanumber": lambda: low.compare("uno", real, value, value),
        "normal": lambda: low.op2("xor", "i1", low.op2("or", "i1", top, bottom), one),
        "subnormal": lambda: low.op2("and", "i1", bottom, nonzero),
    }
    low.put(instr.operands[0], answers[what](), "pred")
