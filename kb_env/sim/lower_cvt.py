"""Lowering of cvt in all its forms."""

from __future__ import annotations

from kb_env.sim.lower import LANES, Lowerer, float_type, int_type, rule
from kb_env.sim.lower_float import bf16_to_float, flushed, half_to_float, saturated
from kb_env.sim.ptx import TYPE_BYTES, Instr

_FLOATS = ("f16", "bf16", "f32", "f64")
_MODES = {"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rna": 4}
_WHOLE = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_PACKED = {"f16x2": 0, "bf16x2": 1, "e4m3x2": 2, "e5m2x2": 3}


@rule("cvt")
def cvt(low: Lowerer, instr: Instr) -> None:
    target, source = instr.mods[-2], instr.mods[-1]
    if instr.mods[0] == "pack" or target in _PACKED or source in _PACKED:
        _packed(low, instr, target, source)
    elif target == "tf32":
        _tf32(low, instr)
    elif target in _FLOATS and source in _FLOATS:
        _float_to_float(low, instr, target, source)
    elif target in _FLOATS:
        _int_to_float(low, instr, target, source)
    elif source in _FLOATS:
        _float_to_int(low, instr, target, source)
    else:
        _int_to_int(low, instr, target, source)


def _int_to_int(low: Lowerer, instr: Instr, target: str, source: str) -> None:
    value = low.bits(instr.operands[1], source)
    have, want = int_type(source), int_type(target)
    signed = source[0] == "s"
    if "sat" in instr.mods:
        wide = "i64"
        value = low.resize(value, have, wide, signed)
        width = int(want[1:])
        lowest, highest = (
            (-(1 << width - 1), (1 << width - 1) - 1) if target[0] == "s" else (0, (1 << width) - 1)
        )
        if signed or width < int(have[1:]) or target[0] == "s":
            if signed:
                value = low.call("smax", wide, value, low.const(wide, lowest))
            value = low.call(
                "smin" if signed else "umin", wide, value, low.const(wide, min(highest, (1 << 63) - 1))
            )
        value = low.resize(value, wide, want)
    else:
        value = low.resize(value, have, want, signed)
    low.put(instr.operands[0], value, target)


def load_float(low: Lowerer, instr: Instr, source: str) -> tuple[str, str]:
    """The source operand as an LLVM float in which it is exact."""
    op = instr.operands[1]
    if source == "f16":
        return half_to_float(low, low.bits(op, "b16")), "float"
    if source == "bf16":
        return bf16_to_float(low, low.bits(op, "b16")), "float"
    value, base = low.get(op, source), float_type(source) or ""
    return (flushed(low, value, base) if "ftz" in instr.mods else value), base


def narrow(
    low: Lowerer, value: str, base: str, target: str, mode: int, relu: bool = False, satfinite: bool = False
) -> str:
    """A float or double rounded once to f16 or bf16 (or float), as bits; in the runtime but for the common case."""
    if base == "float" and mode == 0 and target == "f16" and not relu and not satfinite:
        return low.cast("bitcast", "half", low.cast("fptrunc", "float", value, "half"), "i16")
    low.do(f"store <{LANES} x {base}> {value}, ptr %B, align 64")
    code = (
        {"f16": 0, "bf16": 1, "f32": 2}[target]
        | mode << 4
        | (base == "double") << 8
        | relu << 9
        | satfinite << 10
    )
    low.runtime("kb_narrow", "void", [("ptr", "%B"), ("ptr", "%V"), ("i32", str(int(code)))])
    return low.fetch("V", "i32" if target == "f32" else "i16")


def _mode(instr: Instr) -> int:
    return next((_MODES[mod] for mod in instr.mods if mod in _MODES), 0)


def _float_to_float(low: Lowerer, instr: Instr, target: str, source: str) -> None:
    value, base = load_float(low, instr, source)
    whole = next((_WHOLE[mod] for mod in instr.mods if mod in _WHOLE), None)
    if whole:
        value = low.call(whole, base, value)
    if "sat" in instr.mods:
        value = saturated(low, value, base)
    mode = _mode(instr)
    if target in ("f16", "bf16"):
        if base == "float" and target == source and not mode:
            mode = 0
        bits = narrow(low, value, base, target, mode, "relu" in instr.mods, "satfinite" in instr.mods)
        low.put(instr.operands[0], bits, "b16")
        return
    if target == "f64":
        value = low.cast("fpext", "float", value, "double") if base == "float" else value
    elif base == "double":
        if mode:
            low.put(instr.operands[0], narrow(low, value, base, "f32", mode), "b32")
            return
        value = low.cast("fptrunc", "double", value, "float")
        value = flushed(low, value, "float") if "ftz" in instr.mods else value
    low.put(instr.operands[0], value, target)


def _int_to_float(low: Lowerer, instr: Instr, target: str, source: str) -> None:
    value, base = low.bits(instr.operands[1], source), int_type(source)
    opcode = "sitofp" if source[0] == "s" else "uitofp"
    mode = _mode(instr)
    if target == "f64" and (base != "i64" or not mode):
        low.put(instr.operands[0], low.cast(opcode, base, value, "double"), "f64")
        return
    if target == "f32" and not mode:
        low.put(instr.operands[0], low.cast(opcode, base, value, "float"), "f32")
        return
    if base == "i64":
        low.spill("B", value, "i64")
        code = {"f16": 0, "bf16": 1, "f32": 2, "f64": 3}[target] | mode << 4 | (source[0] == "s") << 8
        low.runtime("kb_from_int", "void", [("ptr", "%B"), ("ptr", "%V"), ("i32", str(int(code)))])
        kind = f"b{8 * TYPE_BYTES[target]}"
        low.put(instr.operands[0], low.fetch("V", int_type(kind)), kind)
        return
    exact = low.cast(opcode, base, value, "double")
    low.put(instr.operands[0], narrow(low, exact, "double", target, mode), f"b{8 * TYPE_BYTES[target]}")


def _float_to_int(low: Lowerer, instr: Instr, target: str, source: str) -> None:
    value, base = load_float(low, instr, source)
    whole = next((_WHOLE[mod] for mod in instr.mods if mod in _WHOLE), "trunc")
    value = low.call(whole, base, value)
    want = int_type(target)
    suffix = "f32" if base == "float" else "f64"
    name = f"llvm.fpto{'s' if target[0] == 's' else 'u'}i.sat.v{LANES}{want}.v{LANES}{suffix}"
    low.declared[name] = f"declare <{LANES} x {want}> @{name}(<{LANES} x {base}>)"
    low.put(
        instr.operands[0], low.emit(f"call <{LANES} x {want}> @{name}(<{LANES} x {base}> {value})"), target
    )


def _tf32(low: Lowerer, instr: Instr) -> None:
    bits = low.bits(instr.operands[1], "b32")
    magnitude = low.op2("and", "i32", bits, low.const("i32", 0x7FFFFFFF))
    special = low.compare("uge", "i32", magnitude, low.const("i32", 0x7F800000))
    if "rna" in instr.mods:
        grown = low.op2("add", "i32", bits, low.const("i32", 0x1000))
    elif "rn" in instr.mods:
        odd = low.op2("and", "i32", low.op2("lshr", "i32", bits, low.const("i32", 13)), low.const("i32", 1))
        grown = low.op2("add", "i32", low.op2("add", "i32", bits, low.const("i32", 0xFFF)), odd)
    else:
        grown = bits
    rounded = low.op2("and", "i32", grown, low.const("i32", 0xFFFFE000))
    low.put(instr.operands[0], low.choose(special, "i32", bits, rounded), "b32")


def _packed(low: Lowerer, instr: Instr, target: str, source: str) -> None:
    relu, satfinite = "relu" in instr.mods, "satfinite" in instr.mods
    if target in ("f16x2", "bf16x2") and source == "f32":
        halves = []
        for op in (instr.operands[2], instr.operands[1]):
            bits = narrow(low, low.get(op, "f32"), "float", target[:-2], _mode(instr), relu, satfinite)
            halves.append(low.cast("zext", "i16", bits, "i32"))
        high = low.op2("shl", "i32", halves[1], low.const("i32", 16))
        low.put(instr.operands[0], low.op2("or", "i32", halves[0], high), "b32")
    elif target in ("e4m3x2", "e5m2x2") and source == "f32":
        low.spill("B", low.bits(instr.operands[2], "b32"), "i32")
        low.spill("C", low.bits(instr.operands[1], "b32"), "i32")
        code = _PACKED[target] | relu << 4
        low.runtime(
            "kb_pack8", "void", [("ptr", "%B"), ("ptr", "%C"), ("ptr", "%V"), ("i32", str(int(code)))]
        )
        low.put(instr.operands[0], low.fetch("V", "i16"), "b16")
    elif target == "f16x2" and source in ("e4m3x2", "e5m2x2"):
        low.spill("B", low.bits(instr.operands[1], "b16"), "i16")
        code = _PACKED[source] | relu << 4
        low.runtime("kb_unpack8", "void", [("ptr", "%B"), ("ptr", "%V"), ("i32", str(int(code)))])
        low.put(instr.operands[0], low.fetch("V", "i32"), "b32")
    else:
        raise low.refuse()
