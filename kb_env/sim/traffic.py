"""Where the requested sectors are served: L1, L2 or device memory, for a whole launch.

Counters come from the blocks that ran; everything here is scaled to the full grid. All numbers
are modelled from footprints and reuse distances; only their inputs are counted.

A load of a sector that its block has loaded before is a reuse at the distance of d loads of a warp,
the block's warps taken to go on side by side. What the block touches in between is its footprint over
a window of that length (Denning's working set): the loads in it, less those that find their sector
again inside the window. All blocks that run at the same time do the same; where what they all touch
fits a cache, the reuse hits there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kb_env.devices import Device
from kb_env.sim.counts import LaunchCounts

SECTOR = 32
#: Share of the L2 that one kernel's data can count on: both halves of the chip hold copies.
L2_USABLE = 0.70
#: Share of the L2 that holds written data which has not gone to device memory when a kernel ends
#: (H200: 12 of 60 MB, from what DRAM had been written after kernels of known output).
L2_DIRTY = 0.15
#: How fast reuses are lost as live data grows over the capacity: at 1 + 1/SLOPE of it all are.
SLOPE = 3.0
#: Part of a block's data that is live at a time where no reuse distance was counted.
LIVE_SHARE = 0.25
#: Extra L2 slots of a store that covers none of its sector's bytes (naive transpose on an H200:
#: stores of 4 of 32 bytes ran at a third of the full-sector rate).
PARTIAL_STORE = 2.3
#: Bins of reuse distances in ``LaunchCounts.extra``: bin K holds those under 4^K loads of a warp.
REUSE_BINS = 9


@dataclass(frozen=True)
class Traffic:
    """Sectors of one whole launch. ``dram_*`` are what device memory moves."""

    loads: float  # requested by load instructions
    l1_misses: float
    stores: float
    store_slots: float  # stores weighted by what partial sectors cost in L2
    dram_reads: float
    dram_writes: float
    l2_requests: float
    load_requests: float

    @property
    def l1_hit(self) -> float:
        return 1.0 - self.l1_misses / self.loads if self.loads else 0.0

    @property
    def l2_hit(self) -> float:
        total = self.l2_requests
        return max(0.0, 1.0 - self.dram_reads / total) if total else 0.0


def whole_footprint(counts: LaunchCounts, nbytes: Mapping[int, int]) -> dict[int, tuple[float, float]]:
    """Distinct sectors (read, written) of each buffer by the whole grid, from those of the blocks run.

    Linear in the number of blocks and capped by the buffer: exact if all blocks ran, and right for
    data that blocks share as long as the sample touched all of it or the buffer is that small.
    """
    ratio = counts.blocks_total / max(counts.blocks_run, 1)
    whole = {}
    for buffer, (read, written) in counts.footprint.items():
        cap = (nbytes.get(buffer, 1 << 62) + SECTOR - 1) // SECTOR
        whole[buffer] = (min(read * ratio, float(cap)), min(written * ratio, float(cap)))
    return whole


def reuses(counts: LaunchCounts) -> list[tuple[float, float, float]]:
    """(distance, number, sectors that one block touches over that distance) of the counted reuses."""
    loads, blocks = float(counts.global_load_sectors), max(counts.blocks_run, 1)
    if "reuse_0" not in counts.extra or loads <= 0:
        return []
    threads = counts.block[0] * counts.block[1] * counts.block[2]
    width = loads / max(counts.global_load_requests, 1) * -(-threads // 32)
    own = counts.extra["block_sectors"] / blocks
    found, before = [], 0.0
    for k in range(REUSE_BINS):
        upto = counts.extra[f"reuse_{k}"]
        number = upto - before
        distance = counts.extra[f"distance_{k}"] / number if number else 0.0
        # In between lie this many loads; those that repeat one from inside the window add nothing.
        fresh = max(1.0 - before / loads, 0.0)
        found.append((distance, number, min(own, (distance * fresh + 1.0) * width)))
        before = upto
    return found


def hit_share(live: float, capacity: float) -> float:
    """Share of reuses that hit in a cache: all while what is live fits, none at 1.5 times as much.

    A cache that evicts the least recently used thrashes at once under cyclic use; real ones pick
    somewhat at random and degrade over a range.
    """
    if live <= 0.0:
        return 1.0
    return min(1.0, max(0.0, 1.0 - SLOPE * (live / capacity - 1.0))) if capacity > 0 else 0.0


def l1_misses(
    counts: LaunchCounts, resident: int, l1_bytes: float, slots: int
) -> tuple[float, list[tuple[float, float]]]:
    """Load sectors of the blocks run that L1 does not serve; ``slots`` blocks run at a time.

    Returns their number, and of the reuses among them (number, sectors one block touches in between).
    Without counted reuse distances the reuse inside a block hits as far as its live data fits.
    """
    loads = float(counts.global_load_sectors)
    capacity = l1_bytes / SECTOR / max(resident, 1)
    if loads <= 0:
        return 0.0, []
    found = reuses(counts)
    if not found:
        distinct = counts.extra.get(
            "block_sectors", float(sum(read for read, _ in counts.footprint.values()))
        )
        distinct = min(distinct, loads)
        live = LIVE_SHARE * distinct / max(counts.blocks_run, 1)
        lost = (loads - distinct) * (1.0 - (min(1.0, capacity / live) if live > 0 else 1.0))
        return distinct + lost, [(lost, live)]
    # A tag stands for a line of four sectors, however many of them are used.
    lines = counts.extra.get("global_load_lines", loads / 4)
    spread = min(4.0, max(1.0, 4.0 * lines / loads))
    missed = []
    for _, number, touched in found:
        missed.append((number * (1.0 - hit_share(touched * spread, capacity)), touched))
    # Data that every block loads (weights, a bias) stays where an SM's own blocks follow one another.
    own = counts.extra["block_sectors"]
    kept = common_sectors(counts) * counts.blocks_run * hit_share(own / counts.blocks_run * spread, capacity)
    total = own - kept * (1.0 - min(1.0, slots / max(counts.blocks_total, 1)))
    for number, _ in missed:
        total += number
    return total, missed


def common_sectors(counts: LaunchCounts) -> float:
    """Sectors that all blocks load, if what blocks share is shared by all: from how the union grows."""
    blocks = counts.blocks_run
    if blocks < 2 or "block_sectors" not in counts.extra:
        return 0.0
    union = float(sum(read for read, _ in counts.footprint.values()))
    return max(0.0, (counts.extra["block_sectors"] - union) / (blocks - 1))


def shared_carveout(device: Device, wanted: int) -> int:
    """Bytes of the L1 that become shared memory: the smallest configuration that holds ``wanted``."""
    for kib in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228):
        if wanted <= kib << 10 <= device.shared_per_sm:
            return kib << 10
    return device.shared_per_sm


def launch_traffic(
    device: Device,
    counts: LaunchCounts,
    footprint: Mapping[int, tuple[float, float]],
    cached: Mapping[int, float],
    resident: int,
) -> Traffic:
    """Split one launch's sectors over the memory levels.

    ``footprint`` is :func:`whole_footprint`; ``cached`` holds the sectors of each buffer that an
    earlier launch of the same plan left in L2; ``resident`` is the number of blocks on one SM.
    """
    ratio = counts.blocks_total / max(counts.blocks_run, 1)
    carved = shared_carveout(device, resident * (counts.shared_bytes + device.shared_reserved))
    running = min(counts.blocks_total, device.sm_count * resident)
    missed, again = l1_misses(counts, resident, max(device.l1_bytes - carved, 16 << 10) * 0.95, running)
    misses = missed * ratio
    compulsory = min(sum(read for read, _ in footprint.values()), max(misses, 0.0))
    warm = sum(min(cached.get(buffer, 0.0), read) for buffer, (read, _) in footprint.items())
    written = sum(item[1] for item in footprint.values())
    stores = counts.global_store_sectors * ratio
    capacity = device.l2_bytes * L2_USABLE / SECTOR
    # Stores pass through the L2 as well and take their part of it.
    crowd = 1.0 + (stores / misses if misses > 0 else 0.0)
    lost = 0.0
    for number, touched in again:
        # What blocks share counts once: never more is live than all that the launch touches.
        live = min(touched * running * crowd, compulsory + written)
        lost += number * ratio * (1.0 - hit_share(live, capacity))
    # Data that all blocks load stays in L2; what some share they find if they run together, or if it is still there.
    shared = max(misses - sum(number for number, _ in again) * ratio - compulsory, 0.0)
    shared = max(shared - common_sectors(counts) * counts.blocks_total, 0.0)
    together = min(1.0, 2.0 * running / max(counts.blocks_total, 1))
    lost += shared * (1.0 - hit_share(compulsory * together, capacity))
    fill = _store_fill(counts)
    left = max(device.l2_bytes * L2_DIRTY / SECTOR, capacity - compulsory)
    return Traffic(
        loads=counts.global_load_sectors * ratio,
        l1_misses=misses,
        stores=stores,
        store_slots=stores * (1.0 + PARTIAL_STORE * (1.0 - fill)),
        dram_reads=max(compulsory - warm, 0.0) + lost,
        dram_writes=max(written - left, 0.0),
        l2_requests=misses + stores + counts.atomic_sectors * ratio + 0.2 * counts.local_sectors * ratio,
        load_requests=counts.global_load_requests * ratio,
    )


def left_in_l2(
    device: Device, footprint: Mapping[int, tuple[float, float]], cached: Mapping[int, float]
) -> dict[int, float]:
    """Sectors of each buffer in L2 after a launch that touched ``footprint``.

    Data that does not fit is mostly gone before a later launch that starts from its beginning.
    """
    capacity = device.l2_bytes * L2_USABLE / SECTOR
    touched = {buffer: max(read, written) for buffer, (read, written) in footprint.items()}
    total = sum(touched.values())
    if total <= capacity:
        room = capacity - total
        older = {buffer: value for buffer, value in cached.items() if buffer not in touched}
        share = min(1.0, room / sum(older.values())) if sum(older.values()) > 0 else 0.0
        return {**{buffer: value * share for buffer, value in older.items()}, **touched}
    share = (capacity / total) * (capacity / total)
    return {buffer: value * share for buffer, value in touched.items()}


def load_lines(counts: LaunchCounts) -> float:
    """128-byte lines that the blocks' load requests touch: passes through the L1 tag stage."""
    return _lines(
        counts, "global_load_lines", counts.global_load_requests, counts.global_load_sectors,
        counts.global_load_bytes,
    )  # fmt: skip


def store_lines(counts: LaunchCounts) -> float:
    return _lines(
        counts, "global_store_lines", counts.global_store_requests, counts.global_store_sectors,
        counts.global_store_bytes,
    )  # fmt: skip


def _lines(counts: LaunchCounts, name: str, requests: int, sectors: int, nbytes: int) -> float:
    if name in counts.extra:
        return max(counts.extra[name], float(requests))
    if not sectors:
        return 0.0
    # Uncounted: full sectors lie side by side (four to a line), sparsely used ones apart.
    spread = max(0.0, 1.0 - nbytes / (sectors * SECTOR))
    return max(sectors * (0.25 + 0.75 * spread), float(requests))


def _store_fill(counts: LaunchCounts) -> float:
    if not counts.global_store_sectors:
        return 1.0
    return min(1.0, counts.global_store_bytes / (counts.global_store_sectors * SECTOR))
