"""Policy ``evolve``: a population of programs, with a language model as its mutation and crossover.

Each step draws an island in turn, a parent from it and sometimes a mate, and asks the model for a child;
the child's profile decides which cell of the grid it competes in (policies/population.py has the sources).
The child is always an edit of its parent, whatever the environment's current program is. What failed on
a parent is told when that parent is drawn again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kb_env.types import Episode, Program, StepRecord, Task
from memory.entries import Holdout, Situation
from memory.store import Memory, task_scale
from policies import render
from policies.chat import BudgetSpent, Chat, Settings, chat_of
from policies.population import Elite, Population
from policies.situation import hiding, observed_profile, recalled
from policies.turn import cost_notes, fault_notes, rebased


@dataclass(frozen=True)
class Options:
    """``crossover`` is the chance of a mate; after every ``restart_every`` steps the worst islands start again."""

    islands: int = 3
    crossover: float = 0.3
    heat: float = 0.2
    restart_every: int = 12


@dataclass(frozen=True)
class Child:
    """What was asked for last: on which island, of which parents, and why there was no edit (or "")."""

    island: int
    parent: Elite
    mate: Elite | None
    fault: str = ""


class Evolve:
    """``chat`` and ``memory`` as for ``refine``."""

    name = "evolve"

    def __init__(
        self,
        model: str = "",
        base_url: str | None = None,
        chat: Chat | Settings | None = None,
        memory: Memory | None = None,
        holdout: Holdout = Holdout(),
        options: Options = Options(),
    ) -> None:
        self.chat = chat_of(chat, model, base_url)
        self.memory, self.options = hiding(memory, holdout), options
        self._task: Task | None = None
        self._rng = np.random.default_rng(0)
        self._reset()

    def _reset(self) -> None:
        self.population: Population | None = None
        self._child: Child | None = None
        self._failed: dict[str, list[str]] = {}
        self._notes: dict[str, str | float] = {}
        self._seen = self._turns = 0

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._task, self._rng = task, rng
        self._reset()
        self.chat.begin(rng)

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        if self.population is None:
            start = Program(history.task, str(observation["source"]), history.initial.language)
            first = Elite(start, float(np.max(observation["speedup"])) or 1.0, observed_profile(observation))
            self.population = Population(first, self.options.islands, self.options.heat)
        self._observe(history, self.population)
        child = self._choose(self.population)
        before = self.chat.usage
        prompt = self._prompt(child, observation, history)
        try:
            answer = self.chat.ask(prompt.messages)[0]
        except BudgetSpent as spent:
            self._notes = {"stopped": str(spent)}
            return "submit"
        action, fault = rebased(answer.text, child.parent.program, str(observation["source"]))
        self._child = Child(child.island, child.parent, child.mate, fault)
        self._notes = {
            **cost_notes(prompt, answer, self.chat.usage - before),
            "base_key": child.parent.program.key,
            "operator": "crossover" if child.mate is not None else "mutation",
            "island": float(child.island),
            "cell": child.parent.cell,
        }
        if fault:
            self._notes |= fault_notes(answer.text, fault)
        return action

    def _observe(self, history: Episode, population: Population) -> None:
        """Take in what became of the last child."""
        steps, self._seen = history.steps[self._seen :], len(history.steps)
        if not steps or self._child is None:
            return
        step, child = steps[-1], self._child
        if step.after is not None and step.speedup is not None and step.speedup > 0:
            profile = step.evaluation.profile if step.evaluation is not None else None
            population.add(child.island, Elite(step.after, step.speedup, profile))
        else:
            self._failed.setdefault(child.parent.program.key, []).append(failure_words(step, child.fault))

    def _choose(self, population: Population) -> Child:
        """Whose child comes next."""
        if self._turns and self._turns % self.options.restart_every == 0:
            population.restart_worst(self._rng)
        island = self._turns % len(population.islands)
        self._turns += 1
        parent = population.pick(island, self._rng)
        crossed = float(self._rng.random()) < self.options.crossover
        return Child(island, parent, population.mate(island, parent, self._rng) if crossed else None)

    def _prompt(self, child: Child, observation: Mapping[str, Any], history: Episode) -> render.Prompt:
        assert self.population is not None
        parent = child.parent
        parts = [
            render.task_part(observation),
            render.source_part(parent.program.text),
            render.elite_part(parent.speedup, parent.profile),
            render.population_part({cell: item.speedup for cell, item in self.population.cells().items()}),
            render.failures_part(self._failed.get(parent.program.key, ())),
        ]
        if child.mate is not None:
            parts.insert(2, render.mate_part(child.mate.program.text, child.mate.speedup))
        if self.memory is not None and self._task is not None:
            task = self._task
            place = Situation(
                parent.program.text, parent.profile, task.family, task.dtype, history.device, task_scale(task)
            )
            parts.append(render.recollections_part(recalled(self.memory, place)))
        role = render.CROSSOVER_ROLE if child.mate is not None else render.ROLE
        return render.prompt(parts, self.chat.prompt_tokens, role)

    def notes(self) -> Mapping[str, str | float]:
        return dict(self._notes)

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Nothing: a population lives for an episode; the memory, if there is one, is added to by the run."""

    def save(self, folder: Path) -> None:
        """Nothing is learned that is not in the memory."""

    def load(self, folder: Path) -> None:
        """Nothing is learned that is not in the memory."""


def failure_words(step: StepRecord, fault: str) -> str:
    """What went wrong with a child, in the environment's or the edit's own words."""
    return fault or render.feedback_words(step.feedback)
