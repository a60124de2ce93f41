"""The evaluations of one episode: what is measured once, what is measured again, what is believed.

Every cubin and plan is measured once against the initial program, however its source is spelled,
and once against each best program it challenges. Asking again gives the same answer, so that
nothing is won by repeating a lucky measurement. A candidate that fails when it is measured again
has failed for good.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from kb_env.evaluators import Evaluator, Prepared, Purpose
from kb_env.types import Evaluation, KbError, Program, Status, Task


@dataclass(frozen=True)
class Finding:
    """An evaluation, whether it was known already, and the seconds by phase that this asking took."""

    evaluation: Evaluation
    cached: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Judge:
    """Evaluations of programs for one task and reset seed, by program key and by cubin-and-plan key."""

    task: Task
    seed: int
    profile: bool = True
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    confirmations: dict[tuple[str, str], Evaluation] = field(default_factory=dict)

    def learn(self, program: Program, evaluation: Evaluation) -> None:
        """Take an evaluation for known."""
        if evaluation.status is not Status.UNRECORDED:
            self.evaluations[program.key] = evaluation
            if evaluation.key is not None:
                self.evaluations[evaluation.key] = evaluation

    def copy(self) -> Judge:
        return replace(self, evaluations=dict(self.evaluations), confirmations=dict(self.confirmations))

    def joined(self, other: Judge | None) -> Judge:
        """A copy that knows as well what ``other`` found for the same task and seed."""
        joined = self.copy()
        if other is not None and (other.task.key, other.seed) == (self.task.key, self.seed):
            joined.evaluations.update(other.evaluations)
            joined.confirmations.update(other.confirmations)
        return joined

    def evaluate(self, evaluator: Evaluator, program: Program) -> Finding:
        """The evaluation of ``program`` against initial.

        Raises:
            KbError: if the evaluator returns what no evaluation can be.
        """
        known = self.evaluations.get(program.key)
        if known is not None:
            return Finding(known, cached=True)
        return self._measure(evaluator, evaluator.prepare(self.task, program))

    def _measure(self, evaluator: Evaluator, prepared: Prepared) -> Finding:
        known = self.evaluations.get(prepared.key) if prepared.key is not None else None
        if prepared.fault is not None:
            finding = Finding(failed(evaluator, prepared), seconds=dict(prepared.seconds))
        elif known is not None:
            finding = Finding(known, cached=True, seconds=dict(prepared.seconds))
        else:
            purpose = Purpose(profile=self.profile, seed=self.seed)
            evaluation = checked(evaluator.measure(prepared, purpose))
            seconds = {**prepared.seconds, **evaluation.seconds}
            finding = Finding(replace(evaluation, seconds=seconds), seconds=seconds)
        if finding.evaluation.status is not Status.UNRECORDED:
            self.evaluations[prepared.program.key] = finding.evaluation
            if prepared.key is not None:
                self.evaluations[prepared.key] = finding.evaluation
        return finding

    def confirm(self, evaluator: Evaluator, program: Program, best: Program) -> Finding:
        """A fresh measurement of ``program`` paired against ``best``."""
        challenger = self.evaluations[program.key].key or program.key
        pair = (challenger, self._identity(best))
        if pair in self.confirmations:
            return Finding(self.confirmations[pair], cached=True)
        purpose = Purpose(baseline=best, baseline_name="best", seed=self.seed + 1, sanitize=True)
        evaluation = checked(evaluator.measure(evaluator.prepare(self.task, program), purpose))
        if evaluation.status is not Status.UNRECORDED:
            self.confirmations[pair] = evaluation
        if evaluation.fault is not None and evaluation.status is not Status.UNRECORDED:
            self.evaluations[program.key] = self.evaluations[challenger] = evaluation
        return Finding(evaluation, seconds={"confirm": sum(evaluation.seconds.values())})

    def _identity(self, program: Program) -> str:
        known = self.evaluations.get(program.key)
        return known.key if known is not None and known.key is not None else program.key

    def evaluate_many(self, evaluator: Evaluator, programs: Sequence[Program]) -> list[Finding]:
        """Findings in order; builds run side by side on the CPUs, measurements one by one."""
        new = {p.key: p for p in programs if p.key not in self.evaluations}
        found: dict[str, Finding] = {}
        if new:
            with ThreadPoolExecutor(max_workers=min(len(new), os.cpu_count() or 1)) as pool:
                prepared = list(pool.map(lambda p: evaluator.prepare(self.task, p), new.values()))
            found = {item.program.key: self._measure(evaluator, item) for item in prepared}
        answers = []
        for program in programs:
            answers.append(found.get(program.key) or Finding(self.evaluations[program.key], cached=True))
            if program.key in found:  # asked for twice in one group, it is paid for once
                found[program.key] = Finding(found[program.key].evaluation, cached=True)
        return answers


def failed(evaluator: Evaluator, prepared: Prepared) -> Evaluation:
    """The evaluation of a program that did not get as far as the device."""
    return Evaluation(
        build=prepared.build,
        verification=None,
        timings=None,
        profile=None,
        trust=evaluator.trust,
        source=evaluator.source,
        device=evaluator.device,
        key=prepared.key,
        fault=prepared.fault,
        seconds=dict(prepared.seconds),
    )


def checked(evaluation: Evaluation) -> Evaluation:
    """The evaluation itself, if a reward may rest on it: failed with a reason, or verified and timed.

    Raises:
        KbError: naming what is inconsistent. A number that is not one must not become a reward.
    """
    if evaluation.fault is not None:
        return evaluation
    if not evaluation.verified:
        raise KbError("the evaluator returned neither a fault nor a verified result")
    if not evaluation.timings:
        raise KbError("the evaluator verified a program but did not time it")
    for timing in evaluation.timings:
        low, middle, high = timing.speedup_low, timing.speedup, timing.speedup_high
        if not (0 < low <= middle <= high and math.isfinite(high)):
            raise KbError(f"the evaluator returned speedup {middle} ({low} to {high}) in case {timing.case}")
        if not all(0 < us < math.inf for us in (*timing.candidate_us, *timing.baseline_us)):
            raise KbError(f"the evaluator returned a time that is none in case {timing.case}")
    return evaluation
