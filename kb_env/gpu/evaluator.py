"""The sealed, measured evaluator: controller of runners and an oracle on one GPU.

The controller lives in the environment's process and holds what decides: seeds, order, deadlines,
the verdict. It never touches CUDA itself.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kb_env.evaluators import Prepared, Purpose
from kb_env.gpu import ncu
from kb_env.gpu.bench import BASELINE, CANDIDATE, Bench, CandidateFault
from kb_env.gpu.controls import Controls
from kb_env.gpu.health import Monitor, visible_name
from kb_env.gpu.process import Worker, WorkerDied, WorkerFailed, WorkerTimeout
from kb_env.gpu.profile import static_profile
from kb_env.gpu.protocol import Copied, DeviceFacts, LaunchFacts, Ready
from kb_env.gpu.roofline import describe
from kb_env.gpu.schedule import Deadline, baseline_alone, check_floor, time_case, verify
from kb_env.prepare import prepare
from kb_env.store import default_store
from kb_env.types import Evaluation, Fault, KbError, Profile, Program, Task, Timing, Verification

#: Seconds a runner or an oracle may take to start; torch's first import from a cold disk is slow.
START_SECONDS = 120.0
#: Seconds to wait for another evaluation on the same GPU.
LOCK_SECONDS = 600.0


class GpuEvaluator:
    """Sealed evaluations on local GPU ``index`` (an index into CUDA_VISIBLE_DEVICES).

    Nothing is started before the first use. ``prepare`` may run in many threads or processes;
    ``measure`` holds the GPU's lock. Close it, or use it as a context manager.

    Raises:
        KbError: from any method, if the GPU, the oracle or the baseline fails; never for what a
            candidate does.
    """

    trust = "sealed"
    source = "measured"

    def __init__(self, index: int = 0, store: Path | None = None, controls: Controls = Controls()) -> None:
        self.index = index
        self.store = store or default_store()
        self.controls = controls
        self.device = visible_name(index)
        self._starting = threading.RLock()
        self._mirror = -1
        self._standby: Worker | None = None
        self._dying: list[Worker] = []
        self._oracle: Worker | None = None
        self._oracle_ready = False
        self._facts: DeviceFacts | None = None
        self._monitor: Monitor | None = None
        self._baselines: dict[tuple[str, str], Prepared] = {}

    @property
    def facts(self) -> DeviceFacts:
        """What the driver says about the GPU; starts a runner if none was started yet."""
        with self._starting:
            if self._facts is None:
                self._start_ahead()
                self._standby = self._ready_runner()
        assert self._facts is not None
        return self._facts

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
        for worker in (self._standby, self._oracle, *self._dying):
            if worker is not None:
                worker.kill()
        self._standby, self._oracle, self._dying = None, None, []
        if self._mirror >= 0:
            os.close(self._mirror)
            self._mirror = -1

    def __getstate__(self) -> dict[str, object]:
        return {"index": self.index, "store": self.store, "controls": self.controls}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __enter__(self) -> GpuEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _baseline(self, task: Task, program: Program) -> Prepared:
        """The baseline's code is kept, its times never are."""
        key = task.key, program.key
        if key not in self._baselines:
            prepared = self.prepare(task, program)
            if prepared.fault is not None:
                raise KbError(f"the baseline of {task.name} cannot be measured: {prepared.fault.message}")
            self._baselines[key] = prepared
        return self._baselines[key]

    def _measure(self, prepared: Prepared, baseline: Prepared, purpose: Purpose) -> Evaluation:
        seconds = dict(prepared.seconds)
        with _phase(seconds, "start"):
            self._start_ahead()
            runner, oracle = self._ready_runner(), self._ready_oracle()
        health = self._health("before", runner, oracle)
        bench = Bench(runner, oracle, self.facts, self.controls, self._mirror)
        session = _Session(bench, prepared, baseline, purpose, seconds)
        try:
            session.run()
        finally:
            self._end(runner, bench)
        if purpose.profile and session.fault is None:
            with _phase(seconds, "profile"):
                session.profile = self._profile(session)
        health |= self._health("after", oracle) | {"memory": bench.shared}
        return self._evaluation(
            prepared, session.fault, session.verification, session.timings, session.profile, seconds, health
        )

    def _profile(self, session: _Session) -> Profile:
        case = session.prepared.task.bench[0]
        assert session.timings is not None
        static = static_profile(
            self.facts, session.prepared, case, session.launches[case.name], session.timings[0]
        )
        session_ncu = ncu.start(self.index, self._mirror)
        if session_ncu is None:
            return static
        bench = Bench(session_ncu.runner, self._ready_oracle(), self.facts, self.controls, self._mirror)
        try:
            return session_ncu.collect(bench, session.prepared, case, static)
        finally:
            bench.close()
            session_ncu.close()

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
            device=self.device,
            key=prepared.key,
            fault=fault,
            seconds=seconds if seconds is not None else dict(prepared.seconds),
            health=health or {},
        )

    def _health(self, when: str, *own: Worker) -> dict[str, float | str]:
        if self._monitor is None:
            self._monitor = Monitor(self.facts.uuid)
        mine = frozenset(w.pid for w in (*own, self._standby, self._oracle, *self._dying) if w is not None)
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

    def _start_ahead(self) -> None:
        """Start what is missing, without waiting for it."""
        if self._mirror < 0:
            self._mirror = os.memfd_create("kb-env-mirror")
        if self._standby is None:
            self._standby = Worker("kb_env.gpu.runner", self.index, self._mirror)
        if self._oracle is None or not self._oracle.alive():
            self._oracle, self._oracle_ready = Worker("kb_env.gpu.oracle", self.index, self._mirror), False

    def _ready_runner(self) -> Worker:
        """Take the standby runner, once it has proved itself; a second one is tried if it has not."""
        for attempt in (0, 1):
            self._start_ahead()
            runner, self._standby = self._standby, None
            assert runner is not None
            if self._facts is not None and runner.ready is not None and runner.alive():
                return runner
            try:
                runner.ready = runner.expect(Ready, START_SECONDS)
                self._facts = runner.ready.device
                self.device = self._facts.name
                return runner
            except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
                runner.kill()
                if attempt:
                    raise KbError(f"GPU {self.index} cannot be used: {error}") from error
        raise AssertionError

    def _ready_oracle(self) -> Worker:
        self._start_ahead()
        oracle = self._oracle
        assert oracle is not None
        if not self._oracle_ready:
            try:
                oracle.expect(Copied, START_SECONDS)
            except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
                oracle.kill()
                self._oracle = None
                raise KbError(
                    f"the oracle did not start: {error}; is torch's CUDA build installed?"
                ) from error
            self._oracle_ready = True
        return oracle

    def _end(self, runner: Worker, bench: Bench) -> None:
        """A runner serves one evaluation. It is killed now and collected later, another one starts."""
        runner.kill(wait=0)
        self._dying = [worker for worker in [*self._dying, runner] if worker.alive()]
        try:
            bench.close()
        except KbError:
            # The oracle lost the arena under its feet: its context is beyond use.
            assert self._oracle is not None
            self._oracle.kill()
            self._oracle = None
        self._start_ahead()


class _Session:
    """One candidate on one bench: verification, timings, and where it ended."""

    def __init__(
        self,
        bench: Bench,
        prepared: Prepared,
        baseline: Prepared,
        purpose: Purpose,
        seconds: dict[str, float],
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
        self.launches: dict[str, tuple[LaunchFacts, ...]] = {}

    def run(self) -> None:
        """Verify, then time; a fault of the candidate ends it and stays in the record."""
        try:
            self._verify_and_time()
        except CandidateFault as fault:
            self.fault = Fault(fault.status, fault.stage, fault.message)
            self.timings = None
            self.verification = Verification(
                ok=False,
                fault=fault.fault or str(fault.status).lower(),
                cases_run=self.bench.cases_run,
                message=fault.message,
                worst=self.bench.worst,
            )

    def _verify_and_time(self) -> None:
        bench, task = self.bench, self.prepared.task
        deadline = Deadline(bench.controls.evaluation_seconds)
        with _phase(self.seconds, "open"):
            bench.open(task, self.prepared, self.baseline)
            bench.load(BASELINE, self.baseline)
        with _phase(self.seconds, "baseline"):
            alone = baseline_alone(bench, task)
        with _phase(self.seconds, "verify"):
            self.launches = bench.load(CANDIDATE, self.prepared)
            verify(bench, task, deadline)
        with _phase(self.seconds, "time"):
            name = self.purpose.baseline_name
            timings = tuple(
                time_case(bench, task, case, alone[case.name], name, deadline) for case in task.bench
            )
            if bench.controls.floor:
                timings = check_floor(describe(bench.facts), task, timings)
        self.timings = timings
        cases = bench.cases_run + len(task.bench)
        self.verification = Verification(True, None, cases, f"all {cases} cases verified", bench.worst)


@contextlib.contextmanager
def _phase(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall time of a phase to the record, also where the phase ends in a fault."""
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.monotonic() - started
