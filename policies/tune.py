"""Policy ``tune``: Optuna's ask and tell over the constants and transforms of the initial program.

The search space is fixed at the first step: every tunable constant with its choices, and every
transform of the catalogue that applies, off or in one of its variants. A trial is one point of it,
built by applying its transforms in catalogue order and then setting the constants; every trial that
gives a new program is a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from kb_env.edits import diff_action
from kb_env.transforms import CATALOGUE, applicable, constants, set_constant
from kb_env.types import Episode, Task

_OFF = "off"
_CONSTANT = "constant "
#: Transforms that only change constants are left to the constants' own dimensions.
_NUMERIC = ("change_constant", "block_literals")
#: Asking stops after this many points in a row that give programs already tried.
_REPEATS = 200


class Tune:
    """``startup`` random trials come before the tree-structured Parzen estimator takes over."""

    name = "tune"

    def __init__(self, startup: int = 8) -> None:
        self.startup = startup
        self._rng = np.random.default_rng(0)
        self._begin()

    def _begin(self) -> None:
        self._study: optuna.Study | None = None
        self._base = ""
        self._space: dict[str, tuple[str, ...]] = {}
        self._scores: dict[str, float | None] = {}
        self._open: dict[str, list[optuna.trial.Trial]] = {}
        self._seen = 0
        self._notes: dict[str, str | float] = {}

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._rng = rng
        self._begin()

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        source = str(observation["source"])
        if self._study is None:
            self._start(str(observation["best_source"]))
        self._observe(history)
        for _ in range(_REPEATS if self._space else 0):
            assert self._study is not None
            trial = self._study.ask()
            choice = {name: str(trial.suggest_categorical(name, c)) for name, c in self._space.items()}
            text = build(self._base, choice)
            if text not in self._scores:
                self._scores[text] = None
                self._open[text] = [trial]
                changed = [name.removeprefix(_CONSTANT) for name, value in choice.items() if value != _OFF]
                self._notes = {"technique": "tune", "move": ", ".join(changed), "trial": float(trial.number)}
                return diff_action(source, text)
            self._tell(trial, self._scores[text])
        self._notes = {}
        return "submit"

    def _start(self, base: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = int(self._rng.integers(1 << 31))
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=self.startup)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._base, self._space = base, space(base)
        self._scores[base] = 0.0
        for name, choices in self._space.items():
            if not name.startswith(_CONSTANT):
                alone = {other: items[0] for other, items in self._space.items()}
                self._study.enqueue_trial({**alone, name: choices[1]})

    def _observe(self, history: Episode) -> None:
        """Tell the study what the steps since the last call gave: log speedup, or a fault."""
        for step in history.steps[self._seen :]:
            if step.after is None or step.after.text not in self._open:
                continue
            score = math.log(step.speedup) if step.speedup is not None and step.speedup > 0 else None
            self._scores[step.after.text] = self._penalty() if score is None else score
            for trial in self._open.pop(step.after.text):
                self._tell(trial, self._scores[step.after.text])
        self._seen = len(history.steps)

    def _penalty(self) -> float:
        """A failed trial ranks below every verified one, so that the sampler learns to avoid it."""
        return min(score for score in self._scores.values() if score is not None) - 0.5

    def _tell(self, trial: optuna.trial.Trial, score: float | None) -> None:
        assert self._study is not None
        if score is None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, score)

    def notes(self) -> Mapping[str, str | float]:
        return dict(self._notes)

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Each study stands alone: spaces of different programs are not comparable."""

    def save(self, folder: Path) -> None:
        """There is nothing to save between episodes."""

    def load(self, folder: Path) -> None:
        """There is nothing to load."""


def space(text: str) -> dict[str, tuple[str, ...]]:
    """Dimensions by name; the first choice of each leaves the program as it is."""
    found: dict[str, tuple[str, ...]] = {}
    for position, variant in applicable(text):
        name = CATALOGUE[position].name
        if name not in _NUMERIC:
            found[name] = (*found.get(name, (_OFF,)), str(variant))
    for item in constants(text):
        others = [str(value) for value in item.choices if value != item.value]
        found[_CONSTANT + item.name] = (str(item.value), *others)
    return found


def build(text: str, choice: Mapping[str, str]) -> str:
    """The program at one point of the space. A part that no longer applies is left out."""
    for transform in CATALOGUE:
        variant = choice.get(transform.name, _OFF)
        if variant != _OFF:
            text = transform.apply(text, int(variant)) or text
    legal = {item.name: item.choices for item in constants(text)}
    for name, value in choice.items():
        constant = name.removeprefix(_CONSTANT)
        if name.startswith(_CONSTANT) and int(value) in legal.get(constant, ()):
            text = set_constant(text, constant, int(value)) or text
    return text
