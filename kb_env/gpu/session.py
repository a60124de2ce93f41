"""One candidate on one bench: verification, timings, and where it ended."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

from kb_env.evaluators import Prepared, Purpose
from kb_env.gpu.bench import BASELINE, CANDIDATE, Bench, CandidateFault
from kb_env.gpu.beside import Beside
from kb_env.gpu.protocol import LaunchFacts
from kb_env.gpu.roofline import describe
from kb_env.gpu.schedule import Deadline, baseline_alone, check_floor, time_case, verify
from kb_env.types import Fault, Profile, Timing, Verification


class Session:
    """The steps of one measurement, and what came of them."""

    def __init__(
        self,
        bench: Bench,
        prepared: Prepared,
        baseline: Prepared,
        purpose: Purpose,
        seconds: dict[str, float],
        beside: Beside | None = None,
    ) -> None:
        self.bench = bench
        self.prepared = prepared
        self.baseline = baseline
        self.purpose = purpose
        self.seconds = seconds
        self.fault: Fault | None = None
        self.verification: Verification | None = None
        self.timings: tuple[Timing, ...] | None = None
        self.profile: Profile | None = None
        self.libraries: tuple[Timing, ...] = ()
        self._beside = beside
        self.launches: dict[str, tuple[LaunchFacts, ...]] = {}

    def run(self) -> None:
        """Verify, then time; a fault of the candidate ends it and stays in the record."""
        try:
            self._verify_and_time()
        except CandidateFault as fault:
            self.reject(fault)

    def reject(self, fault: CandidateFault) -> None:
        """End with a fault: no time is left that anybody could be paid for."""
        self.fault = Fault(fault.status, fault.stage, fault.message)
        self.timings, self.libraries = None, ()
        self.verification = Verification(
            ok=False,
            fault=fault.fault or str(fault.status).lower(),
            cases_run=self.bench.cases_run,
            message=fault.message,
            worst=self.bench.worst,
        )

    @property
    def faster(self) -> bool:
        """Whether the program was timed and is faster than its baseline beyond doubt."""
        if not self.timings:
            return False
        return sum(math.log(timing.speedup_low) for timing in self.timings) > 0.0

    def _verify_and_time(self) -> None:
        bench, task = self.bench, self.prepared.task
        deadline = Deadline(bench.controls.evaluation_seconds)
        with phase(self.seconds, "open"):
            bench.open(task, self.prepared, self.baseline)
            bench.load(BASELINE, self.baseline)
        with phase(self.seconds, "baseline"):
            alone = baseline_alone(bench, task)
        with phase(self.seconds, "verify"):
            self.launches = bench.load(CANDIDATE, self.prepared)
            verify(bench, task, deadline)
        with phase(self.seconds, "time"):
            name = self.purpose.baseline_name
            after = self._beside.block if self._beside is not None else None
            timings = tuple(
                time_case(bench, case, alone[case.name], name, deadline, after) for case in task.bench
            )
            if bench.controls.floor:
                timings = check_floor(describe(bench.facts), task, timings)
        self.timings = timings
        if self._beside is not None:
            self.libraries = self._beside.timings(timings)
        cases = bench.cases_run + len(task.bench)
        self.verification = Verification(True, None, cases, f"all {cases} cases verified", bench.worst)


@contextlib.contextmanager
def phase(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall time of a phase to the record, also where the phase ends in a fault."""
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.monotonic() - started
