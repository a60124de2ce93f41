"""The static profile: what is known of a program without hardware counters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from kb_env.evaluators import Prepared
from kb_env.gpu.protocol import DeviceFacts, LaunchFacts
from kb_env.gpu.roofline import describe, roofline_us
from kb_env.types import Case, Profile, Timing


def static_profile(
    facts: DeviceFacts, prepared: Prepared, case: Case, launches: Sequence[LaunchFacts], timing: Timing
) -> Profile:
    """Registers, shared memory, occupancy and waves of the heaviest launch, and the roofline share.

    ``launches`` are the driver's facts of the case's launches, in order; the heaviest is the one
    with the most threads. Occupancy is the theoretical one.
    """
    plan = prepared.plans[case.name].launches
    index = max(range(len(plan)), key=lambda i: math.prod(plan[i].grid) * math.prod(plan[i].block))
    heavy, known = plan[index], launches[index]
    warps = -(-math.prod(heavy.block) // 32)
    slots = max(known.blocks_per_sm * facts.sm_count, 1)
    device = describe(facts)
    roofline = math.nan
    if device is not None:
        roofline = 100.0 * roofline_us(device, prepared.task, case) / statistics.median(timing.candidate_us)
    return Profile(
        source="static",
        occupancy_percent=100.0 * known.blocks_per_sm * warps / facts.warps_per_sm,
        registers=float(known.registers),
        shared_bytes=float(known.shared_bytes),
        spill_bytes=float(known.local_bytes),
        grid_waves=math.prod(heavy.grid) / slots,
        roofline_percent=roofline,
        launches=float(len(plan)),
    )
