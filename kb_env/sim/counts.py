"""What the simulator counted while it ran one kernel launch: the input of the time model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LaunchCounts:
    """Counters of one launch, summed over the blocks that ran (not yet scaled to the whole grid).

    A *request* is one warp-level memory instruction with at least one active lane; a *sector* is
    32 bytes of global memory; a *wavefront* is one cycle of the shared-memory banks.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int  # static + dynamic, per block
    blocks_run: int
    blocks_total: int
    #: executed warp instructions by class: fp32, fp64, fp16, int, tensor, special (mufu), convert,
    #: control, predicate, global_load, global_store, shared_load, shared_store, local, atomic, barrier, other
    warp_instructions: Mapping[str, int]
    #: sum over executed warp instructions of active lanes (32 * warps is full efficiency)
    active_lanes: int
    branches: int
    divergent_branches: int
    barriers: int
    global_load_requests: int
    global_load_sectors: int
    global_load_bytes: int  # bytes the lanes asked for
    global_store_requests: int
    global_store_sectors: int
    global_store_bytes: int
    shared_load_requests: int
    shared_load_wavefronts: int
    shared_store_requests: int
    shared_store_wavefronts: int
    local_requests: int
    local_sectors: int
    atomic_requests: int
    atomic_sectors: int
    #: atomics to an address another lane of the same request also hits: serialised extra passes
    atomic_conflicts: int
    #: multiply-adds done by tensor-core instructions
    tensor_macs: int
    #: per buffer index: (distinct sectors read, distinct sectors written) by the blocks that ran
    footprint: Mapping[int, tuple[int, int]]
    #: longest dependent chain estimate: warp instructions executed by the busiest warp
    max_warp_instructions: int
    #: mean global loads that a warp issues before the first use of one of them (memory parallelism)
    loads_in_flight: float = 1.0
    #: per-load-instruction access statistics, for line-level feedback: (source line, requests, sectors)
    lines: tuple[tuple[int, int, int], ...] = ()
    #: further counters, summed like the others:
    #: ``global_load_lines``, ``global_store_lines``: 128-byte lines per request;
    #: ``shared_atomic_requests``, ``shared_atomic_passes``: of the atomic_* counters those on shared memory (a
    #: pass is one lane of the word that most lanes of a request want); ``shuffles``; ``wgmma_macs``;
    #: ``machine_*``: see cost.py; ``async_waits``: waits for copies, less those that other groups overlapped;
    #: and of sampled runs:
    #: ``atomic_hottest``: atomics on the most wanted global word;
    #: ``block_sectors``: distinct sectors that each block loads;
    #: ``reuse_K``: loads of a sector that its block has loaded before, less than 4^K loads of a warp ago (the
    #: last: any time ago), and ``distance_K``, the sum of those distances that are not under 4^(K-1);
    #: ``load_batches`` that a warp waits for at once, ``cold_batches`` with a load that is new to the block
    extra: Mapping[str, float] = field(default_factory=dict)
