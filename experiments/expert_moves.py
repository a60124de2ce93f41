"""What the scripted expert knows: programs for six tasks, and which technique leads from which to which.

Sensible multi-step optimizations whose code is verified on the simulator (tests/test_expert.py), and
failures of the usual kinds: what does not compile, what computes something else, what is slower. The
expert's predicted speedups are one number a technique, as a textbook has them: some are well off.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from kb_env.task import load_task, solutions
from kb_env.types import KbError

#: Technique: the speedup that the expert predicts for it, whatever the situation.
PREDICTIONS: dict[str, float] = {
    "arithmetic": 1.1,
    "coalescing": 2.0,
    "coarsening": 1.3,
    "constants": 1.1,
    "fast intrinsics": 1.2,
    "fusion": 1.5,
    "launch bounds": 1.05,
    "online algorithm": 1.6,
    "padding": 1.2,
    "privatization": 2.0,
    "qualifiers": 1.05,
    "read-only loads": 1.1,
    "shuffles": 1.3,
    "split reduction": 1.4,
    "staging": 1.5,
    "tiling": 2.0,
    "unrolling": 1.2,
    "vectorization": 1.4,
}

#: An end that is no program: an answer that cannot be applied.
REFUSAL = "refusal"


@dataclass(frozen=True)
class Node:
    """A program: another one with pieces of text replaced. A parent ``right/NAME`` is one of the task's."""

    parent: str
    edits: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Script:
    """``moves``: (from, technique, to). Names: ``initial``, ``right/...``, ``wrong/...``, or one of ``nodes``."""

    moves: tuple[tuple[str, str, str], ...]
    nodes: Mapping[str, Node]


_SHUFFLED_SUM = (
    "    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);\n"
    "    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;\n"
    "    __syncthreads();\n"
    "    sum = 0.0f;\n"
    "    for (int w = 0; w < BLOCK / 32; ++w) sum += scratch[w];\n"
)

SCRIPTS: dict[str, Script] = {
    "transpose": Script(
        (
            ("initial", "tiling", "unpadded"),
            ("initial", "coalescing", "swapped"),
            ("initial", "fast intrinsics", "wrong/half_tile"),
            ("initial", "coarsening", "wrong/too_much_shared"),
            ("swapped", "tiling", "unpadded"),
            ("unpadded", "padding", "right/tile"),
            ("unpadded", "vectorization", "right/vec4"),
            ("right/tile", "vectorization", "right/vec4"),
        ),
        {
            "unpadded": Node("right/tile", (("[TILE + 1]", "[TILE]"),)),
            "swapped": Node(
                "initial",
                (
                    (
                        "int c = blockIdx.x * BLOCK_X + threadIdx.x;",
                        "int r = blockIdx.x * BLOCK_X + threadIdx.x;",
                    ),
                    (
                        "int r = blockIdx.y * BLOCK_Y + threadIdx.y;",
                        "int c = blockIdx.y * BLOCK_Y + threadIdx.y;",
                    ),
                    ("(cols + BLOCK_X - 1) / BLOCK_X", "(rows + BLOCK_X - 1) / BLOCK_X"),
                    ("(rows + BLOCK_Y - 1) / BLOCK_Y);", "(cols + BLOCK_Y - 1) / BLOCK_Y);"),
                ),
            ),
        },
    ),
    "softmax": Script(
        (
            ("initial", "staging", "right/registers"),
            ("initial", "online algorithm", "right/online"),
            ("initial", "fast intrinsics", "fast exponential"),
            ("initial", "coarsening", "wrong/first_kilocolumn"),
            ("initial", "fusion", REFUSAL),
            ("right/online", "staging", "right/registers"),
            ("fast exponential", "arithmetic", "fast reciprocal"),
            ("fast exponential", "staging", "right/registers"),
        ),
        {
            "fast exponential": Node(
                "initial",
                (
                    ("sum += expf(in[c] - largest)", "sum += __expf(in[c] - largest)"),
                    ("out[c] = expf(in[c] - largest)", "out[c] = __expf(in[c] - largest)"),
                ),
            ),
            "fast reciprocal": Node(
                "fast exponential",
                (
                    ("    sum = scratch[0];\n", "    sum = 1.0f / scratch[0];\n"),
                    ("largest) / sum;", "largest) * sum;"),
                ),
            ),
        },
    ),
    "histogram": Script(
        (
            ("initial", "privatization", "shared"),
            ("initial", "coarsening", "strided"),
            ("initial", "unrolling", "misspelt"),
            ("initial", "staging", "wrong/not_atomic"),
            ("strided", "privatization", "shared"),
            ("shared", "vectorization", "right/shared"),
            ("shared", "split reduction", "right/private_copies"),
            ("right/private_copies", "vectorization", "right/shared"),
        ),
        {
            "shared": Node(
                "initial",
                (
                    (
                        "__global__ void histogram(",
                        "__global__ void histogram_shared(const int* keys, int* counts, int n, int bins) {\n"
                        "    extern __shared__ int local[];\n"
                        "    for (int b = threadIdx.x; b < bins; b += BLOCK) local[b] = 0;\n"
                        "    __syncthreads();\n"
                        "    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK)\n"
                        "        atomicAdd(&local[keys[i]], 1);\n"
                        "    __syncthreads();\n"
                        "    for (int b = threadIdx.x; b < bins; b += BLOCK)\n"
                        "        if (local[b] != 0) atomicAdd(&counts[b], local[b]);\n"
                        "}\n\n"
                        "__global__ void histogram(",
                    ),
                    (
                        "    histogram<<<",
                        "    if (bins <= 8192) {\n"
                        "        int blocks = (n + BLOCK - 1) / BLOCK;\n"
                        "        if (blocks > 528) blocks = 528;\n"
                        "        histogram_shared<<<blocks, BLOCK, sizeof(int) * bins>>>(keys, counts, n, bins);\n"
                        "        return;\n"
                        "    }\n"
                        "    histogram<<<",
                    ),
                ),
            ),
            "strided": Node(
                "initial",
                (
                    (
                        "    int i = blockIdx.x * BLOCK + threadIdx.x;\n    if (i < n) atomicAdd(&counts[keys[i]], 1);",
                        "    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK)\n"
                        "        atomicAdd(&counts[keys[i]], 1);",
                    ),
                    ("(n + BLOCK - 1) / BLOCK, BLOCK", "(n + 4 * BLOCK - 1) / (4 * BLOCK), BLOCK"),
                ),
            ),
            "misspelt": Node("initial", (("atomicAdd(", "atomic_add("),)),
        },
    ),
    "row_sum": Script(
        (
            ("initial", "shuffles", "shuffled"),
            ("initial", "vectorization", "right/vec4"),
            ("initial", "split reduction", "right/split_rows"),
            ("initial", "fast intrinsics", "wrong/half_sum"),
            ("initial", "coarsening", "wrong/sampled"),
            ("shuffled", "vectorization", "right/vec4"),
            ("right/split_rows", "vectorization", "right/vec4"),
        ),
        {
            "shuffled": Node(
                "initial",
                (
                    (
                        "    scratch[threadIdx.x] = sum;\n"
                        "    __syncthreads();\n"
                        "    for (int step = 1; step < BLOCK; step *= 2) {\n"
                        "        if (threadIdx.x % (2 * step) == 0) "
                        "scratch[threadIdx.x] += scratch[threadIdx.x + step];\n"
                        "        __syncthreads();\n"
                        "    }\n",
                        _SHUFFLED_SUM,
                    ),
                    ("y[blockIdx.x] = scratch[0];", "y[blockIdx.x] = sum;"),
                ),
            )
        },
    ),
    "gelu": Script(
        (
            ("initial", "vectorization", "right/vec4"),
            ("initial", "coarsening", "four each"),
            ("initial", "arithmetic", "right/erfc"),
            ("initial", "fast intrinsics", "wrong/tanh_form"),
            ("initial", "unrolling", "wrong/skips_some"),
            ("four each", "vectorization", "right/vec4"),
            ("right/erfc", "vectorization", "right/vec4"),
        ),
        {
            "four each": Node(
                "initial",
                (
                    (
                        "    int i = blockIdx.x * BLOCK + threadIdx.x;\n    if (i < n) y[i]",
                        "#pragma unroll\n    for (int k = 0; k < 4; ++k) {\n"
                        "        int i = (blockIdx.x * 4 + k) * BLOCK + threadIdx.x;\n        if (i < n) y[i]",
                    ),
                    ("0.70710678f));\n", "0.70710678f));\n    }\n"),
                    ("(n + BLOCK - 1) / BLOCK, BLOCK", "(n + 4 * BLOCK - 1) / (4 * BLOCK), BLOCK"),
                ),
            )
        },
    ),
    "layernorm": Script(
        (
            ("initial", "staging", "right/registers"),
            ("initial", "online algorithm", "right/welford"),
            ("initial", "arithmetic", "reciprocal"),
            ("initial", "shuffles", "shuffled"),
            ("initial", "fast intrinsics", "wrong/half_statistics"),
            ("reciprocal", "unrolling", "misspelt"),
            ("reciprocal", "staging", "right/registers"),
            ("shuffled", "staging", "right/registers"),
            ("right/welford", "staging", "right/registers"),
        ),
        {
            "reciprocal": Node(
                "initial",
                (
                    ("float deviation = sqrtf(", "float scale = rsqrtf("),
                    ("(in[c] - mean) / deviation *", "(in[c] - mean) * scale *"),
                ),
            ),
            "shuffled": Node(
                "initial",
                (
                    (
                        "    scratch[threadIdx.x] = value;\n"
                        "    __syncthreads();\n"
                        "    for (int step = BLOCK / 2; step > 0; step /= 2) {\n"
                        "        if (threadIdx.x < step) scratch[threadIdx.x] += scratch[threadIdx.x + step];\n"
                        "        __syncthreads();\n"
                        "    }\n"
                        "    float sum = scratch[0];\n",
                        "    float sum = value;\n" + _SHUFFLED_SUM,
                    ),
                ),
            ),
            "misspelt": Node("initial", (("= block_sum(sum)", "= blocksum(sum)"),)),
        },
    ),
}


@functools.cache
def programs(task: str) -> dict[str, str]:
    """Texts of all programs of a task's script by name.

    Raises:
        KbError: if the task or one of its programs has changed so that the script does not fit.
    """
    script, loaded = SCRIPTS[task], load_task(task)
    texts = {"initial": loaded.source}
    for kind in ("right", "wrong"):
        for name, program in solutions(loaded, kind).items():
            lines = program.text.splitlines(keepends=True)
            # What a wrong program says of itself is not for the one who is to find out.
            texts[f"{kind}/{name}"] = "".join(line for line in lines if not line.startswith("// "))
    for name, node in script.nodes.items():
        texts[name] = _edited(texts[node.parent], node, f"{task}/{name}")
    for start, technique, end in script.moves:
        if start not in texts or (end not in texts and end != REFUSAL) or technique not in PREDICTIONS:
            raise KbError(
                f"the expert's script of {task} names {start!r}, {technique!r}, {end!r}: one is missing"
            )
    return texts


def _edited(text: str, node: Node, what: str) -> str:
    for search, replace in node.edits:
        if search not in text:
            raise KbError(
                f"the expert's script of {what} does not fit its program: {search[:60]!r} is not in it"
            )
        text = text.replace(search, replace)
    return text
