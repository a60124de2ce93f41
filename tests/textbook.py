"""Counters of textbook kernels worked out by hand, beside times measured on one H200 (cold L2).

The measured figures are medians of 21 runs of December 2026; the counters follow from the kernels'
index arithmetic, instruction counts are estimates of what the compiler emits.
"""

from __future__ import annotations

from kb_env.sim.counts import LaunchCounts


def counts(grid: int, block: int, mix: dict[str, float], **fields: object) -> LaunchCounts:
    """A launch of ``grid`` blocks; ``mix`` is warp instructions per warp, by class."""
    warps = grid * block // 32
    whole = {name: round(number * warps) for name, number in mix.items()}
    base: dict[str, object] = {
        "kernel": "k",
        "grid": (grid, 1, 1),
        "block": (block, 1, 1),
        "shared_bytes": 0,
        "blocks_run": grid,
        "blocks_total": grid,
        "warp_instructions": whole,
        "active_lanes": 32 * sum(whole.values()),
        "branches": 0,
        "divergent_branches": 0,
        "barriers": whole.get("barrier", 0),
        "max_warp_instructions": round(sum(mix.values())),
        "footprint": {},
    }
    for name in (
        "global_load_requests", "global_load_sectors", "global_load_bytes", "global_store_requests",
        "global_store_sectors", "global_store_bytes", "shared_load_requests", "shared_load_wavefronts",
        "shared_store_requests", "shared_store_wavefronts", "local_requests", "local_sectors",
        "atomic_requests", "atomic_sectors", "atomic_conflicts", "tensor_macs",
    ):  # fmt: skip
        base[name] = 0
    base.update(fields)
    return LaunchCounts(**base)  # type: ignore[arg-type]


N2 = 2048
FMAS = N2**3 // 32  # warp-level multiply-adds of a 2048 matmul
MATRIX = N2 * N2 * 4 // 32  # sectors
T = 4096 * 4096
REQ = T // 32
FULL = T * 4 // 32  # sectors of a 4096 x 4096 float matrix


def matmul(a_lines: int, b_lines: int, a_sectors: int, b_sectors: int, c_sectors: int) -> LaunchCounts:
    stores = N2 * N2 // 32
    per_k = FMAS // stores
    return counts(
        N2 * N2 // 256, 256, {"fp32": per_k, "global_load": 2 * per_k, "int": per_k * 0.75, "control": per_k / 4},
        global_load_requests=2 * FMAS, global_load_sectors=(a_sectors + b_sectors) * FMAS,
        global_load_bytes=2 * 128 * FMAS, global_store_requests=stores,
        global_store_sectors=stores * c_sectors, global_store_bytes=stores * 128, loads_in_flight=8.0,
        footprint={0: (MATRIX, 0), 1: (MATRIX, 0), 2: (0, MATRIX)},
        extra={"global_load_lines": float((a_lines + b_lines) * FMAS), "block_sectors": float(16384 * 8192 // 1)},
    )  # fmt: skip


def tiled(tile: int) -> LaunchCounts:
    warps = N2 * N2 // 32
    loads = 2 * FMAS // tile
    per = N2
    return counts(
        N2 * N2 // (tile * tile), tile * tile,
        {"fp32": per, "shared_load": 2 * per, "shared_store": 2 * per / tile, "global_load": 2 * per / tile,
         "int": 4 * per / tile, "control": per / tile, "barrier": 2 * per / tile},
        shared_bytes=2 * tile * tile * 4, global_load_requests=loads, global_load_sectors=4 * loads,
        global_load_bytes=128 * loads, global_store_requests=warps, global_store_sectors=4 * warps,
        global_store_bytes=128 * warps, loads_in_flight=2.0,
        shared_load_requests=2 * FMAS, shared_load_wavefronts=2 * FMAS,
        shared_store_requests=loads, shared_store_wavefronts=loads,
        footprint={0: (MATRIX, 0), 1: (MATRIX, 0), 2: (0, MATRIX)},
        extra={"global_load_lines": float(loads * (2 if tile == 16 else 1)), "block_sectors": float(4 * loads)},
    )  # fmt: skip


def register_tile() -> LaunchCounts:
    # 64 x 64 tile, 256 threads, 4 x 4 outputs a thread: 2 vector shared loads for 16 fma.
    blocks, k = 32 * 32, 2048
    warps = blocks * 8
    loads = warps * k // 8
    return counts(
        blocks, 256,
        {"fp32": 16 * k, "shared_load": 2 * k, "shared_store": k / 4, "global_load": k / 8, "int": k / 2,
         "control": k / 16, "barrier": k / 8},
        shared_bytes=8192, global_load_requests=loads, global_load_sectors=16 * loads,
        global_load_bytes=512 * loads, global_store_requests=warps * 4, global_store_sectors=warps * 64,
        global_store_bytes=warps * 2048, loads_in_flight=2.0,
        shared_load_requests=2 * warps * k, shared_load_wavefronts=6 * warps * k,
        shared_store_requests=loads, shared_store_wavefronts=4 * loads,
        footprint={0: (MATRIX, 0), 1: (MATRIX, 0), 2: (0, MATRIX)}, extra={"block_sectors": float(16 * loads)},
    )  # fmt: skip


def transpose(store_sectors: int, wavefronts: int, per_thread: int) -> LaunchCounts:
    warps = REQ // per_thread
    shared = {"shared_load": per_thread, "shared_store": per_thread, "barrier": 1} if wavefronts else {}
    return counts(
        warps // 8, 256,
        {"global_load": per_thread, "global_store": per_thread, "int": 4 * per_thread + 8, "control": 1, **shared},
        shared_bytes=4224 if wavefronts else 0, global_load_requests=REQ, global_load_sectors=4 * REQ,
        global_load_bytes=128 * REQ, global_store_requests=REQ, global_store_sectors=store_sectors * REQ,
        global_store_bytes=128 * REQ, loads_in_flight=float(per_thread),
        shared_load_requests=REQ if wavefronts else 0, shared_load_wavefronts=wavefronts * REQ,
        shared_store_requests=REQ if wavefronts else 0, shared_store_wavefronts=REQ if wavefronts else 0,
        footprint={0: (FULL, 0), 1: (0, FULL)}, extra={"block_sectors": float(FULL)},
    )  # fmt: skip


def reduction(
    blocks: int, elements_per_load: int, atomics: int, mix: dict[str, float], flight: float
) -> LaunchCounts:
    requests = T // 32 // elements_per_load
    warps = blocks * 8
    return counts(
        blocks, 256, {"global_load": requests / warps, **mix},
        shared_bytes=1024 if "barrier" in mix else 0,
        global_load_requests=requests, global_load_sectors=FULL, global_load_bytes=T * 4, loads_in_flight=flight,
        atomic_requests=max(atomics // 32, 1), atomic_sectors=max(atomics // 32, 1),
        shared_load_requests=round(mix.get("shared_load", 0) * warps),
        shared_load_wavefronts=round(mix.get("shared_load", 0) * warps),
        footprint={0: (FULL, 0), 1: (1, 1)},
        extra={"atomic_hottest": float(atomics), "block_sectors": float(FULL)},
    )  # fmt: skip


def softmax_row_thread() -> LaunchCounts:
    blocks = 16
    loads = 3 * REQ
    return counts(
        blocks, 256, {"global_load": 3 * 4096, "global_store": 4096, "fp32": 20 * 4096, "special": 2 * 4096,
                      "int": 4096, "control": 1024},
        global_load_requests=loads, global_load_sectors=32 * loads, global_load_bytes=128 * loads,
        global_store_requests=REQ, global_store_sectors=32 * REQ, global_store_bytes=128 * REQ,
        loads_in_flight=4.0, footprint={0: (FULL, 0), 1: (0, FULL)}, extra={"block_sectors": float(FULL)},
    )  # fmt: skip


def softmax_row_block(vector: bool) -> LaunchCounts:
    passes = 1 if vector else 3
    width = 4 if vector else 1
    loads = passes * REQ // width
    per = 16.0  # elements of a thread
    return counts(
        4096, 256,
        {"global_load": passes * per / width, "global_store": per / width, "fp32": per * (12 if vector else 26),
         "special": per * (1 if vector else 3), "int": per * (0.5 if vector else 3), "control": per / 4 + 8,
         "barrier": 4 if vector else 18, "shared_load": 4 if vector else 18},
        shared_bytes=1024, global_load_requests=loads, global_load_sectors=passes * FULL,
        global_load_bytes=passes * T * 4, global_store_requests=REQ // width, global_store_sectors=FULL,
        global_store_bytes=T * 4, loads_in_flight=4.0, footprint={0: (FULL, 0), 1: (0, FULL)},
        extra={"block_sectors": float(FULL)},
    )  # fmt: skip


#: name, measured microseconds, counters
TABLE: tuple[tuple[str, float, LaunchCounts], ...] = (
    ("matmul uncoalesced", 17946, matmul(16, 1, 16, 1, 32)),
    ("matmul naive", 3181, matmul(2, 1, 2, 2, 4)),
    ("matmul tiled 16", 2107, tiled(16)),
    ("matmul tiled 32", 1848, tiled(32)),
    ("matmul register 4x4", 604, register_tile()),
    ("transpose naive", 295, transpose(32, 0, 1)),
    ("transpose shared", 88, transpose(4, 32, 4)),
    ("transpose padded", 39, transpose(4, 1, 4)),
    ("copy", 48, transpose(4, 0, 1)),
    ("reduction atomics", 29449, reduction(65536, 1, T, {"atomic": 1, "int": 4}, 1.0)),
    ("reduction tree", 120,
     reduction(65536, 1, 65536, {"barrier": 9, "shared_load": 5, "shared_store": 3, "int": 30, "control": 18,
                                 "fp32": 4, "atomic": 0.1}, 1.0)),
    ("reduction shuffles", 41,
     reduction(264, 4, 264, {"fp32": 62 * 4, "int": 62 * 2, "control": 62, "barrier": 1}, 1.0)),
    ("softmax row thread", 2324, softmax_row_thread()),
    ("softmax row block", 72, softmax_row_block(False)),
    ("softmax registers", 36, softmax_row_block(True)),
)  # fmt: skip
