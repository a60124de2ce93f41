"""CudaEnv: an action is a code edit, a reward is a verified speedup."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from kb_env import observe, show
from kb_env.edits import ACTION_LIMIT, PROGRAM_LIMIT
from kb_env.evaluators import Evaluator
from kb_env.judge import Judge
from kb_env.remember import Remembering
from kb_env.replay import ReplayEvaluator
from kb_env.rewards import Reward, find_reward
from kb_env.spaces import CodeText, Sampler, WholeFiles, comment_edit, transform_edit
from kb_env.steps import Attempt, Rules, Snapshot, attempt_action, first_evaluation, settle, spend
from kb_env.suites import TaskLike, task_pool
from kb_env.types import Episode, Evaluation, KbError, Program, Status, StepRecord, Task
from kb_env.versions import versions

#: What an evaluator raises when the harness itself fails; it ends the episode without a reward.
HARNESS_FAULTS = (KbError, OSError, EOFError)
#: Evaluations of first programs that are kept from reset to reset.
_FIRSTS = 256


class CudaEnv(gym.Env[dict[str, Any], str]):
    """Optimize one CUDA program a step at a time.

    Args:
        task: a task's name, folder or :class:`Task`; or None with ``suite``.
        suite: ``kb`` (the built-in tasks), a folder of task folders, or a list of tasks; ``reset``
            draws one by its seed.
        split: ``train``, ``test`` or ``all``: operator families are held out whole.
        backend: ``auto``, ``gpu``, ``sim``, ``sim:A100``, ``replay:FILE``; made at first use.
        evaluator: an :class:`Evaluator` to use instead; the caller closes it.
        device: which GPU of this machine, or the description that the simulator models.
        max_steps: the episode is truncated after so many steps.
        budget: further limits, ``seconds`` (of evaluation) or ``evaluations`` (measurements made).
        reward: ``gain``, ``delta``, ``terminal``, ``roofline`` or a function of an Outcome.
        evaluate_on_reset: measure the first program at ``reset``, which else costs nothing.
        profile: ask the evaluator for profiles.
        inputs_seed: seed of the inputs that modelled evaluations are checked on (default: the seed of
            ``reset``). Fixed, evaluations are remembered from episode to episode: for training.
        render_mode: ``ansi`` (``render`` returns the table) or ``human`` (rows are printed).
        store: folder of the build cache.
        sampler: what ``action_space.sample`` draws, a function of source and random generator; default:
            an edit of the catalogue of transforms, from a recording a program that it holds.

    Construction starts nothing: no CUDA, no compiler, no clock.
    """

    action_space: CodeText
    metadata = {"render_modes": ["ansi", "human"], "render_fps": 1}

    def __init__(
        self,
        task: TaskLike | None = None,
        *,
        suite: str | Path | Sequence[TaskLike] | None = None,
        split: str = "all",
        backend: str = "auto",
        evaluator: Evaluator | None = None,
        device: str | int | None = None,
        max_steps: int = 10,
        budget: Mapping[str, float] | None = None,
        reward: str | Reward = "gain",
        evaluate_on_reset: bool = False,
        profile: bool = True,
        inputs_seed: int | None = None,
        render_mode: str | None = None,
        store: str | Path | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        if max_steps < 1:
            raise KbError(f"max_steps is {max_steps}: an episode has at least one step")
        unknown = sorted(set(budget or {}) - {"seconds", "evaluations"})
        if unknown:
            raise KbError(f"no budget {unknown[0]!r}: use seconds or evaluations")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise KbError(f"no render mode {render_mode!r}: use one of {self.metadata['render_modes']}")
        self.render_mode = render_mode
        self.max_steps = max_steps
        self.observation_space = observe.observation_space(max_steps)
        self.action_space = CodeText(ACTION_LIMIT, sampler=sampler or transform_edit)
        self._sampler = sampler
        self._tasks = task_pool(task, suite, split)
        self._rules = Rules(max_steps, dict(budget or {}), find_reward(reward))
        self._evaluate_on_reset = evaluate_on_reset
        self._profile = profile
        self._inputs_seed = inputs_seed
        self._made_from = (backend, device, store)
        self._evaluator = evaluator
        self._owned = evaluator is None
        self._notes: dict[str, str | float] = {}
        self._firsts: dict[tuple[str, str, int], Evaluation] = {}
        self._state: Snapshot | None = None

    # ------------------------------------------------------------------ what policies look at

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator, made at first use."""
        if self._evaluator is None:
            from kb_env.backends import make_evaluator  # evaluators load only where they are used

            backend, device, store = self._made_from
            made = make_evaluator(backend, device=device, store=store)
            repeats = made.source == "modelled" and not isinstance(made, ReplayEvaluator)
            self._evaluator = Remembering(made) if repeats else made
        return self._evaluator

    @property
    def episode(self) -> Episode:
        """The record of the episode so far, complete after every step."""
        return self._now().episode

    @property
    def task(self) -> Task:
        return self._now().task

    @property
    def program(self) -> Program:
        """The program that the next edit applies to."""
        return self._now().current

    def note(self, **notes: str | float) -> None:
        """Attach what the policy thought (technique, predicted gain, ...) to the next step's record."""
        self._notes.update(notes)

    # ------------------------------------------------------------------ Gymnasium

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """Start an episode.

        ``options``: ``task`` (name, folder or Task), ``program`` (text or Program to start from),
        ``policy`` (name for the record).

        Raises:
            KbError: if options or task are wrong, or the first program fails where it is evaluated.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        unknown = sorted(set(options) - {"task", "program", "policy"})
        if unknown:
            raise KbError(f"no reset option {unknown[0]!r}: use task, program or policy")
        drawn = int(self.np_random.integers(1 << 31))
        task = (task_pool(options["task"], None, "all") if "task" in options else self._tasks).draw(
            self.np_random
        )
        program = _program(task, options.get("program"))
        evaluator = self.evaluator
        episode = Episode(
            task=task.name,
            policy=str(options.get("policy", "")),
            seed=drawn if seed is None else seed,
            device=evaluator.device,
            source=evaluator.source,
            trust=evaluator.trust,
            versions=versions(),
            initial=program,
            initial_evaluation=None,
            steps=(),
            best=task.initial,
            best_speedup=1.0,
        )
        self._notes = {}
        if self._sampler is None and isinstance(evaluator, ReplayEvaluator):
            texts = tuple(item.text for item in evaluator.recorded(task))
            self.action_space.sampler = WholeFiles(texts) if texts else comment_edit
        judge = Judge(task, episode.seed if self._inputs_seed is None else self._inputs_seed, self._profile)
        state = Snapshot(task, episode, judge, program)
        self._state = self._evaluate_first(state) if self._evaluate_on_reset else state
        if self.render_mode == "human":
            print(show.header(self.episode))
        return self._observation(), self._info(None)

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, float]]:
        """Apply an action.

        Raises:
            KbError: if there is no episode running.
        """
        state = self._now()
        if state.episode.ended != "running":
            raise KbError(f"the episode has ended ({state.episode.ended}): call reset()")
        try:
            attempt = attempt_action(state, action, self.evaluator)
        except HARNESS_FAULTS as error:
            message = f"Fault of the harness: {observe.clean(str(error))}"
            attempt = Attempt(Status.UNRECORDED, None, message, fault="HARNESS")
        self._state = settle(state, action, attempt, self._rules, self._notes)
        self._notes = {}
        episode = self.episode
        if self.render_mode == "human":
            print(show.row(episode.steps[-1]))
        terminated = episode.ended == "submitted"
        truncated = episode.ended not in ("running", "submitted")
        return (
            self._observation(),
            episode.steps[-1].reward,
            terminated,
            truncated,
            self._info(episode.steps[-1]),
        )

    def render(self) -> str | None:
        """The episode as a table in mode ``ansi``; mode ``human`` has printed its rows already."""
        return show.table(self.episode) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Stop the evaluator, if the environment made it. May be called twice."""
        if self._owned and self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None

    # ------------------------------------------------------------------ search

    def snapshot(self) -> Snapshot:
        """The current point of the episode, for :meth:`restore`."""
        state = self._now()
        return replace(state, judge=state.judge.copy())

    def restore(self, snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, float]]:
        """Go back to a point of this or another episode; what has been measured since stays known."""
        known = self._state.judge if self._state is not None else None
        self._state = replace(snapshot, judge=snapshot.judge.joined(known))
        self._notes = {}
        steps = snapshot.episode.steps
        return self._observation(), self._info(steps[-1] if steps else None)

    def evaluate_many(self, programs: Sequence[Program | str]) -> list[Evaluation]:
        """Evaluate programs against initial without a step: for groups of samples. Order is kept.

        Programs are built side by side. The measurements count against the budget.
        """
        state = self._now()
        wanted = [_program(state.task, program) for program in programs]
        findings = state.judge.evaluate_many(self.evaluator, wanted)
        seconds = sum(sum(finding.seconds.values()) for finding in findings)
        measured = sum(not finding.cached for finding in findings)
        self._state = replace(state, spent=spend(state.spent, seconds, measured))
        return [finding.evaluation for finding in findings]

    # ------------------------------------------------------------------ inside

    def _now(self) -> Snapshot:
        if self._state is None:
            raise KbError("no episode: call reset() first")
        return self._state

    def _evaluate_first(self, state: Snapshot) -> Snapshot:
        """The state after measuring the program the episode starts from."""
        measured = self.evaluator.source == "measured"
        key = (state.task.key, state.current.key, 0 if measured else state.judge.seed)
        if key not in self._firsts:
            if len(self._firsts) >= _FIRSTS:
                self._firsts.clear()
            self._firsts[key] = state.judge.evaluate(self.evaluator, state.current).evaluation
        evaluation = self._firsts[key]
        if evaluation.fault is not None and evaluation.status is not Status.UNRECORDED:
            raise KbError(
                f"the first program of {state.task.name} is {observe.evaluation_text(evaluation)[:500]}"
            )
        return first_evaluation(state, evaluation)

    def _observation(self) -> dict[str, Any]:
        state = self._now()
        self.action_space.source = state.current.text
        numbers = {
            "evaluation": state.current_evaluation,
            "speedup": state.speedup,
            "best_speedup": state.episode.best_speedup,
            "steps_left": max(0, self.max_steps - len(state.episode.steps)),
        }
        return observe.observation(
            state.task, state.current.text, state.episode.best.text, state.feedback, numbers
        )

    def _info(self, record: StepRecord | None) -> dict[str, float]:
        state = self._now()
        episode = state.episode
        rest = {
            "best_speedup": episode.best_speedup,
            "best_low": math.nan if episode.best_low is None else episode.best_low,
            "best_high": math.nan if episode.best_high is None else episode.best_high,
            "evaluations": state.spent["evaluations"],
            "ended": observe.ended_code(episode.ended),
        }
        return observe.info(record, record.evaluation if record else state.current_evaluation, rest)

    def __getstate__(self) -> dict[str, Any]:
        """An evaluator that the environment made is left behind: the copy makes its own."""
        return {**self.__dict__, "_evaluator": None if self._owned else self._evaluator}


def _program(task: Task, program: Program | str | None) -> Program:
    if program is None:
        program = task.initial
    if isinstance(program, str):
        program = Program(task.name, program, task.language)
    if program.task != task.name:
        raise KbError(f"the program is for task {program.task!r}, the episode's task is {task.name!r}")
    if len(program.text) > PROGRAM_LIMIT:
        raise KbError(f"the program has {len(program.text)} characters, {PROGRAM_LIMIT} are allowed")
    return program
