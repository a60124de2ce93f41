"""One evaluation's pair of processes: content in, one replayed run, verdict out."""

from __future__ import annotations

import math
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
    Batch,
    Batched,
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
    MessageTooLong,
    Pose,
    Prove,
    Ran,
    Reserve,
    Reserved,
    Run,
)
from kb_env.plan import LaunchPlan
from kb_env.types import Case, KbError, Status, Task

CANDIDATE, BASELINE = 0, 1
#: In place of the guard bands' byte: they are left as they are.
NO_GUARD = -1
#: The oracle's number of the layout that is one guard band.
FAR = 1 << 20

#: Bytes that poison is made of: NaN in every float type, huge finite float32, 0x5B5B... large and finite.
POISON = (0xFF, 0x7F, 0x5B)

#: The seed of most benchmarks, for tests of the control.
PUBLIC_SEED = 42

#: Seconds the oracle gets for one answer; its first one on a task may load libraries.
ORACLE_SECONDS = 120.0
#: Seconds the runner gets for loading a module, beside the time of a run.
LOAD_SECONDS = 10.0
#: Input sets of a batch of runs, and the share of the GPU's memory they may take beside the first one's.
SLOTS, SLOT_SHARE = 4, 1 / 32
#: Share of the GPU's memory that an arena may take.
ARENA_SHARE = 0.6
#: Operations that may be queued at once: the driver's queue holds about a thousand.
QUEUE_LIMIT = 600
#: Nanoseconds that queueing one operation takes the host at most.
QUEUE_NS = 8_000


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
        self._total = 0
        self._stride = 0
        #: input sets that fit beside one another; 1 where batches of runs cannot be had
        self.slots = 1
        self._layouts: dict[tuple[int, str], Layout] = {}
        self._laid: dict[tuple[int, str, int], int] = {}
        self._timed: frozenset[str] = frozenset()
        self._plans: dict[tuple[int, str], LaunchPlan] = {}
        self._globals = False
        self._beside = False
        self._spin_ns = 30_000
        self._steps: dict[tuple[int, str], int] = {}
        #: wall time of all the candidate's runs
        self.candidate_seconds = 0.0
        #: wall time by what was asked for: where an evaluation's time goes
        self.waits: dict[str, float] = {}
        #: how much longer the host clock found the candidate than its events did, beyond the baseline's: in
        #: single runs, and by the slope of batches (NaN where there were none)
        self.referee_us = 0.0
        self.slope_us = self.slope_limit_us = math.nan
        #: pairs thrown away because the host was too slow
        self.exposed = 0

    def open(self, task: Task, candidate: Prepared, baseline: Prepared | None) -> None:
        """Reserve an arena that holds every case of both sides, and join the oracle to it.

        Raises:
            CandidateFault: if the candidate's plan contradicts the task, or only its workspace does not fit.
            KbError: if the task's own buffers do not fit.
        """
        self._timed = frozenset(case.name for case in task.bench)
        if baseline is not None:
            self._place(task, BASELINE, baseline)
        own = max((layout.used for layout in self._layouts.values()), default=0) + ALIGN
        room = int(ARENA_SHARE * self.facts.memory_bytes)
        if own > room:
            raise KbError(f"task {task.name} needs {own >> 20} MiB of GPU memory: choose smaller cases")
        try:
            self._place(task, CANDIDATE, candidate)
        except KbError as error:  # its plan contradicts the task: an honest recorder gives no such plan
            raise CandidateFault(Status.REFUSED, "open", str(error)) from error
        self._nbytes = max(layout.used for layout in self._layouts.values()) + ALIGN
        if self._nbytes > room:
            message = f"its workspace needs {self._nbytes >> 20} MiB of GPU memory, {room >> 20} may be had"
            raise CandidateFault(Status.REFUSED, "open", message)
        if baseline is not None:
            self._plan_slots(task, candidate, baseline, room)
        self._ask_oracle(Pose(task))
        self._join(own)

    def _plan_slots(self, task: Task, candidate: Prepared, baseline: Prepared, room: int) -> None:
        """How many input sets batches of runs may have: none where a run changes what the next one reads."""
        sides = (candidate, baseline)
        names = [case.name for case in task.bench]
        self._stride = max(layout.used for (_, name), layout in self._layouts.items() if name in names)
        spare = min(int(SLOT_SHARE * self.facts.memory_bytes), room - self._nbytes)
        fit = min(SLOTS, 1 + spare // self._stride)
        queued = max(len(prepared.plans[name].operations) for prepared in sides for name in names)
        lasting = any(_has_writable_globals(prepared.image) for prepared in sides)
        changing = any(argument.kind == "inout" for argument in task.arguments)
        if fit >= 2 and not lasting and not changing and 2 * fit * (queued + 2) <= QUEUE_LIMIT:
            self.slots = fit

    def _join(self, own: int) -> None:
        """Reserve the arena and map it in the oracle; where that is refused, the host mirrors it."""
        self._total = self._nbytes + (self.slots - 1) * self._stride
        message = Reserve(self._total, self.controls.share)
        try:
            reserved = self._ask_runner("open", message, Reserved, LOAD_SECONDS)
        except RunnerLost:
            raise
        except KbError as error:
            if self._nbytes <= own:
                raise
            # The task alone would have fitted, as far as anyone can tell.
            raise CandidateFault(Status.REFUSED, "open", f"its workspace does not fit: {error}") from error
        if reserved.handle:
            try:
                self._ask_oracle(Attach(reserved.handle, self._total))
                self.spread_guard()
                return
            except KbError:
                pass  # this container maps no memory of other processes: go through the host
        self.slots, self._total = 1, self._nbytes
        os.ftruncate(self._mirror, max(self._nbytes, os.fstat(self._mirror).st_size))
        self._mirrored = True
        self._ask_oracle(Attach(b"", self._nbytes))

    def spread_guard(self) -> None:
        """What lies behind the ordinary runs' part of the arena is one more guard band, looked at now and then."""
        if self.slots > 1:
            self._ask_oracle(Lay(FAR, "", (), self._total, self._nbytes))
            self._ask_oracle(Arm(FAR, 0, self.rng.randrange(1, 255)))

    def look_far(self) -> Checked:
        """Whether anything was written behind the ordinary runs' part of the arena."""
        if self.slots == 1 or not self.controls.guards:
            return Checked(True, None, "", None)
        return self.judge(FAR)

    def _place(self, task: Task, side: int, prepared: Prepared) -> None:
        for case in (*task.check, *task.bench):
            if case.name not in prepared.plans:
                raise KbError(f"there is no plan for case {case.name}: prepare the program again")
            self._layouts[side, case.name] = place(task, case, prepared.plans[case.name])
            self._plans[side, case.name] = prepared.plans[case.name]

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
            # The baseline runs in the bench cases alone.
            if (side, name) in self._layouts and (side == CANDIDATE or name in self._timed):
                message = Bind(side, name, plan, self._layouts[side, name].offsets)
                facts[name] = self._ask_runner("load", message, Bound, LOAD_SECONDS).launches
                self._steps[side, name] = len(plan.operations)
        return facts

    def content(self, case: Case, slot: int = 0) -> int:
        """Fresh secret inputs for ``case``, from the seed returned.

        Those of the last run are gone by now, compared and judged.
        """
        seed = self.rng.getrandbits(62) if self.controls.secret_seed else PUBLIC_SEED
        self._ask_oracle(Content(case.name, seed, slot))
        return seed

    def prove(self) -> None:
        """Have the runner run its known kernel and time its known wait again, beside the candidate."""
        self._ask_runner("time", Prove(), Done, LOAD_SECONDS)

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
        self._arm(side, case, 0)
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

    def batch(self, side: int | None, case: Case, runs: int, seconds: float) -> float | None:
        """Microseconds by this process's clock of ``runs`` runs back to back, less the busy kernel before them.

        ``side`` None runs the harness's part alone. None if the host was too slow to keep the GPU busy. The
        caller arms every slot before and judges every slot after.
        """
        cases: tuple[str, ...] = ()
        operations = 0
        if side is not None:
            cases = tuple(_slotted(case.name, slot) for slot in range(self.slots))
            operations = len(self._plans[side, case.name].operations)
        spin_ns = 50_000 + runs * (operations + 3) * QUEUE_NS
        message = Batch(side or 0, cases, runs, self.controls.cold_l2, spin_ns)
        started = time.monotonic()
        done = self._ask_runner("time", message, Batched, seconds)
        spent = time.monotonic() - started
        if side == CANDIDATE:
            self.candidate_seconds += spent
        return None if done.exposed else spent * 1e6 - spin_ns / 1e3

    def arm_slots(self, side: int, case: Case) -> None:
        """Arm every slot with its content, and bind the side's plan to each on first use."""
        for slot in range(self.slots):
            if slot and (side, case.name, slot) not in self._laid:
                offsets = self._layouts[side, case.name].moved(self._base(slot)).offsets
                message = Bind(side, _slotted(case.name, slot), self._plans[side, case.name], offsets)
                self._ask_runner("time", message, Bound, LOAD_SECONDS)
            self._arm(side, case, slot)

    def judge_slot(self, side: int, case: Case, slot: int) -> Checked:
        return self.judge(self._laid[side, case.name, slot])

    def _base(self, slot: int) -> int:
        return self._nbytes + (slot - 1) * self._stride if slot else 0

    def _arm(self, side: int, case: Case, slot: int) -> None:
        """Poison, guard bytes and the slot's content into the arena; the oracle is told a layout on first use."""
        key = side, case.name, slot
        if key not in self._laid:
            self._laid[key] = len(self._laid)
            base = self._base(slot)
            # Guard bands reach to the part's end: what another layout left there, or a candidate would
            # like to keep there, is overwritten before each run and checked after it.
            end = base + self._stride if slot else self._nbytes
            regions = self._layouts[side, case.name].moved(base).regions
            self._ask_oracle(Lay(self._laid[key], case.name, regions, end, base, slot))
        poison = self.rng.choice(POISON) if self.controls.poison else 0
        guard = self.rng.randrange(1, 255) if self.controls.guards else NO_GUARD
        self._ask_oracle(Arm(self._laid[key], poison, guard, not self.controls.apart))

    def judge(self, layout: int = -1) -> Checked:
        """Have the oracle compare the arena with what was armed last, or under ``layout``."""
        controls = self.controls
        values = controls.values_checked and layout != FAR
        message = Check(
            controls.guards, controls.inputs_checked, values, layout, controls.numeric, controls.apart
        )
        started = time.monotonic()
        try:
            return self._oracle.ask(message, Checked, ORACLE_SECONDS)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            raise KbError(f"the oracle failed: {error}; check the task's reference.py") from error
        finally:
            self._waited("Check", started)

    def end_runner(self) -> None:
        """Let the runner end in good order, as a profiler's child must."""
        self._ask_runner("profile", Detach(), Done, LOAD_SECONDS)

    def close(self) -> None:
        """Unmap the arena in the oracle. The runner is the caller's to end."""
        if self._oracle.alive():
            self._ask_oracle(Detach())

    def _ask_oracle(self, message: Pose | Attach | Detach | Content | Lay | Arm) -> None:
        started = time.monotonic()
        try:
            self._oracle.ask(message, Done, ORACLE_SECONDS)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            raise KbError(f"the oracle failed: {error}; check the task's reference.py") from error
        finally:
            self._waited(type(message).__name__, started)

    def _waited(self, name: str, started: float) -> None:
        self.waits[name] = self.waits.get(name, 0.0) + time.monotonic() - started

    def _ask_runner(self, stage: str, message: Message, answer: type[T], seconds: float) -> T:
        """Ask the runner. What goes wrong is the candidate's, once it is in the context, whose turn it ever was.

        Raises:
            CandidateFault: after the candidate was loaded.
            KbError: before; RunnerLost where another runner may do better.
        """
        started = time.monotonic()
        try:
            return self._runner.ask(message, answer, seconds)
        except MessageTooLong as error:
            raise CandidateFault(Status.REFUSED, stage, str(error)) from error
        except WorkerTimeout as error:
            fault = CandidateFault(Status.TIMED_OUT, stage, f"a run did not end in {seconds:.1f} s: killed")
            cause: Exception = error
        except WorkerFailed as error:
            fault, cause = _failed(stage, error), error
        except WorkerDied as error:
            text = f"the runner died while it replayed the program ({error})"
            fault, cause = CandidateFault(Status.CRASHED, stage, text), error
        finally:
            self._waited(type(message).__name__, started)
        if self._beside:
            raise fault from cause
        if isinstance(cause, WorkerDied):
            raise RunnerLost(f"the runner ended while it replayed the baseline: {cause}") from cause
        raise KbError(
            f"the runner failed before the program was loaded ({fault.message}): check the baseline and the GPU"
        ) from cause


def _slotted(case: str, slot: int) -> str:
    """The runner's name of a case's plan bound to a slot."""
    return f"{case}#{slot}" if slot else case


def _has_writable_globals(image: bytes) -> bool:
    """True if the module keeps state between launches: it is then loaded afresh before each run."""
    return any(section.name in (".nv.global", ".nv.global.init") for section in read_cubin(image).sections)


def _failed(stage: str, error: WorkerFailed) -> CandidateFault:
    if error.fail.kind == "plan":
        return CandidateFault(Status.REFUSED, stage, error.fail.message)
    name = error.fail.name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()
    return CandidateFault(Status.CRASHED, stage, f"{name} ({error.fail.name}: {error.fail.message})")
