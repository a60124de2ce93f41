"""The plan of a comparison as streams, and how one stream is played.

A stream is one policy with one seed over a sequence of tasks. A policy without memory gets one
stream per task, so that all may run at once; a policy with a memory plays its tasks one after the
other and carries the memory along, which is empty at the start unless a folder to start from is
given. A stream that was cut off goes on from its finished episodes: its memory is rebuilt from them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.budgets import Budgeted
from experiments.rollout import play
from experiments.run_folder import episode_name
from kb_env.env import CudaEnv
from kb_env.evaluators import Evaluator
from kb_env.task import load_task
from kb_env.types import Episode, KbError
from memory.entries import Holdout
from memory.store import Memory
from policies.policy import make_policy, takes

#: Policies that are given a memory.
WITH_MEMORY = ("recall", "oneshot", "refine", "maicrl", "evolve")


@dataclass(frozen=True)
class Stream:
    """``label`` names the policy in tables; ``policy`` is what :func:`make_policy` makes."""

    label: str
    policy: str
    seed: int
    tasks: tuple[str, ...]
    remembers: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(episode_name(task_stem(task), self.label, self.seed) for task in self.tasks)


@dataclass(frozen=True)
class Conditions:
    """What all streams share: ``steps`` at most and ``budget`` (see budgets.py) per episode, settings."""

    steps: int
    budget: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: memory to copy at the start of each remembering stream; None: empty
    memory: str | None = None
    #: hide the operator family of the task at hand from the memory
    hold_out_family: bool = False
    #: seed of the inputs that modelled evaluations are checked on; None: each episode's own
    inputs_seed: int | None = None


def task_stem(task: str) -> str:
    """The name a task's episodes go by: a folder's name without its path."""
    return Path(task).name


def names(text: str, everything: Sequence[str]) -> list[str]:
    """A comma-separated list without repetitions, or everything for ``all``."""
    return list(everything) if text == "all" else list(dict.fromkeys(filter(None, text.split(","))))


def plan(policies: Sequence[str], tasks: Sequence[str], seeds: Sequence[int]) -> list[Stream]:
    """All streams of policies x tasks x seeds; the order of a remembering stream's tasks is drawn by seed."""
    streams = []
    for policy in policies:
        for seed in seeds:
            if policy.split(":")[0] in WITH_MEMORY:
                order = np.random.default_rng(seed).permutation(len(tasks))
                streams.append(Stream(policy, policy, seed, tuple(tasks[i] for i in order), True))
            else:
                streams += [Stream(policy, policy, seed, (task,)) for task in tasks]
    return streams


def play_stream(
    stream: Stream, evaluator: Evaluator, conditions: Conditions, finished: Sequence[Episode] = ()
) -> Iterator[Episode]:
    """Play what is not in ``finished`` yet and yield each episode as it ends.

    The episodes must be the stream's first ones: a remembering stream cannot leave one out.

    Raises:
        KbError: if the harness failed in an episode. That one is no result: it is played again.
    """
    folder = Path(tempfile.mkdtemp(prefix="kb-stream-")) if stream.remembers else None
    memory: Memory | None = None
    try:
        if folder is not None and conditions.memory is not None:
            shutil.copytree(conditions.memory, folder, dirs_exist_ok=True)
        if folder is not None:
            memory = Memory(folder, sync="none")
        for name, episode in zip(stream.tasks, finished, strict=False):
            if memory is not None:
                memory.learn(episode, load_task(name), now=0.0)
        for name in stream.tasks[len(finished) :]:
            episode = _play_one(stream, name, evaluator, conditions, memory)
            if episode.ended.startswith("fault: ") and episode.ended != "fault: UNRECORDED":
                raise KbError(f"{episode.task}, {stream.label}, seed {stream.seed}: {_why(episode)}")
            if memory is not None:
                # Not the clock: a stream that is played again must remember the same.
                memory.learn(episode, load_task(name), now=0.0)
            yield episode
    finally:
        if memory is not None:
            memory.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _why(episode: Episode) -> str:
    """The harness's own words on the fault that ended an episode."""
    return episode.steps[-1].feedback if episode.steps else episode.ended


def _play_one(
    stream: Stream, name: str, evaluator: Evaluator, conditions: Conditions, memory: Memory | None
) -> Episode:
    task = load_task(name)
    settings = takes(stream.policy, conditions.settings)
    if memory is not None:
        settings["memory"] = memory
        if conditions.hold_out_family:
            settings["holdout"] = Holdout(families=(task.family,))
    policy = make_policy(stream.policy, **settings)
    if conditions.budget:
        policy = Budgeted(policy, conditions.budget)
    env = CudaEnv(
        task=task,
        evaluator=evaluator,
        max_steps=conditions.steps,
        evaluate_on_reset=True,
        inputs_seed=conditions.inputs_seed,
    )
    try:
        return play(env, policy, task, stream.seed, label=stream.label)
    finally:
        env.close()
