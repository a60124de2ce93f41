"""Transforms of kernels with one block per row: shuffles instead of a shared tree, rows held in registers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from kb_env.transform_constants import threads_per_block
from kb_env.transform_match import RowLoop, fresh, normal, row_loops, substitute
from kb_env.transform_qualifiers import distinct_pointers
from kb_env.transform_tree import (
    Function,
    Source,
    Splice,
    assigned,
    code,
    identifiers,
    kernels,
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
    head = (
        r"for\(int (?P<step>\w+)=(?P<block>\w+|blockDim\.x)/2;(?P=step)>0;(?P=step)(?:/=2|>>=1)\)\{"
        r"if\(threadIdx\.x<(?P=step)\)\{?"
    )
    tail = r";\}?__syncthreads\(\);\}"
    text = normal(loop)
    plus = re.fullmatch(rf"{head}{own}\+={other}{tail}", text)
    call = re.fullmatch(rf"{head}{own}=(?P<op>fmaxf|fminf|max|min)\({own},{other}\){tail}", text)
    match = plus or call
    if match is None or store.named_children[0].child_by_field_name("right") is None:
        return None
    combine = "{0} + {1}" if plus else f"{match['op']}({{0}}, {{1}})"
    value = code(store.named_children[0].child_by_field_name("right"))
    return _Tree(store, loop, scratch, match["block"], value, combine, following)


def warp_shuffles(source: Source, variant: int) -> str | None:
    """Shared-memory tree reductions of float become warp shuffles, in every kernel that has them.

    Legal where the block is one-dimensional, a known power of two from 32 on, and all threads arrive.
    Each thread then has the total, so later reads of ``scratch[0]`` need no memory. The order of a sum
    changes within the same depth.
    """
    splices: list[Splice] = []
    for kernel in kernels(source):
        site, threads = only_launch(source, kernel), threads_per_block(source, kernel.name)
        if site is None or threads is None or threads < 32 or threads & (threads - 1):
            continue
        if site.block.type not in ("identifier", "number_literal") or _leaves_early(kernel):
            continue
        for number, tree in enumerate(_trees(kernel)):
            block = squash(site.block) if tree.block == "blockDim.x" else tree.block
            if block != squash(site.block) or _type_of(kernel, tree.scratch) != "float":
                continue
            splices += _shuffled(source, tree, f"{tree.scratch}_total{number + 1}", block)
    return rewrite(source, splices) if splices else None


def _leaves_early(kernel: Function) -> bool:
    return next(walk(kernel.body, "return_statement", "goto_statement"), None) is not None


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


HELD = (4, 8, 16, 32)
QUADS = (1, 2, 4, 8)


def hold_row(source: Source, variant: int) -> str | None:
    """Keep the part of a row that a thread reads again in registers: variants 0 to 3 hold 4 to 32 values,
    variants 4 to 7 hold 1 to 8 float4.

    For kernels with at least two loops ``for (c = threadIdx.x; c < n; c += BLOCK)`` over the same const
    pointer to float. What does not fit is read again as before, so every row length stays right. With
    float4 the row must be 16-byte aligned and a multiple of four long, tested at run time, else the
    original loops run; elements then belong to other threads, so no loop may read what another wrote.
    """
    wide = variant >= len(HELD)
    for kernel in kernels(source):
        loops = row_loops(kernel)
        if (
            len(loops) < 2
            or not distinct_pointers(source, kernel)
            or not _flat_block(source, kernel, loops[0])
        ):
            continue
        name = _shared_input(kernel, loops)
        if name is None or f"{name}_held" in source.text or f"{name}_four" in source.text:
            continue
        if wide:
            splices = _hold_quads(source, kernel, loops, name, QUADS[variant - len(HELD)])
        else:
            splices = _hold_values(source, loops, name, HELD[variant])
        if splices:
            return rewrite(source, splices)
    return None


def _flat_block(source: Source, kernel: Function, loop: RowLoop) -> bool:
    """Whether the stride of the row loops is the number of threads, in one dimension."""
    site = only_launch(source, kernel)
    if site is None or site.block.type not in ("identifier", "number_literal"):
        return False
    item = kernel.parameter(loop.size)
    constant = item is not None and not item.pointer and not assigned(loop.size, kernel.body)
    return constant and loop.block in ("blockDim.x", squash(site.block))


def _shared_input(kernel: Function, loops: list[RowLoop]) -> str | None:
    """A pointer to const float, never reassigned, that at least two loops read at their index only."""
    first = loops[0]
    for name in dict.fromkeys(code(n) for n in walk(first.body, "identifier")):
        if not _const_float_pointer(kernel, name) or assigned(name, kernel.body):
            continue
        users = [loop for loop in loops if any(_is_element(n, name, loop.index) for n in walk(loop.body))]
        if len(users) >= 2 and users[0] is first:
            return name
    return None


def _is_element(node: Node, name: str, index: str) -> bool:
    return node.type == "subscript_expression" and normal(node) == f"{name}[{index}]"


def _const_float_pointer(kernel: Function, name: str) -> bool:
    item = kernel.parameter(name)
    if item is not None:
        return item.pointer and item.const and item.base == "float"
    texts = [squash(node) for node in walk(kernel.body, "declaration")]
    pattern = rf"const float\*(?:__restrict__ )?{name}=[^,]*;"
    return sum(bool(re.fullmatch(pattern, text)) for text in texts) == 1


def _hold_values(source: Source, loops: list[RowLoop], name: str, count: int) -> list[Splice]:
    held, slot = f"{name}_held", fresh(source, "slot")
    first = loops[0]
    kind = "int"

    def short(loop: RowLoop, body: str) -> str:
        index = f"const {kind} {loop.index} = threadIdx.x + {slot} * {loop.block};"
        return (
            f"#pragma unroll\n    for (int {slot} = 0; {slot} < {count}; ++{slot}) {{\n        {index}\n"
            f"        if ({loop.index} < {loop.size}) {body}\n    }}\n"
        )

    splices = []
    load = short(first, f"{held}[{slot}] = {name}[{first.index}];")
    for loop in loops:
        uses = any(_is_element(node, name, loop.index) for node in walk(loop.body))
        if not uses:
            continue

        def change(node: Node, index: str = loop.index) -> str | None:
            return f"{held}[{slot}]" if _is_element(node, name, index) else None

        before = f"float {held}[{count}];\n{load}" if loop is first else ""
        inner = short(loop, substitute(source, loop.body, change))
        start = f"threadIdx.x + {count} * {loop.block}"
        rest = f"    for ({kind} {loop.index} = {start}; {loop.index} < {loop.size}; {loop.index} += {loop.block}) "
        splices.append(Splice(loop.node.start_byte, loop.body.start_byte, before + inner + rest))
    return splices


def _hold_quads(
    source: Source, kernel: Function, loops: list[RowLoop], name: str, count: int
) -> list[Splice]:
    """Row loops in groups of four elements, the first ``count`` groups of a thread in registers."""
    vectors = {loop.node.start_byte: _vector_stores(kernel, loop, name) for loop in loops}
    stored = [item for found in vectors.values() if found is not None for item in found]
    if any(found is None for found in vectors.values()) or not _apart(kernel, loops, stored):
        return []
    held, wide, slot, group = (
        f"{name}_held",
        fresh(source, "wide"),
        fresh(source, "slot"),
        fresh(source, "group"),
    )
    first = loops[0]
    pointers = " | ".join(f"reinterpret_cast<size_t>({item})" for item in dict.fromkeys([name, *stored]))
    lines = [f"const bool {wide} = {first.size} % 4 == 0 && (({pointers}) & 15) == 0;"]
    lines += [f"    float4 {held}[{count}];", f"    if ({wide}) {{", "#pragma unroll"]
    lines.append(f"        for (int {slot} = 0; {slot} < {count}; ++{slot}) {{")
    lines.append(f"            const int {group} = 4 * (threadIdx.x + {slot} * {first.block});")
    load = f"*reinterpret_cast<const float4*>({name} + {group})"
    lines += [
        f"            if ({group} < {first.size}) {held}[{slot}] = {load};",
        "        }",
        "    }",
        "    ",
    ]
    before = "\n".join(lines)
    splices = []
    for loop in loops:
        four = _four(source, loop, name, vectors[loop.node.start_byte] or [], group)
        reads = any(_is_element(node, name, loop.index) for node in walk(loop.body))
        held_part = f"            const float4 {name}_four = {held}[{slot}];\n" if reads else ""
        rest_part = f"            const float4 {name}_four = {load};\n" if reads else ""
        text = (
            f"if ({wide}) {{\n#pragma unroll\n"
            f"        for (int {slot} = 0; {slot} < {count}; ++{slot}) {{\n"
            f"            const int {group} = 4 * (threadIdx.x + {slot} * {loop.block});\n"
            f"            if ({group} >= {loop.size}) break;\n{held_part}{four}        }}\n"
            f"        for (int {group} = 4 * (threadIdx.x + {count} * {loop.block}); {group} < {loop.size}; "
            f"{group} += 4 * {loop.block}) {{\n{rest_part}{four}        }}\n    }} else {{\n        "
        )
        start = loop.node.start_byte
        splices.append(Splice(start, start, (before if loop is first else "") + text))
        splices.append(Splice(loop.node.end_byte, loop.node.end_byte, "\n    }"))
    return splices


def _vector_stores(kernel: Function, loop: RowLoop, name: str) -> list[str] | None:
    """Pointers the loop stores to at its index; None if its body is not made of independent elements.

    Allowed are: ``out[c] = value``, ``sum += value``, ``best = fmaxf(best, value)``, declarations.
    """
    stores = []
    for statement in statements(loop.body):
        if statement.type == "declaration":
            continue
        inner = statement.named_children[0] if statement.type == "expression_statement" else None
        if inner is None or inner.type != "assignment_expression":
            return None
        left, right = inner.child_by_field_name("left"), normal(inner.child_by_field_name("right"))
        target, operator = normal(left), code(inner.child_by_field_name("operator"))
        element = re.fullmatch(rf"(\w+)\[{loop.index}\]", target)
        if element is not None and operator == "=" and _float_pointer(kernel, element[1]):
            stores.append(element[1])
        elif not re.fullmatch(r"\w+", target) or not (
            operator == "+=" or re.match(rf"(fmaxf|fminf)\({target},", right)
        ):
            return None
    uses = [n for n in walk(loop.body, "identifier") if code(n) in stores]
    return stores if len(uses) == len(stores) else None


def _float_pointer(kernel: Function, name: str) -> bool:
    item = kernel.parameter(name)
    if item is not None:
        return item.pointer and item.base == "float" and not item.const
    texts = [squash(node) for node in walk(kernel.body, "declaration")]
    return sum(bool(re.fullmatch(rf"float\*(?:__restrict__ )?{name}=[^,]*;", text)) for text in texts) == 1


def _apart(kernel: Function, loops: list[RowLoop], stored: list[str]) -> bool:
    """Whether nothing that a row loop stores is used anywhere but in that store and its own declaration."""
    for name in stored:
        uses = [node for node in walk(kernel.body, "identifier") if code(node) == name]
        item = kernel.parameter(name)
        if assigned(name, kernel.body) or len(uses) > stored.count(name) + (0 if item is not None else 1):
            return False
        if item is None and _base_is_shared(kernel, name):
            return False
    return True


def _base_is_shared(kernel: Function, name: str) -> bool:
    """Whether the parameter that a local pointer is made from has any other use."""
    for node in walk(kernel.body, "init_declarator"):
        if name not in [code(item) for item in walk(node, "identifier")][:1]:
            continue
        bases = [p.name for p in kernel.parameters if p.pointer and p.name in identifiers(node)]
        uses = [n for n in walk(kernel.body, "identifier") if code(n) in bases]
        return len(bases) != 1 or len(uses) != 1
    return True


def _four(source: Source, loop: RowLoop, name: str, stores: list[str], group: str) -> str:
    """The body for the four elements of a group, and the vector stores after it."""
    lines = [f"            float4 {item}_four;" for item in stores]
    for number, lane in enumerate("xyzw"):

        def change(node: Node, number: int = number, lane: str = lane) -> str | None:
            for item in (name, *stores):
                if _is_element(node, item, loop.index):
                    return f"{item}_four.{lane}"
            return f"({group} + {number})" if node.type == "identifier" and code(node) == loop.index else None

        texts = [substitute(source, statement, change) for statement in statements(loop.body)]
        scoped = any(statement.type == "declaration" for statement in statements(loop.body))
        lines += [f"            {'{ ' + ' '.join(texts) + ' }' if scoped else ' '.join(texts)}"]
    lines += [f"            *reinterpret_cast<float4*>({item} + {group}) = {item}_four;" for item in stores]
    return "\n".join(lines) + "\n"
