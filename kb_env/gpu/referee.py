"""The referee: a host clock, which no device code can reach, must agree with the events.

Two looks. *Single runs*: what the runner's clock adds to the events of each timed run is the same for
candidate and baseline. *Slope*: the controller's clock over batches of K and of 2K runs back to back,
on K input sets and outputs prepared before and compared after; the slope between them, less that of
batches without a program, is the time of one run. Both only confirm the events' times, they never
replace them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from kb_env.devices import Device
from kb_env.gpu.bench import BASELINE, CANDIDATE, Bench
from kb_env.gpu.protocol import Checked
from kb_env.types import Case

#: Single runs: waking up from the wait scatters by a few microseconds, and a dirty L2 by a few more. Seventy
#: honest programs on an H200 were within 8 us, one of several milliseconds within 32 us.
SINGLE_SLACK_US, SHARE = 25.0, 0.1
#: Slope: beside the time in which one L2 full of dirty lines is written back, which events do not see. Wide:
#: back to back, long kernels run at other clocks than between pauses. On an H200 nine honest programs were within
#: 8 us, 30 us of 1.7 ms or 38 us of 0.5 ms at the first or second try.
SLOPE_SLACK_US, SLOPE_SHARE = 40.0, 0.35
#: Times that each batch is run; the shortest counts, since nothing makes a host clock read too little.
REPEATS = 3
#: Slopes that are taken before the host clock is believed to disagree: a process that starts beside them
#: disturbs one or two, and what a program hides is there each time.
TRIES = 4
#: Batches that may be spoilt by a slow host before the slope is given up.
SPOILT_LIMIT = 3
BATCH_SECONDS = 5.0
#: Longer runs than this have no batches: they would take seconds, and of a single run's time the share that the
#: host clock lets pass is as narrow.
LONG_US = 20_000.0


@dataclass(frozen=True)
class Finding:
    """Microseconds that the host found the candidate longer than its events did, beyond the baseline's.

    ``limit`` is how many are let pass; ``fault`` is what a run of a batch got wrong.
    """

    extra_us: float
    limit_us: float
    verdict: Checked | None = None

    @property
    def agreed(self) -> bool:
        return abs(self.extra_us) <= self.limit_us


def singles(times: tuple[list[float], list[float]], excess: tuple[list[float], list[float]]) -> Finding:
    """Judge single runs. ``excess`` is host minus event time, in microseconds, of candidate and baseline."""
    extra = statistics.median(excess[CANDIDATE]) - statistics.median(excess[BASELINE])
    return Finding(extra, SINGLE_SLACK_US + SHARE * _longest(times))


def slopes(
    bench: Bench, case: Case, times: tuple[list[float], list[float]], device: Device | None
) -> Finding | None:
    """Judge batches; None where they cannot be had (see :meth:`Bench.open`), would take long, or the host is
    too slow or too unsteady for them."""
    if bench.slots < 2 or _longest(times) > LONG_US:
        return None
    found: Finding | None = None
    for _ in range(TRIES):
        found = _try_slopes(bench, case, times, device)
        if found is None or found.verdict is not None or found.agreed:
            break
    return found


def _try_slopes(
    bench: Bench, case: Case, times: tuple[list[float], list[float]], device: Device | None
) -> Finding | None:
    limit = slope_limit(times, device)
    alone, scatter = _slope(bench, None, case)
    # Batches of trusted kernels alone say how steady the host is; no program has a part in them.
    if alone is None or scatter > limit:
        return None
    for slot in range(bench.slots):
        bench.content(case, slot)
    order = [CANDIDATE, BASELINE]
    bench.rng.shuffle(order)
    lag = {}
    for side in order:
        bench.arm_slots(side, case)
        slope, _ = _slope(bench, side, case)
        for slot in range(bench.slots):
            verdict = bench.judge_slot(side, case, slot)
            if not verdict.ok:
                return Finding(0.0, 0.0, verdict)
        if slope is None:
            return None
        lag[side] = slope - alone - statistics.median(times[side])
    return Finding(lag[CANDIDATE] - lag[BASELINE], limit)


def slope_limit(times: tuple[list[float], list[float]], device: Device | None) -> float:
    """Largest difference of the lags of two honest programs, in microseconds."""
    write_back = device.l2_bytes / (device.dram_gbps * device.dram_efficiency * 1e3) if device else 25.0
    return SLOPE_SLACK_US + write_back + SLOPE_SHARE * _longest(times)


def _slope(bench: Bench, side: int | None, case: Case) -> tuple[float | None, float]:
    """Microseconds of one more run of a batch (None if the host was too slow), and how far the repeats scatter."""
    few, many = bench.slots, 2 * bench.slots
    walls: dict[int, list[float]] = {few: [], many: []}
    for runs in (few, many) * REPEATS:
        found = bench.batch(side, case, runs, BATCH_SECONDS)
        if found is not None:
            walls[runs].append(found)
    if sum(map(len, walls.values())) < 2 * REPEATS - SPOILT_LIMIT or not (walls[few] and walls[many]):
        return None, 0.0
    scatter = max(statistics.median(wall) - min(wall) for wall in walls.values()) / few
    return (min(walls[many]) - min(walls[few])) / few, scatter


def _longest(times: tuple[list[float], list[float]]) -> float:
    return max(statistics.median(times[CANDIDATE]), statistics.median(times[BASELINE]))
