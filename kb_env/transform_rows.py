"""Transforms of kernels with one block per row: float4 access, rows held in registers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

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
        kind = _const_pointer(kernel, name) or ""
        if not wide:
            splices = _hold_values(source, loops, name, kind, HELD[variant])
        elif kind == "float" and all(name in _vector_inputs(kernel, x) or not _reads(x, name) for x in loops):
            splices = _hold_quads(source, kernel, loops, name, QUADS[variant - len(HELD)])
        else:
            splices = []
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
    """A pointer to const float or half, never reassigned, that at least two loops read at their index only."""
    first = loops[0]
    for name in dict.fromkeys(code(n) for n in walk(first.body, "identifier")):
        if _const_pointer(kernel, name) not in ("float", "__half") or assigned(name, kernel.body):
            continue
        users = [loop for loop in loops if any(_is_element(n, name, loop.index) for n in walk(loop.body))]
        if len(users) >= 2 and users[0] is first:
            return name
    return None


def _reads(loop: RowLoop, name: str) -> bool:
    return any(code(node) == name for node in walk(loop.body, "identifier"))


def _is_element(node: Node, name: str, index: str) -> bool:
    return node.type == "subscript_expression" and normal(node) == f"{name}[{index}]"


def _const_pointer(kernel: Function, name: str) -> str | None:
    """Element type of a pointer to const: a parameter, or a local declared once."""
    item = kernel.parameter(name)
    if item is not None:
        return item.base if item.pointer and item.const else None
    pattern = rf"const (\w+)\*(?:__restrict__ )?{name}=[^,]*;"
    matches = [re.fullmatch(pattern, squash(node)) for node in walk(kernel.body, "declaration")]
    found = [match[1] for match in matches if match is not None]
    return found[0] if len(found) == 1 else None


def _hold_values(source: Source, loops: list[RowLoop], name: str, element: str, count: int) -> list[Splice]:
    held, slot = f"{name}_held", fresh(source, "slot")
    first = loops[0]
    kind = "int"

    def short(loop: RowLoop, body: str) -> str:
        index = f"const {kind} {loop.index} = threadIdx.x + {slot} * {loop.block};"
        return (
            f"\n#pragma unroll\n    for (int {slot} = 0; {slot} < {count}; ++{slot}) {{\n        {index}\n"
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

        before = f"{element} {held}[{count}];\n{load}" if loop is first else ""
        inner = short(loop, substitute(source, loop.body, change))
        start = f"threadIdx.x + {count} * {loop.block}"
        rest = f"    for ({kind} {loop.index} = {start}; {loop.index} < {loop.size}; {loop.index} += {loop.block}) "
        splices.append(Splice(loop.node.start_byte, loop.body.start_byte, before + inner + rest))
    return splices


def vectorize_rows(source: Source, variant: int) -> str | None:
    """Row loops over float go four elements at a time, where row length and alignment allow it at run time.

    The conditions are those of :func:`hold_row`'s float4 variants; nothing is kept in registers.
    """
    for kernel in kernels(source):
        loops = row_loops(kernel)
        if not loops or not distinct_pointers(source, kernel) or not _flat_block(source, kernel, loops[0]):
            continue
        if re.search(r"\w_(held|four)\b", code(kernel.body)):
            continue
        splices = _hold_quads(source, kernel, loops, None, 0)
        if splices:
            return rewrite(source, splices)
    return None


@dataclass(frozen=True)
class _Quads:
    """Names that the generated code for groups of four elements uses."""

    name: str | None  # the pointer whose groups are held, if any
    count: int
    wide: str
    slot: str
    group: str
    loads: dict[str, str]

    def head(self, loop: RowLoop, start: str) -> str:
        return (
            f"        for (int {self.group} = 4 * ({start}); {self.group} < {loop.size}; "
            f"{self.group} += 4 * {loop.block}) {{\n"
        )

    def slots(self, loop: RowLoop) -> str:
        return (
            f"#pragma unroll\n        for (int {self.slot} = 0; {self.slot} < {self.count}; ++{self.slot}) {{\n"
            f"            const int {self.group} = 4 * (threadIdx.x + {self.slot} * {loop.block});\n"
        )


def _hold_quads(
    source: Source, kernel: Function, loops: list[RowLoop], name: str | None, count: int
) -> list[Splice]:
    """Row loops in groups of four elements, the first ``count`` groups of a thread in registers."""
    vectors = [_vector_stores(kernel, loop) for loop in loops]
    stored = [item for found in vectors if found is not None for item in found]
    if any(found is None for found in vectors) or not _apart(kernel, stored):
        return []
    inputs = [_vector_inputs(kernel, loop) for loop in loops]
    pointers = list(dict.fromkeys([*(item for found in inputs for item in found), *stored]))
    if not any(inputs) or any(f"{item}_four" in source.text for item in pointers):
        return []
    together = " | ".join(f"reinterpret_cast<size_t>({item})" for item in pointers)
    group = fresh(source, "group")
    loads = {item: f"*reinterpret_cast<const float4*>({item} + {group})" for item in pointers}
    quads = _Quads(name, count, fresh(source, "wide"), fresh(source, "slot"), group, loads)
    before = f"const bool {quads.wide} = {loops[0].size} % 4 == 0 && (({together}) & 15) == 0;\n    "
    if name is not None:
        before += f"float4 {name}_held[{count}];\n    if ({quads.wide}) {{\n{quads.slots(loops[0])}"
        before += f"            if ({group} < {loops[0].size}) {name}_held[{quads.slot}] = {loads[name]};\n"
        before += "        }\n    }\n    "
    splices = []
    for loop, read, written in zip(loops, inputs, vectors, strict=True):
        if read or written:
            text = before + _grouped(source, loop, read, written or [], quads)
            splices.append(Splice(loop.node.start_byte, loop.node.start_byte, text))
            splices.append(Splice(loop.node.end_byte, loop.node.end_byte, "\n    }"))
            before = ""
    return splices


def _grouped(source: Source, loop: RowLoop, read: list[str], written: list[str], quads: _Quads) -> str:
    """``if (wide) { loops over groups } else {``: what goes before the original loop."""
    four = _four(source, loop, read, written, quads.group)
    loaded = {item: f"            const float4 {item}_four = {quads.loads[item]};\n" for item in read}
    text = f"if ({quads.wide}) {{\n"
    start = "threadIdx.x"
    if quads.name in read:
        held = loaded | {
            quads.name: f"            const float4 {quads.name}_four = {quads.name}_held[{quads.slot}];\n"
        }
        text += quads.slots(loop) + f"            if ({quads.group} >= {loop.size}) break;\n"
        text += "".join(held.values()) + four + "        }\n"
        start = f"threadIdx.x + {quads.count} * {loop.block}"
    return (
        text + quads.head(loop, start) + "".join(loaded.values()) + four + "        }\n    } else {\n        "
    )


def _vector_inputs(kernel: Function, loop: RowLoop) -> list[str]:
    """Pointers to const float that the loop reads at its index only."""
    names = dict.fromkeys(code(node) for node in walk(loop.body, "identifier"))
    found = []
    for name in names:
        uses = [node for node in walk(loop.body, "identifier") if code(node) == name]
        elements = all(n.parent is not None and _is_element(n.parent, name, loop.index) for n in uses)
        if elements and _const_pointer(kernel, name) == "float" and not assigned(name, kernel.body):
            found.append(name)
    return found


def _vector_stores(kernel: Function, loop: RowLoop) -> list[str] | None:
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


def _apart(kernel: Function, stored: list[str]) -> bool:
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


def _four(source: Source, loop: RowLoop, read: list[str], written: list[str], group: str) -> str:
    """The body for the four elements of a group, and the vector stores after it."""
    lines = [f"            float4 {item}_four;" for item in written]
    for number, lane in enumerate("xyzw"):

        def change(node: Node, number: int = number, lane: str = lane) -> str | None:
            for item in (*read, *written):
                if _is_element(node, item, loop.index):
                    return f"{item}_four.{lane}"
            return f"({group} + {number})" if node.type == "identifier" and code(node) == loop.index else None

        texts = [substitute(source, statement, change) for statement in statements(loop.body)]
        scoped = any(statement.type == "declaration" for statement in statements(loop.body))
        lines += [f"            {'{ ' + ' '.join(texts) + ' }' if scoped else ' '.join(texts)}"]
    lines += [f"            *reinterpret_cast<float4*>({item} + {group}) = {item}_four;" for item in written]
    return "\n".join(lines) + "\n"
