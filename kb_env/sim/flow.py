"""Analyses of a kernel's control flow: block order, liveness, which registers are the same in all lanes.

The engine runs the lanes with the lowest program counter first, and program counters are block
numbers. So blocks are numbered such that a join comes after everything that leads to it, loops are
contiguous, and a loop entered again from several places has one latch block at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from kb_env.sim.ir import Block, Flat, arguments, results
from kb_env.sim.ptx import Instr

#: Operations that the lowering can emit on scalars; their result is uniform if all their sources are.
SCALAR_OPS = {
    "mov", "pmov", "add", "sub", "mul", "mad", "fma", "and", "or", "xor", "not", "cnot", "shl", "shr", "shf",
    "setp", "selp", "min", "max", "abs", "neg", "cvta", "bfe", "bfi", "lop3", "popc", "clz", "brev",
    "rem", "div", "sad", "cvt", "slct", "bfind", "ld",
}  # fmt: skip
_VECTOR_TYPES = {"f16", "f16x2", "bf16", "bf16x2", "tf32", "e4m3x2", "e5m2x2", "b128"}
_DIRECTED = {"rz", "rm", "rp", "approx", "full"}
_VARYING_SPECIAL = ("%tid", "%laneid", "%lanemask")


def scalar_capable(instr: Instr) -> bool:
    """Whether an instruction can be emitted once for all lanes, given uniform sources."""
    if instr.op not in SCALAR_OPS or _VECTOR_TYPES & set(instr.mods):
        return False
    if instr.op == "ld":
        return (
            instr.mods[0] == "param"
            and instr.operands[1].kind == "mem"
            and instr.operands[1].value.kind == "name"
        )
    if instr.op == "cvt":
        return not any(kind[0] == "f" for kind in instr.mods[-2:])
    if instr.op in ("div", "rem") and instr.mods[-1] in ("s64", "u64"):
        return False
    if instr.op in ("addc", "subc", "madc") or "cc" in instr.mods:
        return False  # the carry is kept as a vector
    if _DIRECTED & set(instr.mods):
        return False
    if instr.op == "mov":
        return not any(
            op.kind == "vec" or (op.kind == "name" and str(op.value).startswith(_VARYING_SPECIAL))
            for op in instr.operands
        )
    return True


def order_blocks(flat: Flat) -> None:
    """Renumber the blocks (in place), dropping unreachable ones and adding latches."""
    _add_latches(flat.blocks)
    sequence = _sequence(flat.blocks)
    number = {old: new for new, old in enumerate(sequence)}
    blocks = [flat.blocks[old] for old in sequence]
    for block in blocks:
        block.targets = [number[target] for target in block.targets]
    flat.blocks = blocks


def _sequence(blocks: list[Block]) -> list[int]:
    reachable = _reach(blocks, [0], None)
    return _arrange({index for index in range(len(blocks)) if reachable >> index & 1}, 0, blocks)


def _arrange(nodes: set[int], entry: int, blocks: list[Block]) -> list[int]:
    """Topological order of the strongly connected parts, each loop arranged again without its back edges."""
    out: list[int] = []
    stack: list = [("part", nodes, entry)]
    banned: set[tuple[int, int]] = set()
    while stack:
        kind, *rest = stack.pop()
        if kind == "emit":
            out.append(rest[0])
            continue
        members, head = rest
        parts = _components(members, head, blocks, banned)
        for part, first in reversed(parts):
            if len(part) == 1:
                stack.append(("emit", first))
            else:
                for node in part:
                    if first in blocks[node].targets:
                        banned.add((node, first))
                stack.append(("part", part, first))
    return out


def _components(nodes: set[int], entry: int, blocks: list[Block], banned: set) -> list[tuple[set[int], int]]:
    """Strongly connected components in topological order, each with the node it is entered at (Tarjan, iterative)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    parts: list[tuple[set[int], int]] = []
    for root in (entry, *sorted(nodes)):
        if root in index:
            continue
        work = [(root, 0)]
        while work:
            node, child = work.pop()
            if child == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            # The branch taken is visited first, so that the fall-through comes earlier in the order.
            targets = [t for t in blocks[node].targets if t in nodes and (node, t) not in banned]
            descended = False
            while child < len(targets):
                target = targets[child]
                child += 1
                if target not in index:
                    work.append((node, child))
                    work.append((target, 0))
                    descended = True
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            if descended:
                continue
            if low[node] == index[node]:
                part: set[int] = set()
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    part.add(member)
                    if member == node:
                        break
                parts.append((part, min(part, key=lambda item: index[item])))
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
    parts.reverse()
    return parts


def _add_latches(blocks: list[Block]) -> None:
    """Give every loop head with several back edges a single block that they all go through."""
    position = {node: index for index, node in enumerate(_sequence(blocks))}
    back: dict[int, list[int]] = {}
    for node, index in position.items():
        for target in blocks[node].targets:
            if position[target] <= index:
                back.setdefault(target, []).append(node)
    for head, sources in back.items():
        if len(sources) < 2:
            continue
        blocks.append(Block(targets=[head]))
        latch = len(blocks) - 1
        for source in set(sources):
            blocks[source].targets = [
                latch if target == head else target for target in blocks[source].targets
            ]


def _reach(blocks: list[Block], starts: list[int], stop: int | None) -> int:
    """Bit set of the blocks reachable from starts without passing through stop."""
    seen, stack = 0, [start for start in starts if start != stop]
    while stack:
        node = stack.pop()
        if seen >> node & 1:
            continue
        seen |= 1 << node
        stack.extend(target for target in blocks[node].targets if target != stop)
    return seen


def post_dominators(blocks: list[Block]) -> list[int | None]:
    """Immediate post-dominator of each block, None where it is the exit."""
    count = len(blocks)
    everything = (1 << (count + 1)) - 1  # bit `count` is the exit
    sets = [everything] * count
    changed = True
    while changed:
        changed = False
        for node in range(count - 1, -1, -1):
            block = blocks[node]
            meet = everything
            for target in block.targets:
                meet &= sets[target]
            if block.end in ("exit", "exitif"):
                # Lanes that exit are gone: they do not keep the others from meeting again.
                meet &= (1 << count) if block.end == "exit" else everything
            fresh = meet | 1 << node
            if fresh != sets[node]:
                sets[node] = fresh
                changed = True
    answer: list[int | None] = []
    for node in range(count):
        strict = sets[node] & ~(1 << node) & ((1 << count) - 1)
        # The nearest one is post-dominated by all the others.
        nearest = None
        rest = strict
        while rest:
            candidate = (rest & -rest).bit_length() - 1
            rest &= rest - 1
            if sets[candidate] & strict == strict:
                nearest = candidate
                break
        answer.append(nearest)
    return answer


@dataclass
class Flow:
    """What the analyses found; register sets are bit sets over ``index``."""

    index: dict[str, int]
    live_in: list[int]
    live_out: list[int]
    uniform: set[str]
    #: blocks during which other lanes of the warp may be waiting elsewhere
    shared_with_waiters: int
    crossing: int  # registers live across a block boundary


def analyse(flat: Flat) -> Flow:
    """Liveness, then uniformity and divergence together (each varying branch may make registers varying)."""
    blocks = flat.blocks
    names = sorted(
        {name for block in blocks for item in _all(block) for name in (*results(item), *arguments(item))}
    )
    index = {name: position for position, name in enumerate(names)}
    live_in, live_out, defined = _liveness(blocks, index)
    varying, waiters = _divergence(blocks, index, live_in, defined)
    crossing = 0
    for block_in in live_in:
        crossing |= block_in
    uniform = {name for name in names if not varying >> index[name] & 1}
    return Flow(index, live_in, live_out, uniform, waiters, crossing)


def _all(block: Block) -> list[Instr]:
    return [*block.instrs, block.ender] if block.ender else block.instrs


def _liveness(blocks: list[Block], index: dict[str, int]) -> tuple[list[int], list[int], list[int]]:
    uses, kills, defined = [], [], []
    for block in blocks:
        use = kill = some = 0
        for item in _all(block):
            for name in arguments(item):
                if not kill >> index[name] & 1:
                    use |= 1 << index[name]
            for name in results(item):
                some |= 1 << index[name]
                if item.guard is None:
                    kill |= 1 << index[name]
        uses.append(use)
        kills.append(kill)
        defined.append(some)
    live_in, live_out = [0] * len(blocks), [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for node in range(len(blocks) - 1, -1, -1):
            out = 0
            for target in blocks[node].targets:
                out |= live_in[target]
            into = uses[node] | (out & ~kills[node])
            if out != live_out[node] or into != live_in[node]:
                live_out[node], live_in[node] = out, into
                changed = True
    return live_in, live_out, defined


def _divergence(
    blocks: list[Block], index: dict[str, int], live_in: list[int], defined: list[int]
) -> tuple[int, int]:
    """Bit set of varying registers, bit set of blocks that may run while other lanes wait."""
    joins = post_dominators(blocks)
    barriers = sum(1 << node for node, block in enumerate(blocks) if block.end == "barrier")
    varying, waiters, done = 0, 0, set()
    rules = []
    for block in blocks:
        for item in _all(block):
            target = sum(1 << index[name] for name in set(results(item)))
            source = sum(1 << index[name] for name in set(arguments(item)))
            if target and not scalar_capable(item):
                varying |= target
            elif target:
                rules.append((source, target))
    changed = True
    while changed:
        changed = False
        for source, target in rules:
            if source & varying and target & ~varying:
                varying |= target
                changed = True
        for node, block in enumerate(blocks):
            if node in done or block.end not in ("branch", "brx"):
                continue
            assert block.ender is not None
            if not any(varying >> index[name] & 1 for name in arguments(block.ender)):
                continue
            done.add(node)
            changed = True
            more, during = _branch_effect(blocks, node, joins[node], barriers, live_in, defined)
            varying |= more
            waiters |= during
    return varying, waiters


def _branch_effect(
    blocks: list[Block], node: int, join: int | None, barriers: int, live_in: list[int], defined: list[int]
) -> tuple[int, int]:
    """Registers that a divergent branch makes varying, and the blocks that run while lanes wait.

    After the branch one group of lanes runs the blocks on its side while the others wait on theirs or
    at the join. A register written on one side must not be live where the others can wait.
    """
    sides = [_reach(blocks, [target], join) for target in dict.fromkeys(blocks[node].targets)]
    during = 0
    for side in sides:
        during |= side
    if join is not None and (during & barriers or during >> join):
        # The order does not hold the join back, or a barrier lets lanes overtake: anything may happen.
        join = None
        sides = [_reach(blocks, [target], None) for target in dict.fromkeys(blocks[node].targets)]
        during = 0
        for side in sides:
            during |= side
    elif join is None and during & barriers:
        sides = [during, during]
    written, waiting = [], []
    for side in sides:
        some, live = 0, live_in[join] if join is not None else 0
        for position in range(len(blocks)):
            if side >> position & 1:
                some |= defined[position]
                live |= live_in[position]
        written.append(some)
        waiting.append(live)
    varying = 0
    for one, some in enumerate(written):
        for two, live in enumerate(waiting):
            if one != two:
                varying |= some & live
    return varying, during
