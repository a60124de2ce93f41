"""Policy ``random``: a uniformly drawn move of the catalogue on the current program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kb_env.edits import diff_action
from kb_env.types import Episode, Task
from policies.moves import moves


class RandomSearch:
    """The baseline every search has to beat. It repeats no program and learns nothing.

    It goes on from the current program, so it walks; where every move of that one has been tried it
    goes back to the best, and where that has none left either it submits.
    """

    name = "random"

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._tried: set[str] = set()
        self._notes: dict[str, str | float] = {}

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._rng = rng
        self._tried = set()

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        source = str(observation["source"])
        for base in dict.fromkeys((source, str(observation["best_source"]))):
            self._tried.add(base)
            found = [move for move in moves(base) if move.text not in self._tried]
            if found:
                move = found[int(self._rng.integers(len(found)))]
                self._tried.add(move.text)
                self._notes = {"technique": move.technique, "move": move.key, "propensity": 1 / len(found)}
                return diff_action(source, move.text)
        self._notes = {}
        return "submit"

    def notes(self) -> Mapping[str, str | float]:
        return dict(self._notes)

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Chance learns nothing."""

    def save(self, folder: Path) -> None:
        """There is nothing to save."""

    def load(self, folder: Path) -> None:
        """There is nothing to load."""
