"""Rounds of rollouts under one condition: frozen memory, episodes, learning; for experiments on learning.

An arm is one condition of an experiment. Arms differ in what their policy is told and given, never in
tasks, seeds or steps, so that their episodes pair up. Everything is kept in a run folder: a run that
was cut off goes on from its finished episodes and comes to the same end.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.run_folder import RunFolder
from experiments.streams import Conditions, Stream, play_stream
from experiments.teaching import teach
from kb_env.evaluators import Evaluator
from kb_env.task import load_task
from kb_env.types import Episode, Status
from memory.entries import Entry, Experience, Forget, Operation, Stored
from memory.store import Memory, episode_entries


def play_round(
    streams: Sequence[Stream], evaluator: Evaluator, conditions: Conditions, folder: RunFolder
) -> list[Episode]:
    """The round's episodes in the plan's order; those in the folder are not played again."""
    found = []
    for stream in streams:
        episode = folder.load(stream.names[0])
        if episode is None:
            (episode,) = play_stream(stream, evaluator, conditions)
            folder.finish(episode)
        found.append(episode)
    return found


@dataclass(frozen=True)
class Arm:
    """One condition. ``settings`` go to the policy; without ``remembers`` it gets no memory at all.

    ``learns=False`` keeps the memory as it was at the start; ``failures=False`` forgets failed steps;
    ``shuffled`` tells the policy a memory whose outcomes are dealt out anew.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    remembers: bool = True
    learns: bool = True
    failures: bool = True
    shuffled: bool = False


@dataclass(frozen=True)
class Rounds:
    """What all arms share: ``seeds`` episodes of each task in each of ``rounds`` rounds."""

    policy: str
    tasks: tuple[str, ...]
    rounds: int
    seeds: int
    conditions: Conditions
    start: tuple[Operation, ...] = ()


@dataclass(frozen=True)
class Played:
    """A finished round; ``memory`` is a snapshot after learning from it, valid until the next round."""

    number: int
    episodes: tuple[Episode, ...]
    memory: Memory


def streams_of(arm: Arm, plan: Rounds, number: int) -> list[Stream]:
    """One stream an episode; the same seeds in every arm, other seeds in every round."""
    label = f"{arm.label}@{number}"
    seeds = range(number * plan.seeds, (number + 1) * plan.seeds)
    return [Stream(label, plan.policy, seed, (task,), arm.remembers) for seed in seeds for task in plan.tasks]


def play_arm(arm: Arm, plan: Rounds, evaluator: Evaluator, folder: RunFolder) -> Iterator[Played]:
    """Play and learn round by round."""
    work = Path(tempfile.mkdtemp(prefix="kb-rounds-"))
    memory = work / "memory"
    settings = {**plan.conditions.settings, **arm.settings}
    try:
        _remember(memory, plan.start)
        for number in range(plan.rounds):
            told = _shuffled(memory, work / f"told-{number}", number) if arm.shuffled else memory
            conditions = replace(
                plan.conditions, settings=settings, memory=str(told) if arm.remembers else None
            )
            streams = streams_of(arm, plan, number)
            episodes = play_round(streams, evaluator, conditions, folder)
            if arm.remembers and arm.learns:
                pairs = zip(streams, episodes, strict=True)
                new = [_entries(episode, stream.tasks[0], arm.failures) for stream, episode in pairs]
                _remember(memory, [entry for entries in new for entry in entries])
                kept = folder.path / "learned" / f"{arm.label}-{number}.msgpack"
                teach(plan.policy, settings, memory, episodes, kept)
            snapshot = Memory(memory, frozen=True)
            try:
                yield Played(number, tuple(episodes), snapshot)
            finally:
                snapshot.close()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remember(memory: Path, entries: Sequence[Entry]) -> None:
    store = Memory(memory, sync="none")
    store.add(entries)
    store.close()


def _entries(episode: Episode, task: str, failures: bool) -> list[Entry]:
    """An episode as entries, without its failed steps where failures are not to be remembered."""
    found = episode_entries(episode, load_task(task), 0.0)
    return [
        item for item in found if failures or not isinstance(item, Experience) or item.status == Status.TIMED
    ]


def _shuffled(memory: Path, folder: Path, seed: int) -> Path:
    """A copy of a memory in which each outcome belongs to another step, each belief to another technique.

    How much is remembered, and how good outcomes are on the whole, stays the same.
    """
    store, rng = Memory(memory, frozen=True), random.Random(seed)
    entries = list(store.entries())
    live = store.knowledge.live()
    store.close()
    forgotten = {item.target for item in entries if isinstance(item, Forget)}
    steps = [item for item in entries if isinstance(item, Experience) and item.id not in forgotten]
    outcomes = rng.sample(steps, len(steps))
    dealt: list[Entry] = [item for item in entries if isinstance(item, Stored)]
    dealt += [
        replace(
            step,
            after=other.after,
            status=other.status,
            gain=other.gain,
            gain_low=other.gain_low,
            gain_high=other.gain_high,
            speedup=other.speedup,
            message=other.message,
        )
        for step, other in zip(steps, outcomes, strict=True)
    ]
    for kind in ("technique", "alias", "belief", "note"):
        items = [replace(item, replaces=()) for item in live if item.kind == kind]
        others = rng.sample(items, len(items)) if kind in ("belief", "note") else items
        dealt += [
            replace(item, value=other.value, weight=other.weight, text=other.text)
            for item, other in zip(items, others, strict=True)
        ]
    _remember(folder, dealt)
    return folder
