"""The order of one measurement: verify every check case, then time in randomised, fully checked pairs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from kb_env.devices import Device, floor_us
from kb_env.gpu.bench import BASELINE, CANDIDATE, Bench, CandidateFault, Outcome
from kb_env.gpu.protocol import Checked
from kb_env.gpu.referee import singles, slopes
from kb_env.gpu.roofline import describe
from kb_env.gpu.statistics import BLOCK, Interval, paired
from kb_env.types import Case, KbError, Status, Task, Timing

#: Runs of the baseline before the candidate is in the context, after one that is not counted.
ALONE_RUNS = 3
#: The baseline may slow down by this factor and these microseconds before the pairs are distrusted.
ALONE_FACTOR, ALONE_SLACK_US = 1.25, 3.0
#: Share of pairs before which the modules are loaded afresh, of pairs before which the runner proves
#: itself again, and of runs judged a second time.
RELOAD_SHARE, PROOF_SHARE, SECOND_LOOK_SHARE = 0.05, 0.05, 0.1
SECOND_LOOK_SECONDS = 0.003
#: Pairs that may be thrown away because the host was too slow to keep the queue busy.
EXPOSED_LIMIT = 30


class Deadline:
    """The watchdog's clock for one evaluation."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time that is nobody's: of trusted work between the runs."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._end += time.monotonic() - started

    @property
    def passed(self) -> bool:
        return time.monotonic() > self._end

    def check(self, stage: str, candidate_seconds: float) -> None:
        """End the evaluation if its time is up.

        Whether the task itself fits was seen before the candidate was loaded (:func:`baseline_alone`).

        Raises:
            CandidateFault: TIMED_OUT, with the part that its own runs had in it.
        """
        if self.passed:
            message = f"over {self._seconds:.0f} s in all, {candidate_seconds:.1f} s of them in its own runs"
            raise CandidateFault(Status.TIMED_OUT, stage, message)


def baseline_alone(bench: Bench, task: Task) -> dict[str, float]:
    """Median microseconds of the baseline by bench case, before the candidate is loaded.

    Raises:
        KbError: if the baseline is wrong, or so slow to check that no evaluation could end in time.
    """
    alone = {}
    needed = 0.0
    for case in task.bench:
        times, walls = [], []
        for _ in range(ALONE_RUNS + 1):
            started = time.monotonic()
            bench.content(case)
            outcome = bench.run(BASELINE, case, 30.0)
            if not outcome.checked.ok:
                raise KbError(f"the baseline is wrong in {case.name}: {outcome.checked.message}")
            times.append(outcome.microseconds)
            walls.append(time.monotonic() - started)
        alone[case.name] = statistics.median(times[1:])
        needed += min(walls) * 2 * bench.controls.min_pairs
    limit = bench.controls.evaluation_seconds
    if needed > limit:
        raise KbError(
            f"{bench.controls.min_pairs} checked pairs of {task.name} take about {needed:.0f} s on this GPU and "
            f"{limit:.0f} s may be used: choose smaller cases for the task"
        )
    return alone


def verify(bench: Bench, task: Task, deadline: Deadline) -> None:
    """Run and judge the candidate on every check case, each time on new content.

    Raises:
        CandidateFault: at the first run that is wrong, crashes or hangs.
    """
    for case in task.check:
        for _ in range(bench.controls.check_runs):
            deadline.check("verify", bench.candidate_seconds)
            bench.content(case)
            outcome = bench.run(CANDIDATE, case, bench.controls.run_seconds)
            _accept(outcome.checked, case, "verify")
        bench.cases_run += 1
    _accept(bench.look_far(), case, "verify")


def time_case(
    bench: Bench,
    case: Case,
    alone: float,
    name: str,
    deadline: Deadline,
    after_block: Callable[[Case, tuple[int, ...]], None] | None = None,
) -> Timing:
    """Pairs of candidate and baseline on the same content in random order, until the interval is narrow.

    ``after_block`` is told the seeds of each block's contents, all of them used.

    Raises:
        CandidateFault: if any timed run is wrong, crashes, hangs, or the times cannot be believed.
    """
    controls = bench.controls
    seconds = max(controls.run_factor * alone / 1e6, controls.run_seconds)
    times: tuple[list[float], list[float]] = ([], [])
    excess: tuple[list[float], list[float]] = ([], [])
    seeds: list[int] = []
    _warm(bench, case, seconds)
    while not _enough(times, bench, deadline):
        if controls.fresh_content or not seeds:
            seed = bench.content(case)
        reload = bench.rng.random() < RELOAD_SHARE
        if controls.proof and bench.rng.random() < PROOF_SHARE:
            bench.prove()
        order = [CANDIDATE, BASELINE]
        if controls.random_order:
            bench.rng.shuffle(order)
        pair = {side: _timed_run(bench, side, case, seconds, reload) for side in order}
        if any(outcome.exposed for outcome in pair.values()) and bench.exposed < EXPOSED_LIMIT:
            bench.lengthen()
            continue
        for side in order:
            times[side].append(pair[side].microseconds)
            excess[side].append(pair[side].host_us - pair[side].microseconds)
        seeds.append(seed)
        if after_block is not None and len(seeds) % BLOCK == 0:
            with deadline.paused():
                after_block(case, tuple(seeds[-BLOCK:]))
    _accept(bench.look_far(), case, "time")
    if controls.proof:
        bench.prove()
    _refer(bench, case, times, excess)
    return _timing(times, case, name, alone, bench)


def _refer(
    bench: Bench, case: Case, times: tuple[list[float], list[float]], excess: tuple[list[float], list[float]]
) -> None:
    """Let the host clock confirm the events' times.

    Raises:
        CandidateFault: if it does not, or if a run of a batch is wrong.
    """
    found = [singles(times, excess)]
    bench.referee_us = max(bench.referee_us, found[0].extra_us, key=abs)
    slope = slopes(bench, case, times, describe(bench.facts)) if bench.controls.referee else None
    if slope is not None:
        if slope.verdict is not None:
            _accept(slope.verdict, case, "time")
        bench.slope_us, bench.slope_limit_us = slope.extra_us, slope.limit_us
        bench.spread_guard()
        found.append(slope)
    for finding in found:
        if bench.controls.referee and not finding.agreed:
            message = (
                f"host clock and events disagree by {finding.extra_us:.1f} us more for the program than for "
                f"its baseline ({finding.limit_us:.1f} us are let pass)"
            )
            raise CandidateFault(Status.REFUSED, "time", message, "referee")


def _warm(bench: Bench, case: Case, seconds: float) -> None:
    """One checked run of each side that is not timed: first launches, clocks, page tables."""
    bench.content(case)
    for side in (CANDIDATE, BASELINE):
        _timed_run(bench, side, case, seconds, False)


def _enough(times: tuple[list[float], list[float]], bench: Bench, deadline: Deadline) -> bool:
    count, controls = len(times[0]), bench.controls
    if count < controls.min_pairs or count % BLOCK:
        deadline.check("time", bench.candidate_seconds)
        return False
    if count >= controls.max_pairs or deadline.passed:
        return True
    # Looking after every block would stop too often by luck; every second one is close to nominal.
    return count // BLOCK % 2 == 0 and paired(*times).half_width <= controls.half_width


def _timed_run(bench: Bench, side: int, case: Case, seconds: float, reload: bool) -> Outcome:
    controls = bench.controls
    outcome = bench.run(side, case, seconds, reload, controls.timed_checked)
    verdict = outcome.checked
    if verdict.ok and controls.second_look and bench.rng.random() < SECOND_LOOK_SHARE:
        time.sleep(SECOND_LOOK_SECONDS)
        verdict = bench.judge()
    if side == BASELINE and not verdict.ok:
        # The baseline was right before the candidate was loaded beside it.
        verdict = Checked(False, "baseline", f"the baseline became wrong: {verdict.message}", None)
    _accept(verdict, case, "time")
    return outcome


def _accept(verdict: Checked, case: Case, stage: str) -> None:
    if not verdict.ok:
        where = f"in a timed run of {case.name}" if stage == "time" else f"in {case.name}"
        raise CandidateFault(Status.WRONG, stage, f"{where}: {verdict.message}", verdict.fault)


def _timing(
    times: tuple[list[float], list[float]], case: Case, name: str, alone: float, bench: Bench
) -> Timing:
    candidate, baseline = times
    found: Interval = paired(candidate, baseline)
    now = statistics.median(baseline)
    if bench.controls.baseline_agrees and now > ALONE_FACTOR * alone + ALONE_SLACK_US:
        raise CandidateFault(
            Status.REFUSED,
            "time",
            f"the baseline took {now:.1f} us beside the program and {alone:.1f} us without it: not measured",
            "baseline",
        )
    return Timing(
        case=case.name,
        baseline=name,
        candidate_us=tuple(candidate),
        baseline_us=tuple(baseline),
        speedup=found.speedup,
        speedup_low=found.low,
        speedup_high=found.high,
        source="measured",
    )


def check_floor(device: Device | None, task: Task, timings: tuple[Timing, ...]) -> tuple[Timing, ...]:
    """The timings with their floors; times below what the device's peaks allow are rejected.

    Raises:
        CandidateFault: for the first case that is faster than physics.
    """
    if device is None:
        return timings
    cases = {case.name: case for case in task.bench}
    found = []
    for timing in timings:
        floor = floor_us(device, task, cases[timing.case])
        median = statistics.median(timing.candidate_us)
        if median < floor:
            message = (
                f"{timing.case}: {median:.2f} us is below the {floor:.2f} us that this GPU needs at least"
            )
            raise CandidateFault(Status.WRONG, "time", message, "floor")
        found.append(replace(timing, floor_us=floor))
    return tuple(found)
