"""The table of PTX opcodes that the engine runs, written from its rules: docs/sim_coverage.md."""

from __future__ import annotations

from pathlib import Path

from kb_env.sim import compiled
from kb_env.sim.lower import RULES

_FLOW = {
    "bra": "branches, uniform or not; lanes meet again at the join",
    "brx": "brx.idx through .branchtargets",
    "call": "direct calls, inlined, and calls through pointers; vprintf and __assertfail; no recursion",
    "ret": "and exit, under predicates as well",
    "bar": "bar.sync, bar.arrive, bar.red, barrier.*: 16 of them, with thread counts; bar.warp.sync; barrier.cluster",
}
_INTERNAL = {"pmov", "barresult", "printf", "assertfail", "barrier"}
_NOTES = {
    "wgmma": "m64nNkK from descriptors or registers; each warp computes its 16 rows at issue",
    "wmma": "m16n16k16 and m16n16k8 (tf32), in the fragment layout of mma",
    "mma": "m16n8 and m8n8 shapes: f16, bf16, tf32, s8, u8, fp8, f64 (m8n8k4); no sparse, no b1",
    "cp": "cp.async with groups (bytes arrive at the wait), cp.async.bulk of plain bytes; no tensor maps",
    "mbarrier": "init, arrive, expect_tx, complete_tx, test_wait, try_wait, inval",
    "ld": "all spaces, vectors, cache operators; no .b128",
    "st": "all spaces, vectors, cache operators; no .b128",
    "atom": "all operations and types, in lane order; no .b128",
    "fence": "memory is sequentially consistent; the sanitizer tells what a missing fence leaves unordered",
    "membar": "as fence",
    "mapa": "shared memory of the other blocks of a cluster, up to 16 of them",
    "createpolicy": "cache policies change nothing",
    "cvt": "all roundings, saturation, relu, packed halves and fp8",
    "ex2": "approximations are rounded once from double: last bits differ from hardware's",
}


def coverage_table() -> str:
    """The page's text."""
    lines = [
        "# What the simulator runs",
        "",
        "Generated from the code (`python -m kb_env.sim.coverage docs/sim_coverage.md`); do not edit. Any other",
        "opcode, and any form that a rule does not know, is REFUSED with the opcode and its PTX line.",
        "",
        "| opcode | where | notes |",
        "| --- | --- | --- |",
    ]
    rows = {name: (rule.__module__.rpartition(".")[2], _NOTES.get(name, "")) for name, rule in RULES.items()}
    rows.update({name: ("flow", text) for name, text in _FLOW.items()})
    lines += [
        f"| `{name}` | {rows[name][0]} | {rows[name][1]} |" for name in sorted(rows) if name not in _INTERNAL
    ]
    families = ", ".join(module.__name__.rpartition(".")[2] for module in compiled.LOWERINGS)
    return "\n".join([*lines, "", f"Rules live in kb_env/sim: {families}.", ""])


if __name__ == "__main__":
    import sys

    Path(sys.argv[1]).write_text(coverage_table())
