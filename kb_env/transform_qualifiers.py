"""Small edits that tell the compiler more: const, restrict, read-only loads, unrolling."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from kb_env.transform_tree import (
    Function,
    Source,
    Splice,
    assigned,
    code,
    enclosing,
    indent,
    kernels,
    launches,
    rewrite,
    squash,
    walk,
)


def stored_through(kernel: Function, name: str) -> bool:
    """Whether the kernel may write memory through pointer ``name``, directly or through an alias of it.

    Only ``name[...]`` read as a value, and pointers to const made from it, are taken as reads.
    """
    return any(code(node) == name and not _reads(node) for node in walk(kernel.body, "identifier"))


def _reads(node: Node) -> bool:
    """Whether this use of a pointer's name only reads the memory behind it."""
    parent = node.parent
    if parent is None or parent.type != "subscript_expression":
        return parent is not None and _makes_const_pointer(node)
    if squash(parent.child_by_field_name("argument")) != code(node):
        return False
    outer = parent.parent
    if outer is None or outer.type == "update_expression" or outer.type == "pointer_expression":
        return False
    target = outer.child_by_field_name("left") if outer.type == "assignment_expression" else None
    return target is None or target.start_byte != parent.start_byte


def _makes_const_pointer(node: Node) -> bool:
    """``const float* row = name + offset``: an alias through which nothing can be written."""
    outer = enclosing(
        node, "init_declarator", "call_expression", "assignment_expression", "subscript_expression"
    )
    if outer is None or outer.type != "init_declarator" or outer.parent is None:
        return False
    declarator = outer.child_by_field_name("declarator")
    const = any(code(child) == "const" for child in outer.parent.children)
    return const and declarator is not None and declarator.type == "pointer_declarator"


def distinct_pointers(source: Source, kernel: Function) -> bool:
    """Whether at every launch all pointer arguments are different buffers, as far as the text shows.

    Proof by names: each is a parameter of the launcher, which the task gives separate buffers, or a
    local pointer that ``cudaMalloc`` fills; no name is passed twice and none is assigned from another.
    """
    sites = [site for site in launches(source) if site.kernel == kernel.name]
    for site in sites:
        pairs = zip(kernel.parameters, site.arguments, strict=False)
        names = [squash(argument) for parameter, argument in pairs if parameter.pointer]
        if len(set(names)) != len(names):
            return False
        if any(not _own_buffer(site.host, name) for name in names):
            return False
    return bool(sites)


def _own_buffer(host: Function, name: str) -> bool:
    parameter = host.parameter(name)
    allocated = any(
        code(call.child_by_field_name("function")).startswith("cudaMalloc")
        and f"&{name}" in squash(call.child_by_field_name("arguments"))
        for call in walk(host.body, "call_expression")
    )
    if parameter is None:
        return allocated and not _assigned_value(host, name)
    return parameter.pointer and not assigned(name, host.body)


def _assigned_value(host: Function, name: str) -> bool:
    """Whether a local pointer is set in any way but by its address being passed."""
    return any(
        code(node.child_by_field_name("left")) == name for node in walk(host.body, "assignment_expression")
    )


def add_const(source: Source, variant: int) -> str | None:
    """``const`` on pointer parameters that a kernel only reads."""
    splices = []
    for kernel in kernels(source):
        for item in kernel.parameters:
            if item.pointer and not item.const and not stored_through(kernel, item.name):
                splices.append(Splice(item.node.start_byte, item.node.start_byte, "const "))
    return rewrite(source, splices) if splices else None


def add_restrict(source: Source, variant: int) -> str | None:
    """``__restrict__`` on all pointer parameters of kernels whose arguments are provably separate buffers.

    Variant 0: every kernel; variant i: the i-th kernel only.
    """
    found = kernels(source)
    chosen = found if variant == 0 else found[variant - 1 : variant] if len(found) > 1 else []
    splices = []
    for kernel in chosen:
        if not distinct_pointers(source, kernel):
            continue
        for item in kernel.parameters:
            declarator = item.node.child_by_field_name("declarator")
            if item.pointer and not item.restrict and declarator is not None:
                star = declarator.start_byte + 1
                blank = "" if source.data[star : star + 1] in (b" ", b"\n") else " "
                splices.append(Splice(star, star, " __restrict__" + blank))
    return rewrite(source, splices) if splices else None


LDG_TYPES = ("float", "int", "unsigned", "unsigned int", "double", "float2", "float4", "int4", "__half")


def read_only_loads(source: Source, variant: int) -> str | None:
    """``__ldg`` on loads from const pointer parameters: which nobody may write in the kernel."""
    splices = []
    for kernel in kernels(source):
        if not distinct_pointers(source, kernel):
            continue
        for node in walk(kernel.body, "subscript_expression"):
            base = node.child_by_field_name("argument")
            item = kernel.parameter(code(base)) if base is not None and base.type == "identifier" else None
            if item is None or not item.pointer or not item.const or item.base not in LDG_TYPES:
                continue
            if node.parent is not None and node.parent.type == "pointer_expression":
                continue
            splices += [
                Splice(node.start_byte, node.start_byte, "__ldg(&"),
                Splice(node.end_byte, node.end_byte, ")"),
            ]
    return rewrite(source, splices) if splices else None


LOOP_SLOTS = 4
UNROLL = ("#pragma unroll 2", "#pragma unroll 4", "#pragma unroll 8", "#pragma unroll")


def loops(source: Source) -> list[Node]:
    """The for loops of all kernels in source order, innermost ones first."""
    found = [node for kernel in kernels(source) for node in walk(kernel.body, "for_statement")]
    inner = [node for node in found if next(_nested(node), None) is None]
    return inner + [node for node in found if node not in inner]


def _nested(loop: Node) -> Iterator[Node]:
    body = loop.child_by_field_name("body")
    return walk(body, "for_statement", "while_statement", "do_statement") if body is not None else iter(())


def unroll(source: Source, variant: int) -> str | None:
    """``#pragma unroll`` before a loop: variant ``4 * i + j`` is the i-th loop and the j-th of UNROLL."""
    slot, kind = divmod(variant, len(UNROLL))
    found = loops(source)
    if slot >= len(found):
        return None
    loop = found[slot]
    if loop.parent is None or loop.parent.type != "compound_statement":
        return None
    start = source.data.rfind(b"\n", 0, loop.start_byte) + 1
    if source.data[start : loop.start_byte].strip():
        return None
    before = loop.prev_named_sibling
    if before is not None and before.type == "preproc_call" and "unroll" in code(before):
        old = code(before).strip()
        if old == UNROLL[kind]:
            return None
        return rewrite(
            source, [Splice(before.start_byte, before.start_byte + len(old.encode()), UNROLL[kind])]
        )
    return rewrite(source, [Splice(start, start, f"{UNROLL[kind]}\n")])


def reciprocal(source: Source, variant: int) -> str | None:
    """Division of floats by a loop invariant inside a loop becomes a multiplication by its reciprocal.

    Two roundings instead of one: at most 1.5 ulp off the correctly rounded quotient. Every task's bound
    is a multiple of the unit roundoff times the terms' size, which admits it; no other transform
    changes roundings of single operations. Divisors that may be subnormal are the evaluator's to find.
    """
    splices = []
    for kernel in kernels(source):
        for loop in walk(kernel.body, "for_statement"):
            splices += _hoist(source, kernel, loop)
            if splices:
                return rewrite(source, splices)
    return None


def _hoist(source: Source, kernel: Function, loop: Node) -> list[Splice]:
    """Splices for the first division by an invariant float variable in ``loop``."""
    body = loop.child_by_field_name("body")
    if body is None or loop.parent is None or loop.parent.type != "compound_statement":
        return []
    for node in walk(body, "binary_expression"):
        divisor = node.child_by_field_name("right")
        if (
            code(node.child_by_field_name("operator")) != "/"
            or divisor is None
            or divisor.type != "identifier"
        ):
            continue
        name = code(divisor)
        if assigned(name, loop) or not _is_float(kernel, name) or f"inverse_{name}" in source.text:
            continue
        operator = node.child_by_field_name("operator")
        if operator is None:
            continue
        before = _line_start(source, loop)
        return [
            Splice(before, before, f"const float inverse_{name} = 1.0f / {name};\n{indent(source, loop)}"),
            Splice(operator.start_byte, operator.end_byte, "*"),
            Splice(divisor.start_byte, divisor.end_byte, f"inverse_{name}"),
        ]
    return []


def _line_start(source: Source, loop: Node) -> int:
    """Where to put a statement before ``loop`` and its pragma."""
    before = loop.prev_named_sibling
    return before.start_byte if before is not None and before.type == "preproc_call" else loop.start_byte


def _is_float(kernel: Function, name: str) -> bool:
    """Whether ``name`` is declared once in the kernel, as a float."""
    found = [
        node
        for node in walk(kernel.body, "declaration")
        if any(code(item) == name for item in _declared(node))
    ]
    item = kernel.parameter(name)
    if item is not None:
        return not found and item.base == "float" and not item.pointer
    return len(found) == 1 and squash(found[0].child_by_field_name("type")) == "float"


def _declared(declaration: Node) -> list[Node]:
    names = []
    for item in declaration.children_by_field_name("declarator"):
        inner = item.child_by_field_name("declarator") if item.type == "init_declarator" else item
        names += [inner] if inner is not None and inner.type == "identifier" else []
    return names
