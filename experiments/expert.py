"""``kb bench expert``: plumbing. A scripted expert drives the learning of ``maicrl``; no model, no claim.

The expert's answers are written by us (experiments/expert_moves.py); everything else is real: HTTP,
prompts, checks, draws, programs on the simulator, memory, textual gradient. Three arms play the same
seeds: one learns between rounds, one learns from outcomes alone (no textual gradient), and the control
keeps the starting memory. Three questions:

- does what was learned in a round change what the next one draws, for the same program?
- do the gains that are predicted come closer to those that are found?
- is a wrong belief that was planted in the starter set corrected?

How well an LLM would learn is not answered here.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.expert_model import Expert
from experiments.expert_moves import SCRIPTS
from experiments.metrics import bootstrap
from experiments.rounds import Arm, Played, Rounds, play_arm
from experiments.run_folder import RunFolder
from experiments.scripted_server import ScriptedServer
from experiments.streams import Conditions, names
from kb_env.backends import make_evaluator
from kb_env.evaluators import Evaluator
from kb_env.files import write_atomic
from kb_env.remember import Remembering
from kb_env.types import Episode, KbError, Status, StepRecord
from memory.entries import Operation
from memory.starter import starter
from policies.maicrl_choice import read_log

#: A belief that is wrong: qualifiers alone do not make any kernel 3 times as fast.
PLANTED = Operation("belief", "qualifiers", value=math.log(3.0), weight=3.0, author="planted")
#: Where the planted belief is looked at.
WHERE = "dram"


@dataclass(frozen=True)
class Args:
    """Let the scripted expert drive maicrl through rounds of learning, and compare with no learning."""

    tasks: str = "all"
    """comma-separated, of the six that the expert knows"""
    rounds: int = 4
    """rounds, the first with the starting memory"""
    seeds: int = 3
    """episodes of each task in each round"""
    steps: int = 6
    """steps of each episode"""
    backend: str = "sim"
    """sim, sim:DEVICE or replay:FILE"""
    out: Path = Path("runs/expert")
    """run folder"""
    resume: bool = False
    """go on with the run in the folder"""
    json: bool = False
    """print one JSON object as the last line"""


@dataclass(frozen=True)
class Row:
    """One round of one arm. ``shift`` is the total variation distance of the chances of the first draw
    from round 0's, mean over tasks; ``miss`` the mean absolute difference of log gains predicted and found,
    over verified steps; ``planted`` the planted technique's believed speedup after the round, ``planted_chance``
    its mean propensity where it was proposed."""

    arm: str
    round: int
    shift: float
    miss: float
    miss_low: float
    miss_high: float
    verified: float
    gain: float
    planted: float
    planted_chance: float
    speedup: float
    operations: int
    rejected: int


def choices(episodes: Sequence[Episode], first: bool) -> list[tuple[str, dict[str, float]]]:
    """(task, propensity by technique) of all draws, or of the first one of each episode."""
    found = []
    for episode in episodes:
        logs = [str(step.notes["candidates"]) for step in episode.steps if "candidates" in step.notes]
        found += [(episode.task, read_log(text)) for text in (logs[:1] if first else logs)]
    return found


def mean_chances(episodes: Sequence[Episode]) -> dict[str, dict[str, float]]:
    """Mean propensity by task and technique of the first draw: all of them are for the initial program."""
    sums: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for task, chances in choices(episodes, first=True):
        counts[task] = counts.get(task, 0) + 1
        row = sums.setdefault(task, {})
        for name, chance in chances.items():
            row[name] = row.get(name, 0.0) + chance
    return {task: {name: value / counts[task] for name, value in row.items()} for task, row in sums.items()}


def distance(one: dict[str, dict[str, float]], two: dict[str, dict[str, float]]) -> float:
    """Total variation distance, mean over tasks."""
    gaps = []
    for task in sorted(one.keys() & two.keys()):
        names = one[task].keys() | two[task].keys()
        gaps.append(0.5 * sum(abs(one[task].get(n, 0.0) - two[task].get(n, 0.0)) for n in names))
    return float(np.mean(gaps)) if gaps else math.nan


def found_gain(step: StepRecord, known: dict[str, float]) -> float | None:
    """A step's log gain over the program it edited; None if it failed."""
    parent = known.get(str(step.notes.get("base_key", "")))
    if step.status is not Status.TIMED or not step.speedup or parent is None:
        return None
    return math.log(step.speedup / parent)


def gains(episode: Episode) -> list[tuple[StepRecord, float | None]]:
    """Each step that applied a technique, with its gain."""
    known = {episode.initial.key: 1.0}
    found = []
    for step in episode.steps:
        if "technique" in step.notes:
            found.append((step, found_gain(step, known)))
        if step.status is Status.TIMED and step.after is not None and step.speedup:
            known[step.after.key] = step.speedup
    return found


def row_of(arm: Arm, played: Played, first: dict[str, dict[str, float]]) -> Row:
    """The figures of one round."""
    episodes = played.episodes
    steps = [item for episode in episodes for item in gains(episode)]
    misses: dict[str, list[float]] = {}
    for episode in episodes:
        for step, gain in gains(episode):
            if gain is not None:
                miss = abs(math.log(float(step.notes["predicted_gain"])) - gain)
                misses.setdefault(episode.task, []).append(miss)
    point, low, high = bootstrap({task: np.array(values) for task, values in misses.items()})
    knowledge = played.memory.knowledge
    belief = knowledge.posterior(PLANTED.subject, WHERE, episodes[0].device, episodes[0].source)
    planted = [
        chances[PLANTED.subject] for _, chances in choices(episodes, False) if PLANTED.subject in chances
    ]
    verified = [gain for _, gain in steps if gain is not None]
    kinds = [item.kind for item in knowledge.history() if item.author == f"gradient {played.number + 1}"]
    return Row(
        arm.label,
        played.number,
        distance(mean_chances(episodes), first),
        point,
        low,
        high,
        len(verified) / max(1, len(steps)),
        float(np.mean(verified)) if verified else math.nan,
        math.exp(belief.mean),
        float(np.mean(planted)) if planted else math.nan,
        math.exp(float(np.mean([math.log(episode.best_speedup) for episode in episodes]))),
        sum(kind not in ("update", "rejected") for kind in kinds),
        kinds.count("rejected"),
    )


def play(args: Args, evaluator: Evaluator, url: str, tasks: tuple[str, ...]) -> list[Row]:
    """All arms, round by round."""
    conditions = Conditions(args.steps, {}, {"model": "scripted", "base_url": url}, inputs_seed=0)
    plan = Rounds("maicrl", tasks, args.rounds, args.seeds, conditions, (*starter(), PLANTED))
    folder, rows = RunFolder(args.out), []
    arms = (Arm("learning"), Arm("outcomes", settings={"gradient": False}), Arm("control", learns=False))
    for arm in arms:
        first: dict[str, dict[str, float]] = {}
        for played in play_arm(arm, plan, evaluator, folder):
            first = first or mean_chances(played.episodes)
            rows.append(row_of(arm, played, first))
            print(f"{arm.label}, round {played.number}: done", flush=True)
    return rows


def show(rows: Sequence[Row], source: str) -> None:
    table = Table(title=f"plumbing: scripted expert, {source} times")
    for name in ("arm", "round", "shift of first draw", "|predicted - found|", "verified", "log gain"):
        table.add_column(name)
    for name in ("planted belief", "its chance", "best speedup", "operations", "rejected"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.arm, str(row.round), f"{row.shift:.3f}", f"{row.miss:.3f} [{row.miss_low:.3f}, {row.miss_high:.3f}]",
            f"{row.verified:.0%}", f"{row.gain:+.3f}", f"{row.planted:.2f}x", f"{row.planted_chance:.3f}",
            f"{row.speedup:.3f}", str(row.operations), str(row.rejected),
        )  # fmt: skip
    Console(width=170).print(table)


def main(args: Args) -> int:
    tasks = tuple(names(args.tasks, tuple(SCRIPTS)))
    unknown = set(tasks) - set(SCRIPTS)
    if unknown or not tasks:
        raise KbError(f"the expert knows {', '.join(SCRIPTS)}: choose --tasks among them")
    if min(args.rounds, args.seeds, args.steps) < 1:
        raise KbError("--rounds, --seeds and --steps must be at least 1")
    free = ("out", "resume", "json")  # these do not decide results
    facts = {key: value for key, value in dataclasses.asdict(args).items() if key not in free}
    RunFolder(args.out).plan(facts, args.resume)
    evaluator = make_evaluator(args.backend)
    # The same inputs in all episodes: a program is evaluated once, however often the expert writes it.
    kept = Remembering(evaluator) if evaluator.source == "modelled" else evaluator
    try:
        with ScriptedServer(Expert()) as server:
            rows = play(args, kept, server.url, tasks)
    finally:
        evaluator.close()
    show(rows, kept.source)
    found = [{**dataclasses.asdict(row), "source": kept.source, "device": kept.device} for row in rows]
    write_atomic(args.out / "rows.json", json.dumps(found, indent=1).encode())
    if args.json:
        print(json.dumps({"rows": found}))
    return 0
