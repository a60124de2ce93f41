"""Policy ``refine``: a language model improves the program step by step from feedback alone.

Each step is one request: the task, the current program, where the episode stands, the outcome of the
last step, the profile, the steps so far and, with a memory, similar situations that were remembered.
The answer is the action. One that holds no action costs a step and comes back as its feedback.
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
from policies.chat import BudgetSpent, Chat, Settings, chat_of
from policies.situation import hiding, observed_situation, recalled
from policies.turn import as_action, cost_notes


class Refine:
    """``chat`` may be settings to make one of; else ``model`` and ``base_url`` name it. ``memory`` is optional."""

    name = "refine"

    def __init__(
        self,
        model: str = "",
        base_url: str | None = None,
        chat: Chat | Settings | None = None,
        memory: Memory | None = None,
        holdout: Holdout = Holdout(),
    ) -> None:
        self.chat = chat_of(chat, model, base_url)
        self.memory = hiding(memory, holdout)
        self._task: Task | None = None
        self._notes: dict[str, str | float] = {}
        self._finish = ""

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._task = task
        self._notes = {}
        self._finish = ""
        self.chat.begin(rng)

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        before = self.chat.usage
        prompt = self.prompt(observation, history)
        try:
            answer = self.chat.ask(prompt.messages)[0]
        except BudgetSpent as spent:
            self._notes = {"stopped": str(spent)}
            return "submit"
        self._notes = cost_notes(prompt, answer, self.chat.usage - before)
        self._finish = answer.finish
        return as_action(
            answer.text, Program(history.task, str(observation["source"]), history.initial.language)
        )

    def prompt(self, observation: Mapping[str, Any], history: Episode) -> render.Prompt:
        """The whole request of a step."""
        parts = [
            render.task_part(observation),
            render.source_part(str(observation["source"])),
            render.standing_part(observation),
            render.profile_part(observation),
            render.history_part(history),
            render.feedback_part(observation, self._finish),
        ]
        if self.memory is not None and self._task is not None:
            place = observed_situation(self._task, observation, history.device)
            parts.append(render.recollections_part(recalled(self.memory, place)))
        return render.prompt(parts, self.chat.prompt_tokens)

    def notes(self) -> Mapping[str, str | float]:
        return dict(self._notes)

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Nothing: the memory, if there is one, is added to by the run."""

    def save(self, folder: Path) -> None:
        """Nothing is learned that is not in the memory."""

    def load(self, folder: Path) -> None:
        """Nothing is learned that is not in the memory."""
