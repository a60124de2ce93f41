"""Reductions and scans over a block: warp shuffles instead of shared-memory trees."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from kb_env.transform_constants import threads_per_block
from kb_env.transform_match import normal
from kb_env.transform_tree import (
    Function,
    Source,
    Splice,
    code,
    dim_parts,
    enclosing,
    functions,
    inside,
    only_launch,
    rewrite,
    squash,
    statements,
    walk,
)


@dataclass(frozen=True, eq=False)
class _Tree:
    """``scratch[tid] = value; sync; for (step...) scratch[tid] = op(scratch[tid], scratch[tid + step])``."""

    store: Node
    loop: Node
    scratch: str
    block: str
    value: str
    combine: str  # with {0} and {1}
    following: tuple[Node, ...]


_HALVING = (
    r"for\(int (?P<step>\w+)=(?P<block>\w+|blockDim\.x)/2;(?P=step)>0;(?P=step)(?:/=2|>>=1)\)\{"
    r"if\(threadIdx\.x<(?P=step)\)\{?"
)
_DOUBLING = (
    r"for\(int (?P<step>\w+)=1;(?P=step)<(?P<block>\w+|blockDim\.x);(?P=step)(?:\*=2|<<=1)\)\{"
    r"if\(threadIdx\.x%\((?:2\*(?P=step)|(?P=step)\*2)\)==0\)\{?"
)


def _trees(kernel: Function) -> list[_Tree]:
    body = statements(kernel.body)
    found = []
    for position in range(len(body) - 2):
        tree = _tree(body[position : position + 3], tuple(body[position + 3 :]))
        if tree is not None:
            found.append(tree)
    return found


def _tree(three: list[Node], following: tuple[Node, ...]) -> _Tree | None:
    store, sync, loop = three
    left = re.fullmatch(r"(\w+)\[threadIdx\.x\]=(.*);", normal(store))
    if left is None or store.type != "expression_statement" or normal(sync) != "__syncthreads();":
        return None
    scratch, own = left[1], rf"{left[1]}\[threadIdx\.x\]"
    other = rf"{scratch}\[threadIdx\.x\+(?P=step)\]"
    tail = r";\}?__syncthreads\(\);\}"
    text = normal(loop)
    plus = call = None
    for head in (_HALVING, _DOUBLING):
        plus = plus or re.fullmatch(rf"{head}{own}\+={other}{tail}", text)
        call = call or re.fullmatch(rf"{head}{own}=(?P<op>fmaxf|fminf|max|min)\({own},{other}\){tail}", text)
    match = plus or call
    if match is None or store.named_children[0].child_by_field_name("right") is None:
        return None
    combine = "{0} + {1}" if plus else f"{match['op']}({{0}}, {{1}})"
    value = code(store.named_children[0].child_by_field_name("right"))
    return _Tree(store, loop, scratch, match["block"], value, combine, following)


def warp_shuffles(source: Source, variant: int) -> str | None:
    """Shared-memory tree reductions of float become warp shuffles, wherever the text has them.

    Legal where the block is one-dimensional, a known power of two from 32 on, and all threads arrive.
    Each thread then has the total, so later reads of ``scratch[0]`` need no memory. The order of a sum
    changes within the same depth.
    """
    splices: list[Splice] = []
    for function in functions(source):
        block = _block_of(source, function)
        for number, tree in enumerate(_trees(function) if block is not None else []):
            own = block if tree.block == "blockDim.x" else tree.block
            if own is None or own != block or _type_of(function, tree.scratch) != "float":
                continue
            splices += _shuffled(source, tree, f"{tree.scratch}_total{number + 1}", own)
    return rewrite(source, splices) if splices else None


def _block_of(source: Source, function: Function) -> str | None:
    """The block size, as text, that all threads reach ``function`` with; None where that is not certain."""
    if function.kernel:
        site, threads = only_launch(source, function), threads_per_block(source, function.name)
        if site is None or threads is None or threads < 32 or threads & (threads - 1):
            return None
        flat = site.block.type in ("identifier", "number_literal") and len(dim_parts(site.block, source)) == 1
        return squash(site.block) if flat and not _leaves_early(function) else None
    if not any(child.type == "__device__" for child in function.node.children) or _leaves_early(function):
        return None
    users = [item for item in functions(source) if item is not function and _calls(item, function.name)]
    known = {
        _block_of(source, item) if item.kernel and _calls_on_top(item, function.name) else None
        for item in users
    }
    return known.pop() if len(known) == 1 else None


def _calls(function: Function, name: str) -> list[Node]:
    return [node for node in walk(function.body, "identifier") if code(node) == name]


def _calls_on_top(function: Function, name: str) -> bool:
    """Whether every call is in a plain statement of the kernel's body, outside ifs, loops and ``?:``."""
    plain = ("declaration", "expression_statement")
    conditional = ("conditional_expression", "binary_expression")
    for node in _calls(function, name):
        outer = enclosing(node, "compound_statement")
        if outer is None or outer.start_byte != function.body.start_byte:
            return False
        statement = next((s for s in statements(function.body) if inside(node, s)), None)
        if statement is None or statement.type not in plain:
            return False
        branch = enclosing(node, *conditional)
        while branch is not None and inside(branch, statement):
            if branch.type == "conditional_expression" or code(branch.child_by_field_name("operator")) in (
                "&&",
                "||",
            ):
                return False
            branch = enclosing(branch, *conditional)
    return True


def _leaves_early(function: Function) -> bool:
    """Whether a thread may leave before the end: any return but a last statement."""
    last = statements(function.body)[-1:]
    leaving = walk(function.body, "return_statement", "goto_statement")
    return any(not last or node.start_byte != last[0].start_byte for node in leaving)


def _type_of(kernel: Function, name: str) -> str | None:
    """Element type of a shared array declared in the kernel."""
    for node in walk(kernel.body, "declaration"):
        if any(code(child) == "__shared__" for child in node.children):
            for item in node.children_by_field_name("declarator"):
                if code(item.child_by_field_name("declarator")) == name:
                    return squash(node.child_by_field_name("type"))
    return None


def _shuffled(source: Source, tree: _Tree, total: str, block: str) -> list[Splice]:
    """Splices for one tree: none if what follows uses the scratch in an unknown way."""
    if total in source.text:
        return []
    reads: list[Splice] = []
    for node in tree.following:
        if re.match(rf"{tree.scratch}\[threadIdx\.x\]=", normal(node)):
            break
        for use in walk(node, "identifier"):
            if code(use) != tree.scratch:
                continue
            if use.parent is None or squash(use.parent) != f"{tree.scratch}[0]":
                return []
            reads.append(Splice(use.parent.start_byte, use.parent.end_byte, total))
    step = "__shfl_xor_sync(0xffffffffu, {0}, lane)"
    combined = tree.combine.format(total, step.format(total))
    lines = [
        f"float {total} = {tree.value};",
        f'    static_assert({block} % 32 == 0 && ({block} & ({block} - 1)) == 0, "whole warps");',
        f"    for (int lane = 16; lane > 0; lane /= 2) {total} = {combined};",
        f"    if (threadIdx.x % 32 == 0) {tree.scratch}[threadIdx.x / 32] = {total};",
        "    __syncthreads();",
        f"    {total} = {tree.scratch}[threadIdx.x % ({block} / 32)];",
        f"    for (int lane = {block} / 64; lane > 0; lane /= 2) {total} = {combined};",
        "    __syncthreads();",
    ]
    return [Splice(tree.store.start_byte, tree.loop.end_byte, "\n".join(lines)), *reads]


_SCAN = re.compile(
    r"__shared__ float (?P<s>\w+)\[(?P<b>\w+)\];(?P=s)\[threadIdx\.x\]=(?P<v>\w+);__syncthreads\(\);"
    r"for\(int (?P<step>\w+)=1;(?P=step)<(?P=b);(?P=step)(?:\*=2|<<=1)\)\{"
    r"float (?P<l>\w+)=threadIdx\.x>=(?P=step)\?(?P=s)\[threadIdx\.x-(?P=step)\]:0(?:\.0?f?|f);__syncthreads\(\);"
    r"(?P=s)\[threadIdx\.x\]\+=(?P=l);__syncthreads\(\);\}return (?P=s)\[threadIdx\.x\];"
)


def scan_shuffles(source: Source, variant: int) -> str | None:
    """The scan of Hillis and Steele over a block becomes shuffles within warps and a scan of their sums.

    For a ``__device__`` function of exactly that form whose parameter is the value; every thread calls
    it. Sums are added in another order of smaller depth.
    """
    for function in functions(source):
        match = _SCAN.fullmatch("".join(normal(item) for item in statements(function.body)))
        block = _block_of(source, function) if match is not None else None
        if match is None or block != match["b"] or len(function.parameters) != 1:
            continue
        if (
            function.parameters[0].name != match["v"]
            or squash(function.parameters[0].node) != f"float {match['v']}"
        ):
            continue
        body = _SCAN_BODY.replace("BLOCK", match["b"]).replace("VALUE", match["v"])
        return rewrite(source, [Splice(function.body.start_byte, function.body.end_byte, body.strip())])
    return None


_SCAN_BODY = """
{
    static_assert(BLOCK % 32 == 0 && BLOCK <= 1024, "whole warps");
    __shared__ float warp_sums[BLOCK / 32];
    const int lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const float left = __shfl_up_sync(0xffffffffu, VALUE, step);
        if (lane >= step) VALUE += left;
    }
    if (lane == 31) warp_sums[threadIdx.x / 32] = VALUE;
    __syncthreads();
    float before = lane < BLOCK / 32 ? warp_sums[lane] : 0.0f;
    for (int step = 1; step < 32; step *= 2) {
        const float left = __shfl_up_sync(0xffffffffu, before, step);
        if (lane >= step) before += left;
    }
    const int warp = threadIdx.x / 32;
    before = __shfl_sync(0xffffffffu, before, warp > 0 ? warp - 1 : 0);
    __syncthreads();
    return warp > 0 ? VALUE + before : VALUE;
}
"""
