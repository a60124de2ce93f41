"""The Profile of a modelled program: the same names as from a hardware profiler, source ``sim``.

Sectors, bank conflicts, divergence and the launch's shape are counted; the percentages of time are
modelled. Over several launches and cases each number is the mean weighted by modelled time, except
for sums and ratios of counters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kb_env.devices import Device
from kb_env.sim.counts import LaunchCounts
from kb_env.sim.model import LaunchTime, Modelled
from kb_env.sim.traffic import SECTOR
from kb_env.types import Profile


@dataclass(frozen=True)
class CaseResult:
    """One bench case: its model, its counters, and the task's own figures for it."""

    modelled: Modelled
    counts: tuple[LaunchCounts, ...]
    floor_us: float
    roofline_us: float
    bytes_moved: float


def profile(device: Device, cases: Sequence[CaseResult], spill_bytes: float | None) -> Profile:
    """One Profile over all bench cases."""
    launches = [time for case in cases for time in case.modelled.launches]
    counts = [item for case in cases for item in case.counts]
    total = sum(case.modelled.us for case in cases)
    running = sum(time.us for time in launches)

    def weighted(value: Callable[[LaunchTime], float]) -> float:
        return sum(value(time) * time.us for time in launches) / running if running > 0 else math.nan

    moved = sum((t.traffic.dram_reads + t.traffic.dram_writes) * SECTOR for t in launches)
    l2 = sum(t.traffic.l2_requests for t in launches)
    loads = sum(t.traffic.loads for t in launches)
    compute = ("fp32", "fp64", "fp16", "int", "special", "convert", "tensor", "issue", "l1")
    return Profile(
        source="sim",
        dram_percent=_percent(moved / (device.dram_gbps * 1e3), total),
        l2_hit_percent=_percent(l2 - sum(t.traffic.dram_reads for t in launches), l2, math.nan),
        l1_hit_percent=_percent(loads - sum(t.traffic.l1_misses for t in launches), loads, math.nan),
        sm_percent=100 * weighted(lambda t: max(t.busy[name] for name in compute)),
        tensor_percent=100 * weighted(lambda t: t.busy["tensor"]),
        fp_percent=100 * weighted(lambda t: max(t.busy["fp32"], t.busy["fp64"], t.busy["fp16"])),
        issue_percent=100 * weighted(lambda t: t.busy["issue"]),
        occupancy_percent=100 * weighted(lambda t: t.occupancy),
        sectors_per_request=_ratio(
            [c.global_load_sectors + c.global_store_sectors for c in counts],
            [c.global_load_requests + c.global_store_requests for c in counts],
        ),
        bank_conflict_ways=_ratio(
            [c.shared_load_wavefronts + c.shared_store_wavefronts for c in counts],
            [c.shared_load_requests + c.shared_store_requests for c in counts],
        ),
        branch_efficiency_percent=_branch_efficiency(counts),
        registers=float(max(t.registers for t in launches)),
        shared_bytes=float(max(c.shared_bytes for c in counts)),
        spill_bytes=math.nan if spill_bytes is None else float(spill_bytes),
        grid_waves=weighted(lambda t: t.waves),
        bytes_over_floor=moved / sum(case.bytes_moved for case in cases),
        roofline_percent=_percent(sum(case.roofline_us for case in cases), total),
        launches=sum(len(case.counts) for case in cases) / len(cases),
    )


def _percent(part: float, whole: float, empty: float = 0.0) -> float:
    return min(100.0, max(0.0, 100.0 * part / whole)) if whole > 0 else empty


def _ratio(parts: Sequence[int], wholes: Sequence[int]) -> float:
    return sum(parts) / sum(wholes) if sum(wholes) else math.nan


def _branch_efficiency(counts: Sequence[LaunchCounts]) -> float:
    branches = sum(c.branches for c in counts)
    return 100.0 * (1 - sum(c.divergent_branches for c in counts) / branches) if branches else math.nan
