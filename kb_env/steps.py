"""One step without its Gymnasium clothes: attempt an action, then settle what it comes to."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kb_env.edits import ACTION_LIMIT, BadEdit, apply_edits, parse_action
from kb_env.evaluators import Evaluator
from kb_env.judge import Judge
from kb_env.observe import clean, evaluation_text, interval
from kb_env.rewards import SMALLEST_GAIN, Outcome, Reward
from kb_env.spaces import cut
from kb_env.types import Episode, Evaluation, KbError, Program, Status, StepRecord, Task


@dataclass(frozen=True)
class Snapshot:
    """A point of an episode to go back to. Picklable; nothing in it changes but the judge's knowledge.

    ``best_low`` is the lower bound of the best program's speedup, 1 for the initial program;
    ``roofline`` the initial program's share of the roofline; ``spent`` the budget used so far.
    """

    task: Task
    episode: Episode
    judge: Judge
    current: Program
    current_evaluation: Evaluation | None = None
    best_evaluation: Evaluation | None = None
    best_low: float = 1.0
    roofline: float | None = None
    spent: Mapping[str, float] = field(default_factory=lambda: {"seconds": 0.0, "evaluations": 0.0})
    feedback: str = "No step yet."

    @property
    def speedup(self) -> float | None:
        """Speedup of the current program; the initial program's is 1 by definition."""
        if self.current_evaluation is not None and self.current_evaluation.speedup is not None:
            return self.current_evaluation.speedup
        return 1.0 if self.current == self.task.initial else None


@dataclass(frozen=True)
class Rules:
    """When an episode ends and what it pays."""

    max_steps: int
    budget: Mapping[str, float]
    reward: Reward


@dataclass(frozen=True)
class Attempt:
    """What an action led to. ``kept`` makes ``program`` the current one; ``measured``
    counts the measurements made, ``seconds`` what each phase of the step took."""

    status: Status
    program: Program | None
    message: str
    evaluation: Evaluation | None = None
    confirmation: Evaluation | None = None
    cached: bool = False
    kept: bool = False
    new_best: bool = False
    submitted: bool = False
    fault: str | None = None
    measured: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


def first_evaluation(state: Snapshot, evaluation: Evaluation) -> Snapshot:
    """The state once the program that the episode starts from is evaluated."""
    state.judge.learn(state.current, evaluation)
    episode = replace(state.episode, initial_evaluation=evaluation)
    best_low, best_evaluation = state.best_low, state.best_evaluation
    low = evaluation.speedup_low
    if state.current == state.task.initial:
        best_evaluation = evaluation
    elif low is not None and low > 1:
        best_low, best_evaluation = low, evaluation
        episode = replace(
            episode,
            best=state.current,
            best_speedup=evaluation.speedup or low,
            best_low=low,
            best_high=evaluation.speedup_high,
        )
    return replace(
        state,
        episode=episode,
        current_evaluation=evaluation,
        best_evaluation=best_evaluation,
        best_low=best_low,
        roofline=initial_roofline(evaluation),
        feedback=evaluation_text(evaluation),
    )


def attempt_action(state: Snapshot, action: str, evaluator: Evaluator) -> Attempt:
    """Edit, evaluate and, for a would-be best, measure again. Changes nothing but the judge's knowledge."""
    begun = time.perf_counter()
    try:
        parsed = parse_action(action, state.task.language)
        if parsed.kind == "submit":
            return Attempt(
                Status.TIMED, state.current, "Submitted.", state.current_evaluation, submitted=True
            )
        if parsed.kind == "revert":
            message = "Reverted to the best program."
            return Attempt(Status.TIMED, state.episode.best, message, state.best_evaluation, kept=True)
        program = replace(state.current, text=apply_edits(state.current.text, parsed.edits))
    except BadEdit as error:
        return Attempt(Status.BAD_EDIT, None, f"BAD_EDIT: {clean(str(error))}")
    seconds = {"edit": time.perf_counter() - begun}
    finding = state.judge.evaluate(evaluator, program)
    evaluation = finding.evaluation
    attempt = Attempt(
        evaluation.status,
        program,
        evaluation_text(evaluation, finding.cached),
        evaluation,
        cached=finding.cached,
        kept=evaluation.verified,
        fault="UNRECORDED" if evaluation.status is Status.UNRECORDED else None,
        measured=0 if finding.cached else 1,
        seconds={**seconds, **finding.seconds},
    )
    return _challenge(state, attempt, evaluator) if _would_be_best(state, evaluation) else attempt


def _would_be_best(state: Snapshot, evaluation: Evaluation) -> bool:
    if evaluation.speedup is None:
        return False
    best = state.best_evaluation
    if best is not None and best.key is not None and best.key == evaluation.key:
        return False
    bar = state.episode.best_speedup
    if best is not None and best.speedup is not None:
        bar = min(bar, best.speedup)  # either may be lucky; the measurement to come decides
    return evaluation.speedup >= bar * math.exp(SMALLEST_GAIN)


def _challenge(state: Snapshot, attempt: Attempt, evaluator: Evaluator) -> Attempt:
    """The attempt after measuring its program afresh, paired against the best one."""
    assert attempt.program is not None
    finding = state.judge.confirm(evaluator, attempt.program, state.episode.best)
    confirmation = finding.evaluation
    attempt = replace(
        attempt,
        confirmation=confirmation,
        measured=attempt.measured + (0 if finding.cached else 1),
        seconds={**attempt.seconds, **finding.seconds},
    )
    if confirmation.status is Status.UNRECORDED:
        words = f"The measurement against the best program is not recorded: {clean(confirmation.message)}"
        return replace(
            attempt, status=Status.UNRECORDED, kept=False, message=words, fault=Status.UNRECORDED.value
        )
    if confirmation.fault is not None:
        words = f"Failed when measured again: {evaluation_text(confirmation)}"
        return replace(
            attempt, status=confirmation.status, evaluation=confirmation, kept=False, message=words
        )
    low = confirmation.speedup_low or 0.0
    new_best = low >= math.exp(SMALLEST_GAIN)
    gain = interval(confirmation.speedup, confirmation.speedup_low, confirmation.speedup_high)
    verdict = "New best" if new_best else "Not told apart from the best program"
    words = f"{attempt.message}\n{verdict}: measured again, {gain} times as fast as the best before."
    return replace(attempt, new_best=new_best, message=words)


def settle(
    state: Snapshot, action: object, attempt: Attempt, rules: Rules, notes: Mapping[str, str | float]
) -> Snapshot:
    """The state after an attempt: record, reward, budget, and whether the episode goes on.

    Raises:
        KbError: if the reward function returns what is no finite number.
    """
    after = replace(
        state,
        spent=spend(state.spent, sum(attempt.seconds.values()), attempt.measured),
        feedback=attempt.message,
        roofline=state.roofline if state.roofline is not None else initial_roofline(attempt.evaluation),
    )
    if attempt.kept and attempt.program is not None:
        after = replace(after, current=attempt.program, current_evaluation=attempt.evaluation)
    if attempt.new_best and attempt.confirmation is not None:
        after = _promote(after, attempt.confirmation)
    ended = _ending(after, attempt, rules)
    reward = 0.0
    if attempt.fault is None:  # a fault of the harness is nobody's merit or blame
        reward = float(rules.reward(_outcome(state, after, attempt.status, ended != "running")))
    if not math.isfinite(reward):
        raise KbError(f"the reward function returned {reward}: it must return a finite number")
    record = StepRecord(
        index=len(after.episode.steps),
        action=cut(str(action), 2000 if len(str(action)) > ACTION_LIMIT else ACTION_LIMIT),
        before=state.current,
        after=attempt.program,
        evaluation=attempt.evaluation,
        status=attempt.status,
        feedback=attempt.message,
        reward=reward,
        speedup=attempt.evaluation.speedup if attempt.evaluation is not None else None,
        best_speedup=after.episode.best_speedup,
        confirmation=attempt.confirmation,
        cached=attempt.cached,
        seconds=dict(attempt.seconds),
        notes=dict(notes),
    )
    return replace(after, episode=replace(after.episode, steps=(*after.episode.steps, record), ended=ended))


def _promote(state: Snapshot, confirmation: Evaluation) -> Snapshot:
    """The current program becomes the best; its speedup is the chain of the paired measurements."""
    low, gain, high = confirmation.speedup_low, confirmation.speedup, confirmation.speedup_high
    assert low is not None and gain is not None and high is not None  # the judge has checked them
    best_low = state.best_low * low
    episode = replace(
        state.episode,
        best=state.current,
        best_speedup=state.episode.best_speedup * gain,
        best_low=best_low,
        best_high=(state.episode.best_high or 1.0) * high,
    )
    return replace(state, episode=episode, best_evaluation=state.current_evaluation, best_low=best_low)


def _ending(state: Snapshot, attempt: Attempt, rules: Rules) -> str:
    if attempt.fault is not None:
        return f"fault: {attempt.fault}"
    if attempt.submitted:
        return "submitted"
    if len(state.episode.steps) + 1 >= rules.max_steps:
        return "steps"
    if any(state.spent[name] >= limit for name, limit in rules.budget.items()):
        return "budget"
    return "running"


def _outcome(before: Snapshot, after: Snapshot, status: Status, ended: bool) -> Outcome:
    return Outcome(
        status=status,
        current_before=before.speedup,
        current_after=after.speedup,
        best_low_before=before.best_low,
        best_low_after=after.best_low,
        roofline=after.roofline,
        ended=ended,
    )


def initial_roofline(evaluation: Evaluation | None) -> float | None:
    """The initial program's share of the roofline (0 to 1), from the floor times in an evaluation."""
    if evaluation is None or not evaluation.verified or not evaluation.timings:
        return None
    shares = [t.floor_us / min(t.baseline_us) for t in evaluation.timings if t.floor_us and t.baseline_us]
    if len(shares) != len(evaluation.timings):
        return None
    return min(1.0, math.exp(sum(map(math.log, shares)) / len(shares)))


def spend(spent: Mapping[str, float], seconds: float, measured: int) -> dict[str, float]:
    """The budget after so many more seconds and measurements."""
    return {"seconds": spent["seconds"] + seconds, "evaluations": spent["evaluations"] + measured}
