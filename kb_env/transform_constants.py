"""Compile-time constants and block sizes: what a tuner turns.

A constant counts as tunable if a launch's grid or block is computed from it, so that kernel and
launch change together. The choices are powers of two times its value, bounded by the hardware:
1 to 1024 threads a block and 48 KiB of static shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Node

from kb_env.transform_tree import (
    LaunchSite,
    Source,
    Splice,
    assigned,
    code,
    declaration_of,
    dim_parts,
    evaluate,
    extents,
    kernels,
    launches,
    literal,
    parse,
    rewrite,
    squash,
    walk,
)

SHARED_LIMIT = 48 * 1024
THREAD_LIMIT = 1024
#: The steps a variant takes, in the order of the variants.
FACTORS: tuple[float, ...] = (2.0, 0.5, 4.0, 0.25)
#: How many constants of a text the catalogue reaches.
SLOTS = 4

INTEGERS = ("int", "unsigned", "unsigned int", "size_t", "long")
ELEMENT_BYTES = {
    "float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "double": 8, "half": 2, "__half": 2,
    "float2": 8, "float4": 16, "int4": 16, "half2": 4, "__half2": 4, "char": 1, "unsigned char": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Constant:
    """A tunable constant of a text: its name, its present value, and all values worth trying."""

    name: str
    value: int
    choices: tuple[int, ...]


def values(source: Source) -> dict[str, int]:
    """All named integer constants whose value can be told: constexpr, const and #define."""
    found: dict[str, int] = {}
    for name, node in _definitions(source):
        value = evaluate(node, found) if node.type != "preproc_arg" else literal(node)
        if value is not None:
            found[name] = value
    return found


@lru_cache(maxsize=512)
def _definitions(source: Source) -> tuple[tuple[str, Node], ...]:
    """(name, value node) of each constant that is defined exactly once in the text."""
    found: list[tuple[str, Node]] = []
    name: Node | None
    for node in walk(source.root, "preproc_def", "init_declarator"):
        if node.type == "preproc_def":
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        else:
            name, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
            if node.parent is None or not _is_constant(node.parent):
                continue
        if name is not None and value is not None and name.type == "identifier":
            found.append((code(name), value))
    names = [name for name, _ in found]
    return tuple((name, value) for name, value in found if names.count(name) == 1)


def _is_constant(declaration: Node) -> bool:
    words = {code(child) for child in declaration.children if child.type == "type_qualifier"}
    kind = squash(declaration.child_by_field_name("type"))
    return bool(words & {"const", "constexpr"}) and kind in INTEGERS


def _literal_places(source: Source) -> dict[str, Node]:
    """Where each constant with a plain literal value, or a launcher's local block size, is written."""
    places = {name: node for name, node in _definitions(source) if literal(node) is not None}
    for site in launches(source):
        for name in (item for part in dim_parts(site.block, source) for item in walk(part, "identifier")):
            declared = declaration_of(name, source)
            value = declared.child_by_field_name("value") if declared is not None else None
            if value is None or literal(value) is None or code(name) in places:
                continue
            if not assigned(code(name), site.host.body) and _free_of(source, site, literal(value) or 0):
                places[code(name)] = value
    return places


def _free_of(source: Source, site: LaunchSite, value: int) -> bool:
    """Whether the launched kernel holds no number that could stand for the block size ``value``."""
    kernel = next((item for item in kernels(source) if item.name == site.kernel), None)
    if kernel is None:
        return False
    related = {value, value - 1, value // 2, value // 32, value * 4}
    return not any(literal(node) in related for node in walk(kernel.node, "number_literal"))


def _reached(source: Source) -> set[str]:
    """Names that a launch's grid or block depends on, through the launchers' local variables."""
    names: set[str] = set()
    pending = [node for site in launches(source) for node in site.configuration[:2]]
    while pending:
        for item in walk(pending.pop(), "identifier", "type_identifier"):
            if code(item) in names:
                continue
            names.add(code(item))
            declared = declaration_of(item, source)
            if declared is not None:
                value = declared.child_by_field_name("value") or declared.child_by_field_name("parameters")
                pending += [value] if value is not None else []
    return names


def constants(text: str) -> list[Constant]:
    """The tunable constants of a text in source order; empty where there are none or it does not parse."""
    return list(_constants(text))


@lru_cache(maxsize=2048)
def _constants(text: str) -> tuple[Constant, ...]:
    source = parse(text)
    if source is None:
        return ()
    reached, found = _reached(source), []
    for name, node in sorted(_literal_places(source).items(), key=lambda item: item[1].start_byte):
        value = literal(node)
        if name not in reached or value is None or value < 1:
            continue
        steps = {value << up for up in range(4)} | {
            value >> down for down in range(4) if value % (1 << down) == 0
        }
        choices = sorted(step for step in steps if step == value or _fits(source, name, step))
        if len(choices) > 1:
            found.append(Constant(name, value, tuple(choices)))
    return tuple(found)


def set_constant(text: str, name: str, value: int) -> str | None:
    """The text with the constant changed; None if there is no such constant or it has that value."""
    source = parse(text)
    place = _literal_places(source).get(name) if source is not None else None
    if source is None or place is None or literal(place) == value:
        return None
    return rewrite(source, [Splice(place.start_byte, place.end_byte, str(value))])


def _fits(source: Source, name: str, value: int) -> bool:
    """Whether hardware limits hold for every launch and shared array with ``name`` set to ``value``."""
    known: dict[str, int] = {}
    for other, node in _definitions(source):
        number = literal(node) if node.type == "preproc_arg" else evaluate(node, known)
        if other == name or number is not None:
            known[other] = value if other == name else number or 0
    known[name] = value
    for site in launches(source):
        block = extents(site.block, source, _locals(site, source) | known)
        if None not in block and not _block_ok(tuple(item or 0 for item in block)):
            return False
    return all(shared_bytes(item.node, known) <= SHARED_LIMIT for item in kernels(source))


def _block_ok(block: tuple[int, ...]) -> bool:
    threads = block[0] * block[1] * block[2]
    return 32 <= threads <= THREAD_LIMIT and block[2] <= 64 and threads % 32 == 0


def shared_bytes(kernel: Node, known: Mapping[str, int]) -> int:
    """Static shared memory of a kernel in bytes, as far as its extents are known constants."""
    total = 0
    for declaration in walk(kernel, "declaration"):
        if not any(code(child) == "__shared__" for child in declaration.children):
            continue
        size = ELEMENT_BYTES.get(squash(declaration.child_by_field_name("type")), 4)
        for declarator in declaration.children_by_field_name("declarator"):
            elements = 1
            for part in walk(declarator, "array_declarator"):
                elements *= evaluate(part.child_by_field_name("size"), known) or 1
            total += size * elements
    return total


def change_constant(source: Source, variant: int) -> str | None:
    """Variant ``4 * i + j``: the i-th tunable constant times the j-th of FACTORS."""
    found = constants(source.text)
    slot, step = divmod(variant, len(FACTORS))
    if slot >= len(found):
        return None
    wanted = found[slot].value * FACTORS[step]
    if wanted not in found[slot].choices:
        return None
    return set_constant(source.text, found[slot].name, int(wanted))


def block_literals(source: Source, variant: int) -> str | None:
    """A launch whose block is a bare number: times FACTORS[variant], with the grid that divides by it.

    Legal where the kernel uses ``blockDim`` and holds no number that could stand for the block size.
    """
    splices: list[Splice] = []
    for site in launches(source):
        value = literal(site.block)
        if value is None or value < 32 or not _free_of(source, site, value):
            continue
        wanted = int(value * FACTORS[variant])
        if not 32 <= wanted <= THREAD_LIMIT:
            continue
        grid = _grid_splices(site, source, value, wanted)
        if grid is not None:
            splices += [*grid, Splice(site.block.start_byte, site.block.end_byte, str(wanted))]
    unique = {(item.start, item.end): item for item in splices}
    return rewrite(source, unique.values()) if splices else None


def _grid_splices(site: LaunchSite, source: Source, value: int, wanted: int) -> list[Splice] | None:
    """Changes to the grid expression ``(n + value - 1) / value``; None if other numbers are in it."""
    node: Node | None = site.grid
    if site.grid.type == "identifier":
        declared = declaration_of(site.grid, source)
        node = declared.child_by_field_name("value") if declared is not None else None
        if declared is not None and len(_uses(site, code(site.grid))) > 2:
            return None
    numbers = list(walk(node, "number_literal")) if node is not None else []
    if not numbers:
        return []
    found = sorted(literal(item) or 0 for item in numbers)
    new = {value: wanted, value - 1: wanted - 1, 1: 1}
    if found not in ([value - 1, value], [1, value, value]):
        return None
    return [Splice(n.start_byte, n.end_byte, str(new[literal(n) or 0])) for n in numbers]


def _uses(site: LaunchSite, name: str) -> list[Node]:
    return [item for item in walk(site.host.body, "identifier") if code(item) == name]


def threads_per_block(source: Source, kernel: str) -> int | None:
    """The largest block that ``kernel`` is launched with, or None if not a known constant everywhere."""
    known, largest = values(source), 0
    for site in launches(source):
        if site.kernel == kernel:
            block = extents(site.block, source, known | _locals(site, source))
            if None in block:
                return None
            x, y, z = (item or 1 for item in block)
            largest = max(largest, x * y * z)
    return largest or None


def _locals(site: LaunchSite, source: Source) -> dict[str, int]:
    """Literal-valued, never reassigned local variables of the launcher."""
    found = {}
    for item in walk(site.host.body, "init_declarator"):
        name, value = code(item.child_by_field_name("declarator")), item.child_by_field_name("value")
        number = literal(value)
        if number is not None and not assigned(name, site.host.body):
            found[name] = number
    return found


def launch_bounds(source: Source, variant: int) -> str | None:
    """``__launch_bounds__(threads)``; variants 1 to 3 also ask for 2, 4, 8 blocks an SM."""
    splices = []
    for kernel in kernels(source):
        if any(child.type == "launch_bounds" for child in kernel.node.children):
            continue
        threads = threads_per_block(source, kernel.name)
        declarator = kernel.node.child_by_field_name("declarator")
        blocks = (0, 2, 4, 8)[variant]
        if threads is None or declarator is None or threads * blocks > 2048:
            continue
        bounds = f"{threads}, {blocks}" if blocks else str(threads)
        splices.append(Splice(declarator.start_byte, declarator.start_byte, f"__launch_bounds__({bounds}) "))
    return rewrite(source, splices) if splices else None


def drop_unused(source: Source, result: str) -> str | None:
    """``result`` without the constants that the rewrite of ``source`` left without any use."""
    after = parse(result)
    if after is None:
        return None
    used: dict[str, int] = {}
    for node in walk(after.root, "identifier", "type_identifier"):
        used[code(node)] = used.get(code(node), 0) + 1
    before = identifiers_used_twice(source)
    splices = []
    for name, value in _definitions(after):
        owner = value.parent.parent if value.parent is not None else None
        if owner is None or owner.type != "declaration" or used.get(name) != 1 or name not in before:
            continue
        if len(owner.children_by_field_name("declarator")) == 1:
            end = owner.end_byte + (after.data[owner.end_byte : owner.end_byte + 1] == b"\n")
            splices.append(Splice(owner.start_byte, end, ""))
    return rewrite(after, splices)


def identifiers_used_twice(source: Source) -> set[str]:
    """Names that occur more than once: what is declared and used."""
    seen: set[str] = set()
    twice: set[str] = set()
    for node in walk(source.root, "identifier", "type_identifier"):
        (twice if code(node) in seen else seen).add(code(node))
    return twice
