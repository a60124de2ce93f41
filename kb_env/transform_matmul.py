"""The naive matrix product becomes a tiled one: tiles in shared memory, several results a thread."""

from __future__ import annotations

import re

from kb_env.transform_match import fresh, normal
from kb_env.transform_qualifiers import distinct_pointers
from kb_env.transform_tree import (
    Function,
    LaunchSite,
    Source,
    Splice,
    assigned,
    configure,
    dim_parts,
    kernels,
    only_launch,
    rewrite,
    squash,
    statements,
)

#: (rows, columns, depth of a tile; rows, columns of results a thread)
TILES = ((64, 64, 16, 4, 4), (128, 128, 8, 8, 8), (32, 32, 32, 2, 2), (128, 64, 16, 8, 4), (16, 16, 16, 1, 1))

_INDEX = (
    r"(?:int|unsigned|size_t) (?P<{0}>\w+)=blockIdx\.(?P<axis_{0}>[xy])\*"
    r"(?P<block_{0}>\w+|blockDim\.[xy])\+threadIdx\.(?P=axis_{0});"
)
_REST = (
    r"(?:float (?P<sum>\w+)=0(?:\.0?f?|f)?;"
    r"for\(int (?P<i>\w+)=0;(?P=i)<(?P<k>\w+);(?:\+\+(?P=i)|(?P=i)\+\+)\)\{?"
    r"(?P=sum)\+=(?P<la>__half2float\()?(?P<a>\w+)\[(?P=row)\*(?P=k)\+(?P=i)\](?(la)\))"
    r"\*(?P<lb>__half2float\()?(?P<b>\w+)\[(?P=i)\*(?P<n>\w+)\+(?P=col)\](?(lb)\));\}?"
    r"(?P<c>\w+)\[(?P=row)\*(?P=n)\+(?P=col)\]=(?P<sc>__float2half(?:_rn)?\()?(?P=sum)(?(sc)\));)"
)
_RETURN = (
    r"if\((?:(?P=row)>=(?P<m1>\w+)\|\|(?P=col)>=(?P<n1>\w+)|"
    r"(?P=col)>=(?P<n2>\w+)\|\|(?P=row)>=(?P<m2>\w+))\)(?:return;|\{return;\})"
)
_ORDERS = (
    re.compile(_INDEX.format("row") + _INDEX.format("col") + _RETURN + _REST),
    re.compile(_INDEX.format("col") + _INDEX.format("row") + _RETURN + _REST),
)


def tile_matmul(source: Source, variant: int) -> str | None:
    """The canonical ``sum += a[row * k + i] * b[i * n + col]`` kernel, tiled as in TILES.

    Each result is the same sum in the same order. Rows and columns past the edge are read as zero and
    not stored. The accumulator stays float; float and half operands are converted as before.
    """
    for kernel in kernels(source):
        site, match = only_launch(source, kernel), _canonical(kernel)
        if (
            site is None
            or match is None
            or not distinct_pointers(source, kernel)
            or not _two_axes(source, site, match)
        ):
            continue
        names = {key: match[key] for key in ("a", "b", "c", "k", "n")}
        names["m"] = match["m1"] or match["m2"]
        pointers = [kernel.parameter(names[key]) for key in "abc"]
        if any(
            item is None or not item.pointer or item.base not in ("float", "__half", "half")
            for item in pointers
        ):
            continue
        if any(kernel.parameter(names[key]) is None for key in "mnk") or names["n"] not in (
            match["n1"],
            match["n2"],
        ):
            continue
        return _tiled(source, kernel, site, match, names, variant)
    return None


def _canonical(kernel: Function) -> re.Match[str] | None:
    text = "".join(normal(item) for item in statements(kernel.body))
    if kernel.template or any(assigned(item.name, kernel.body) for item in kernel.parameters):
        return None
    return next((match for pattern in _ORDERS if (match := pattern.fullmatch(text))), None)


def _two_axes(source: Source, site: LaunchSite, match: re.Match[str]) -> bool:
    """Whether the launch is two-dimensional with square or matching blocks."""
    block = dim_parts(site.block, source)
    if (
        len(block) != 2
        or not site.plain
        or len(site.configuration) != 2
        or match["axis_row"] == match["axis_col"]
    ):
        return False
    for name in ("row", "col"):
        extent = block["xy".index(match[f"axis_{name}"])]
        wanted = match[f"block_{name}"]
        if wanted != f"blockDim.{match[f'axis_{name}']}" and wanted != squash(extent):
            return False
    return True


def _tiled(
    source: Source,
    kernel: Function,
    site: LaunchSite,
    match: re.Match[str],
    names: dict[str, str],
    variant: int,
) -> str | None:
    values = dict(zip(("TILE_M", "TILE_N", "TILE_K", "PER_M", "PER_N"), TILES[variant], strict=True))
    words = {key: fresh(source, key) for key in values}
    passed = dict(zip((p.name for p in kernel.parameters), (squash(x) for x in site.arguments), strict=True))
    constants = "".join(f"constexpr int {words[key]} = {value};\n" for key, value in values.items())
    grid = (
        f"({passed[names['n']]} + {words['TILE_N']} - 1) / {words['TILE_N']}, "
        f"({passed[names['m']]} + {words['TILE_M']} - 1) / {words['TILE_M']}"
    )
    block = f"({words['TILE_M']} / {words['PER_M']}) * ({words['TILE_N']} / {words['PER_N']})"
    body = _BODY
    for key, word in words.items():
        body = re.sub(rf"\b{key}\b", word, body)
    wraps = {
        "LOAD_A": f"{match['la'] or '('}{names['a']}[(size_t)row * {names['k']} + depth])",
        "LOAD_B": f"{match['lb'] or '('}{names['b']}[(size_t)depth * {names['n']} + col])",
        "STORE": f"{names['c']}[(size_t)row * {names['n']} + col] = {match['sc'] or '('}sums[p][q]);",
        "SIZE_M": names["m"], "SIZE_N": names["n"], "SIZE_K": names["k"],
    }  # fmt: skip
    if _LOCALS & set(names.values()):
        return None
    for key, text in wraps.items():
        body = body.replace(key, text)
    return rewrite(
        source,
        [
            Splice(kernel.outer.start_byte, kernel.outer.start_byte, constants + "\n"),
            Splice(kernel.body.start_byte, kernel.body.end_byte, body.strip()),
            *configure(source, site, grid, block),
        ],
    )


#: Names the new body uses; a kernel with a parameter of such a name is left alone.
_LOCALS = {
    "row",
    "col",
    "depth",
    "first",
    "sums",
    "p",
    "q",
    "e",
    "i",
    "across",
    "threads",
    "a_tile",
    "b_tile",
}
_LOCALS |= {"a_part", "b_part", "top", "left", "thread_row", "thread_col"}

_BODY = """
{
    constexpr int across = TILE_N / PER_N;
    constexpr int threads = (TILE_M / PER_M) * across;
    __shared__ float a_tile[TILE_K][TILE_M + 1];
    __shared__ float b_tile[TILE_K][TILE_N];
    const int thread_row = threadIdx.x / across;
    const int thread_col = threadIdx.x % across;
    const int top = blockIdx.y * TILE_M;
    const int left = blockIdx.x * TILE_N;
    float sums[PER_M][PER_N] = {};
    for (int first = 0; first < SIZE_K; first += TILE_K) {
#pragma unroll
        for (int e = threadIdx.x; e < TILE_M * TILE_K; e += threads) {
            const int row = top + e / TILE_K;
            const int depth = first + e % TILE_K;
            a_tile[e % TILE_K][e / TILE_K] = row < SIZE_M && depth < SIZE_K ? LOAD_A : 0.0f;
        }
#pragma unroll
        for (int e = threadIdx.x; e < TILE_K * TILE_N; e += threads) {
            const int depth = first + e / TILE_N;
            const int col = left + e % TILE_N;
            b_tile[e / TILE_N][e % TILE_N] = col < SIZE_N && depth < SIZE_K ? LOAD_B : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE_K; ++i) {
            float a_part[PER_M], b_part[PER_N];
#pragma unroll
            for (int p = 0; p < PER_M; ++p) a_part[p] = a_tile[i][thread_row * PER_M + p];
#pragma unroll
            for (int q = 0; q < PER_N; ++q) b_part[q] = b_tile[i][thread_col + q * across];
#pragma unroll
            for (int p = 0; p < PER_M; ++p) {
#pragma unroll
                for (int q = 0; q < PER_N; ++q) sums[p][q] += a_part[p] * b_part[q];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int p = 0; p < PER_M; ++p) {
#pragma unroll
        for (int q = 0; q < PER_N; ++q) {
            const int row = top + thread_row * PER_M + p;
            const int col = left + thread_col + q * across;
            if (row < SIZE_M && col < SIZE_N) STORE
        }
    }
}
"""
