"""The analytic time model: counters of a plan's launches and a GPU description in, microseconds out.

Every figure from here is *modelled*. One SM is a closed queueing network (network.py) whose
customers are its resident warps; per warp the counters give the service time at each queue and the
waiting outside of queues. A grid is worked off in full rounds of resident blocks and a last, partly
filled one. Launches follow one another with a fixed gap; what one leaves in L2 the next one finds.

Assumptions (CONSTANTS, found with microbenchmarks and the calibration set on one H200; see
docs/time_model.md): one 128-byte line or one shared-memory wavefront a clock in the L1; an SM takes
a new block every 150 clocks or so; busy schedulers fill 83 % of their slots; a warp waits for its
longest chain of dependent instructions, basic block by basic block; cost.py says what a PTX
instruction is to the machine.

Uncertainty: each constant carries a relative standard error (SPREAD). A candidate and its baseline
share the constants, so errors of what both spend the same share of their time on cancel: the
variance of a log-ratio is the sum over the limits of (spread * difference of the shares)^2, where a
share is the elasticity of the total time to that limit. The limiter is the largest share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kb_env.devices import Device, resident_blocks
from kb_env.sim.counts import LaunchCounts
from kb_env.sim.network import response
from kb_env.sim.traffic import (
    SECTOR,
    Traffic,
    launch_traffic,
    left_in_l2,
    load_lines,
    store_lines,
    whole_footprint,
)

#: Which queue serves which limit; limits that are not here are delays.
QUEUES: dict[str, str] = {
    "block launch": "dispatch",
    "dram": "dram",
    "l2": "l2",
    "atomics": "atomics",
    "global access": "l1",
    "shared memory": "l1",
    "issue": "issue",
    "fp32": "fp32",  # with integer products
    "fp64": "fp64",
    "fp16": "fp16",
    "int": "int",
    "special": "special",
    "convert": "convert",
    "tensor": "tensor",
}
#: Limits whose service all SMs share: the fewer SMs work, the more each gets.
DEVICE_WIDE = frozenset({"block launch", "dram", "l2", "atomics"})
DELAYS: tuple[str, ...] = ("memory latency", "dependency", "barriers", "block start")

#: Relative standard error of each constant: from the residuals of the calibration set, whose speedups lie
#: inside the interval that follows from these in 92 of 100 cases.
SPREAD: dict[str, float] = {
    "block launch": 0.20,
    "block start": 0.50,
    "dram": 0.12,
    "l2": 0.30,
    "atomics": 0.25,
    "global access": 0.14,
    "shared memory": 0.20,
    "issue": 0.30,
    "fp32": 0.20,
    "fp64": 0.10,
    "fp16": 0.30,
    "int": 0.30,
    "special": 0.24,
    "convert": 0.30,
    "tensor": 0.30,
    "memory latency": 0.40,
    "dependency": 0.60,
    "barriers": 0.60,
    "launch": 0.30,
}

#: Machine instructions for one PTX instruction of a class, where the engine did not count them.
ISSUED: dict[str, float] = {"other": 0.3, "fp64": 1.0, "special": 1.0, "control": 0.7, "predicate": 0.8}
#: Clocks that a warp waits, beyond issuing, for one instruction of a class, where no chain was counted.
WAITS: dict[str, float] = {
    "fp32": 1.5,
    "fp64": 4.0,
    "fp16": 1.5,
    "int": 1.5,
    "special": 9.0,
    "convert": 4.0,
    "tensor": 12.0,
    "shared_load": 7.0,
    "control": 1.0,
    "predicate": 1.0,
    "atomic": 2.0,
}
L1_CLOCKS = 40.0
#: Part of a block's start in which its place on the SM is empty (H200: active warps of short blocks).
EMPTY_SHARE = 0.45
#: What a written byte costs DRAM against one of a copy, and that against a read one (H200: reads
#: alone reach 4.66 TB/s, a copy 4.35).
WRITE_COST = 1.18
SM_L2_BYTES = 64.0  # bytes a clock between one SM and L2


#: Warps that barriers keep in one phase, and the queues of the phases.
PHASE_WARPS = 8
FAMILIES = (
    ("dispatch",),
    ("dram", "l2", "atomics"),
    ("l1", "issue", "fp32", "fp64", "fp16", "int", "special", "convert", "tensor"),
)


@dataclass(frozen=True)
class Constants:
    """Clocks and shares that no data sheet gives; how each was found stands in docs/time_model.md."""

    #: a block's way onto an SM: so many clocks pass on it before the next one may follow
    block_clocks: float = 152.0
    block_warp_clocks: float = 1.3  # for each of its warps
    #: clocks between a block's end and the first instruction that works in the block that follows it
    start_clocks: float = 520.0
    #: more of these for each doubling of the block's warps: its place is free when the last of them has ended
    spread_clocks: float = 150.0
    #: share of the issue slots that busy schedulers fill
    issue_share: float = 0.8
    #: part of the chain of dependent instructions that a warp waits for
    chain_share: float = 0.2
    #: part of the integer instructions that ptxas gives to the fma pipe
    moved_share: float = 0.33
    #: part of a load's latency that a batch adds, and of the bandwidth of a copy that kernels sustain
    dram_wait: float = 0.706
    l2_wait: float = 0.414
    dram_share: float = 0.8445
    atomic_clocks: float = 3.5  # between atomics on one word
    atomic_sector_clocks: float = 3.0  # of one L2 slice for a request to one sector
    barrier_clocks: float = 12.0
    barrier_warp_clocks: float = 2.0  # for each warp of the block
    shared_atomic_clocks: float = 2.0  # a pass


CONSTANTS = Constants()


@dataclass(frozen=True)
class LaunchTime:
    """One launch: microseconds, elasticities (``shares``, sum about 1), and what filled the Profile."""

    kernel: str
    us: float
    shares: Mapping[str, float]
    busy: Mapping[str, float]  # queue -> 0..1 over the launch
    traffic: Traffic
    occupancy: float  # resident warps over the maximum
    waves: float
    registers: int


@dataclass(frozen=True)
class Modelled:
    """Modelled time of one call of a program. ``limits`` is microseconds by limit, summing to ``us``."""

    us: float
    limits: Mapping[str, float]
    limiter: str
    uncertainty: float  # relative standard error of the absolute time
    launches: tuple[LaunchTime, ...]

    def share(self, name: str) -> float:
        return self.limits.get(name, 0.0) / self.us if self.us > 0 else 0.0


@dataclass(frozen=True)
class Load:
    """What one warp asks of the SM: nanoseconds by limit, and how the grid is laid out."""

    work: Mapping[str, float]  # per warp, with all SMs active
    warps_per_block: int
    resident: int
    blocks: int
    slowest: float  # instructions of the busiest warp over the mean warp's
    coupling: float  # 0: warps overlap freely; 1: barriers keep a group of warps in one phase


def model_plan(
    device: Device,
    launches: Sequence[LaunchCounts],
    registers: Mapping[str, int],
    nbytes: Mapping[int, int],
    moved_bytes: int = 0,
    other_operations: int = 0,
) -> Modelled:
    """Modelled time of a recorded plan.

    Args:
        launches: counters of each kernel launch in order.
        registers: registers per thread by kernel name (32 where absent).
        nbytes: size of each plan buffer by index.
        moved_bytes: bytes that fills and copies read or write beside the kernels.
        other_operations: how many fills and copies there are.
    """
    cached: dict[int, float] = {}
    times = []
    for counts in launches:
        footprint = whole_footprint(counts, nbytes)
        times.append(_model_launch(device, counts, registers.get(counts.kernel, 32), footprint, cached))
        cached = left_in_l2(device, footprint, cached)
    limits: dict[str, float] = {}
    for time in times:
        for name, share in time.shares.items():
            limits[name] = limits.get(name, 0.0) + share * time.us
    steps = len(launches) + other_operations
    limits["launch"] = device.launch_us + (steps - 1) * device.gap_us
    limits["dram"] = limits.get("dram", 0.0) + moved_bytes / (device.dram_gbps * device.dram_efficiency * 1e3)
    total = 0.0
    for value in limits.values():
        total += value
    limiter = max(limits, key=lambda name: limits[name])
    variance = 0.0
    for name, value in limits.items():
        variance += (SPREAD[name] * value / total) ** 2
    return Modelled(total, limits, limiter, math.sqrt(variance), tuple(times))


def ratio_spread(candidate: Modelled, baseline: Modelled) -> float:
    """Relative standard error of ``baseline.us / candidate.us`` (see the module's docstring)."""
    variance = 0.0
    for name in SPREAD:
        variance += (SPREAD[name] * (candidate.share(name) - baseline.share(name))) ** 2
    return math.sqrt(variance)


def _model_launch(
    device: Device,
    counts: LaunchCounts,
    registers: int,
    footprint: Mapping[int, tuple[float, float]],
    cached: Mapping[int, float],
) -> LaunchTime:
    threads = counts.block[0] * counts.block[1] * counts.block[2]
    # A kernel that ran has room for one block; ptxas' limits say so even where our table does not.
    resident = max(1, resident_blocks(device, registers, counts.shared_bytes, threads))
    traffic = launch_traffic(device, counts, footprint, cached, resident)
    load = _load(device, counts, traffic, resident)
    base = _grid_ns(device, load, {})
    shares = _elasticities(device, load, base)
    names = sorted(set(QUEUES.values()))
    demands = [_demand(load, queue, {}, 1.0) for queue in names]
    # Busy over the whole launch: work of an average SM over the launch's time.
    per_sm = load.blocks * load.warps_per_block / device.sm_count
    busy = {n: min(1.0, d * per_sm / base) if base > 0 else 0.0 for n, d in zip(names, demands, strict=True)}
    return LaunchTime(
        kernel=counts.kernel,
        us=base / 1e3,
        shares=shares,
        busy=busy,
        traffic=traffic,
        occupancy=_occupancy(device, load, base),
        waves=load.blocks / (device.sm_count * load.resident),
        registers=registers,
    )


def _occupancy(device: Device, load: Load, ns: float) -> float:
    """Active warps over the most possible, on an SM that has any: less where blocks end and begin."""
    together = min(float(load.resident), load.blocks / min(device.sm_count, load.blocks))
    rounds = max(1.0, load.blocks / (device.sm_count * load.resident))
    empty = min(0.5, EMPTY_SHARE * load.work["block start"] * rounds / ns) if ns > 0 else 0.0
    return load.warps_per_block * together / device.max_warps * (1.0 - empty)


def _elasticities(device: Device, load: Load, base: float) -> dict[str, float]:
    """Relative change of the time for a relative change of each limit's cost, normalised to sum 1."""
    step = 0.03
    raw = {}
    for name, value in load.work.items():
        if value > 0.0:
            raw[name] = max(_grid_ns(device, load, {name: 1.0 + step}) - base, 0.0)
    total = 0.0
    for value in raw.values():
        total += value
    if total <= 0.0:
        return {"issue": 1.0}
    return {name: value / total for name, value in raw.items()}


def _grid_ns(device: Device, load: Load, factors: Mapping[str, float]) -> float:
    """Nanoseconds for the whole grid: full rounds of resident blocks, then the rest."""
    slots = device.sm_count * load.resident
    full, rest = divmod(load.blocks, slots)
    whole = _round_ns(load, factors, load.resident, 1.0) if full else 0.0
    time = full * whole
    if rest:
        active = min(device.sm_count, rest)
        last = _round_ns(load, factors, -(-rest // device.sm_count), active / device.sm_count)
        if full:
            # Blocks of many rounds drift apart and fill the last one's gaps.
            even = whole * rest / slots
            last = even + max(last - even, 0.0) * 2.0 / (2.0 + full)
        time += last
    return time


def _round_ns(load: Load, factors: Mapping[str, float], blocks: int, active: float) -> float:
    """Nanoseconds until ``blocks`` blocks on each active SM have run; ``active`` is the SMs' share."""
    demands = [_demand(load, queue, factors, active) for queue in sorted(set(QUEUES.values()))]
    delay = 0.0
    for name in DELAYS:
        delay += load.work[name] * factors.get(name, 1.0)
    # The busiest warp's extra instructions run with its own latency while the others are done.
    delay *= load.slowest
    free = response(demands, delay, blocks * load.warps_per_block)
    if load.coupling <= 0.0:
        return free
    together = min(load.warps_per_block, PHASE_WARPS)
    # A group that loads together and computes together: its warps follow one another through the
    # queues of either phase, so that the longest one counts, and the phases do not overlap in it.
    phased = []
    for family in FAMILIES:
        mine = [_demand(load, queue, factors, active) for queue in family]
        most = max(mine)
        phased += [d * together if d == most else 0.0 for d in mine]
    groups = max(1, blocks * load.warps_per_block // together)
    bound = max(response(phased, delay, groups), free)
    return load.coupling * bound + (1.0 - load.coupling) * free


def _demand(load: Load, queue: str, factors: Mapping[str, float], active: float) -> float:
    total = 0.0
    for name, served_by in QUEUES.items():
        if served_by == queue and name in load.work:
            scale = active if name in DEVICE_WIDE else 1.0
            total += load.work[name] * factors.get(name, 1.0) * scale
    return total


def _load(device: Device, counts: LaunchCounts, traffic: Traffic, resident: int) -> Load:
    threads = counts.block[0] * counts.block[1] * counts.block[2]
    warps_per_block = -(-threads // 32)
    run = max(counts.blocks_run * warps_per_block, 1)  # warps that were counted
    warps = counts.blocks_total * warps_per_block
    clock = 1.0 / device.clock_ghz
    mix, extra = counts.warp_instructions, counts.extra
    work = _memory_work(device, counts, traffic, warps)
    work["block launch"] = clock * (CONSTANTS.block_clocks / warps_per_block + CONSTANTS.block_warp_clocks)
    doublings = warps_per_block.bit_length() - 1
    work["block start"] = clock * (CONSTANTS.start_clocks + CONSTANTS.spread_clocks * doublings)
    passes = counts.shared_load_wavefronts + counts.shared_store_wavefronts + extra.get("shuffles", 0.0)
    passes += extra.get("shared_atomic_passes", 0.0) * CONSTANTS.shared_atomic_clocks
    work["shared memory"] = clock / run * passes
    work["global access"] = (
        clock / run * (load_lines(counts) + store_lines(counts) + counts.local_sectors / 4)
    )
    _pipes(device, counts, work, run)
    barriers = mix.get("barrier", 0) / run
    wait = CONSTANTS.barrier_clocks + CONSTANTS.barrier_warp_clocks * warps_per_block
    work["barriers"] = barriers * wait * clock
    mean = sum(mix.values()) / run
    slowest = min(max(counts.max_warp_instructions / mean, 1.0), 4.0) if mean > 0 else 1.0
    batches = counts.global_load_requests / run / max(counts.loads_in_flight, 1.0)
    batches = extra["load_batches"] / run if "load_batches" in extra else batches
    coupling = min(1.0, barriers / max(batches, 1.0))
    return Load(work, warps_per_block, resident, counts.blocks_total, slowest, coupling)


def _pipes(device: Device, counts: LaunchCounts, work: dict[str, float], run: int) -> None:
    """Fill in what issuing, the arithmetic pipes and dependent chains ask of a warp."""
    mix, extra = counts.warp_instructions, counts.extra
    clock = 1.0 / device.clock_ghz
    if "machine_issued" in extra:
        issued = extra["machine_issued"] / run
        # ptxas has the fma pipe do some of the integer additions and moves.
        moved = extra["machine_alu"] * CONSTANTS.moved_share
        lanes = {"fp32": extra["machine_fma"] + moved, "int": extra["machine_alu"] - moved}
        lanes["special"] = extra["machine_xu"]
        lanes |= {"fp16": extra["machine_half"], "fp64": float(mix.get("fp64", 0)), "convert": 0.0}
        chain = extra["machine_path"] / run * CONSTANTS.chain_share
    else:
        issued = sum(number * ISSUED.get(name, 1.0) for name, number in mix.items()) / run
        lanes = {
            name: float(mix.get(name, 0)) for name in ("fp32", "fp64", "fp16", "int", "special", "convert")
        }
        chain = issued + sum(mix.get(name, 0) * clocks for name, clocks in WAITS.items()) / run
    # Four schedulers: a queue of a quarter of the time and a delay of the rest (Seidmann et al. 1987).
    work["issue"] = issued * clock / 4 / CONSTANTS.issue_share
    for pipe, number in lanes.items():
        work[pipe] = number * 32 / device.rates[pipe] * clock / run
    macs = max(device.tensor_macs.get("float16", 0), 64)
    bulk = min(extra.get("wgmma_macs", 0.0), counts.tensor_macs)
    work["tensor"] = (bulk + (counts.tensor_macs - bulk) / device.mma_share) / macs * clock / run
    # A warp alone takes its chain, or an instruction a clock; what it spends in queues is part of that.
    work["dependency"] = max(max(chain, issued) * clock - work["issue"], 0.0)


def _memory_work(device: Device, counts: LaunchCounts, traffic: Traffic, warps: int) -> dict[str, float]:
    """Nanoseconds per warp at the shared levels and in latency, with every SM active."""
    clock = 1.0 / device.clock_ghz
    dram_bytes = (traffic.dram_reads / WRITE_COST + traffic.dram_writes * WRITE_COST) * SECTOR
    slots = traffic.l2_requests - traffic.stores + traffic.store_slots
    l2_gbps = min(device.l2_gbps, SM_L2_BYTES * device.sm_count * device.clock_ghz)
    local = counts.local_requests * counts.blocks_total / max(counts.blocks_run, 1) / warps
    per_warp = device.sm_count / warps
    return {
        "dram": dram_bytes / (device.dram_gbps * device.dram_efficiency * CONSTANTS.dram_share) * per_warp,
        "l2": slots * SECTOR / l2_gbps * per_warp,
        "atomics": _atomic_clocks(device, counts) * clock * per_warp,
        "memory latency": _waits(device, counts, traffic, warps) + local * L1_CLOCKS * clock * 0.5,
    }


def _waits(device: Device, counts: LaunchCounts, traffic: Traffic, warps: int) -> float:
    """Nanoseconds that one warp waits for its batches of global loads, were nothing else to do."""
    l1_ns = L1_CLOCKS / device.clock_ghz
    dram_ns, l2_ns = device.dram_ns * CONSTANTS.dram_wait, device.l2_ns * CONSTANTS.l2_wait
    if not traffic.loads:
        return 0.0
    if "load_batches" not in counts.extra:
        missed = min(1.0, traffic.l1_misses / traffic.loads)
        cold = min(missed, traffic.dram_reads / traffic.loads)
        mean = cold * dram_ns + (missed - cold) * l2_ns + (1.0 - missed) * l1_ns
        return traffic.load_requests / warps / max(counts.loads_in_flight, 1.0) * mean
    scale = counts.blocks_total / max(counts.blocks_run, 1) / warps
    first = counts.extra["block_sectors"] * counts.blocks_total / max(counts.blocks_run, 1)
    first = max(min(first, traffic.l1_misses), 1.0)
    # New to the block: from device memory, as far as no other block has brought it to L2.
    beyond = max(traffic.dram_reads - first, 0.0)
    new = min(1.0, traffic.dram_reads / first)
    new_ns = new * dram_ns + (1.0 - new) * l2_ns
    # Seen before: from L1, or where that has lost it from L2 or device memory.
    again = max(traffic.loads - first, 1.0)
    lost = min(1.0, max(traffic.l1_misses - first, 0.0) / again)
    far = min(lost, beyond / again)
    again_ns = far * dram_ns + (lost - far) * l2_ns + (1.0 - lost) * l1_ns
    batches, cold = counts.extra["load_batches"] * scale, counts.extra["cold_batches"] * scale
    return cold * new_ns + (batches - cold) * again_ns + counts.extra.get("async_waits", 0.0) * scale * new_ns


def _atomic_clocks(device: Device, counts: LaunchCounts) -> float:
    """Clocks that the whole grid's atomics take in L2: on the most wanted word, or in the busiest slice."""
    sectors = counts.atomic_sectors - counts.extra.get("shared_atomic_passes", 0.0)
    if counts.atomic_requests - counts.extra.get("shared_atomic_requests", 0.0) <= 0:
        return 0.0
    ratio = counts.blocks_total / max(counts.blocks_run, 1)
    # Atomics count as read and written; they go to the buffer that few words of are written.
    written = [min(item) for item in counts.footprint.values() if min(item) > 0]
    lines = max(1.0, min(written) / 4) if written else 1.0
    slices = lines / busiest(lines, device.l2_slices)
    hottest = counts.extra.get("atomic_hottest")
    if hottest is None:
        hottest = (counts.atomic_sectors + counts.atomic_conflicts) / (8.0 * min(written) if written else 8.0)
    return ratio * max(
        hottest * CONSTANTS.atomic_clocks, sectors * CONSTANTS.atomic_sector_clocks / max(slices, 1.0)
    )


def busiest(lines: float, slices: int) -> float:
    """Lines that the fullest of ``slices`` holds when ``lines`` are spread at random (a Poisson's tail)."""
    mean = lines / slices
    return max(1.0, mean + 3.7 * math.sqrt(mean))
