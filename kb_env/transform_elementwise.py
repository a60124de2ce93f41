"""Transforms of elementwise kernels: float4 access, several elements a thread, fusion of neighbours."""

from __future__ import annotations

import re

from tree_sitter import Node

from kb_env.transform_match import TOGETHER, Elementwise, elementwise, fresh, is_flat, normal, substitute
from kb_env.transform_qualifiers import distinct_pointers
from kb_env.transform_tree import (
    Function,
    LaunchSite,
    Source,
    Splice,
    assigned,
    code,
    identifiers,
    inside,
    kernels,
    launches,
    only_launch,
    rewrite,
    squash,
    statements,
    walk,
)

_LANES = "xyzw"


def _found(source: Source) -> list[Elementwise]:
    found = (elementwise(source, kernel) for kernel in kernels(source))
    return [item for item in found if item is not None]


def fewer_blocks(site: LaunchSite, factor: int) -> Splice:
    """The grid divided by ``factor``, rounded up: enough whenever the old grid was enough."""
    grid = f"({code(site.grid)} + {factor - 1}) / {factor}"
    return Splice(site.grid.start_byte, site.grid.end_byte, grid)


def vectorize_elements(source: Source, variant: int) -> str | None:
    """Four elements a thread through float4, for elementwise float kernels; all of them, or the i-th.

    Whole groups of four take the vector path where all pointers are 16-byte aligned, which the kernel
    tests at run time; the tail takes the original statement.
    """
    found = _found(source)
    chosen = found if variant == 0 else found[variant - 1 : variant] if len(found) > 1 else []
    splices = []
    for item in chosen:
        vectors = _vector_pointers(item)
        if item.out in vectors and len(vectors) > 1:
            splices += [*_vector_body(source, item, vectors), fewer_blocks(item.launch, 4)]
    return rewrite(source, splices) if splices else None


def _vector_pointers(item: Elementwise) -> list[str]:
    """Pointer parameters to float that are used at ``[index]`` only."""
    floats = [p.name for p in item.kernel.parameters if p.pointer and p.base == "float"]
    return [name for name in floats if item.reads(name)]


def _vector_body(source: Source, item: Elementwise, vectors: list[str]) -> list[Splice]:
    inputs = [name for name in vectors if name != item.out]
    first = fresh(source, "first")
    four = {name: fresh(source, f"{name}_four") for name in vectors}
    together = " | ".join(f"reinterpret_cast<size_t>({name})" for name in vectors)
    lines = [f"    const long long {first} = ((long long)blockIdx.x * {item.block} + threadIdx.x) * 4;"]
    lines.append(f"    if ({first} + 3 < {item.size} && (({together}) & 15) == 0) {{")
    for name in inputs:
        load = f"*reinterpret_cast<const float4*>({name} + {first})"
        lines.append(f"        const float4 {four[name]} = {load};")
    lines.append(f"        float4 {four[item.out]};")
    for number, lane in enumerate(_LANES):
        lines += _lane(source, item, four, f"({item.kind})({first} + {number})", lane)
    lines.append(f"        *reinterpret_cast<float4*>({item.out} + {first}) = {four[item.out]};")
    lines += [
        "    } else {",
        f"        for (long long tail = {first}; tail < {first} + 4 && tail < {item.size}; ++tail) {{",
    ]
    lines.append(f"            const {item.kind} {item.index} = tail;")
    lines += [f"            {code(step)}" for step in item.steps]
    lines += ["        }", "    }"]
    if item.kind == "auto" or "tail" in identifiers(item.kernel.node):
        return []
    return [Splice(item.declaration.start_byte, item.guard.end_byte, "\n".join(lines).lstrip())]


def _lane(source: Source, item: Elementwise, four: dict[str, str], index: str, lane: str) -> list[str]:
    """The steps for one of the four elements, in a scope of their own."""

    def change(node: Node) -> str | None:
        name = item.element(node)
        if name in four:
            return f"{four[name]}.{lane}"
        return index if node.type == "identifier" and code(node) == item.index else None

    texts = [substitute(source, step, change) for step in item.steps]
    if len(texts) == 1:
        return [f"        {texts[0]}"]
    return ["        {", *[f"            {text}" for text in texts], "        }"]


COARSENING = (2, 4, 8)


def coarsen(source: Source, variant: int) -> str | None:
    """2, 4 or 8 elements a thread: the guard becomes a grid-stride loop and the grid shrinks.

    For kernels of independent threads in the form ``if (i < n) ...`` or ``if (i >= n) return; ...``.
    """
    for kernel in kernels(source):
        site = only_launch(source, kernel)
        body = statements(kernel.body)
        if site is None or len(body) < 2 or kernel.template or TOGETHER.search(code(kernel.body)):
            continue
        loop = _strided(source, site, kernel, body)
        if loop is not None and distinct_pointers(source, kernel):
            return rewrite(source, [*loop, fewer_blocks(site, COARSENING[variant])])
    return None


def _strided(source: Source, site: LaunchSite, kernel: Function, body: list[Node]) -> list[Splice] | None:
    """Splices that turn index and guard into a loop; None if the kernel has another form."""
    pattern = (
        r"(int|unsigned|unsigned int|size_t|long long) (\w+)=blockIdx\.x\*(\w+|blockDim\.x)\+threadIdx\.x;"
    )
    head = re.fullmatch(pattern, normal(body[0]))
    if head is None or not is_flat(source, site, head[3]) or assigned(head[2], kernel.body):
        return None
    kind, index, block = head[1], head[2], head[3]
    guard, rest = body[1], body[2:]
    below = re.match(rf"if\({index}<(\w+)\)", normal(guard))
    beyond = re.fullmatch(rf"if\({index}>=(\w+)\)(?:return;|\{{return;\}})", normal(guard))
    match = below if not rest else beyond
    if match is None or guard.child_by_field_name("alternative") is not None:
        return None
    only = guard.child_by_field_name("consequence")
    inner = rest or [only or guard]
    if any("return" in code(node) for node in inner):
        return None
    size = kernel.parameter(match[1])
    if size is None or size.pointer or assigned(match[1], kernel.body):
        return None
    start = code(body[0]).split("=", 1)[1].strip("; \n")
    at, bound = fresh(source, "at"), match[1]
    loop = (
        f"for (long long {at} = {start}; {at} < {bound}; {at} += (long long)gridDim.x * {block}) {{\n"
        f"        const {kind} {index} = {at};\n        "
    )
    if not rest:
        return [
            Splice(body[0].start_byte, inner[0].start_byte, loop),
            Splice(inner[0].end_byte, inner[0].end_byte, "\n    }"),
        ]
    end = rest[-1].end_byte
    return [Splice(body[0].start_byte, guard.end_byte, loop.rstrip()), Splice(end, end, "\n    }")]


def fuse(source: Source, variant: int) -> str | None:
    """Two elementwise kernels launched one after the other become one; the i-th such pair.

    The second reads what the first wrote, at the same index, under the same size, grid and block. The
    value in between is kept in a register; the store to memory is dropped if the launcher overwrites or
    frees the buffer before anything else reads it.
    """
    found = {item.launch.node.start_byte: item for item in _found(source)}
    pairs = []
    for first in found.values():
        follower = _next_launch(source, first.launch)
        second = found.get(follower.node.start_byte) if follower is not None else None
        if second is not None and _fusable(first, second):
            pairs.append((first, second))
    return _fused(source, *pairs[variant]) if variant < len(pairs) else None


def _next_launch(source: Source, site: LaunchSite) -> LaunchSite | None:
    """The launch in the statement right after ``site``'s own."""
    statement = site.node.parent
    after = statement.next_named_sibling if statement is not None else None
    while after is not None and after.type == "comment":
        after = after.next_named_sibling
    if after is None or statement is None or statement.parent is None:
        return None
    if statement.type != "expression_statement" or statement.parent.type != "compound_statement":
        return None
    return next((other for other in launches(source) if other.node.parent == after), None)


def passed(item: Elementwise) -> dict[str, str]:
    """What the launch passes for each parameter."""
    return passed_arguments(item.kernel, item.launch)


def passed_arguments(kernel: Function, site: LaunchSite) -> dict[str, str]:
    """Argument text by parameter name, for one launch."""
    names = [parameter.name for parameter in kernel.parameters]
    return dict(zip(names, (squash(argument) for argument in site.arguments), strict=True))


def _fusable(first: Elementwise, second: Elementwise) -> bool:
    one, two = passed(first), passed(second)
    same = all(
        squash(getattr(first.launch, part)) == squash(getattr(second.launch, part))
        for part in ("grid", "block")
    )
    if (
        not same
        or one[first.size] != two[second.size]
        or first.kind != second.kind
        or first.block != second.block
    ):
        return False
    between = one[first.out]
    takers = [name for name, value in two.items() if value == between]
    if len(takers) != 1 or not second.reads(takers[0]) or takers[0] == second.out:
        return False
    base = first.kernel.parameter(first.out)
    if base is None or base.base != "float" or len(first.steps) != 1:
        return False
    # The second may write what the first reads only where both do so at their own element.
    written = two[second.out]
    return all(value != written or first.reads(name) for name, value in one.items() if name != first.out)


def _fused(source: Source, first: Elementwise, second: Elementwise) -> str | None:
    one, two = passed(first), passed(second)
    between = one[first.out]
    taker = next(name for name, value in two.items() if value == between)
    name = fresh(source, f"{first.kernel.name}_{second.kernel.name}")
    keep = not _dead_after(source, second.launch, between)
    names, parameters, arguments = _joined(first, second, {between} if not keep else set())
    value = fresh(source, f"{first.kernel.name}_value")
    lines = [f"__global__ void {name}({', '.join(parameters)}) {{"]
    lines.append(f"    {code(second.declaration)}")
    lines.append(f"    if ({second.index} < {names[two[second.size]]}) {{")
    right = first.assignment.child_by_field_name("right")
    if right is None:
        return None
    produced = _renamed(source, first, right, names, {first.index: second.index})
    lines.append(f"        const float {value} = {produced};")
    if keep:
        lines.append(f"        {names[between]}[{second.index}] = {value};")
    for step in second.steps:
        lines.append(f"        {_renamed(source, second, step, names, {}, {taker: value})}")
    lines += ["    }", "}", "", ""]
    call = f"{name}<<<{code(second.launch.grid)}, {code(second.launch.block)}>>>({', '.join(arguments)});"
    start, end = first.launch.node.parent, second.launch.node.parent
    if start is None or end is None:
        return None
    removed = [_removed(source, first.kernel), _removed(source, second.kernel)]
    later = max(item.end for item in removed)
    return rewrite(
        source,
        [
            *removed,
            Splice(later, later, "\n".join(lines)),
            Splice(start.start_byte, end.end_byte, call),
        ],
    )


def _removed(source: Source, kernel: Function) -> Splice:
    """Takes a kernel out, with the line ends after it."""
    end = kernel.outer.end_byte
    while source.data[end : end + 1] == b"\n":
        end += 1
    return Splice(kernel.outer.start_byte, end, "")


def _joined(
    first: Elementwise, second: Elementwise, dropped: set[str]
) -> tuple[dict[str, str], list[str], list[str]]:
    """Parameters of the fused kernel: (name by what is passed, declarations, arguments)."""
    names: dict[str, str] = {}
    parameters: list[str] = []
    arguments: list[str] = []
    for item in (first, second):
        for parameter, value in zip(item.kernel.parameters, passed(item).values(), strict=True):
            if value in dropped or value in names:
                continue
            name = parameter.name
            while name in names.values() or name == second.index:
                name += "_"
            names[value] = name
            written = value in (passed(first)[first.out], passed(second)[second.out])
            star = "*" if parameter.pointer else ""
            const = "const " if parameter.pointer and not written else ""
            parameters.append(f"{const}{parameter.base}{star} {name}")
            arguments.append(value)
    return names, parameters, arguments


def _renamed(
    source: Source,
    item: Elementwise,
    node: Node,
    names: dict[str, str],
    local: dict[str, str],
    elements: dict[str, str] | None = None,
) -> str:
    """Text of ``node`` with parameters named as in the fused kernel."""
    given = passed(item)

    def change(part: Node) -> str | None:
        taken = (elements or {}).get(item.element(part) or "")
        if taken is not None:
            return taken
        if part.type != "identifier":
            return None
        name = code(part)
        return local.get(name) or (names.get(given[name]) if name in given else None)

    return substitute(source, node, change)


def _dead_after(source: Source, site: LaunchSite, buffer: str) -> bool:
    """Whether a local buffer's content is not read after ``site``: overwritten whole, or only freed."""
    if site.host.parameter(buffer) is not None or next(walk(site.host.body, "for_statement"), None):
        return False
    found = {item.launch.node.start_byte: item for item in _found(source)}
    for node in walk(site.host.body, "identifier"):
        if code(node) != buffer or node.start_byte <= site.node.end_byte:
            continue
        owner = next((other for other in launches(source) if inside(node, other.node)), None)
        if owner is None:
            statement = node.parent.parent if node.parent is not None else None
            if statement is None or not squash(statement).startswith("cudaFree("):
                return False
            continue
        item = found.get(owner.node.start_byte)
        return item is not None and passed(item)[item.out] == buffer and _overwrites(item, site, found)
    return True


def _overwrites(item: Elementwise, site: LaunchSite, found: dict[int, Elementwise]) -> bool:
    """Whether ``item`` writes as many elements as the kernel launched at ``site``, reading none of them."""
    before = found.get(site.node.start_byte)
    return before is not None and passed(item)[item.size] == passed(before)[before.size]
