"""An observation as the memory sees it: a situation to recall from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kb_env.types import PROFILE_NAMES, Profile, Status, Task
from memory.entries import Filter, Holdout, Recollection, Situation
from memory.store import Memory, task_scale

#: What is worth telling a model: an edit that did not apply says nothing of any program.
TELLING = Filter(statuses=tuple(str(status) for status in Status if status is not Status.BAD_EDIT))


def observed_profile(observation: Mapping[str, Any], source: str = "") -> Profile | None:
    """The profile inside an observation, absent numbers NaN again; None if all are absent."""
    mask = [bool(flag) for flag in observation["profile_mask"]]
    if not any(mask):
        return None
    values = [
        float(value) if flag else math.nan for value, flag in zip(observation["profile"], mask, strict=True)
    ]
    return Profile(source, **dict(zip(PROFILE_NAMES, values, strict=True)))


def observed_situation(task: Task, observation: Mapping[str, Any], device: str) -> Situation:
    """Where the episode stands: the current program, its profile, and the task's context."""
    return Situation(
        str(observation["source"]),
        observed_profile(observation),
        task.family,
        task.dtype,
        device,
        task_scale(task),
    )


def recalled(memory: Memory, place: Situation, count: int = 4) -> list[Recollection]:
    """Similar remembered steps for a prompt."""
    return memory.recall(place, count, TELLING)


def hiding(memory: Memory | None, holdout: Holdout) -> Memory | None:
    """The memory as a policy may see it: under a hold-out by a reader of its own, whose knowledge base, too,
    has not seen what is hidden."""
    if memory is None or holdout == Holdout():
        return memory
    return Memory(memory.folder, memory.embedder, holdout=holdout)
