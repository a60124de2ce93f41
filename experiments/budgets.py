"""Budgets that all policies of a table share: steps, evaluations, device seconds, tokens or money.

One is made equal in a table and the others are reported beside it. A policy whose budget is spent
submits. The last step may overrun: what a request or a measurement costs is known once it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.metrics import COSTS, spent
from kb_env.types import Episode, KbError, Task
from policies.policy import Policy, notes_of


class Budgeted:
    """A policy that submits once ``limits`` (by the names in COSTS) are reached."""

    def __init__(self, policy: Policy, limits: Mapping[str, float]) -> None:
        unknown = sorted(set(limits) - set(COSTS))
        if unknown:
            raise KbError(f"no budget {unknown[0]!r}: use one of {', '.join(COSTS)}")
        self.policy = policy
        self.limits = dict(limits)
        self.name = policy.name
        self._over = False

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self.policy.begin(task, rng)

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        used = spent(history)
        self._over = any(used[name] >= limit for name, limit in self.limits.items())
        return "submit" if self._over else self.policy.act(observation, history)

    def notes(self) -> Mapping[str, str | float]:
        return {"stopped": "the budget is spent"} if self._over else notes_of(self.policy)

    def learn(self, episodes: Sequence[Episode]) -> None:
        self.policy.learn(episodes)

    def save(self, folder: Path) -> None:
        self.policy.save(folder)

    def load(self, folder: Path) -> None:
        self.policy.load(folder)
