"""Policy ``hillclimb``: moves of the catalogue on the best program, keeping what helps.

Which move comes next is drawn by Thompson sampling over beliefs about each technique's log gain: a
prior, what earlier episodes taught (:meth:`Hillclimb.learn`), what a memory recalls, and what this
episode has shown. No program is tried twice. When the best program has nothing left worth trying it
restarts from the next best verified one, and submits when no program has a move left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kb_env.edits import diff_action
from kb_env.types import Episode, Program, Task
from policies.moves import (
    FAILED_GAIN,
    Belief,
    Move,
    MoveMemory,
    moves,
    outcomes,
    read_beliefs,
    write_beliefs,
)

#: Log gain expected of a technique before anything is known; each counts as one try.
PRIOR: dict[str, float] = {
    "tiling": 1.0,
    "privatization": 0.8,
    "coalescing": 0.6,
    "fusion": 0.5,
    "staging": 0.3,
    "vectorization": 0.25,
    "shuffles": 0.15,
    "padding": 0.15,
    "coarsening": 0.1,
    "constants": 0.1,
    "block size": 0.1,
    "unrolling": 0.05,
    "qualifiers": 0.05,
    "read-only loads": 0.03,
    "launch bounds": 0.02,
    "arithmetic": 0.02,
}
_UNKNOWN = 0.1
#: Spread of a technique's gain around its mean, for Thompson sampling.
_SPREAD = 0.15
#: Each earlier try of the same move in this episode that did not help lowers its draw by this.
_REPEAT_COST = 0.3


@dataclass(frozen=True)
class _Verified:
    text: str
    speedup: float


class Hillclimb:
    """``memory`` is asked at the first step and told every finished step; ``patience`` is how many
    moves in a row may bring nothing before the search goes on from the next best program."""

    name = "hillclimb"

    def __init__(self, memory: MoveMemory | None = None, patience: int = 12) -> None:
        self.memory = memory
        self.patience = patience
        self.beliefs: dict[str, Belief] = {}
        self._rng = np.random.default_rng(0)
        self._task: Task | None = None
        self._reset()

    def _reset(self) -> None:
        self._tried: set[str] = set()
        self._verified: dict[str, _Verified] = {}
        self._useless: dict[str, int] = {}
        self._recalled: Mapping[str, Belief] = {}
        self._episode: dict[str, Belief] = {}
        self._seen = 0
        self._stale = 0
        self._notes: dict[str, str | float] = {}

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._task, self._rng = task, rng
        self._reset()

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        source, best = str(observation["source"]), str(observation["best_source"])
        if not self._verified and self.memory is not None and self._task is not None:
            self._recalled = self.memory.recall(self._task, observation)
        self._observe(history)
        self._verified.setdefault(best, _Verified(best, max(history.best_speedup, 1.0)))
        self._tried |= {source, best}
        for base in self._bases(best):
            found = [move for move in moves(base) if move.text not in self._tried]
            if found:
                return self._choose(source, base, found, history)
        self._notes = {}
        return "submit"

    def _observe(self, history: Episode) -> None:
        """Take in the steps made since the last call."""
        for step, gain in outcomes(history, self._seen):
            helped = gain is not None and gain > 0.01
            self._stale = 0 if helped else self._stale + 1
            if step.after is not None and step.speedup is not None:
                self._verified[step.after.text] = _Verified(step.after.text, step.speedup)
            technique, move = str(step.notes.get("technique", "")), str(step.notes.get("move", ""))
            known = self._episode.get(technique, Belief(0.0, 0.0))
            self._episode[technique] = known.updated(FAILED_GAIN if gain is None else gain)
            if not helped:
                self._useless[move] = self._useless.get(move, 0) + 1
            if self.memory is not None and self._task is not None:
                self.memory.remember(self._task, step)
        self._seen = len(history.steps)

    def _bases(self, best: str) -> list[str]:
        """Programs to go on from: the best, or after a long drought the next ones first."""
        ranked = sorted(self._verified.values(), key=lambda item: -item.speedup)
        others = [item.text for item in ranked if item.text != best]
        if self._stale >= self.patience and others:
            self._stale = 0
            return [*others, best]
        return [best, *others]

    def _choose(self, source: str, base: str, found: list[Move], history: Episode) -> str:
        draws = [self._draw(move) for move in found]
        move = found[int(np.argmax(draws))]
        self._tried.add(move.text)
        self._notes = {
            "technique": move.technique,
            "move": move.key,
            "predicted_gain": math.exp(self.belief(move.technique).mean),
            "base_key": Program(history.task, base, history.initial.language).key,
        }
        return diff_action(source, move.text)

    def _draw(self, move: Move) -> float:
        """One Thompson sample of the move's log gain."""
        belief = self.belief(move.technique)
        noise = float(self._rng.normal()) * _SPREAD / math.sqrt(belief.count)
        return belief.mean + noise - _REPEAT_COST * self._useless.get(move.key, 0)

    def belief(self, technique: str) -> Belief:
        """Everything known of a technique, weighted by how often it was tried."""
        sources = [Belief(PRIOR.get(technique, _UNKNOWN), 1.0)]
        for known in (self.beliefs, self._recalled, self._episode):
            if technique in known:
                sources.append(known[technique])
        count = sum(item.count for item in sources)
        return Belief(sum(item.mean * item.count for item in sources) / count, count)

    def notes(self) -> Mapping[str, str | float]:
        return dict(self._notes)

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Add what these episodes' steps gained to the beliefs, by technique."""
        for episode in episodes:
            for step, gain in outcomes(episode):
                technique = str(step.notes.get("technique", ""))
                if technique:
                    known = self.beliefs.get(technique, Belief(0.0, 0.0))
                    self.beliefs[technique] = known.updated(FAILED_GAIN if gain is None else gain)

    def save(self, folder: Path) -> None:
        write_beliefs(folder / "beliefs.json", self.beliefs)

    def load(self, folder: Path) -> None:
        self.beliefs = read_beliefs(folder / "beliefs.json")
