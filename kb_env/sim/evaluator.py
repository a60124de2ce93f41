"""The simulated evaluator: sealed like the measured one, but every time is *modelled*.

The recorded plan runs on the CPU in a child process without secrets. Numbers are checked on the
task's check cases (its smaller ones, where it has them) against the same reference and bounds as on
hardware; times come from counters of the bench cases and the analytic model. The same program,
task, device and seed give the same evaluation to the bit.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kb_env.cubin import read_cubin
from kb_env.device_answers import DeviceAnswers, answers_for
from kb_env.devices import Device, floor_us
from kb_env.devices import device as device_named
from kb_env.evaluators import Prepared, Purpose
from kb_env.gpu.roofline import roofline_us
from kb_env.plan import Copy, Fill, LaunchPlan, Upload
from kb_env.prepare import prepare
from kb_env.records import RecordError, pack, unpack
from kb_env.sim.bench import BenchInputs, Counter, engine_version
from kb_env.sim.client import Client
from kb_env.sim.counts import LaunchCounts
from kb_env.sim.findings import Finding
from kb_env.sim.model import Modelled, model_plan, ratio_spread
from kb_env.sim.profile import CaseResult, profile
from kb_env.sim.sanitize import sanitize, small_case
from kb_env.sim.verify import checked_cases, checker_version, verify
from kb_env.store import Store, default_store
from kb_env.types import (
    Case,
    Evaluation,
    Fault,
    KbError,
    Program,
    Status,
    Task,
    Timing,
    Verification,
    arithmetic,
    digest,
)

if TYPE_CHECKING:  # torch takes seconds to import: only once numbers are checked
    from kb_env.numerics import Reference

#: Half-width of a 95 % interval in standard errors.
Z95 = 1.96
#: Relative standard error of a ratio of two different programs beside what the shares explain (sampling of
#: blocks, what no constant stands for), and how it grows with their difference: from the residuals of
#: the calibration set.
INDEPENDENT, GROWING = 0.04, 0.10


class SimEvaluator:
    """Verified on the CPU, timed by a model of ``device`` (a name from kb_env.devices).

    Starts nothing before the first use; ``prepare`` may run in many threads. Close it, or use it as
    a context manager.

    Raises:
        KbError: from any method, if the harness or the baseline fails; never for what a candidate does.
    """

    trust = "sealed"
    source = "modelled"

    def __init__(self, device: str = "H200", store: Path | None = None) -> None:
        self.model: Device = device_named(device)
        self.device = self.model.name
        self.store = store or default_store()
        self._client = Client(self.store)
        self._inputs = BenchInputs(self.store)
        self._counter = Counter(self._client, self._inputs, self.store)
        self._verdicts = Store(self.store)
        self._references: dict[str, Reference] = {}
        self._baselines: dict[tuple[str, str], Prepared] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> SimEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()
        self._inputs.close()

    def prepare(self, task: Task, program: Program) -> Prepared:
        """Build for the modelled GPU and record the plans of check and bench cases."""
        cases = checked_cases(task) + task.bench
        answers = device_answers(self.model)
        return prepare(task, program, self.model.architecture, self.store, cases, answers)

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        prepared = self.prepare(task, program)
        found = self.measure(prepared, purpose)
        return replace(found, seconds={**prepared.seconds, **found.seconds})

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        """Check the numbers, then model candidate and baseline in every bench case."""
        with self._lock:
            return self._measure(prepared, purpose)

    def modelled(self, task: Task, program: Program) -> list[CaseResult] | Fault:
        """Counters and modelled times of the bench cases alone, for a program that was verified elsewhere."""
        prepared = self.prepare(task, program)
        if prepared.fault is not None:
            return prepared.fault
        with self._lock:
            return self._cases(prepared, self._reference(task), trusted=True)

    def _measure(self, prepared: Prepared, purpose: Purpose) -> Evaluation:
        if prepared.fault is not None:
            return self._failed(prepared, prepared.fault, None, {})
        started = time.monotonic()
        reference = self._reference(prepared.task)
        verdict = self._verdict(prepared, reference, purpose.seed)
        seconds = {"verify": time.monotonic() - started}
        if isinstance(verdict, Fault):
            return self._failed(prepared, verdict, None, seconds)
        if not verdict.ok:
            return self._failed(prepared, Fault(Status.WRONG, "verify", verdict.message), verdict, seconds)
        started = time.monotonic()
        results = self._cases(prepared, reference)
        if isinstance(results, Fault):
            return self._failed(prepared, results, verdict, seconds)
        timings = self._timings(prepared, results, purpose, reference)
        seconds["time"] = time.monotonic() - started
        health = _health(results)
        if purpose.sanitize and math.prod(timing.speedup for timing in timings) > 1.0:
            started = time.monotonic()
            found = sanitize(prepared, reference, self._client, purpose.seed, (small_case(prepared),))
            seconds["sanitize"] = time.monotonic() - started
            if isinstance(found, tuple) and found:
                rejected = Fault(Status.WRONG, "sanitize", "; ".join(item.text for item in found[:3]))
                return self._failed(prepared, rejected, verdict, seconds)
            health["sanitized"] = found.message if isinstance(found, Fault) else "nothing found"
        slowest = max(results, key=lambda item: item.modelled.us)
        return Evaluation(
            build=prepared.build,
            verification=verdict,
            timings=timings,
            profile=profile(self.model, results, prepared.build.spills),
            trust=self.trust,
            source=self.source,
            device=self.device,
            key=prepared.key,
            seconds=seconds,
            limiter=slowest.modelled.limiter,
            health=health,
        )

    def _verdict(self, prepared: Prepared, reference: Reference, seed: int) -> Verification | Fault:
        """What verification says: the same for the same program, task and seed, so it is kept in the store.

        A crash or a timeout is not kept: it may have come from outside.
        """
        parts = (
            engine_version(),
            checker_version(),
            prepared.task.key,
            prepared.program.key,
            str(prepared.key),
        )
        key = "simverdict-" + digest("\0".join((*parts, str(seed))))
        known = _stored_verdict(self._verdicts, key)
        if known is not None:
            return known
        found = verify(prepared, reference, self._client, seed)
        if isinstance(found, Verification):
            self._verdicts.write(key, {"verdict": pack(found)})
        return found

    def findings(self, task: Task, program: Program) -> tuple[Finding, ...] | Fault:
        """Races and memory faults of a program in all its check cases; a Fault where it cannot be run."""
        prepared = self.prepare(task, program)
        if prepared.fault is not None:
            return prepared.fault
        with self._lock:
            return sanitize(prepared, self._reference(task), self._client)

    def _failed(
        self, prepared: Prepared, fault: Fault, verdict: Verification | None, seconds: dict[str, float]
    ) -> Evaluation:
        return Evaluation(
            build=prepared.build,
            verification=verdict,
            timings=None,
            profile=None,
            trust=self.trust,
            source=self.source,
            device=self.device,
            key=prepared.key,
            fault=fault,
            seconds=seconds,
        )

    def _reference(self, task: Task) -> Reference:
        from kb_env.numerics import Reference

        if task.key not in self._references:
            self._references[task.key] = Reference(task)
        return self._references[task.key]

    def _cases(
        self, prepared: Prepared, reference: Reference, trusted: bool = False
    ) -> list[CaseResult] | Fault:
        """Counters and modelled time of every bench case; the outputs of a baseline are trusted."""
        registers = {kernel.name: kernel.registers for kernel in read_cubin(prepared.image).kernels()}
        results = []
        for case in prepared.task.bench:
            counted = self._counter.count(prepared, case, reference, trusted)
            if isinstance(counted, Fault):
                return counted
            plan = prepared.plans[case.name]
            moved, others = _other_operations(plan)
            nbytes = {index: buffer.nbytes for index, buffer in enumerate(plan.buffers)}
            modelled = model_plan(self.model, counted.launches, registers, nbytes, moved, others)
            results.append(self._result(prepared.task, case, modelled, counted.launches))
        return results

    def _result(
        self, task: Task, case: Case, modelled: Modelled, counts: tuple[LaunchCounts, ...]
    ) -> CaseResult:
        return CaseResult(
            modelled,
            counts,
            floor_us(self.model, task, case),
            roofline_us(self.model, task, case),
            float(arithmetic(task.bytes_moved, case.sizes)),
        )

    def _timings(
        self, prepared: Prepared, results: list[CaseResult], purpose: Purpose, reference: Reference
    ) -> tuple[Timing, ...]:
        baseline = self._baseline(prepared.task, purpose)
        against = self._cases(baseline, reference, trusted=True)
        if isinstance(against, Fault):
            raise KbError(f"the baseline of task {prepared.task.name} cannot be modelled: {against.message}")
        same = baseline.key == prepared.key
        return tuple(
            _timing(case.name, purpose.baseline_name, result, other, same)
            for case, result, other in zip(prepared.task.bench, results, against, strict=True)
        )

    def _baseline(self, task: Task, purpose: Purpose) -> Prepared:
        program = purpose.baseline or task.initial
        key = (task.key, program.key)
        if key not in self._baselines:
            prepared = self.prepare(task, program)
            if prepared.fault is not None:
                message = prepared.fault.message.splitlines()[0] if prepared.fault.message else ""
                raise KbError(f"the baseline of task {task.name} does not build or record: {message}")
            if len(self._baselines) > 64:
                self._baselines.clear()
            self._baselines[key] = prepared
        return self._baselines[key]


def _stored_verdict(store: Store, key: str) -> Verification | None:
    files = store.read(key)
    if files is None or "verdict" not in files:
        return None
    try:
        return unpack(Verification, files["verdict"])
    except RecordError:
        return None  # written by another version


def _timing(case: str, name: str, result: CaseResult, other: CaseResult, same: bool) -> Timing:
    """Modelled pair of times; a model below the physics floor is raised to it."""
    candidate = max(result.modelled.us, result.floor_us)
    baseline = max(other.modelled.us, other.floor_us)
    spread = ratio_spread(result.modelled, other.modelled)
    apart = GROWING * 2.0 * abs(baseline - candidate) / (baseline + candidate)
    half = 0.0 if same else Z95 * math.sqrt(spread * spread + INDEPENDENT * INDEPENDENT + apart * apart)
    speedup = baseline / candidate
    return Timing(
        case=case,
        baseline=name,
        candidate_us=(candidate,),
        baseline_us=(baseline,),
        speedup=speedup,
        speedup_low=speedup / (1.0 + half),
        speedup_high=speedup * (1.0 + half),
        source="modelled",
        floor_us=result.floor_us,
    )


def _other_operations(plan: LaunchPlan) -> tuple[int, int]:
    """Bytes that fills, copies and uploads move, and how many of them there are."""
    moved, number = 0, 0
    for item in plan.operations:
        if isinstance(item, Fill):
            moved += item.nbytes
        elif isinstance(item, Copy):
            moved += 2 * item.nbytes
        elif isinstance(item, Upload):
            moved += len(item.data)
        else:
            continue
        number += 1
    return moved, number


def _health(results: list[CaseResult]) -> dict[str, float | str]:
    """How much of the grids was run, and the model's own relative standard error."""
    blocks = [(c.blocks_run, c.blocks_total) for result in results for c in result.counts]
    return {
        "blocks_run": float(sum(run for run, _ in blocks)),
        "blocks_total": float(sum(total for _, total in blocks)),
        "model_relative_error": max(result.modelled.uncertainty for result in results),
    }


def device_answers(device: Device) -> DeviceAnswers:
    """What a launcher that asks about the GPU is told: the described device's own figures."""
    typical = answers_for(device.architecture)
    reserved = device.shared_reserved
    own = {
        8: 48 << 10,
        13: int(device.clock_ghz * 1e6),
        16: device.sm_count,
        38: device.l2_bytes,
        39: device.max_threads,
        81: device.shared_per_sm,
        97: device.shared_per_sm - reserved,
        106: device.max_blocks,
        111: reserved,
    }
    values = {**dict(typical.attributes), **own}
    return DeviceAnswers(f"NVIDIA {device.name}", typical.global_bytes, tuple(sorted(values.items())))
