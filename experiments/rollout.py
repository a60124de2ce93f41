"""The rollout loop, written once: a policy plays an episode in an environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from kb_env.types import Episode, Program, Task
from policies.policy import Policy, notes_of

#: Called with the episode as it stands after each step.
OnStep = Callable[[Episode], None]


def play(
    env: gymnasium.Env[Any, Any],
    policy: Policy,
    task: Task,
    seed: int,
    on_step: OnStep | None = None,
    program: Program | None = None,
    label: str | None = None,
) -> Episode:
    """Play one episode to its end and return its record.

    The policy draws from a generator seeded with ``seed``; so does the environment. ``program``
    replaces the task's initial program as the starting point; ``label`` is the policy's name in
    the record. A :class:`KbError` raised by the policy (budget spent, endpoint refused) passes
    through to the caller after ``on_step`` has seen everything finished so far.
    """
    options: dict[str, Any] = {"task": task, "policy": label or policy.name}
    if program is not None:
        options["program"] = program
    observation, _ = env.reset(seed=seed, options=options)
    core: Any = env.unwrapped
    policy.begin(task, np.random.default_rng(seed))
    done = False
    while not done:
        action = policy.act(observation, core.episode)
        core.note(**notes_of(policy))
        observation, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        if on_step is not None:
            on_step(core.episode)
    episode: Episode = core.episode
    return episode
