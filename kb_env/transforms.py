"""The catalogue of source transforms: what can be tried on a kernel without understanding it.

Each transform is a pure function of a text and a variant number that gives a new text, or None where
it does not apply. Structural ones match an exact pattern on the syntax tree and keep the meaning of
what they match; whatever is left to doubt (a constant whose value the program relies on in a way
the tree does not show) the evaluator's verification finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from kb_env import (
    transform_constants,
    transform_elementwise,
    transform_layout,
    transform_matmul,
    transform_qualifiers,
    transform_reduce,
    transform_rows,
)
from kb_env.transform_constants import Constant, constants, drop_unused, set_constant
from kb_env.transform_tree import Source, parse

__all__ = ["CATALOGUE", "VARIANTS", "Constant", "Transform", "applicable", "constants", "set_constant"]


@dataclass(frozen=True)
class Transform:
    """One way to rewrite a program. ``apply(text, variant)`` with ``0 <= variant < variants``.

    ``technique`` is the word for it that memories and reports group by.
    """

    name: str
    summary: str
    apply: Callable[[str, int], str | None]
    variants: int
    technique: str


@dataclass(frozen=True)
class _Checked:
    """A rewrite that parses its input, and passes on only clean, changed texts. Picklable, cached."""

    rewrite: Callable[[Source, int], str | None]
    variants: int

    def __call__(self, text: str, variant: int) -> str | None:
        return _apply(self.rewrite, text, int(variant)) if 0 <= variant < self.variants else None


@lru_cache(maxsize=8192)
def _apply(rewrite: Callable[[Source, int], str | None], text: str, variant: int) -> str | None:
    source = parse(text)
    result = rewrite(source, variant) if source is not None else None
    if source is None or result is None or result == text:
        return None
    return drop_unused(source, result)


def _transform(
    rewrite: Callable[[Source, int], str | None], variants: int, technique: str, summary: str
) -> Transform:
    return Transform(rewrite.__name__, summary, _Checked(rewrite, variants), variants, technique)


CATALOGUE: tuple[Transform, ...] = (
    _transform(
        transform_matmul.tile_matmul,
        len(transform_matmul.TILES),
        "tiling",
        "naive matrix product through shared-memory tiles, several results a thread",
    ),
    _transform(transform_elementwise.fuse, 3, "fusion", "two elementwise kernels in a row become one"),
    _transform(
        transform_rows.hold_row,
        len(transform_rows.HELD) + len(transform_rows.QUADS),
        "staging",
        "keep a row that is read several times in registers, as values or float4",
    ),
    _transform(
        transform_reduce.warp_shuffles, 1, "shuffles", "shared-memory tree reductions become warp shuffles"
    ),
    _transform(transform_reduce.scan_shuffles, 1, "shuffles", "a block's scan by warp shuffles"),
    _transform(transform_rows.vectorize_rows, 1, "vectorization", "row loops through float4"),
    _transform(
        transform_layout.tile_transpose, 3, "coalescing", "transpose through a padded tile in shared memory"
    ),
    _transform(
        transform_layout.swap_axes, 2, "coalescing", "exchange the thread axes of a kernel's two indices"
    ),
    _transform(transform_layout.pad_shared, 1, "padding", "one column more in square shared-memory tiles"),
    _transform(
        transform_layout.privatize,
        len(transform_layout.BLOCKS),
        "privatization",
        "count into shared memory, then add to global memory once a block",
    ),
    _transform(
        transform_layout.narrow_index, 1, "arithmetic", "32-bit index arithmetic where the size allows it"
    ),
    _transform(
        transform_elementwise.vectorize_elements, 4, "vectorization", "four elements a thread through float4"
    ),
    _transform(
        transform_elementwise.coarsen,
        len(transform_elementwise.COARSENING),
        "coarsening",
        "2, 4 or 8 elements a thread by a grid-stride loop",
    ),
    _transform(
        transform_constants.change_constant,
        transform_constants.SLOTS * len(transform_constants.FACTORS),
        "constants",
        "multiply a tunable compile-time constant by 2, 1/2, 4 or 1/4",
    ),
    _transform(
        transform_constants.block_literals,
        len(transform_constants.FACTORS),
        "block size",
        "multiply a literal block size by 2, 1/2, 4 or 1/4, with its grid",
    ),
    _transform(
        transform_constants.launch_bounds,
        4,
        "launch bounds",
        "declare the block size to the compiler, with 0, 2, 4 or 8 resident blocks",
    ),
    _transform(transform_qualifiers.add_const, 1, "qualifiers", "const on pointers that are only read"),
    _transform(transform_qualifiers.add_restrict, 3, "qualifiers", "__restrict__ on separate buffers"),
    _transform(transform_qualifiers.read_only_loads, 1, "read-only loads", "__ldg on const pointers"),
    _transform(
        transform_qualifiers.unroll,
        transform_qualifiers.LOOP_SLOTS * len(transform_qualifiers.UNROLL),
        "unrolling",
        "unroll one of the first loops by 2, 4, 8 or fully",
    ),
    _transform(
        transform_qualifiers.reciprocal, 1, "arithmetic", "divide once before a loop, multiply inside it"
    ),
)


#: The most variants any transform has: actions are pairs (position in CATALOGUE, variant below this).
VARIANTS: int = max(item.variants for item in CATALOGUE)


@lru_cache(maxsize=2048)
def _applicable(text: str) -> tuple[tuple[int, int], ...]:
    pairs = ((i, v) for i, item in enumerate(CATALOGUE) for v in range(item.variants))
    return tuple((i, v) for i, v in pairs if CATALOGUE[i].apply(text, v) is not None)


def applicable(text: str) -> list[tuple[int, int]]:
    """All (position in CATALOGUE, variant) pairs that change this text, in catalogue order."""
    return list(_applicable(text))
