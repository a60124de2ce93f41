"""Static facts about instructions: their class, and how many loads a warp has in flight."""

from __future__ import annotations

import re

from kb_env.sim.cost import block_cost
from kb_env.sim.ir import Block, arguments, results
from kb_env.sim.ptx import Instr

_CONTROL = {"bra", "brx", "ret", "exit", "trap", "brkpt", "call", "printf", "assertfail", "nanosleep"}
_SPECIAL = {"rcp", "rsqrt", "sqrt", "ex2", "lg2", "sin", "cos", "tanh"}
_PREDICATE = {"setp", "testp", "isspacep", "vote", "activemask"}
_TENSOR = {"mma", "wmma", "wgmma"}
_BARRIER = {"bar", "barrier", "mbarrier", "membar", "fence"}
_HALF = {"f16", "f16x2", "bf16", "bf16x2"}


def instruction_class(instr: Instr) -> str:
    """One of the classes of LaunchCounts.warp_instructions."""
    op, mods = instr.op, instr.mods
    if op in ("ld", "ldu", "st"):
        return _memory_class(op, mods)
    if op in ("atom", "red"):
        return "atomic"
    if op in ("ldmatrix",):
        return "shared_load"
    if op in ("stmatrix",):
        return "shared_store"
    if op == "cp":
        return "global_load" if mods[:2] in (("async", "ca"), ("async", "cg")) else "other"
    for names, answer in (
        (_CONTROL, "control"), (_PREDICATE, "predicate"), (_TENSOR, "tensor"), (_BARRIER, "barrier"),
        ({"cvt"}, "convert"),
    ):  # fmt: skip
        if op in names:
            return answer
    kind = mods[-1] if mods else ""
    if op in _SPECIAL or (op == "div" and "approx" in mods):
        return "special"
    if op == "barresult":
        return "barrier"
    if op in ("mov", "pmov", "selp", "cvta", "slct"):
        return "int"
    if kind in _HALF:
        return "fp16"
    return {"f32": "fp32", "f64": "fp64"}.get(
        kind, "other" if op in ("prefetch", "griddepcontrol") else "int"
    )


_SHAPE = re.compile(r"^m(\d+)n(\d+)k(\d+)$")


def tensor_macs(instr: Instr) -> int:
    """Multiply-adds of one tensor-core instruction executed by one warp."""
    if instr.op not in ("mma", "wmma", "wgmma") or (instr.op == "wmma" and instr.mods[0] != "mma"):
        return 0
    for mod in instr.mods:
        match = _SHAPE.match(mod)
        if match:
            m, n, k = (int(group) for group in match.groups())
            return m * n * k // (4 if instr.op == "wgmma" else 1)  # four warps share a wgmma
    return 0


def extra_counts(block: Block) -> dict[str, float]:
    """What one execution of a block adds to LaunchCounts.extra."""
    found = dict(block_cost(block))
    for instr in block.instrs:
        if instr.op == "shfl":
            found["shuffles"] = found.get("shuffles", 0.0) + 1
        elif instr.op == "cp" and instr.mods[:2] in (("async", "wait_group"), ("async", "wait_all")):
            # Copies of the groups that may stay open have run beside what came after them.
            left = instr.operands[0].value if instr.operands and instr.operands[0].kind == "int" else 0
            found["async_waits"] = found.get("async_waits", 0.0) + 1.0 / (1 + int(left))
        elif instr.op == "wgmma":
            found["wgmma_macs"] = found.get("wgmma_macs", 0.0) + tensor_macs(instr)
    return found


def _memory_class(op: str, mods: tuple[str, ...]) -> str:
    verb = "store" if op == "st" else "load"
    if "shared" in mods or "shared::cta" in mods or "shared::cluster" in mods:
        return f"shared_{verb}"
    if "local" in mods:
        return "local"
    if "param" in mods or "const" in mods:
        return "other"
    return f"global_{verb}"


def load_batches(block: Block) -> list[tuple[int, ...]]:
    """Groups of global loads that the compiler may issue together, each as the PTX lines of its loads.

    ptxas hoists loads over arithmetic: a group ends at a store, an atomic or a barrier, and at a load
    whose address depends on a load of the group.
    """
    groups: list[tuple[int, ...]] = []
    tainted: set[str] = set()
    lines: list[int] = []
    for instr in [*block.instrs, *([block.ender] if block.ender else [])]:
        kind = instruction_class(instr)
        depends = bool(tainted & set(arguments(instr)))
        load = kind == "global_load" and bool(results(instr))
        if lines and (kind in ("global_store", "shared_store", "atomic", "barrier") or (load and depends)):
            groups.append(tuple(lines))
            tainted, lines, depends = set(), [], False
        if load:
            lines.append(instr.line)
        if load or depends:
            tainted |= set(results(instr))
    if lines:
        groups.append(tuple(lines))
    return groups
