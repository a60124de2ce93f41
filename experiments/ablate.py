"""``kb ablate``: what each part of a learning policy is worth. Arms differ in one thing, seeds pair them.

Every arm plays the same rounds of the same tasks and seeds and learns between rounds (as ``kb learn``
does). Rounds after the first are compared, for only they have something to lose. Arms whose switch
the policy does not have are left out, and said to be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.expert_model import Expert
from experiments.expert_moves import SCRIPTS
from experiments.metrics import Difference, Summary, area, difference, summarize
from experiments.model_args import NO_MODEL, ModelOptions, chat_settings, deciding
from experiments.report import write_report
from experiments.rounds import Arm, Rounds, play_arm
from experiments.run_folder import RunFolder
from experiments.scripted_server import ScriptedServer
from experiments.streams import WITH_MEMORY, Conditions, names
from kb_env.backends import explain, make_evaluator
from kb_env.evaluators import Evaluator
from kb_env.remember import Remembering
from kb_env.task import builtin_names
from kb_env.types import Episode, KbError
from memory.starter import starter
from policies.policy import takes

FULL = Arm("full")
#: The ablations, by name.
ARMS: dict[str, Arm] = {
    arm.label: arm
    for arm in (
        FULL,
        Arm("no-memory", remembers=False),
        Arm("shuffled-memory", shuffled=True),
        Arm("no-failures", failures=False),
        Arm("no-gradient", settings={"gradient": False}),
        Arm("raw-profile", settings={"raw_profile": True}),
    )
}


@dataclass(frozen=True)
class Args:
    """Play a learning policy whole and with one part switched off at a time; compare in pairs."""

    policy: str = "maicrl"
    """a policy with a memory"""
    arms: str = "all"
    """comma-separated: no-memory, shuffled-memory, no-failures, no-gradient, raw-profile; or all"""
    tasks: str = "all"
    """comma-separated names or folders, or all"""
    rounds: int = 3
    """rounds; those after the first are compared"""
    seeds: int = 2
    """episodes of each task in each round"""
    steps: int = 8
    """steps of each episode"""
    backend: str = "auto"
    """auto, gpu, sim, sim:DEVICE or replay:FILE"""
    starter: bool = True
    """begin with the starter set of techniques and weak beliefs"""
    llm: ModelOptions = NO_MODEL
    """the model of an LLM policy"""
    expert: bool = False
    """no model: the scripted expert answers, on the tasks that it knows (plumbing)"""
    out: Path = Path("runs/ablate")
    """run folder"""
    resume: bool = False
    """go on with the plan in the run folder"""
    json: bool = False
    """print one JSON object as the last line"""


@dataclass(frozen=True)
class Loss:
    """What an arm loses against the whole, over rounds after the first: paired differences, whole minus arm.

    ``best`` is of the log of the final best speedup, ``area`` of the mean over steps of the log of the
    best so far: how soon it was found.
    """

    arm: str
    best: Difference
    area: Difference


def chosen(args: Args) -> tuple[list[Arm], list[str]]:
    """The arms to play, the whole one first, and those that the policy has no switch for."""
    wanted = names(f"{FULL.label},{args.arms}" if args.arms != "all" else "all", tuple(ARMS))
    unknown = [name for name in wanted if name not in ARMS]
    if unknown:
        raise KbError(f"no ablation {unknown[0]!r}: choose among {', '.join(ARMS)}")
    arms, missing = [], []
    for arm in (ARMS[name] for name in wanted):
        lacking = arm.settings.keys() - takes(args.policy, arm.settings).keys()
        (missing.append(arm.label) if lacking else arms.append(arm))
    return arms, missing


def tasks_of(args: Args) -> tuple[str, ...]:
    return tuple(names(args.tasks, tuple(SCRIPTS) if args.expert else builtin_names()))


def check(args: Args) -> RunFolder:
    """Check the arguments and open the run folder."""
    if args.rounds < 2 or min(args.seeds, args.steps) < 1:
        raise KbError("--rounds must be at least 2, --seeds and --steps at least 1")
    if args.policy not in WITH_MEMORY:
        raise KbError(f"{args.policy} has no memory to take away: use one of {', '.join(WITH_MEMORY)}")
    if args.expert and (args.llm != NO_MODEL or set(tasks_of(args)) - set(SCRIPTS)):
        raise KbError(f"--expert needs no model, and knows {', '.join(SCRIPTS)} only")
    folder = RunFolder(args.out)
    free = ("out", "resume", "json", "llm", "arms")  # arms may be added to a run
    facts = {key: value for key, value in dataclasses.asdict(args).items() if key not in free}
    facts |= deciding(args.llm)
    folder.plan(facts, args.resume)
    return folder


@contextlib.contextmanager
def model_of(args: Args) -> Iterator[dict[str, Any]]:
    """The settings that reach the model; the scripted expert is served meanwhile."""
    if not args.expert:
        yield chat_settings(args.llm)
        return
    with ScriptedServer(Expert()) as server:
        yield {"model": "scripted", "base_url": server.url}


def play(
    args: Args, arms: Sequence[Arm], evaluator: Evaluator, folder: RunFolder
) -> dict[str, list[Episode]]:
    """The episodes of the rounds after the first, by arm."""
    found: dict[str, list[Episode]] = {}
    with model_of(args) as settings:
        # Modelled evaluations repeat themselves: with fixed inputs a program is evaluated once for all arms.
        fixed = 0 if evaluator.source == "modelled" else None
        conditions = Conditions(args.steps, {}, settings, inputs_seed=fixed)
        start = tuple(starter()) if args.starter else ()
        plan = Rounds(args.policy, tasks_of(args), args.rounds, args.seeds, conditions, start)
        for arm in arms:
            for played in play_arm(arm, plan, evaluator, folder):
                if played.number:
                    found.setdefault(arm.label, []).extend(played.episodes)
                mean = np.exp(np.mean([np.log(episode.best_speedup) for episode in played.episodes]))
                print(
                    f"{arm.label}, round {played.number}: geomean {mean:.3f} {evaluator.source}", flush=True
                )
    return found


def losses(found: dict[str, list[Episode]], steps: int) -> list[Loss]:
    whole = found[FULL.label]
    lost = []
    for name, rest in found.items():
        if name != FULL.label:
            pair = FULL.label, name
            soon = difference(whole, rest, pair, lambda episode: area(episode, steps))
            lost.append(Loss(name, difference(whole, rest, pair), soon))
    return lost


def show(rows: Sequence[Summary], lost: Sequence[Loss], title: str) -> None:
    table = Table(title=title)
    for name in (
        "arm",
        "geomean",
        "verified",
        "whole - arm: log final best",
        "whole - arm: log best so far",
        "pairs",
    ):
        table.add_column(name)
    by_name = {item.arm: item for item in lost}
    for row in rows:
        item = by_name.get(row.policy)
        gaps = (
            [f"{g.mean:+.3f} [{g.low:+.3f}, {g.high:+.3f}]" for g in (item.best, item.area)]
            if item
            else ["", ""]
        )
        pairs = str(item.best.pairs) if item else ""
        table.add_row(
            row.policy, f"{row.geomean:.3f} [{row.low:.3f}, {row.high:.3f}]", f"{row.valid:.0%}", *gaps, pairs
        )
    Console(width=150).print(table)


def main(args: Args) -> int:
    arms, missing = chosen(args)
    folder = check(args)
    print(f"{len(arms)} arms x {args.rounds} rounds; {explain(args.backend)}", flush=True)
    for name in missing:
        print(f"left out: {name}, {args.policy} has no such switch", flush=True)
    evaluator = make_evaluator(args.backend)
    kept = Remembering(evaluator) if evaluator.source == "modelled" else evaluator
    try:
        found = play(args, arms, kept, folder)
    finally:
        evaluator.close()
    rows = [summarize(name, episodes, args.steps) for name, episodes in found.items()]
    lost = losses(found, args.steps)
    kind = "plumbing, scripted expert; " if args.expert else ""
    show(rows, lost, f"ablations of {args.policy} ({kind}{kept.source} times, rounds after the first)")
    print(f"report: {write_report(folder)}")
    if args.json:
        plain = {
            "source": kept.source,
            "device": kept.device,
            "rows": [dataclasses.asdict(row) for row in rows],
            "losses": [dataclasses.asdict(item) for item in lost],
        }
        print(json.dumps({**plain, "left_out": missing}))
    return 0
