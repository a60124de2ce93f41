"""Policy ``oneshot``: best of n. A language model is asked once, for many answers, from the start program.

Every answer is a step of its own that is applied to the start program, whatever the others came to; the
environment keeps the best. No feedback reaches the model: what ``refine`` gains over this at equal
steps is what feedback is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kb_env.types import Episode, Program, Task
from memory.entries import Holdout
from memory.store import Memory
from policies import render
from policies.chat import Answer, BudgetSpent, Chat, Settings, chat_of
from policies.situation import hiding, observed_situation, recalled
from policies.turn import cost_notes, fault_notes, rebased


class Oneshot:
    """``samples`` answers (default: one for each step); ``chat`` and ``memory`` as for ``refine``."""

    name = "oneshot"

    def __init__(
        self,
        model: str = "",
        base_url: str | None = None,
        chat: Chat | Settings | None = None,
        memory: Memory | None = None,
        holdout: Holdout = Holdout(),
        samples: int | None = None,
    ) -> None:
        self.chat = chat_of(chat, model, base_url)
        self.memory = hiding(memory, holdout)
        self.samples = samples
        self._task: Task | None = None
        self._reset()

    def _reset(self) -> None:
        self._prompt: render.Prompt | None = None
        self._base = Program("", "")
        self._answers: list[Answer] = []
        self._stopped = ""
        self._notes: dict[str, str | float] = {}

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._task = task
        self._reset()
        self.chat.begin(rng)

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        if self._prompt is None:
            self._sample(observation, history)
        if not self._answers:
            self._notes = {"stopped": self._stopped} if self._stopped else {}
            return "submit"
        answer = self._answers.pop(0)
        assert self._prompt is not None
        action, fault = rebased(answer.text, self._base, str(observation["source"]))
        self._notes = {**cost_notes(self._prompt, answer, answer.usage), "base_key": self._base.key}
        if fault:
            self._notes |= fault_notes(answer.text, fault)
        return action

    def _sample(self, observation: Mapping[str, Any], history: Episode) -> None:
        """Ask for all answers at once."""
        left = max(1, int(np.max(observation["steps_left"])))
        count = min(left, self.samples) if self.samples is not None else left
        self._base = Program(history.task, str(observation["source"]), history.initial.language)
        parts = [
            render.task_part(observation),
            render.source_part(self._base.text),
            render.profile_part(observation),
        ]
        if self.memory is not None and self._task is not None:
            place = observed_situation(self._task, observation, history.device)
            parts.append(render.recollections_part(recalled(self.memory, place)))
        self._prompt = render.prompt(parts, self.chat.prompt_tokens)
        try:
            self._answers = self.chat.ask(self._prompt.messages, count=count)
        except BudgetSpent as spent:
            self._stopped = str(spent)
            return
        if len(self._answers) < count:
            self._stopped = f"{len(self._answers)} of {count} answers: {self.chat.shortfall}"

    def notes(self) -> Mapping[str, str | float]:
        return dict(self._notes)

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Nothing: the memory, if there is one, is added to by the run."""

    def save(self, folder: Path) -> None:
        """Nothing is learned that is not in the memory."""

    def load(self, folder: Path) -> None:
        """Nothing is learned that is not in the memory."""
