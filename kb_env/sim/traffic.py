"""Where the requested sectors are served: L1, L2 or device memory, for a whole launch.

Counters come from the blocks that ran; everything here is scaled to the full grid. All numbers
are modelled from footprints and reuse distances; only their inputs are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kb_env.devices import Device
from kb_env.sim.counts import LaunchCounts

SECTOR = 32
#: Share of the L2 that one kernel's data can count on: both halves of the chip hold copies.
L2_USABLE = 0.75
#: Part of a block's data that is live at a time where no reuse distance was counted.
LIVE_SHARE = 0.25
#: Extra L2 slots of a store that covers none of its sector's bytes (naive transpose on an H200:
#: stores of 4 of 32 bytes ran at a third of the full-sector rate).
PARTIAL_STORE = 2.3
#: Reuse distances, log2 of sector accesses, that an engine may count (``LaunchCounts.extra``).
REUSE_STEPS = (10, 12, 14, 16, 18)


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


def l1_misses(counts: LaunchCounts, resident: int, l1_bytes: float) -> float:
    """Load sectors of the blocks run that L1 does not serve.

    With counted reuse distances a reuse hits when the data of all resident blocks since the last
    access fits; otherwise the reuse inside a block hits as far as its live data fits.
    """
    loads = float(counts.global_load_sectors)
    if loads <= 0:
        return 0.0
    capacity = l1_bytes / SECTOR / max(resident, 1)
    steps = [(1 << k, counts.extra[f"reuse_{k}"]) for k in REUSE_STEPS if f"reuse_{k}" in counts.extra]
    if steps:
        hits, previous_distance, previous_hits = 0.0, 0.0, 0.0
        for distance, count in steps:
            if capacity >= distance:
                hits = count
            elif capacity > previous_distance:
                part = (capacity - previous_distance) / (distance - previous_distance)
                hits = previous_hits + part * (count - previous_hits)
            previous_distance, previous_hits = float(distance), count
        return max(loads - hits, 0.0)
    distinct = counts.extra.get("block_sectors", float(sum(read for read, _ in counts.footprint.values())))
    distinct = min(distinct, loads)
    live = LIVE_SHARE * distinct / max(counts.blocks_run, 1)
    kept = min(1.0, capacity / live) if live > 0 else 1.0
    return distinct + (loads - distinct) * (1.0 - kept)


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
    l1_bytes = max(device.l1_bytes - resident * counts.shared_bytes, 16 << 10) * 0.9
    misses = l1_misses(counts, resident, l1_bytes) * ratio
    compulsory = min(sum(read for read, _ in footprint.values()), max(misses, 0.0))
    warm = sum(min(cached.get(buffer, 0.0), read) for buffer, (read, _) in footprint.items())
    written = sum(item[1] for item in footprint.values())
    capacity = device.l2_bytes * L2_USABLE / SECTOR
    in_flight = min(counts.blocks_total, device.sm_count * resident) / max(counts.blocks_total, 1)
    live = min(compulsory, max(misses * in_flight * LIVE_SHARE, 1.0))
    lost = (misses - compulsory) * max(0.0, 1.0 - capacity / live) if live > 0 else 0.0
    stores = counts.global_store_sectors * ratio
    fill = _store_fill(counts)
    atomics = counts.atomic_sectors * ratio
    local = counts.local_sectors * ratio
    # A partly written sector that is evicted before it is complete is read and written again.
    rewritten = (stores - written) * max(0.0, 1.0 - 4.0 * capacity / max(written, 1.0)) * (1.0 - fill)
    return Traffic(
        loads=counts.global_load_sectors * ratio,
        l1_misses=misses,
        stores=stores,
        store_slots=stores * (1.0 + PARTIAL_STORE * (1.0 - fill)),
        dram_reads=max(compulsory - warm, 0.0) + lost,
        dram_writes=written + max(rewritten, 0.0),
        l2_requests=misses + stores + atomics + 0.2 * local,
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
