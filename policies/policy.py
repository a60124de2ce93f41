"""What a policy is, and the choice of one by name.

A policy sees the environment's observation (a dict of facts: task, source, best_source, feedback,
profile, ...) and the episode so far, and answers with an action's text. It never runs code and never
touches the evaluator: what it wants to know it has to try, as a step.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kb_env.types import Episode, KbError, Task

#: Name of each policy shipped here, and where it is. Modules are imported when first asked for.
POLICIES: dict[str, str] = {
    "random": "policies.random_search:RandomSearch",
    "hillclimb": "policies.hillclimb:Hillclimb",
    "tune": "policies.tune:Tune",
    "script": "policies.script:Script",
    "recall": "policies.recall:Recall",
    "oneshot": "policies.oneshot:Oneshot",
    "refine": "policies.refine:Refine",
    "evolve": "policies.evolve:Evolve",
    "maicrl": "policies.maicrl:Maicrl",
}


@runtime_checkable
class Policy(Protocol):
    """``begin`` opens an episode; ``act`` gives the next action's text for it, ``submit`` to end it.

    All chance comes from the generator given to ``begin``. ``learn`` takes finished episodes, of any
    policy; ``save`` and ``load`` keep what was learned in a folder. A policy may also have
    ``notes() -> Mapping[str, str | float]``: what it wrote down about its last choice (technique,
    propensity, predicted gain), which goes into the step's record.
    """

    name: str

    def begin(self, task: Task, rng: np.random.Generator) -> None: ...

    def act(self, observation: Mapping[str, Any], history: Episode) -> str: ...

    def learn(self, episodes: Sequence[Episode]) -> None: ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


def notes_of(policy: Policy) -> Mapping[str, str | float]:
    """The policy's notes on its last action; empty where it keeps none."""
    notes = getattr(policy, "notes", None)
    return notes() if callable(notes) else {}


def find_policy(name: str) -> Callable[..., Any]:
    """What makes policy ``name``: a name in POLICIES, or ``module:Class``.

    Raises:
        KbError: if there is no such policy.
    """
    place = POLICIES.get(name, name)
    module, colon, attribute = place.partition(":")
    if not colon or not module or not attribute:
        raise KbError(f"no policy {name!r}: choose one of {', '.join(sorted(POLICIES))}, or module:Class")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise KbError(f"cannot load policy {name!r}: {error}") from error
    return found


def takes(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that policy ``name`` has a parameter for."""
    try:
        known = inspect.signature(find_policy(name)).parameters
    except (TypeError, ValueError):  # not callable, or written in C: it has no parameters to speak of
        return {}
    return {key: value for key, value in settings.items() if key in known}


def make_policy(name: str, /, **settings: Any) -> Policy:
    """A new policy by its name in POLICIES or as ``module:Class``; settings go to its constructor.

    Raises:
        KbError: if there is no such policy, or it does not take these settings.
    """
    try:
        policy = find_policy(name)(**settings)
    except TypeError as error:
        raise KbError(f"policy {name!r} does not take these settings: {error}") from error
    if not isinstance(policy, Policy):
        raise KbError(f"{name} is not a policy: it needs name, begin, act, learn, save and load")
    return policy
