"""Idioms of naive kernels, recognised exactly: a kernel that deviates in any way is not matched."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tree_sitter import Node

from kb_env.transform_qualifiers import distinct_pointers
from kb_env.transform_tree import (
    Function,
    LaunchSite,
    Source,
    assigned,
    code,
    dim_parts,
    identifiers,
    only_launch,
    squash,
    statements,
    walk,
)

_CASTS = re.compile(r"\((?:size_t|int64_t|long long|long|unsigned|unsigned int|int)\)(?=\w)")
#: Names that make threads depend on each other, or on how many there are.
TOGETHER = re.compile(
    r"\b(__sync\w*|__shared__|__shfl\w*|__ballot\w*|__any\w*|__all\w*|atomic\w*|asm|gridDim|goto)\b"
)


def normal(node: Node | str | None) -> str:
    """Squashed text without ``const`` and integer casts: what patterns are compared on."""
    return _CASTS.sub("", re.sub(r"\bconst ", "", squash(node)))


def substitute(source: Source, node: Node, change: Callable[[Node], str | None]) -> str:
    """The node's text with every outermost node that ``change`` gives a text for replaced by it."""
    pieces: list[bytes] = []
    position = node.start_byte
    stack = [node]
    while stack:
        item = stack.pop()
        new = change(item)
        if new is None:
            stack.extend(reversed(item.children))
            continue
        pieces += [source.data[position : item.start_byte], new.encode()]
        position = item.end_byte
    pieces.append(source.data[position : node.end_byte])
    return b"".join(pieces).decode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class Elementwise:
    """A kernel whose thread ``index`` computes element ``index`` of ``out`` if it is below ``size``.

    ``steps`` are the statements in the guard: declarations, then the one assignment ``out[index] = ...``.
    ``launch`` is its only launch, one-dimensional, with ``block`` threads a block.
    """

    kernel: Function
    launch: LaunchSite
    declaration: Node
    guard: Node
    index: str
    kind: str
    size: str
    block: str
    out: str
    steps: tuple[Node, ...]

    @property
    def assignment(self) -> Node:
        return self.steps[-1].named_children[0]

    def element(self, node: Node) -> str | None:
        """Name of the pointer parameter if ``node`` is ``pointer[index]``."""
        base = node.child_by_field_name("argument")
        if node.type != "subscript_expression" or base is None or base.type != "identifier":
            return None
        name = code(base)
        item = self.kernel.parameter(name)
        return name if item is not None and item.pointer and normal(node) == f"{name}[{self.index}]" else None

    def reads(self, name: str) -> bool:
        """Whether the kernel reads ``name`` and only ever at ``[index]``."""
        uses = [node for step in self.steps for node in walk(step, "identifier") if code(node) == name]
        return bool(uses) and all(node.parent is not None and self.element(node.parent) for node in uses)


_INDEX = re.compile(
    r"(?P<kind>int|unsigned|unsigned int|size_t|long long|auto) (?P<index>\w+)="
    r"(?:blockIdx\.x\*(?P<block>\w+|blockDim\.x)\+threadIdx\.x|threadIdx\.x\+blockIdx\.x\*(?P<other>\w+|blockDim\.x));"
)


def elementwise(source: Source, kernel: Function) -> Elementwise | None:
    """Recognise ``i = blockIdx.x * BLOCK + threadIdx.x; if (i < n) out[i] = ...;``."""
    body, site = statements(kernel.body), only_launch(source, kernel)
    if len(body) != 2 or site is None or kernel.template or TOGETHER.search(code(kernel.body)):
        return None
    head = _INDEX.fullmatch(normal(body[0]))
    if head is None or not is_flat(source, site, head["block"] or head["other"]):
        return None
    index, guard = head["index"], body[1]
    limit = re.fullmatch(rf"\({index}<(\w+)\)", normal(guard.child_by_field_name("condition")))
    if guard.type != "if_statement" or limit is None or guard.child_by_field_name("alternative"):
        return None
    size, steps = limit[1], statements(guard.child_by_field_name("consequence"))
    item = kernel.parameter(size)
    if item is None or item.pointer or not steps or not distinct_pointers(source, kernel):
        return None
    out = _stored_element(steps, index)
    target = kernel.parameter(out or "")
    if out is None or target is None or not target.pointer or target.const:
        return None
    if assigned(index, guard) or any(assigned(p.name, kernel.body) for p in kernel.parameters):
        return None
    block = head["block"] or head["other"]
    found = Elementwise(kernel, site, body[0], guard, index, head["kind"], size, block, out, tuple(steps))
    return found if found.reads(out) else None


def _stored_element(steps: list[Node], index: str) -> str | None:
    """``out`` if the steps are plain declarations and then ``out[index] = value``, used nowhere else."""
    if any(step.type != "declaration" for step in steps[:-1]) or steps[-1].type != "expression_statement":
        return None
    assignment = steps[-1].named_children[0] if steps[-1].named_children else None
    if assignment is None or assignment.type != "assignment_expression":
        return None
    if code(assignment.child_by_field_name("operator")) != "=":
        return None
    target = re.fullmatch(rf"(\w+)\[{index}\]", normal(assignment.child_by_field_name("left")))
    value = assignment.child_by_field_name("right")
    parts = [value, *steps[:-1]] if value is not None else []
    if target is None or any(target[1] in identifiers(part) for part in parts):
        return None
    side_effects = ("assignment_expression", "update_expression", "lambda_expression")
    return None if any(next(walk(part, *side_effects), None) for part in parts) else target[1]


def is_flat(source: Source, site: LaunchSite, block: str | None) -> bool:
    """Whether a launch is one-dimensional, with the block that the kernel computes indices from."""
    grid, threads = dim_parts(site.grid, source), dim_parts(site.block, source)
    if len(grid) != 1 or len(threads) != 1 or len(site.configuration) > 2 or not site.plain:
        return False
    if site.grid.type not in (
        "number_literal",
        "identifier",
        "binary_expression",
        "parenthesized_expression",
    ):
        return False
    return block == "blockDim.x" or (block is not None and normal(threads[0]) == block)


@dataclass(frozen=True, eq=False)
class RowLoop:
    """``for (int c = threadIdx.x; c < cols; c += BLOCK) body`` at the top level of a kernel."""

    node: Node
    index: str
    size: str
    block: str
    body: Node


_ROW_LOOP = re.compile(
    r"for\((?:int|unsigned|unsigned int|size_t) (?P<index>\w+)=threadIdx\.x;(?P=index)<(?P<size>\w+);"
    r"(?P=index)\+=(?P<block>\w+|blockDim\.x)\)"
)


def row_loops(kernel: Function) -> list[RowLoop]:
    """The row loops among the kernel's top-level statements; empty if they disagree in size or stride."""
    found = []
    for node in statements(kernel.body):
        body = node.child_by_field_name("body") if node.type == "for_statement" else None
        head = _ROW_LOOP.match(normal(node)) if body is not None else None
        if head is None or body is None or not normal(node).startswith(head[0] + normal(body)[:1]):
            continue
        if assigned(head["index"], body) or re.search(r"\b(break|return|continue|goto)\b", code(body)):
            continue
        if not TOGETHER.search(code(body)):
            found.append(RowLoop(node, head["index"], head["size"], head["block"], body))
    return found if len({(item.size, item.block) for item in found}) == 1 else []


def fresh(source: Source, name: str) -> str:
    """``name``, or ``name2``, ``name3``, ... : the first that does not occur in the text."""
    number, result = 1, name
    while re.search(rf"\b{re.escape(result)}\b", source.text):
        number += 1
        result = f"{name}{number}"
    return result
