"""Policy ``recall``: no model; the techniques the knowledge base ranks first, through the catalogue.

At each step the current best program's profile gives a signature. Every legal move of the catalogue
is drawn by Thompson sampling from the knowledge base's posterior of its technique in that signature;
similar remembered situations shift the draw of the very same move, by similarity, up or down. What
the episode itself shows counts like any other evidence. With an empty memory all techniques start
alike, so that what the policy gains over that is what the memory taught.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kb_env.edits import diff_action
from kb_env.types import Episode, Program, Task
from memory.entries import Holdout, Recollection
from memory.knowledge import Posterior
from memory.signature import signature
from memory.store import Memory
from policies.moves import FAILED_GAIN, Belief, Move, moves, outcomes
from policies.situation import hiding, observed_profile, observed_situation

#: Recollections asked for at each new program, and below which similarity they say nothing.
RECOLLECTIONS, SIMILAR = 24, 0.5
#: One outcome of this episode, or one exactly similar remembered one, counts for this many observations.
EVIDENCE = 2.0


def move_evidence(found: Sequence[Recollection]) -> dict[str, Belief]:
    """Mean log gain of each remembered move, weighted by how similar its situation is."""
    sums: dict[str, tuple[float, float]] = {}
    for item in found:
        weight = max(0.0, item.similarity - SIMILAR) / (1.0 - SIMILAR)
        if item.record.move and weight > 0.0:
            total, count = sums.get(item.record.move, (0.0, 0.0))
            gain = FAILED_GAIN if item.record.gain is None else item.record.gain
            sums[item.record.move] = (total + weight * gain, count + weight)
    return {move: Belief(total / count, count) for move, (total, count) in sums.items()}


class Recall:
    """``memory`` is a :class:`memory.store.Memory` or its folder; ``holdout`` hides experiences."""

    name = "recall"

    def __init__(self, memory: Memory | Path | str | None = None, holdout: Holdout = Holdout()) -> None:
        known = memory if isinstance(memory, Memory) or memory is None else Memory(Path(memory))
        self.memory = hiding(known, holdout)
        self._rng = np.random.default_rng(0)
        self._task: Task | None = None
        self._reset()

    def _reset(self) -> None:
        self._tried: set[str] = set()
        self._shown: dict[str, Belief] = {}
        self._moves: dict[str, Belief] = {}
        self._seen = 0
        self._recalled: tuple[str, dict[str, Belief]] = ("", {})
        self._notes: dict[str, str | float] = {}

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._task, self._rng = task, rng
        self._reset()

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        assert self._task is not None, "begin(task, rng) comes first"
        source, best = str(observation["source"]), str(observation["best_source"])
        self._observe(history)
        self._tried |= {source, best}
        found = [move for move in moves(best) if move.text not in self._tried]
        if not found and source != best:
            best = source
            found = [move for move in moves(best) if move.text not in self._tried]
        if not found:
            self._notes = {}
            return "submit"
        held = signature(observed_profile(observation))
        remembered = self._remembered(observation, history.device)
        draws = [self._draw(move, held, history, remembered) for move in found]
        move = found[int(np.argmax(draws))]
        self._tried.add(move.text)
        belief = self._posterior(move.technique, held, history)
        self._notes = {
            "technique": move.technique,
            "move": move.key,
            "signature": held,
            "predicted_gain": math.exp(belief.mean) if belief else 1.0,
            "base_key": Program(history.task, best, history.initial.language).key,
        }
        return diff_action(source, move.text)

    def _observe(self, history: Episode) -> None:
        for step, gain in outcomes(history, self._seen):
            value = FAILED_GAIN if gain is None else gain
            for table, key in ((self._shown, "technique"), (self._moves, "move")):
                name = str(step.notes.get(key, ""))
                table[name] = table.get(name, Belief(0.0, 0.0)).updated(value)
        self._seen = len(history.steps)

    def _remembered(self, observation: Mapping[str, Any], device: str) -> dict[str, Belief]:
        """Evidence on moves from similar situations, looked up once per program."""
        source = str(observation["source"])
        if self.memory is None or self._task is None:
            return {}
        if self._recalled[0] != source:
            place = observed_situation(self._task, observation, device)
            found = self.memory.recall(place, RECOLLECTIONS, per_episode=4)
            self._recalled = (source, move_evidence(found))
        return self._recalled[1]

    def _posterior(self, technique: str, held: str, history: Episode) -> Posterior | None:
        if self.memory is None:
            return None
        return self.memory.knowledge.posterior(technique, held, history.device, history.source)

    def _draw(self, move: Move, held: str, history: Episode, remembered: Mapping[str, Belief]) -> float:
        """One Thompson draw of the move's worth: the technique's belief, then what is known of the move."""
        belief = self._posterior(move.technique, held, history)
        mean, weight, spread = 0.0, 1.0, 0.25
        if belief is not None:
            mean, spread = belief.verified * belief.mean + (1 - belief.verified) * FAILED_GAIN, belief.spread
            weight = max(1.0, (belief.spread / max(belief.doubt, 1e-6)) ** 2)
        pieces = [Belief(mean, min(weight, 20.0))]
        for known, key in ((remembered, move.key), (self._moves, move.key), (self._shown, move.technique)):
            if key in known:
                pieces.append(Belief(known[key].mean, EVIDENCE * known[key].count))
        count = sum(item.count for item in pieces)
        centre = sum(item.mean * item.count for item in pieces) / count
        return centre + float(self._rng.normal()) * spread / math.sqrt(count)

    def notes(self) -> Mapping[str, str | float]:
        return dict(self._notes)

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Nothing of its own: what is learned is in the memory, which the run adds episodes to."""

    def save(self, folder: Path) -> None:
        """The memory is on disk already."""

    def load(self, folder: Path) -> None:
        """The memory is on disk already."""


class TechniqueMemory:
    """The episodic memory as ``hillclimb`` asks for it: beliefs by technique for a situation."""

    def __init__(self, memory: Memory, device: str, source: str) -> None:
        self.memory = memory
        self.device = device
        self.source = source

    def recall(self, task: Task, observation: Mapping[str, Any]) -> Mapping[str, Belief]:
        held = signature(observed_profile(observation))
        ranked = self.memory.knowledge.rank(held, self.device, self.source)
        return {item.technique: Belief(item.score, item.count) for item in ranked if item.count}

    def remember(self, task: Task, record: object) -> None:
        """Steps are remembered as whole episodes, by the run (:meth:`Memory.learn`)."""
