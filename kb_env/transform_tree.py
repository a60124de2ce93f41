"""Reading CUDA source as a syntax tree: what the catalogue of transforms stands on.

Everything here is a pure function of the text. A text that does not parse cleanly, is very large
or very deeply nested gives ``None`` from :func:`parse`, and then no transform applies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

#: Larger or deeper texts are left alone: a hostile program must not cost unbounded time or stack.
MAX_BYTES = 200_000
MAX_DEPTH = 150

_LANGUAGE = Language(tree_sitter_cuda.language())


@dataclass(frozen=True)
class Splice:
    """Replace the bytes ``start`` to ``end`` of the source by ``text``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, eq=False)
class Source:
    """A parsed text. ``data`` is its UTF-8 form, which the nodes' offsets refer to."""

    text: str
    data: bytes
    root: Node


@dataclass(frozen=True, eq=False)
class Parameter:
    """One parameter of a function. ``base`` is the element type without const, stars and restrict."""

    node: Node
    name: str
    base: str
    pointer: bool
    const: bool
    restrict: bool


@dataclass(frozen=True, eq=False)
class Function:
    """A function definition; ``kernel`` if it is ``__global__``. ``outer`` includes its template head."""

    node: Node
    outer: Node
    name: str
    kernel: bool
    template: bool
    parameters: tuple[Parameter, ...]
    body: Node

    def parameter(self, name: str) -> Parameter | None:
        return next((item for item in self.parameters if item.name == name), None)


@dataclass(frozen=True, eq=False)
class LaunchSite:
    """``kernel<<<grid, block, shared, stream>>>(arguments)`` inside the host function ``host``."""

    node: Node
    kernel: str
    plain: bool  # no template arguments
    configuration: tuple[Node, ...]
    arguments: tuple[Node, ...]
    host: Function

    @property
    def grid(self) -> Node:
        return self.configuration[0]

    @property
    def block(self) -> Node:
        return self.configuration[1]


@lru_cache(maxsize=512)
def parse(text: str) -> Source | None:
    """The syntax tree of ``text``, or None if it has errors or is beyond the size limits."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > MAX_BYTES:
        return None
    root = Parser(_LANGUAGE).parse(data).root_node
    if root.has_error or _depth_exceeds(root, MAX_DEPTH):
        return None
    return Source(text, data, root)


def _depth_exceeds(root: Node, limit: int) -> bool:
    level = [root]
    for _ in range(limit):
        level = [child for node in level for child in node.named_children]
        if not level:
            return False
    return True


def rewrite(source: Source, splices: Iterable[Splice]) -> str | None:
    """The text with all splices made, or None if two of them overlap."""
    pieces: list[bytes] = []
    position = 0
    for item in sorted(splices, key=lambda item: (item.start, item.end)):
        if item.start < position:
            return None
        pieces += [source.data[position : item.start], item.text.encode("utf-8", "surrogatepass")]
        position = item.end
    pieces.append(source.data[position:])
    return b"".join(pieces).decode("utf-8", "surrogatepass")


def walk(node: Node, *types: str) -> Iterator[Node]:
    """All nodes below and including ``node`` in source order, of the given types only if any."""
    stack = [node]
    while stack:
        item = stack.pop()
        if not types or item.type in types:
            yield item
        stack.extend(reversed(item.children))


def code(node: Node | None) -> str:
    """The node's source text."""
    return "" if node is None or node.text is None else node.text.decode("utf-8", "surrogatepass")


_BLANK = re.compile(r"//[^\n]*|/\*.*?\*/|\s+", re.DOTALL)


def squash(node: Node | str | None) -> str:
    """Source text without comments and with no blank that does not separate two words."""
    text = node if isinstance(node, str) else code(node)
    text = _BLANK.sub(" ", text).strip()
    return re.sub(r"(?<!\w) | (?!\w)", "", text)


def identifiers(node: Node) -> set[str]:
    """Names used anywhere below ``node`` (variables and functions, not fields)."""
    return {code(item) for item in walk(node, "identifier", "type_identifier")}


def enclosing(node: Node, *types: str) -> Node | None:
    """The nearest ancestor of one of the types."""
    parent = node.parent
    while parent is not None and parent.type not in types:
        parent = parent.parent
    return parent


def inside(node: Node, outer: Node) -> bool:
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def statements(block: Node | None) -> list[Node]:
    """The statements of a compound statement, or the single statement itself; comments left out."""
    if block is None:
        return []
    children = block.named_children if block.type == "compound_statement" else [block]
    return [child for child in children if child.type != "comment"]


def indent(source: Source, node: Node) -> str:
    """The blanks at the start of the line that ``node`` starts on."""
    start = source.data.rfind(b"\n", 0, node.start_byte) + 1
    match = re.match(rb"[ \t]*", source.data[start : node.start_byte])
    return match.group().decode() if match else ""


def _function(node: Node) -> Function | None:
    declarator, body = node.child_by_field_name("declarator"), node.child_by_field_name("body")
    if declarator is None or body is None or declarator.type != "function_declarator":
        return None
    name, listed = declarator.child_by_field_name("declarator"), declarator.child_by_field_name("parameters")
    if name is None or listed is None or name.type != "identifier" or body.type != "compound_statement":
        return None
    outer, template = node, False
    while outer.parent is not None and outer.parent.type in ("template_declaration", "linkage_specification"):
        outer = outer.parent
        template = template or outer.type == "template_declaration"
    parameters = tuple(_parameter(item) for item in listed.named_children if item.type != "comment")
    kernel = any(child.type == "__global__" for child in node.children)
    return Function(node, outer, code(name), kernel, template, parameters, body)


def _parameter(node: Node) -> Parameter:
    declarator = node.child_by_field_name("declarator")
    words = [code(child) for child in walk(node, "type_qualifier")]
    name = next((code(item) for item in walk(declarator, "identifier")), "") if declarator else ""
    pointer = declarator is not None and declarator.type == "pointer_declarator"
    return Parameter(
        node=node,
        name=name,
        base=squash(node.child_by_field_name("type")),
        pointer=pointer and code(declarator).count("*") == 1,
        const=any(code(child) == "const" for child in node.children if child.type == "type_qualifier"),
        restrict=any(word in ("__restrict__", "__restrict", "restrict") for word in words),
    )


@lru_cache(maxsize=512)
def functions(source: Source) -> tuple[Function, ...]:
    """Every function definition at file scope, in source order (also inside namespaces)."""
    found = (_function(node) for node in walk(source.root, "function_definition"))
    return tuple(item for item in found if item is not None)


def kernels(source: Source) -> list[Function]:
    return [item for item in functions(source) if item.kernel]


@lru_cache(maxsize=512)
def launches(source: Source) -> tuple[LaunchSite, ...]:
    """Every launch in source order."""
    hosts = [item for item in functions(source) if not item.kernel]
    sites = []
    for node in walk(source.root, "call_expression"):
        listed = next((child for child in node.children if child.type == "kernel_call_syntax"), None)
        callee, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        host = next((item for item in hosts if inside(node, item.body)), None)
        if listed is None or callee is None or arguments is None or host is None:
            continue
        configuration = tuple(child for child in listed.named_children if child.type != "comment")
        plain = callee.type == "identifier"
        name = code(callee if plain else callee.child_by_field_name("name"))
        if len(configuration) >= 2:
            passed = tuple(child for child in arguments.named_children if child.type != "comment")
            sites.append(LaunchSite(node, name, plain, configuration, passed, host))
    return tuple(sites)


def only_launch(source: Source, kernel: Function) -> LaunchSite | None:
    """The single launch of ``kernel``; None if there are several, or its name is used in another way."""
    sites = [site for site in launches(source) if site.kernel == kernel.name]
    named = [item for item in walk(source.root, "identifier") if code(item) == kernel.name]
    if len(sites) != 1 or len(named) != 2 or len(sites[0].arguments) != len(kernel.parameters):
        return None
    return sites[0]


def literal(node: Node | None) -> int | None:
    """Value of a decimal integer literal (suffixes u, l allowed)."""
    match = re.fullmatch(r"(\d+)[uUlL]*", squash(node)) if node is not None else None
    return int(match.group(1)) if match and (match.group(1) == "0" or match.group(1)[0] != "0") else None


def evaluate(node: Node | None, values: Mapping[str, int]) -> int | None:
    """Value of an integer expression over named constants, or None if it is anything else."""
    if node is None:
        return None
    if node.type == "number_literal":
        return literal(node)
    if node.type in ("identifier", "type_identifier"):
        return values.get(code(node))
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return evaluate(node.named_children[0], values)
    if node.type != "binary_expression":
        return None
    left = evaluate(node.child_by_field_name("left"), values)
    right = evaluate(node.child_by_field_name("right"), values)
    if left is None or right is None:
        return None
    return _operate(code(node.child_by_field_name("operator")), left, right)


def _operate(operator: str, left: int, right: int) -> int | None:
    if operator in ("/", "%"):
        if right <= 0 or left < 0:
            return None
        return left // right if operator == "/" else left % right
    if operator == "<<":
        return left << right if 0 <= right < 32 else None
    simple = {"+": left + right, "-": left - right, "*": left * right}
    return simple.get(operator)


def extents(node: Node, source: Source, values: Mapping[str, int]) -> tuple[int | None, ...]:
    """The three extents of a launch's grid or block expression; None where not a known constant."""
    parts = dim_parts(node, source)
    known = [evaluate(part, values) for part in parts] if parts else [None, None, None]
    return tuple(known + [1] * (3 - len(known)))


def dim_parts(node: Node, source: Source) -> list[Node]:
    """The expressions for x, y, z behind a grid or block: ``dim3(x, y)``, a variable of it, or an integer.

    Empty where they cannot be told.
    """
    if node.type == "identifier":
        declared = declaration_of(node, source)
        if (
            declared is None
            or squash(declared.parent and declared.parent.child_by_field_name("type")) != "dim3"
        ):
            return [node]
        value = declared.child_by_field_name("value") or declared.child_by_field_name("parameters")
        return dim_parts(value, source) if value is not None and value.type != "identifier" else []
    if node.type == "call_expression" and code(node.child_by_field_name("function")) == "dim3":
        node = node.child_by_field_name("arguments") or node
    if node.type == "argument_list":
        return list(node.named_children)[:3]
    if node.type == "parameter_list":  # ``dim3 block(T, T)`` reads as a function of two types T
        return [item.child_by_field_name("type") or item for item in node.named_children][:3]
    if node.type in ("number_literal", "binary_expression", "parenthesized_expression"):
        return [node]
    return []


def declaration_of(name: Node, source: Source) -> Node | None:
    """The declarator that introduces a variable used at ``name``: in its function, or at file scope."""
    wanted = code(name)
    function = enclosing(name, "function_definition")
    scopes = [function.child_by_field_name("body"), source.root] if function is not None else [source.root]
    for scope in scopes:
        for item in walk(scope, "init_declarator", "function_declarator") if scope is not None else []:
            owner = enclosing(item, "function_definition")
            local = owner is not None and function is not None and owner.start_byte == function.start_byte
            if code(item.child_by_field_name("declarator")) != wanted or item.start_byte > name.start_byte:
                continue
            if owner is None or local:
                return item
    return None


def configure(source: Source, site: LaunchSite, grid: str, block: str) -> list[Splice]:
    """Splices that give a launch another grid and block (the arguments of their dim3).

    A dim3 variable that serves nothing else is declared anew; otherwise the launch names the new one.
    """
    splices = []
    for node, arguments in ((site.grid, grid), (site.block, block)):
        declared = declaration_of(node, source) if node.type == "identifier" else None
        owner = declared.parent if declared is not None else None
        uses = [item for item in walk(site.host.body, "identifier") if code(item) == code(node)]
        alone = owner is not None and owner.type == "declaration" and len(uses) == 2
        if declared is not None and owner is not None and alone and len(_declarators(owner)) == 1:
            splices.append(Splice(declared.start_byte, declared.end_byte, f"{code(node)}({arguments})"))
        else:
            splices.append(Splice(node.start_byte, node.end_byte, f"dim3({arguments})"))
    return splices


def _declarators(declaration: Node) -> list[Node]:
    return declaration.children_by_field_name("declarator")


def assigned(name: str, scope: Node) -> bool:
    """Whether ``name`` is written, incremented or has its address taken anywhere in ``scope``."""
    for node in walk(scope, "assignment_expression", "update_expression", "pointer_expression"):
        target = node.child_by_field_name("left") or node.child_by_field_name("argument")
        if node.type == "pointer_expression" and code(node.child_by_field_name("operator")) != "&":
            continue
        if code(target) == name:
            return True
    return False
