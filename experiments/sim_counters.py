"""What the simulator counts against hardware counters: part of ``kb bench sim --counters``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kb_env.devices import Device
from kb_env.sim.counts import LaunchCounts
from kb_env.sim.model import LaunchTime
from kb_env.sim.profile import CaseResult
from kb_env.sim.traffic import SECTOR

_GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
#: DRAM reads are compared where a launch's footprint is over so many times the L2.
LARGE = 4.0


@dataclass(frozen=True)
class Pair:
    """One figure of one launch: ours and the hardware's."""

    figure: str
    where: str
    ours: float
    theirs: float

    @property
    def error(self) -> float:
        return abs(self.ours - self.theirs) / self.theirs


def pairs(
    device: Device, where: str, result: CaseResult, rows: Sequence[Mapping[str, float]]
) -> Iterator[Pair]:
    """Comparable figures of a case's launches; nothing where the profiler saw another number of them."""
    if len(rows) != len(result.counts):
        return
    for number, (counts, time, row) in enumerate(
        zip(result.counts, result.modelled.launches, rows, strict=True)
    ):
        for figure, ours, theirs in _figures(device, counts, time, row):
            if theirs > 0:
                yield Pair(figure, f"{where}, launch {number}", ours, theirs)


def _figures(
    device: Device, counts: LaunchCounts, time: LaunchTime, row: Mapping[str, float]
) -> Iterator[tuple[str, float, float]]:
    for kind, requests, sectors in (
        ("ld", counts.global_load_requests, counts.global_load_sectors),
        ("st", counts.global_store_requests, counts.global_store_sectors),
    ):
        asked = row.get(_GLOBAL.format("requests", kind), 0.0)
        if requests and asked:
            theirs = row.get(_GLOBAL.format("sectors", kind), 0.0) / asked
            yield f"sectors per request, {kind}", sectors / requests, theirs
    passes = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
    instructions = "smsp__sass_inst_executed_op_shared_{}.sum"
    asked = sum(row.get(instructions.format(kind), 0.0) for kind in ("ld", "st"))
    requests = counts.shared_load_requests + counts.shared_store_requests
    if requests and asked:
        ours = (counts.shared_load_wavefronts + counts.shared_store_wavefronts) / requests
        yield (
            "bank passes per request",
            ours,
            sum(row.get(passes.format(k), 0.0) for k in ("ld", "st")) / asked,
        )
    active = row.get("sm__warps_active.avg.pct_of_peak_sustained_active", 0.0)
    yield "occupancy", 100.0 * time.occupancy, active
    read = row.get("dram__bytes_read.sum", 0.0)
    ours = time.traffic.dram_reads * SECTOR
    if max(ours, read) > LARGE * device.l2_bytes:
        yield "dram reads, large footprint", ours, read


def report(found: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """Median error and share within 5 and 15 % by figure; the worst are printed."""
    result = {}
    for figure in dict.fromkeys(pair.figure for pair in found):
        errors = [pair.error for pair in found if pair.figure == figure]
        result[figure] = {
            "launches": len(errors),
            "median_error": statistics.median(errors),
            "within_5_percent": sum(e <= 0.05 for e in errors) / len(errors),
            "within_15_percent": sum(e <= 0.15 for e in errors) / len(errors),
        }
        worst = max((pair for pair in found if pair.figure == figure), key=lambda pair: pair.error)
        print(
            f"{figure:<32} {len(errors):3} launches, median error {result[figure]['median_error']:.1%}, "
            f"within 5 %: {result[figure]['within_5_percent']:.0%}, within 15 %: "
            f"{result[figure]['within_15_percent']:.0%}; worst {worst.where}: {worst.ours:.3g} for {worst.theirs:.3g}"
        )
    return result
