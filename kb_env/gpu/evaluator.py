"""The sealed, measured evaluator: controller of runners and an oracle on one GPU.

The controller lives in the environment's process and holds what decides: seeds, order, deadlines,
the verdict. It never touches CUDA itself.
"""

from __future__ import annotations

import contextlib
import math
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kb_env.evaluators import DeviceUnfit, Prepared, Purpose
from kb_env.gpu.bench import ORACLE_SECONDS, Bench, CandidateFault, RunnerLost
from kb_env.gpu.beside import Beside, LibraryBaselines
from kb_env.gpu.controls import Controls
from kb_env.gpu.crew import STANDBYS, Crew
from kb_env.gpu.health import Monitor, visible_name
from kb_env.gpu.ncu import Ncu
from kb_env.gpu.process import Worker, WorkerDied, WorkerFailed, WorkerTimeout
from kb_env.gpu.profile import static_profile
from kb_env.gpu.protocol import DeviceFacts, Done, Draw, Drawn, Pose
from kb_env.gpu.sanitizer import Sanitizer, StandIn, small_case
from kb_env.gpu.session import Session, phase
from kb_env.gpu.statistics import block_logs, interval
from kb_env.prepare import prepare
from kb_env.store import default_store
from kb_env.types import (
    Case,
    Evaluation,
    Fault,
    KbError,
    Profile,
    Program,
    Status,
    Task,
    Timing,
    Verification,
)

#: Pairs of an A/A control; its interval at this level must hold 1, unless it is this close to 1 anyway.
CONTROL_PAIRS, CONTROL_LEVEL, CONTROL_SLACK = 12, 0.99, 0.01
#: Baselines whose code is kept: in a long run every new best is one.
BASELINES = 64
#: Seconds to wait for another evaluation on the same GPU.
LOCK_SECONDS = 600.0


class GpuEvaluator:
    """Sealed evaluations on local GPU ``index`` (an index into CUDA_VISIBLE_DEVICES).

    ``standbys`` runners are started ahead. Nothing is started before the first use. ``prepare`` may run
    in many threads or processes; ``measure`` holds the GPU's lock. Close it, or use it as a context manager.

    Raises:
        KbError: from any method, if the GPU, the oracle or the baseline fails; never for what a
            candidate does.
    """

    trust = "sealed"
    source = "measured"

    def __init__(
        self,
        index: int = 0,
        store: Path | None = None,
        controls: Controls = Controls(),
        standbys: int = STANDBYS,
        counters: bool = True,
    ) -> None:
        self.index = index
        self.store = store or default_store()
        self.controls = controls
        #: whether profiles ask for hardware counters, which takes seconds each; else they are static
        self.counters = counters
        self.device = visible_name(index)
        self._crew = Crew(index, standbys)
        self._monitor: Monitor | None = None
        self._ncu: Ncu | None = None
        self._sanitizer: Sanitizer | None = None
        self._stand_in: StandIn | None = None
        self._libraries: LibraryBaselines | None = None
        self._baselines: dict[tuple[str, str], Prepared] = {}
        #: seconds that the last measurement waited for answers, by what was asked
        self.waits: dict[str, float] = {}
        #: whether an A/A control has held since this evaluator started, or since the last crash or hang
        self._controlled = False

    @property
    def facts(self) -> DeviceFacts:
        """What the driver says about the GPU; starts a runner if none was started yet."""
        return self._crew.facts

    def prepare(self, task: Task, program: Program) -> Prepared:
        """Build and record on the CPU; the GPU's processes start meanwhile."""
        return prepare(task, program, self.facts.architecture, self.store, (*task.check, *task.bench))

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        return self.measure(self.prepare(task, program), purpose)

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        """Verify and time one prepared program; see :mod:`kb_env.gpu.schedule` for the order."""
        if prepared.fault is not None:
            return self._evaluation(prepared, fault=prepared.fault)
        baseline = self._baseline(prepared.task, purpose.baseline or prepared.task.initial)
        with self._lock():
            return self._measure(prepared, baseline, purpose)

    def close(self) -> None:
        """End every process this evaluator started."""
        self._crew.close()
        if self._libraries is not None:
            self._libraries.close()
        if self._stand_in is not None:
            self._stand_in.close()
        self._ncu = self._libraries = self._stand_in = None

    def __getstate__(self) -> dict[str, object]:
        kept = {"index": self.index, "store": self.store, "controls": self.controls}
        return kept | {"standbys": self._crew.standbys, "counters": self.counters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __enter__(self) -> GpuEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _baseline(self, task: Task, program: Program) -> Prepared:
        """The baseline's code is kept, its times never are."""
        key = task.key, program.key
        prepared = self._baselines.get(key)
        if prepared is None:
            prepared = self.prepare(task, program)
            if prepared.fault is not None:
                raise KbError(f"the baseline of {task.name} cannot be measured: {prepared.fault.message}")
            if len(self._baselines) >= BASELINES:
                self._baselines.clear()
            self._baselines[key] = prepared
        return prepared

    def _measure(
        self, prepared: Prepared, baseline: Prepared, purpose: Purpose, retries: int | None = None
    ) -> Evaluation:
        """One measurement; another one if the runner was lost before the candidate came near it."""
        retries = self._crew.standbys + 1 if retries is None else retries
        seconds = dict(prepared.seconds)
        health: dict[str, float | str] = {}
        if not self._controlled:
            with phase(seconds, "control"):
                health |= self._control(baseline)
        with phase(seconds, "start"):
            oracle = self._crew.oracle()  # after the control, which may have lost one
            runner = self._crew.runner()
            self._crew.start_ahead()
        beside = self._beside(prepared.task, purpose)
        health |= self._health("before", runner, oracle)
        bench = Bench(runner, oracle, self.facts, self.controls, self._crew.mirror)
        session = Session(bench, prepared, baseline, purpose, seconds, beside)
        try:
            session.run()
        except RunnerLost:
            if not retries:
                raise
            return self._measure(prepared, baseline, purpose, retries - 1)
        finally:
            self.waits = bench.waits
            self._crew.end(runner, bench)
        if session.fault is not None and session.fault.status in (Status.CRASHED, Status.TIMED_OUT):
            self._controlled = False  # whoever comes next shall not inherit a GPU in a bad state
        if purpose.sanitize and session.faster:
            with phase(seconds, "sanitize"):
                health["sanitized"] = self._sanitize(session)
        if purpose.profile and session.fault is None:
            with phase(seconds, "profile"):
                session.profile = self._profile(session)
        health |= self._health("after", oracle)
        health |= {"memory": bench.shared, "exposed": float(bench.exposed), "referee_us": bench.referee_us}
        if math.isfinite(bench.slope_us):
            health |= {"slope_us": bench.slope_us, "slope_limit_us": bench.slope_limit_us}
        if beside is not None:
            health |= {f"library_{kind}": f"none: {why[:200]}" for kind, why in beside.absent.items()}
            health |= {f"library_{kind}": "graph" if g else "stream" for kind, g in beside.graphs.items()}
        found = self._evaluation(
            prepared, session.fault, session.verification, session.timings, session.profile, seconds, health
        )
        return replace(found, libraries=session.libraries)

    def _beside(self, task: Task, purpose: Purpose) -> Beside | None:
        """The libraries' process, compiled and warm for this task; started on first use."""
        if not purpose.libraries:
            return None
        if self._libraries is None:
            self._libraries = LibraryBaselines(self.index)
        return Beside(self._libraries, task, purpose.libraries)

    def _control(self, baseline: Prepared) -> dict[str, float | str]:
        """The baseline against itself; twice if need be.

        Raises:
            DeviceUnfit: if its interval leaves out 1 both times: nothing measured now would be worth anything.
        """
        controls = replace(self.controls, min_pairs=CONTROL_PAIRS, max_pairs=CONTROL_PAIRS, check_runs=1)
        told = ""
        lost = failed = 0
        # Runners that were killed while they waited may take a while to be seen dead: each costs a try.
        while failed < 2 and lost <= self._crew.standbys + 1:
            runner = self._crew.runner()
            bench = Bench(runner, self._crew.oracle(), self.facts, controls, self._crew.mirror)
            session = Session(bench, baseline, baseline, Purpose(), {})
            try:
                session.run()
            except RunnerLost as error:
                told, lost = str(error), lost + 1
                continue
            finally:
                self._crew.end(runner, bench)
            failed += 1
            if session.timings is None:
                told = f"a trusted program ended in {session.fault}"
                continue
            timing = session.timings[0]
            found = interval(block_logs(timing.candidate_us, timing.baseline_us, 1), level=CONTROL_LEVEL)
            if found.contains(1.0) or abs(found.speedup - 1.0) < CONTROL_SLACK:
                self._controlled = True
                return {"control_low": found.low, "control_high": found.high}
            told = (
                f"a program against itself came out {found.speedup:.3f} ({found.low:.3f} to {found.high:.3f})"
            )
        raise DeviceUnfit(
            f"GPU {self.index} is not fit to measure on: {told}; see that nothing else runs on it"
        )

    def _sanitize(self, session: Session) -> str:
        """Search a small case for races and memory faults; the tools that came to an end, or ``none``."""
        if self._sanitizer is None:
            self._sanitizer = Sanitizer(self.index)
        case = small_case(session.prepared.task)
        if self._sanitizer.present:
            report = self._sanitizer.check(session.prepared, case, self._drawn(session.prepared.task, case))
        else:
            self._stand_in = self._stand_in or StandIn()
            report = self._stand_in.check(session.prepared, case)
        if report.finding is not None:
            session.reject(CandidateFault(Status.WRONG, "sanitize", report.finding, "sanitizer"))
        return "; ".join((", ".join(report.tools) or "none", *report.failed))

    def _drawn(self, task: Task, case: Case) -> tuple[tuple[str, bytes], ...]:
        """Inputs for a run whose outputs nobody looks at."""
        oracle = self._crew.oracle()
        try:
            oracle.ask(Pose(task), Done, ORACLE_SECONDS)
            return oracle.ask(Draw(case.name, random.getrandbits(62)), Drawn, ORACLE_SECONDS).inputs
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            raise KbError(f"the oracle failed: {error}; check the task's reference.py") from error

    def _profile(self, session: Session) -> Profile:
        case = session.prepared.task.bench[0]
        assert session.timings is not None
        static = static_profile(
            self.facts, session.prepared, case, session.launches[case.name], session.timings[0]
        )
        if not self.counters:
            return static
        if self._ncu is None:
            self._ncu = Ncu(self.index, self._crew.mirror)
        oracle = self._crew.oracle()
        return self._ncu.profile(
            lambda runner: Bench(runner, oracle, self.facts, self.controls, self._crew.mirror),
            session.prepared,
            case,
            static,
        )

    def _evaluation(
        self,
        prepared: Prepared,
        fault: Fault | None = None,
        verification: Verification | None = None,
        timings: tuple[Timing, ...] | None = None,
        profile: Profile | None = None,
        seconds: dict[str, float] | None = None,
        health: dict[str, float | str] | None = None,
    ) -> Evaluation:
        return Evaluation(
            build=prepared.build,
            verification=verification,
            timings=timings,
            profile=profile,
            trust=self.trust,
            source=self.source,
            device=self.facts.name,
            key=prepared.key,
            fault=fault,
            seconds=seconds if seconds is not None else dict(prepared.seconds),
            health=health or {},
        )

    def _health(self, when: str, *own: Worker) -> dict[str, float | str]:
        if self._monitor is None:
            self._monitor = Monitor(self.facts.uuid)
        mine = self._crew.pids() | {worker.pid for worker in own}
        if self._libraries is not None:
            mine |= {self._libraries.pid}
        return {f"{name}_{when}": value for name, value in self._monitor.read(mine).items()}

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """One evaluation a GPU, over all processes of this machine that share its temporary folder."""
        path = Path(tempfile.gettempdir()) / f"kb-env-{self.facts.uuid}.lock"
        try:
            with FileLock(path, timeout=LOCK_SECONDS, mode=0o666):
                yield
        except Timeout as error:
            raise KbError(
                f"GPU {self.index} was busy for {LOCK_SECONDS:.0f} s: see who holds {path}"
            ) from error
