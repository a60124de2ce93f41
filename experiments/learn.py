"""``kb learn``: rounds of rollouts with learning between, and what it does for tasks held out.

Every episode of a round starts from the same frozen memory, so that all may run in any order; after
the round they are merged into it in the plan's order, and a policy that learns by itself (``maicrl``)
learns from them. Round 0 starts empty (or from ``--memory``)
and is the control. Held-out families are played in every round, from the frozen memory, but never
learned from.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.metrics import bootstrap, log_table
from experiments.model_args import NO_MODEL, ModelOptions, chat_settings, deciding
from experiments.report import write_report
from experiments.run_folder import RunFolder
from experiments.streams import WITH_MEMORY, Conditions, Stream, play_stream
from experiments.teaching import teach
from kb_env.backends import explain, make_evaluator
from kb_env.evaluators import Evaluator
from kb_env.task import builtin_names, load_task
from kb_env.types import Episode, KbError
from kb_env.versions import versions
from memory.entries import Operation
from memory.starter import starter
from memory.store import Memory


@dataclass(frozen=True)
class Args:
    """Play rounds of episodes; learn from each round before the next."""

    policy: str = "recall"
    """a policy with a memory: recall, refine, maicrl, ..."""
    tasks: str = "all"
    """comma-separated names or folders, or all"""
    held_out: str = ""
    """comma-separated operator families that are played but never learned from"""
    rounds: int = 3
    """rounds, the first without what the later ones learned"""
    seeds: int = 2
    """episodes of each task in each round"""
    steps: int = 10
    """steps of each episode"""
    backend: str = "auto"
    """auto, gpu, sim, sim:DEVICE, replay:FILE or spool:DIR"""
    memory: Path | None = None
    """memory to start from; default: empty"""
    starter: bool = False
    """begin with the starter set of techniques and weak beliefs"""
    llm: ModelOptions = NO_MODEL
    """the model of an LLM policy"""
    out: Path = Path("runs/learn")
    """run folder; the learned memory is in its memory/"""
    resume: bool = False
    """go on with the plan in the run folder"""
    json: bool = False
    """print one JSON object as the last line"""


def begin(args: Args) -> RunFolder:
    """Check the arguments and open the run folder."""
    if min(args.rounds, args.seeds, args.steps) < 1:
        raise KbError("--rounds, --seeds and --steps must be at least 1")
    if args.policy.split(":")[0] not in WITH_MEMORY:
        raise KbError(f"{args.policy} has no memory to learn into: use one of {', '.join(WITH_MEMORY)}")
    folder = RunFolder(args.out)
    free = ("out", "resume", "json", "llm")  # these do not decide results
    facts = {k: v for k, v in dataclasses.asdict(args).items() if k not in free}
    facts |= deciding(args.llm)
    if not (args.out / "run.json").exists():
        folder.begin({"args": facts, "versions": versions()})
    elif not args.resume:
        raise KbError(f"{args.out} holds a run: add --resume to go on with it, or choose another --out")
    elif folder.facts()["args"] != json.loads(json.dumps(facts, default=str)):
        raise KbError(f"{args.out} was planned otherwise: repeat its arguments, or choose another --out")
    return folder


def plan_round(args: Args, number: int, tasks: Sequence[str]) -> list[Stream]:
    """One stream per episode; seeds differ between rounds, so that no round repeats another's draws."""
    label = f"{args.policy}@{number}"
    seeds = range(number * args.seeds, (number + 1) * args.seeds)
    return [Stream(label, args.policy, seed, (task,), True) for seed in seeds for task in tasks]


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


def begin_with_starter(memory: Path) -> None:
    """Put the starter set into a memory."""
    store = Memory(memory, sync="none")
    store.add(starter())
    store.close()


def merge(
    memory: Path, streams: Sequence[Stream], episodes: Sequence[Episode], held_out: Sequence[str]
) -> int:
    """Learn a round's episodes in order; returns the entries written."""
    store = Memory(memory, sync="none")
    try:
        count = 0
        for stream, episode in zip(streams, episodes, strict=True):
            task = load_task(stream.tasks[0])
            if task.family not in held_out:
                count += store.learn(episode, task, now=0.0)  # not the clock: reruns must learn the same
        return count
    finally:
        store.close()


def learned_from(
    streams: Sequence[Stream], episodes: Sequence[Episode], held_out: Sequence[str]
) -> list[Episode]:
    """The episodes whose families are not held out."""
    pairs = zip(streams, episodes, strict=True)
    return [episode for stream, episode in pairs if load_task(stream.tasks[0]).family not in held_out]


def score(episodes: Sequence[Episode]) -> dict[str, float] | None:
    """Geometric mean of the final best speedups, with its interval over seeds."""
    if not episodes:
        return None
    point, low, high = (math.exp(value) for value in bootstrap(log_table(episodes)))
    return {"geomean": point, "low": low, "high": high}


def round_facts(
    episodes: Sequence[Episode], outside: Sequence[str], learned: int, made: Sequence[Operation]
) -> dict[str, Any]:
    seen = [episode for episode in episodes if episode.task not in outside]
    rest = [episode for episode in episodes if episode.task in outside]
    steps = float(np.mean([len(episode.steps) for episode in episodes]))
    return {
        "learned_from": score(seen),
        "held_out": score(rest),
        "entries_added": learned,
        "operations": sum(item.kind not in ("update", "rejected") for item in made),
        "rejected": sum(item.kind == "rejected" for item in made),
        "steps": steps,
    }


def show(number: int, facts: Mapping[str, Any], source: str) -> None:
    parts = [
        f"{name.replace('_', ' ')} {value['geomean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"
        for name in ("learned_from", "held_out")
        if (value := facts[name]) is not None
    ]
    learned = f"{facts['entries_added']} entries added"
    if facts["operations"] or facts["rejected"]:
        learned += f"; {facts['operations']} operations on the knowledge base, {facts['rejected']} rejected"
    print(f"round {number} ({source}): {'; '.join(parts)}; {learned}", flush=True)


def main(args: Args) -> int:
    folder = begin(args)
    tasks = builtin_names() if args.tasks == "all" else list(filter(None, args.tasks.split(",")))
    held_out = list(filter(None, args.held_out.split(",")))
    loaded = [load_task(name) for name in tasks]
    unknown = set(held_out) - {task.family for task in loaded}
    if unknown:
        raise KbError(f"no task of family {', '.join(sorted(unknown))} is among the tasks")
    outside = [task.name for task in loaded if task.family in held_out]
    print(
        f"{args.rounds} rounds x {args.seeds} seeds x {len(tasks)} tasks; {explain(args.backend)}", flush=True
    )
    evaluator = make_evaluator(args.backend)
    settings = chat_settings(args.llm)
    found = []
    work = Path(tempfile.mkdtemp(prefix="kb-learn-"))
    memory = work / "memory"
    try:
        if args.memory is not None:
            shutil.copytree(args.memory, memory)
        if args.starter:
            begin_with_starter(memory)
        for number in range(args.rounds):
            streams = plan_round(args, number, tasks)
            start = str(memory) if memory.exists() else None
            conditions = Conditions(args.steps, settings=settings, memory=start)
            episodes = play_round(streams, evaluator, conditions, folder)
            count = merge(memory, streams, episodes, held_out)
            kept = args.out / "learned" / f"{number}.msgpack"
            made = teach(args.policy, settings, memory, learned_from(streams, episodes, held_out), kept)
            found.append(round_facts(episodes, outside, count, made))
            show(number, found[-1], episodes[0].source)
        shutil.rmtree(args.out / "memory", ignore_errors=True)
        shutil.copytree(memory, args.out / "memory")
    finally:
        evaluator.close()
        shutil.rmtree(work, ignore_errors=True)
    print(f"memory: {args.out / 'memory'}; report: {write_report(folder)}")
    if args.json:
        print(json.dumps({"rounds": found}))
    return 0
