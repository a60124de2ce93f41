"""Where data lies and who touches it: coalescing, shared-memory tiles and padding, private counters."""

from __future__ import annotations

import re

from tree_sitter import Node

from kb_env.transform_constants import ELEMENT_BYTES, SHARED_LIMIT, shared_bytes, values
from kb_env.transform_elementwise import passed_arguments
from kb_env.transform_match import TOGETHER, fresh, is_flat, normal
from kb_env.transform_qualifiers import distinct_pointers
from kb_env.transform_tree import (
    Function,
    LaunchSite,
    Source,
    Splice,
    assigned,
    code,
    configure,
    dim_parts,
    evaluate,
    identifiers,
    kernels,
    only_launch,
    rewrite,
    squash,
    statements,
    walk,
)

_AXIS = (
    r"(?:int|unsigned|size_t) (?P<{0}>\w+)=blockIdx\.(?P<axis_{0}>[xy])\*"
    r"(?P<block_{0}>\w+|blockDim\.[xy])\+threadIdx\.(?P=axis_{0});"
)
_TRANSPOSE = re.compile(
    _AXIS.format("p")
    + _AXIS.format("q")
    + r"if\((?:(?P=p)<(?P<np>\w+)&&(?P=q)<(?P<nq>\w+)|(?P=q)<(?P<nq2>\w+)&&(?P=p)<(?P<np2>\w+))\)\{?"
    r"(?P<y>\w+)\[(?P<major>\w+)\*(?P<low>\w+)\+(?P<minor>\w+)\]=(?P<x>\w+)\[(?P=minor)\*(?P<lx>\w+)\+(?P=major)\];\}?"
)

#: Rows of threads in a block of 32 columns, for the tiled transpose.
TILE_ROWS = (8, 16, 4)


def tile_transpose(source: Source, variant: int) -> str | None:
    """``y[c * rows + r] = x[r * cols + c]`` through a 32 x 33 tile, so that both sides are coalesced.

    A block reads 32 x 32 elements row by row and writes them column by column; TILE_ROWS gives how many
    rows of threads it has.
    """
    for kernel in kernels(source):
        site = only_launch(source, kernel)
        match = _TRANSPOSE.fullmatch("".join(normal(item) for item in statements(kernel.body)))
        if site is None or match is None or not distinct_pointers(source, kernel) or not site.plain:
            continue
        extent = {match["p"]: match["np"] or match["np2"], match["q"]: match["nq"] or match["nq2"]}
        major, minor = match["major"], match["minor"]
        if set(extent) != {major, minor} or extent[major] != match["lx"] or extent[minor] != match["low"]:
            continue
        words = (match["x"], match["y"], extent[minor], extent[major])
        if not _transposable(kernel, words) or len(site.configuration) != 2:
            continue
        return _transposed(source, kernel, site, words, TILE_ROWS[variant])
    return None


def _transposable(kernel: Function, words: tuple[str, str, str, str]) -> bool:
    x, y, rows, cols = (kernel.parameter(word) for word in words)
    if x is None or y is None or rows is None or cols is None or kernel.template:
        return False
    if {rows.name, cols.name, x.name, y.name} & {"tile", "top", "left", "line", "row", "col"}:
        return False
    return x.pointer and y.pointer and x.base == y.base and x.base in ELEMENT_BYTES and not y.const


def _transposed(
    source: Source, kernel: Function, site: LaunchSite, words: tuple[str, str, str, str], lines: int
) -> str | None:
    x, y, rows, cols = words
    base = next(item.base for item in kernel.parameters if item.name == x)
    given = passed_arguments(kernel, site)
    edge, height = fresh(source, "TILE"), fresh(source, "TILE_ROWS")
    body = f"""{{
    __shared__ {base} tile[{edge}][{edge} + 1];
    const int left = blockIdx.x * {edge};
    const int top = blockIdx.y * {edge};
    for (int line = threadIdx.y; line < {edge}; line += {height}) {{
        const int row = top + line, col = left + threadIdx.x;
        if (row < {rows} && col < {cols}) tile[line][threadIdx.x] = {x}[(size_t)row * {cols} + col];
    }}
    __syncthreads();
    for (int line = threadIdx.y; line < {edge}; line += {height}) {{
        const int row = top + threadIdx.x, col = left + line;
        if (row < {rows} && col < {cols}) {y}[(size_t)col * {rows} + row] = tile[threadIdx.x][line];
    }}
}}"""
    grid = f"({given[cols]} + {edge} - 1) / {edge}, ({given[rows]} + {edge} - 1) / {edge}"
    constants = f"constexpr int {edge} = 32;\nconstexpr int {height} = {lines};\n\n"
    return rewrite(
        source,
        [
            Splice(kernel.outer.start_byte, kernel.outer.start_byte, constants),
            Splice(kernel.body.start_byte, kernel.body.end_byte, body),
            *configure(source, site, grid, f"{edge}, {height}"),
        ],
    )


def swap_axes(source: Source, variant: int) -> str | None:
    """The two indices of a kernel change thread axes, in kernel and launch; the i-th such kernel.

    For kernels whose threads are independent and use ``threadIdx`` and ``blockIdx`` in the declarations
    of the two indices only: the same elements are computed, by other threads.
    """
    found = []
    for kernel in kernels(source):
        splices = _swapped(source, kernel)
        if splices:
            found.append(splices)
    return rewrite(source, found[variant]) if variant < len(found) else None


def _swapped(source: Source, kernel: Function) -> list[Splice]:
    site, body = only_launch(source, kernel), statements(kernel.body)
    if site is None or len(body) < 3 or TOGETHER.search(code(kernel.body)) or len(site.configuration) != 2:
        return []
    pattern = re.compile(_AXIS.format("p"))
    heads = [(node, pattern.fullmatch(normal(node))) for node in body[:2]]
    axes = [match["axis_p"] for _, match in heads if match is not None]
    if sorted(axes) != ["x", "y"] or any(
        re.search(r"\b(thread|block)(Idx|Dim)\b", code(node)) for node in body[2:]
    ):
        return []
    grid, block = dim_parts(site.grid, source), dim_parts(site.block, source)
    if len(grid) != 2 or len(block) != 2:
        return []
    for _, match in heads:
        axis = match["axis_p"] if match is not None else "x"
        if match is None or match["block_p"] not in (f"blockDim.{axis}", squash(block["xy".index(axis)])):
            return []
    splices = [_other_axes(node) for node, _ in heads]
    turned = [f"{code(parts[1])}, {code(parts[0])}" for parts in (grid, block)]
    splices += configure(source, site, *turned)
    return splices


def _other_axes(node: Node) -> Splice:
    other = {"x": "y", "y": "x"}
    text = re.sub(r"\b(threadIdx|blockIdx|blockDim)\.([xy])", lambda m: f"{m[1]}.{other[m[2]]}", code(node))
    return Splice(node.start_byte, node.end_byte, text)


def pad_shared(source: Source, variant: int) -> str | None:
    """Two-dimensional shared arrays get one more column, so that a column's elements lie in all banks.

    For arrays of 4-byte elements with a multiple of 32 columns that are only ever used with two indices.
    """
    splices: list[Splice] = []
    known = values(source)
    for kernel in kernels(source):
        grown = shared_bytes(kernel.node, known)
        for node in walk(kernel.body, "declaration"):
            if not any(code(child) == "__shared__" for child in node.children):
                continue
            if ELEMENT_BYTES.get(squash(node.child_by_field_name("type"))) != 4:
                continue
            for item in node.children_by_field_name("declarator"):
                padded = _padded(kernel, item, known)
                rows = evaluate(item.named_children[0].child_by_field_name("size"), known) if padded else None
                grown += 4 * (rows or 0)
                if padded is not None and grown <= SHARED_LIMIT:
                    splices.append(padded)
    return rewrite(source, splices) if splices else None


def _padded(kernel: Function, item: Node, known: dict[str, int]) -> Splice | None:
    inner = item.child_by_field_name("declarator") if item.type == "array_declarator" else None
    name = (
        inner.child_by_field_name("declarator")
        if inner is not None and inner.type == "array_declarator"
        else None
    )
    size = item.child_by_field_name("size")
    columns = evaluate(size, known)
    if name is None or name.type != "identifier" or size is None or not columns or columns % 32:
        return None
    for use in walk(kernel.body, "identifier"):
        if code(use) != code(name) or use.start_byte == name.start_byte:
            continue
        once = use.parent
        twice = once.parent if once is not None and once.type == "subscript_expression" else None
        if twice is None or twice.type != "subscript_expression":
            return None
        if twice.parent is not None and twice.parent.type == "pointer_expression":
            return None
    return Splice(size.end_byte, size.end_byte, " + 1")


#: Blocks of the kernel with private counters.
BLOCKS = (528, 1056, 264, 2112)

_COUNT = re.compile(
    r"(?:int|unsigned|size_t) (?P<i>\w+)=blockIdx\.x\*(?P<block>\w+|blockDim\.x)\+threadIdx\.x;"
    r"if\((?P=i)<(?P<n>\w+)\)\{?atomicAdd\((?:&(?P<counts>\w+)\[(?P<keys>\w+)\[(?P=i)\]\]"
    r"|(?P<counts2>\w+)\+(?P<keys2>\w+)\[(?P=i)\]),1\);\}?"
)


def privatize(source: Source, variant: int) -> str | None:
    """``atomicAdd(&counts[keys[i]], 1)``: each block counts in shared memory and adds its counts at the end.

    How many counters there are is what the launcher clears by ``cudaMemset`` before. Integer sums do not
    depend on the order. Where the counters do not fit into shared memory the original kernel runs.
    """
    for kernel in kernels(source):
        site = only_launch(source, kernel)
        match = _COUNT.fullmatch("".join(normal(item) for item in statements(kernel.body)))
        if site is None or match is None or not is_flat(source, site, match["block"]):
            continue
        counts, keys = match["counts"] or match["counts2"], match["keys"] or match["keys2"]
        target, given = kernel.parameter(counts), passed_arguments(kernel, site)
        bins = _cleared(site.host, given.get(counts, ""))
        count = kernel.parameter(match["n"])
        if count is None or count.pointer or count.base not in ("int", "unsigned", "size_t"):
            continue
        if target is None or target.base != "int" or bins is None or not distinct_pointers(source, kernel):
            continue
        return _privatized(
            source, kernel, site, (match["n"], match["block"], counts, keys, bins), BLOCKS[variant]
        )
    return None


def _cleared(host: Function, name: str) -> str | None:
    """The number of ints that the launcher sets to zero at ``name``, as a plain variable or number."""
    found = []
    for call in walk(host.body, "call_expression"):
        text = normal(call)
        match = re.fullmatch(
            rf"cudaMemset(?:Async)?\({name},0,(?:sizeof\(int\)\*(\w+)|(\w+)\*sizeof\(int\))(?:,0)?\)", text
        )
        found += [match[1] or match[2]] if match else []
    return found[0] if len(found) == 1 else None


def _privatized(
    source: Source, kernel: Function, site: LaunchSite, words: tuple[str, str, str, str, str], blocks: int
) -> str | None:
    size, block, counts, keys, bins = words
    name, limit = fresh(source, f"{kernel.name}_private"), fresh(source, "PRIVATE_BLOCKS")
    key = kernel.parameter(keys)
    statement = site.node.parent
    count = kernel.parameter(size)
    if (
        key is None
        or count is None
        or statement is None
        or {"own", "bins", "bin", "at", "stride"} & identifiers(kernel.node)
    ):
        return None
    text = f"""constexpr int {limit} = {blocks};

__global__ void {name}(const {key.base}* {keys}, int* {counts}, {count.base} {size}, int bins) {{
    extern __shared__ int own[];
    for (int bin = threadIdx.x; bin < bins; bin += {block}) own[bin] = 0;
    __syncthreads();
    const long long stride = (long long)gridDim.x * {block};
    for (long long at = (long long)blockIdx.x * {block} + threadIdx.x; at < {size}; at += stride)
        atomicAdd(&own[{keys}[at]], 1);
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += {block})
        if (own[bin] > 0) atomicAdd(&{counts}[bin], own[bin]);
}}

"""
    given = passed_arguments(kernel, site)
    grid = f"({code(site.grid)}) < {limit} ? ({code(site.grid)}) : {limit}"
    call = (
        f"if ({bins} <= {SHARED_LIMIT // 4}) {{\n        "
        f"{name}<<<{grid}, {code(site.block)}, {bins} * sizeof(int)>>>"
        f"({given[keys]}, {given[counts]}, {given[size]}, {bins});\n    }} else {{\n        "
    )
    return rewrite(
        source,
        [
            Splice(kernel.outer.start_byte, kernel.outer.start_byte, text),
            Splice(statement.start_byte, statement.start_byte, call),
            Splice(statement.end_byte, statement.end_byte, "\n    }"),
        ],
    )


def narrow_index(source: Source, variant: int) -> str | None:
    """A ``size_t`` element index that is only divided and compared becomes 32-bit where the size allows it.

    Division of 64-bit integers takes some 70 instructions. The launcher takes the copy of the kernel with
    the narrow index if the number of elements is below 2^31, else the original.
    """
    for kernel in kernels(source):
        site, body = only_launch(source, kernel), statements(kernel.body)
        head = (
            re.fullmatch(r"size_t (\w+)=blockIdx\.x\*(\w+|blockDim\.x)\+threadIdx\.x;", normal(body[0]))
            if body
            else None
        )
        if (
            site is None
            or head is None
            or not is_flat(source, site, head[2])
            or assigned(head[1], kernel.body)
        ):
            continue
        guard = (
            re.fullmatch(rf"if\({head[1]}>=(\w+)\)(?:return;|\{{return;\}})", normal(body[1]))
            if body[1:]
            else None
        )
        size = kernel.parameter(guard[1]) if guard is not None else None
        if size is None or size.base != "size_t" or assigned(size.name, kernel.body):
            continue
        if _only_divided(kernel, body[2:], head[1]):
            return _narrowed(source, kernel, site, body[0], size.name)
    return None


def _only_divided(kernel: Function, rest: list[Node], index: str) -> bool:
    """Whether the index occurs as ``index / n``, ``index % n`` with int parameters n, or ``[index]`` only."""
    divided = 0
    for node in (item for part in rest for item in walk(part, "identifier")):
        if code(node) != index or node.parent is None:
            continue
        if node.parent.type == "subscript_argument_list":
            continue
        right = node.parent.child_by_field_name("right")
        item = kernel.parameter(code(right)) if right is not None else None
        operator = code(node.parent.child_by_field_name("operator"))
        if operator not in ("/", "%") or item is None or item.base != "int" or item.pointer:
            return False
        divided += 1
    return divided > 0


def _narrowed(source: Source, kernel: Function, site: LaunchSite, head: Node, size: str) -> str | None:
    name, statement = fresh(source, f"{kernel.name}_narrow"), site.node.parent
    declarator = kernel.node.child_by_field_name("declarator")
    if statement is None or declarator is None or statement.type != "expression_statement":
        return None
    narrow = code(head).replace("size_t", "unsigned")
    start = source.data[kernel.outer.start_byte : head.start_byte].decode("utf-8", "surrogatepass")
    rest = source.data[head.end_byte : kernel.outer.end_byte].decode("utf-8", "surrogatepass")
    start = re.sub(rf"\b{kernel.name}\b", name, start)
    call = re.sub(rf"\b{kernel.name}\b", name, code(statement), count=1)
    elements = passed_arguments(kernel, site)[size]
    condition = f"if ({elements} < (1ull << 31)) {{\n        {call}\n    }} else {{\n        "
    return rewrite(
        source,
        [
            Splice(kernel.outer.start_byte, kernel.outer.start_byte, f"{start}{narrow}{rest}\n\n"),
            Splice(statement.start_byte, statement.start_byte, condition),
            Splice(statement.end_byte, statement.end_byte, "\n    }"),
        ],
    )
