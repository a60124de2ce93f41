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

from experiments.continual import continual, gain, moved, play_all
from experiments.metrics import bootstrap, log_table
from experiments.model_args import NO_MODEL, ModelOptions, chat_settings, deciding
from experiments.report import write_report
from experiments.run_folder import RunFolder
from experiments.streams import WITH_MEMORY, Conditions, Stream, names
from experiments.teaching import teach
from kb_env.backends import explain, make_evaluator
from kb_env.task import builtin_names, load_task
from kb_env.types import Episode, KbError
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
    workers: int = 1
    """episodes played at once"""
    stream: bool = False
    """instead of rounds: one task after the other, each learned before the next, against no past"""
    transfer_to: str | None = None
    """a backend (sim:A100, gpu, ...) that the tasks are played on afterwards, with what was learned and without"""
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
    if args.stream and args.transfer_to is not None:
        raise KbError("a stream's memory ends with it: --transfer-to needs rounds, leave --stream out")
    if args.policy.split(":")[0] not in WITH_MEMORY:
        raise KbError(f"{args.policy} has no memory to learn into: use one of {', '.join(WITH_MEMORY)}")
    folder = RunFolder(args.out)
    free = ("out", "resume", "json", "workers", "llm")  # these do not decide results
    facts = {k: v for k, v in dataclasses.asdict(args).items() if k not in free}
    facts |= deciding(args.llm)
    folder.plan(facts, args.resume)
    return folder


def plan_round(args: Args, number: int, tasks: Sequence[str]) -> list[Stream]:
    """One stream per episode; seeds differ between rounds, so that no round repeats another's draws."""
    label = f"{args.policy}@{number}"
    seeds = range(number * args.seeds, (number + 1) * args.seeds)
    return [Stream(label, args.policy, seed, (task,), True) for seed in seeds for task in tasks]


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
    episodes: Sequence[Episode],
    outside: Sequence[str],
    learned: int,
    made: Sequence[Operation],
    first: tuple[Sequence[Episode], int],
) -> dict[str, Any]:
    """``first`` is round 0's episodes, the control, and the step limit."""
    control, limit = first
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
        "transfer": gain(seen, [e for e in control if e.task not in outside], limit),
        "transfer_held_out": gain(rest, [e for e in control if e.task in outside], limit),
    }


def show(number: int, facts: Mapping[str, Any], source: str) -> None:
    parts = [
        f"{name.replace('_', ' ')} {value['geomean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"
        for name in ("learned_from", "held_out")
        if (value := facts[name]) is not None
    ]
    for name in ("transfer", "transfer_held_out"):
        value = facts[name]
        if number and value["episodes"]:
            parts.append(
                f"{name.replace('_', ' ')} {value['mean']:+.3f} [{value['low']:+.3f}, {value['high']:+.3f}]"
            )
    learned = f"{facts['entries_added']} entries added"
    if facts["operations"] or facts["rejected"]:
        learned += f"; {facts['operations']} operations on the knowledge base, {facts['rejected']} rejected"
    print(f"round {number} ({source}): {'; '.join(parts)}; {learned}", flush=True)


def show_gain(title: str, found: Mapping[str, Any]) -> None:
    print(
        f"{title}: forward transfer {found['mean']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}] "
        f"in the area under the log of the best so far, {found['episodes']} episodes",
        flush=True,
    )


def play_rounds(
    args: Args, tasks: Sequence[str], held_out: Sequence[str], memory: Path, folder: RunFolder
) -> list[dict[str, Any]]:
    """All rounds, learning into ``memory`` after each; returns what is told of each."""
    settings = chat_settings(args.llm)
    outside = [task.name for task in map(load_task, tasks) if task.family in held_out]
    found: list[dict[str, Any]] = []
    control: list[Episode] = []
    for number in range(args.rounds):
        streams = plan_round(args, number, tasks)
        start = str(memory) if memory.exists() else None
        conditions = Conditions(args.steps, settings=settings, memory=start)
        played = play_all(streams, conditions, folder, (args.backend, args.workers, make_evaluator))
        episodes = [played[stream.names[0]] for stream in streams]
        control = control or episodes
        count = merge(memory, streams, episodes, held_out)
        kept = args.out / "learned" / f"{number}.msgpack"
        made = teach(args.policy, settings, memory, learned_from(streams, episodes, held_out), kept)
        found.append(round_facts(episodes, outside, count, made, (control, args.steps)))
        show(number, found[-1], episodes[0].source)
    return found


def checked_tasks(args: Args) -> tuple[list[str], list[str]]:
    """Tasks and held-out families.

    Raises:
        KbError: if no task is of a family that is held out.
    """
    tasks = names(args.tasks, builtin_names())
    held_out = list(filter(None, args.held_out.split(",")))
    unknown = set(held_out) - {task.family for task in map(load_task, tasks)}
    if unknown:
        raise KbError(f"no task of family {', '.join(sorted(unknown))} is among the tasks")
    return tasks, held_out


def main(args: Args) -> int:
    tasks, held_out = checked_tasks(args)
    folder = begin(args)
    what = "one stream" if args.stream else f"{args.rounds} rounds"
    print(f"{what} x {args.seeds} seeds x {len(tasks)} tasks; {explain(args.backend)}", flush=True)
    settings = chat_settings(args.llm)
    result: dict[str, Any] = {}
    work = Path(tempfile.mkdtemp(prefix="kb-learn-"))
    memory = work / "memory"
    try:
        if args.memory is not None:
            shutil.copytree(args.memory, memory)
        if args.starter:
            begin_with_starter(memory)
        if args.stream:
            start = Conditions(args.steps, settings=settings, memory=str(memory) if memory.exists() else None)
            how = (args.backend, args.workers, make_evaluator)
            result["stream"] = continual(args.policy, tasks, args.seeds, start, folder, how)
            for title, facts in result["stream"].items():
                show_gain(f"tasks of the {title} third" if "task" not in title else title, facts)
        else:
            result["rounds"] = play_rounds(args, tasks, held_out, memory, folder)
            shutil.rmtree(args.out / "memory", ignore_errors=True)
            shutil.copytree(memory, args.out / "memory")
        if args.transfer_to is not None and memory.exists():
            conditions = Conditions(args.steps, settings=settings, memory=str(memory))
            how = (args.transfer_to, args.workers, make_evaluator)
            found = moved(args.policy, tasks, args.seeds, conditions, args.out / "transfer", how)
            result["transfer_to"] = found
            show_gain(f"on {found['device']} ({found['source']}), from memory", found)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    kept = f"memory: {args.out / 'memory'}; " if not args.stream else ""
    print(f"{kept}report: {write_report(folder)}")
    if args.json:
        origin = folder.origin()
        print(json.dumps({**(dataclasses.asdict(origin) if origin is not None else {}), **result}))
    return 0
