"""A baseline plugged in from outside: simulated annealing over the catalogue of mechanical edits.

    kb compare --policies random,experiments.examples.annealing:Annealing --tasks all --seeds 3

It walks from the current program and accepts a slower one with the Metropolis rule, cooling over the
episode; otherwise it goes back to where it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kb_env.edits import diff_action
from kb_env.types import Episode, Task
from policies.moves import moves


class Annealing:
    """``heat`` is the log slowdown accepted one time in e at the start; it halves every ``half`` steps."""

    name = "annealing"

    def __init__(self, heat: float = 0.2, half: float = 3.0) -> None:
        self.heat, self.half = heat, half

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._rng = rng
        self._place, self._level = "", 0.0
        self._tried: set[str] = set()
        self._notes: dict[str, str | float] = {}

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        source = str(observation["source"])
        level = math.log(max(float(observation["speedup"][0]), 1e-6))
        temperature = self.heat * 0.5 ** (len(history.steps) / self.half)
        if not self._place or level >= self._level or self._accepts(self._level - level, temperature):
            self._place, self._level = source, level
        self._tried.add(self._place)
        found = [move for move in moves(self._place) if move.text not in self._tried]
        if not found:
            return "submit"
        move = found[int(self._rng.integers(len(found)))]
        self._tried.add(move.text)
        self._notes = {"technique": move.technique, "move": move.key, "temperature": temperature}
        return diff_action(source, move.text)

    def _accepts(self, loss: float, temperature: float) -> bool:
        return bool(self._rng.random() < math.exp(-loss / temperature))

    def notes(self) -> Mapping[str, str | float]:
        return dict(self._notes)

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Nothing is carried over."""

    def save(self, folder: Path) -> None:
        """There is nothing to save."""

    def load(self, folder: Path) -> None:
        """There is nothing to load."""
