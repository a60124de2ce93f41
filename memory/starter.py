"""The starter set: techniques in our words, and weak beliefs about where they help.

Each belief counts for a fraction of one observation, so that a few measured outcomes outweigh it.
"""

from __future__ import annotations

from memory.entries import Operation

AUTHOR = "starter"

#: Technique: what to do and when it pays.
TECHNIQUES: dict[str, str] = {
    "coalescing": "Let neighbouring threads touch neighbouring addresses: swap which thread axis walks the "
    "contiguous dimension, or go through shared memory. Pays when requests need more than 4 sectors per 4-byte load.",
    "tiling": "Load a block of the operands into shared memory once and reuse it from there. Pays when the same "
    "data is read by many threads of a block and caches do not keep it.",
    "register tiling": "Let each thread compute a small tile of outputs (4x4, 8x8) held in registers, so that each "
    "value loaded from shared memory is used several times. Pays when shared-memory traffic or issue limits.",
    "vectorization": "Use float4 or 16-byte loads and stores where addresses are aligned and contiguous; handle the "
    "tail apart. Pays on memory-bound kernels with many small requests.",
    "staging": "Read each input once, keep it in registers or shared memory, and work on the copy. Pays when a row is "
    "read in several passes.",
    "fusion": "Merge kernels that pass a buffer from one to the next, so that the intermediate never leaves the chip. "
    "Pays when there are several launches over the same data.",
    "online algorithm": "Replace several passes by one that carries running values (maximum and rescaled sum, Welford "
    "mean and variance). Pays on reductions that reread their input.",
    "shuffles": "Reduce inside a warp with __shfl_down_sync or __reduce_sync before touching shared memory. Pays when "
    "barriers and shared-memory steps dominate a reduction.",
    "privatization": "Give each block or warp its own accumulators in shared memory and merge them at the end. Pays "
    "when many threads hit the same atomic addresses.",
    "coarsening": "Let each thread do several independent elements, so that more loads are in flight and fixed costs "
    "are shared. Pays when the kernel waits on latency or has too many tiny blocks.",
    "unrolling": "Unroll inner loops so that independent loads are issued together and loop overhead shrinks.",
    "block size": "Change the number of threads per block: more for latency hiding, fewer for registers or tail.",
    "constants": "Change compile-time tile sizes and counts, one at a time, by factors of two.",
    "padding": "Add one element to the inner dimension of a shared array so that a column falls into different banks. "
    "Pays when bank conflicts show.",
    "swizzling": "Permute shared-memory columns by an XOR of the row, where padding would break vector alignment.",
    "launch bounds": "Tell the compiler the block size so that it can use more registers, or fewer for occupancy.",
    "qualifiers": "const and __restrict__ on pointers that do not alias let the compiler keep and reorder loads.",
    "read-only loads": "Load constant inputs through the read-only path (__ldg).",
    "asynchronous copies": "Copy the next tile with cp.async while computing on this one (double buffering). Pays when "
    "a tiled kernel waits for its loads.",
    "tensor cores": "Use wmma or mma.sync for matrix products whose declared accumulate type allows it.",
    "split reduction": "Split a long reduction over several blocks and add a second stage, when there are too few "
    "blocks to fill the GPU.",
    "persistent blocks": "Launch as many blocks as fit at once and loop over the work, when blocks are many and short.",
    "fast intrinsics": "Use __expf, __fdividef and the like only as far as the task's tolerance allows.",
    "arithmetic": "Hoist invariant divisions and replace them by multiplications; share subexpressions.",
    "index arithmetic": "Hoist address computation out of loops and use 32-bit indices where sizes allow.",
    "branch removal": "Replace divergent branches by predication or by handling the edge in a separate path.",
}

#: (technique, signature's limiter, log gain believed there).
BELIEFS: tuple[tuple[str, str, float], ...] = (
    ("coalescing", "dram", 0.6),
    ("coalescing", "latency", 0.4),
    ("vectorization", "dram", 0.15),
    ("vectorization", "latency", 0.2),
    ("staging", "dram", 0.25),
    ("fusion", "dram", 0.5),
    ("tiling", "issue", 0.5),
    ("tiling", "latency", 0.5),
    ("register tiling", "issue", 0.7),
    ("privatization", "latency", 0.7),
    ("coarsening", "latency", 0.15),
    ("shuffles", "latency", 0.1),
    ("tensor cores", "compute", 0.8),
)

#: How many observations one belief of the starter set counts for.
BELIEF_WEIGHT = 0.5


def starter() -> list[Operation]:
    """The operations that put the starter set into a memory; the same ones, and ids, every time."""
    techniques = [
        Operation("technique", name, text=text, author=AUTHOR, provenance=("starter",))
        for name, text in TECHNIQUES.items()
    ]
    beliefs = [
        Operation(
            "belief",
            name,
            signature=held,
            value=gain,
            weight=BELIEF_WEIGHT,
            author=AUTHOR,
            provenance=("starter",),
        )
        for name, held, gain in BELIEFS
    ]
    return techniques + beliefs
