"""What one PTX instruction costs the machine: instructions on each pipe after ptxas, and latency.

PTX is not machine code. Divisions become sequences of twenty instructions, 64-bit integers are pairs
of 32-bit ones, moves and parameter loads mostly vanish. The counts are what nvcc 13 makes for sm_80
to sm_90 as far as one instruction can tell; on 51 programs their sum is within about a fifth of the
instructions that hardware counts. Latencies in clocks from sim_micro.cu on an H200 (fma 4.1, shared memory 29 with its
address, shuffle 24, mma.sync 25), sequences estimated from those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kb_env.sim.ir import Block, arguments, results
from kb_env.sim.ptx import Instr

_WIDE = ("s64", "u64", "b64")
_HALVES = ("f16", "f16x2", "bf16", "bf16x2")


@dataclass(frozen=True)
class Cost:
    """Slots of each pipe, instructions issued beside those, and clocks until the result.

    ``fma`` takes integer products too, which hold it for longer: ``held`` is how many of its slots are
    no instructions.
    """

    alu: float = 0.0
    fma: float = 0.0
    xu: float = 0.0  # transcendental and conversion unit
    half: float = 0.0
    other: float = 0.0  # memory, branches, barriers, tensor, double: counted elsewhere or by issue alone
    latency: float = 4.5
    held: float = 0.0

    @property
    def issued(self) -> float:
        return self.alu + self.fma - self.held + self.xu + self.half + self.other


_FREE = Cost(latency=0.0)
_LATER = Cost(other=1.0, latency=0.0)  # the wait is counted elsewhere: loads, barriers
_BY_OP: dict[str, Cost] = {
    "cvta": _FREE,
    "neg": Cost(alu=0.1, latency=0.0),
    "abs": Cost(alu=0.1, latency=0.0),
    "not": Cost(alu=0.5, latency=2.0),
    "mov": Cost(alu=0.3, latency=1.0),
    "pmov": Cost(alu=0.3, latency=1.0),
    "bra": Cost(other=0.9, latency=8.0),
    "brx": Cost(other=2.0, latency=20.0),
    "shfl": Cost(other=1.0, latency=24.0),
    "vote": Cost(alu=1.0, latency=8.0),
    "match": Cost(other=2.0, latency=30.0),
    "redux": Cost(other=1.0, latency=16.0),
    "mma": Cost(other=1.0, latency=25.0),
    "wmma": Cost(other=2.0, latency=33.0),
    "wgmma": Cost(other=1.0, latency=16.0),
    "ldmatrix": Cost(other=1.0, latency=30.0),
    "stmatrix": Cost(other=1.0, latency=0.0),
    "prmt": Cost(alu=1.0),
    "bfe": Cost(alu=2.0, latency=9.0),
    "bfi": Cost(alu=2.0, latency=9.0),
    "popc": Cost(xu=1.0, latency=12.0),
    "clz": Cost(xu=1.0, latency=14.0),
    "bfind": Cost(xu=1.0, latency=14.0),
    "brev": Cost(xu=1.0, latency=12.0),
    "copysign": Cost(alu=1.0),
    "ret": Cost(other=1.0, latency=0.0),
    "exit": Cost(other=1.0, latency=0.0),
}
#: Sequences: of a division the fast path.
_DIVIDE: dict[str, Cost] = {
    "f32": Cost(fma=7.0, alu=1.5, xu=1.0, other=1.0, latency=60.0),
    "f64": Cost(alu=4.0, xu=1.0, other=14.0, latency=150.0),
    "32": Cost(alu=9.0, fma=6.0, xu=3.0, latency=90.0),
    "64": Cost(alu=40.0, fma=25.0, xu=4.0, other=6.0, latency=350.0),
}


def cost(instr: Instr) -> Cost:
    """Cost of one instruction executed by one warp."""
    op, mods = instr.op, instr.mods
    kind = mods[-1] if mods else ""
    if op in _BY_OP:
        return _BY_OP[op]
    if op in ("ld", "ldu", "st", "atom", "red", "cp"):
        return _memory(op, mods)
    if op in ("bar", "barrier", "mbarrier", "fence", "membar", "barresult"):
        return _LATER
    if op in ("div", "rem", "sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"):
        return _sequence(op, mods, kind)
    if kind == "pred":
        return Cost(alu=0.5, latency=3.0)
    if op == "cvt":
        return _convert(mods)
    if kind == "f64":
        return Cost(other=1.0, latency=8.2)
    if kind in _HALVES:
        return Cost(half=1.0, latency=5.0)
    if kind == "f32" and op in ("add", "sub", "mul", "fma", "mad"):
        return Cost(fma=1.0, latency=4.1)
    return _integer(op, mods, kind)


def _memory(op: str, mods: tuple[str, ...]) -> Cost:
    if "param" in mods or "const" in mods:
        return Cost(other=0.3, latency=2.0)
    if op == "ld" and ("shared" in mods or "shared::cta" in mods):
        return Cost(other=1.0, latency=25.0)
    return _LATER


def _sequence(op: str, mods: tuple[str, ...], kind: str) -> Cost:
    if op in ("div", "rem") and "approx" not in mods and "full" not in mods:
        width = kind if kind in ("f32", "f64") else "64" if kind in _WIDE else "32"
        return _DIVIDE[width]
    if kind == "f64":
        return Cost(alu=2.0, xu=1.0, other=9.0, latency=110.0)
    if "approx" not in mods and "full" not in mods:  # sqrt.rn, rcp.rn
        return Cost(fma=4.0, alu=1.5, xu=1.0, other=1.0, latency=50.0)
    scaled = 0.0 if "ftz" in mods or op == "tanh" else 1.0  # tiny arguments are scaled before and after
    extra = 1.0 if op in ("div", "sin", "cos") else 0.0
    return Cost(fma=2.0 * scaled + extra, alu=scaled, xu=1.0, latency=18.0 + 13.0 * scaled + 4.1 * extra)


def _convert(mods: tuple[str, ...]) -> Cost:
    kinds = mods[-2:]
    if kinds == ("f32", "f32"):
        return Cost(alu=0.1, latency=0.0) if "sat" in mods else Cost(xu=1.0, latency=8.0)
    if all(kind[0] in "subp" for kind in kinds):
        return Cost(alu=0.4, latency=2.0)
    if any(kind in _WIDE or kind == "f64" for kind in kinds):
        return Cost(xu=1.0, other=1.0, latency=14.0)
    return Cost(alu=1.0, latency=5.0)


def _integer(op: str, mods: tuple[str, ...], kind: str) -> Cost:
    """Integer and bit operations, comparisons and selections."""
    wide = kind in _WIDE
    if op in ("mul", "mad", "mul24", "mad24"):
        # In units of an fma: 32-bit products run at half its rate, those with 64-bit results at a quarter
        # (H200: 64 and 31 a clock); a 64-bit product is one of these and two of those.
        if "wide" in mods or "hi" in mods:
            return Cost(fma=4.0, latency=5.0, held=3.0)
        return Cost(fma=8.0, latency=13.0, held=5.0) if wide else Cost(fma=2.0, latency=4.5, held=1.0)
    if op == "setp":
        return Cost(alu=2.0 if wide else 1.0, latency=9.0 if wide else 5.0)
    if op in ("add", "sub"):
        return Cost(alu=1.5 if wide else 1.0, latency=6.0 if wide else 4.5)
    return Cost(alu=1.6 if wide else 0.9, latency=7.0 if wide else 4.5)


def block_cost(block: Block) -> Mapping[str, float]:
    """Costs of one execution of a block, for LaunchCounts.extra.

    ``machine_alu``, ``machine_fma``, ``machine_xu``, ``machine_half``, ``machine_issued`` are instructions;
    ``machine_path`` is the longest chain of dependent ones in clocks, waits for global memory left out.
    """
    instrs = [*block.instrs, *([block.ender] if block.ender else [])]
    costs = [cost(instr) for instr in instrs]
    return {
        "machine_alu": sum(item.alu for item in costs),
        "machine_fma": sum(item.fma for item in costs),
        "machine_xu": sum(item.xu for item in costs),
        "machine_half": sum(item.half for item in costs),
        "machine_issued": sum(item.issued for item in costs),
        "machine_path": _path(instrs, costs),
    }


def _path(instrs: list[Instr], costs: list[Cost]) -> float:
    ready: dict[str, float] = {}
    longest = 0.0
    for instr, item in zip(instrs, costs, strict=True):
        start = 0.0
        for name in arguments(instr):
            start = max(start, ready.get(name, 0.0))
        end = start + item.latency
        for name in results(instr):
            ready[name] = end
        longest = max(longest, end)
    return longest
