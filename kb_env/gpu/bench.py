"""One evaluation's pair of processes: content in, one replayed run, verdict out."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from typing import TypeVar

from kb_env.cubin import read_cubin
from kb_env.evaluators import Prepared
from kb_env.gpu.controls import Controls
from kb_env.gpu.layout import ALIGN, Layout, place
from kb_env.gpu.process import Worker, WorkerDied, WorkerFailed, WorkerTimeout
from kb_env.gpu.protocol import (
    Arm,
    Attach,
    Bind,
    Bound,
    Check,
    Checked,
    Content,
    Detach,
    DeviceFacts,
    Done,
    LaunchFacts,
    Lay,
    Load,
    Message,
    Pose,
    Ran,
    Reserve,
    Reserved,
    Run,
)
from kb_env.types import Case, KbError, Status, Task

CANDIDATE, BASELINE = 0, 1

#: Bytes that poison is made of: NaN in every float type, huge finite float32, 0x5B5B... large and finite.
POISON = (0xFF, 0x7F, 0x5B)

#: Seconds the oracle gets for one answer; its first one on a task may load libraries.
ORACLE_SECONDS = 120.0
#: Seconds the runner gets for loading a module, beside the time of a run.
LOAD_SECONDS = 10.0


T = TypeVar("T")


class CandidateFault(Exception):
    """The candidate's evaluation ends here, with this status. ``fault`` names a failed verification."""

    def __init__(self, status: Status, stage: str, message: str, fault: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.stage = stage
        self.message = message
        self.fault = fault


class RunnerLost(KbError):
    """The runner ended while it ran trusted code only: worth another runner."""


@dataclass(frozen=True)
class Outcome:
    """One checked run."""

    microseconds: float
    host_us: float
    exposed: bool
    checked: Checked


class Bench:
    """A runner and an oracle joined over one arena, for one task.

    Seeds, poison, guard bytes and order come from ``rng``, a generator seeded by the system, once
    the candidate is fixed. ``mirror`` is the memory file that stands in where CUDA IPC is refused.
    """

    def __init__(
        self, runner: Worker, oracle: Worker, facts: DeviceFacts, controls: Controls, mirror: int
    ) -> None:
        self.facts = facts
        self.controls = controls
        self.rng = random.SystemRandom()
        self.worst = 0.0
        self.cases_run = 0
        self._runner = runner
        self._oracle = oracle
        self._mirror = mirror
        self._mirrored = False
        self._nbytes = 0
        self._layouts: dict[tuple[int, str], Layout] = {}
        self._laid: dict[tuple[int, str], int] = {}
        self._globals = False
        self._beside = False
        self._spin_ns = 30_000
        self._steps: dict[tuple[int, str], int] = {}
        #: wall time of all the candidate's runs
        self.candidate_seconds = 0.0
        #: how much longer the host clock found the candidate than its events did, beyond the baseline's
        self.referee_us = 0.0
        #: pairs thrown away because the host was too slow
        self.exposed = 0

    def open(self, task: Task, candidate: Prepared, baseline: Prepared | None) -> None:
        """Reserve an arena that holds every case of both sides, and join the oracle to it."""
        if baseline is not None:
            self._place(task, BASELINE, baseline)
        try:
            self._place(task, CANDIDATE, candidate)
        except KbError as error:  # its plan contradicts the task: an honest recorder gives no such plan
            raise CandidateFault(Status.REFUSED, "open", str(error)) from error
        nbytes = max(layout.used for layout in self._layouts.values()) + ALIGN
        if nbytes > 0.6 * self.facts.memory_bytes:
            raise KbError(f"task {task.name} needs {nbytes >> 20} MiB of GPU memory: choose smaller cases")
        self._nbytes = nbytes
        self._ask_oracle(Pose(task))
        reserved = self._ask_runner("open", Reserve(nbytes, self.controls.share), Reserved, LOAD_SECONDS)
        if reserved.handle:
            try:
                self._ask_oracle(Attach(reserved.handle, nbytes))
                return
            except KbError:
                pass  # this container maps no memory of other processes: go through the host
        os.ftruncate(self._mirror, max(nbytes, os.fstat(self._mirror).st_size))
        self._mirrored = True
        self._ask_oracle(Attach(b"", nbytes))

    def _place(self, task: Task, side: int, prepared: Prepared) -> None:
        for case in (*task.check, *task.bench):
            if case.name not in prepared.plans:
                raise KbError(f"there is no plan for case {case.name}: prepare the program again")
            self._layouts[side, case.name] = place(task, case, prepared.plans[case.name])

    @property
    def shared(self) -> str:
        return "host mirror" if self._mirrored else "cuda-ipc"

    def load(self, side: int, prepared: Prepared) -> dict[str, tuple[LaunchFacts, ...]]:
        """Load a side's module and bind its plans; facts of the launches by case."""
        self._beside = self._beside or side == CANDIDATE
        self._globals = self._globals or _has_writable_globals(prepared.image)
        self._ask_runner("load", Load(side, prepared.image), Done, LOAD_SECONDS)
        facts = {}
        for name, plan in prepared.plans.items():
            if (side, name) in self._layouts:
                message = Bind(side, name, plan, self._layouts[side, name].offsets)
                facts[name] = self._ask_runner("load", message, Bound, LOAD_SECONDS).launches
                self._steps[side, name] = len(plan.operations)
        return facts

    def content(self, case: Case) -> None:
        """Fresh secret inputs for ``case``; those of the last run are gone by now, compared and judged."""
        self._ask_oracle(Content(case.name, self.rng.getrandbits(62)))

    def lengthen(self) -> None:
        """Keep the queue busy for longer: the last run's time was spoilt by a slow host."""
        self.exposed += 1
        self._spin_ns = min(2 * self._spin_ns, 5_000_000)

    def run(
        self,
        side: int,
        case: Case,
        seconds: float,
        reload: bool = False,
        checked: bool = True,
        profile: bool = False,
    ) -> Outcome:
        """Arm the arena with the current content, replay once, judge.

        Raises:
            CandidateFault: if a run crashed or hung with the candidate loaded; a wrong result is in the outcome.
            KbError: if the baseline alone or the oracle failed.
        """
        layout = self._layouts[side, case.name]
        poison = self.rng.choice(POISON) if self.controls.poison else 0
        guard = self.rng.randrange(1, 255)
        self._ask_oracle(Arm(self._number(side, case.name, layout), poison, guard))
        reload = (reload or self._globals) and self.controls.reload
        mirror = self._nbytes if self._mirrored else 0
        spin = self._spin_ns + 5_000 * self._steps[side, case.name]
        message = Run(side, case.name, reload, self.controls.cold_l2, spin, mirror, profile)
        started = time.monotonic()
        ran = self._ask_runner("run", message, Ran, seconds + (LOAD_SECONDS if mirror else 0.0))
        if side == CANDIDATE:
            self.candidate_seconds += time.monotonic() - started
        verdict = self.judge() if checked else Checked(True, None, "", None)
        self.worst = max(self.worst, verdict.worst or 0.0)
        return Outcome(ran.microseconds, ran.host_us, ran.exposed, verdict)

    def _number(self, side: int, case: str, layout: Layout) -> int:
        """The oracle's number of a layout; told on first use."""
        if (side, case) not in self._laid:
            self._laid[side, case] = len(self._laid)
            # Guard bands reach to the arena's end: what another layout left there, or a candidate would
            # like to keep there, is overwritten before each run and checked after it.
            self._ask_oracle(Lay(self._laid[side, case], case, layout.regions, self._nbytes))
        return self._laid[side, case]

    def judge(self) -> Checked:
        """Have the oracle compare the arena with what was armed last."""
        message = Check(self.controls.guards, self.controls.inputs_checked, True)
        try:
            return self._oracle.ask(message, Checked, ORACLE_SECONDS)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            raise KbError(f"the oracle failed: {error}; check the task's reference.py") from error

    def end_runner(self) -> None:
        """Let the runner end in good order, as a profiler's child must."""
        self._ask_runner("profile", Detach(), Done, LOAD_SECONDS)

    def close(self) -> None:
        """Unmap the arena in the oracle. The runner is the caller's to end."""
        if self._oracle.alive():
            self._ask_oracle(Detach())

    def _ask_oracle(self, message: Pose | Attach | Detach | Content | Lay | Arm) -> None:
        try:
            self._oracle.ask(message, Done, ORACLE_SECONDS)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            raise KbError(f"the oracle failed: {error}; check the task's reference.py") from error

    def _ask_runner(self, stage: str, message: Message, answer: type[T], seconds: float) -> T:
        """Ask the runner. What goes wrong is the candidate's, once it is in the context, whose turn it ever was.

        Raises:
            CandidateFault: after the candidate was loaded.
            KbError: before; RunnerLost where another runner may do better.
        """
        try:
            return self._runner.ask(message, answer, seconds)
        except WorkerTimeout as error:
            fault = CandidateFault(Status.TIMED_OUT, stage, f"a run did not end in {seconds:.1f} s: killed")
            cause: Exception = error
        except WorkerFailed as error:
            fault, cause = _failed(stage, error), error
        except WorkerDied as error:
            text = f"the runner died while it replayed the program ({error})"
            fault, cause = CandidateFault(Status.CRASHED, stage, text), error
        if self._beside:
            raise fault from cause
        if isinstance(cause, WorkerDied):
            raise RunnerLost(f"the runner ended while it replayed the baseline: {cause}") from cause
        raise KbError(
            f"the runner failed before the program was loaded ({fault.message}): check the baseline and the GPU"
        ) from cause


def _has_writable_globals(image: bytes) -> bool:
    """True if the module keeps state between launches: it is then loaded afresh before each run."""
    return any(section.name in (".nv.global", ".nv.global.init") for section in read_cubin(image).sections)


def _failed(stage: str, error: WorkerFailed) -> CandidateFault:
    if error.fail.kind == "plan":
        return CandidateFault(Status.REFUSED, stage, error.fail.message)
    name = error.fail.name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()
    return CandidateFault(Status.CRASHED, stage, f"{name} ({error.fail.name}: {error.fail.message})")
