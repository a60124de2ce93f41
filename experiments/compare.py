"""``kb compare``: policies x tasks x seeds at equal step budgets, resumable, random search always in it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.metrics import Difference, Summary, difference, summarize
from experiments.report import write_report
from experiments.run_folder import RunFolder
from experiments.streams import Conditions, Stream, plan, play_stream
from kb_env.backends import explain, make_evaluator
from kb_env.task import builtin_names
from kb_env.types import Episode, KbError
from kb_env.versions import versions


@dataclass(frozen=True)
class Args:
    """Compare policies over tasks and seeds at the same number of steps."""

    policies: str = "random,hillclimb,tune"
    """comma-separated; random search is added if missing"""
    tasks: str = "all"
    """comma-separated names or folders, or all"""
    seeds: int = 3
    """seeds 0 to this, exclusive"""
    steps: int = 10
    """steps of each episode: the budget that is equal for all"""
    backend: str = "auto"
    """auto, gpu, sim, sim:DEVICE or replay:FILE"""
    ray: str = "none"
    """none (one worker, no Ray), local, auto or a cluster's address"""
    workers: int = 2
    """rollouts at once (with --ray)"""
    evaluators: int = 0
    """devices to measure on (with --ray); 0: all GPUs, or one a worker on the simulator"""
    memory: Path | None = None
    """memory that remembering policies start from; default: empty"""
    hold_out_family: bool = False
    """hide the operator family of the task at hand from the memory"""
    model: str | None = None
    """model of the LLM policies"""
    base_url: str | None = None
    """endpoint of the LLM policies"""
    out: Path = Path("runs/compare")
    """run folder"""
    resume: bool = False
    """go on with the plan in the run folder"""
    json: bool = False
    """print one JSON object as the last line"""


def names(text: str, everything: Sequence[str]) -> list[str]:
    """A comma-separated list without repetitions, or everything for ``all``."""
    return list(everything) if text == "all" else list(dict.fromkeys(filter(None, text.split(","))))


def prepare_folder(args: Args) -> RunFolder:
    """The run folder: new, or with ``--resume`` one whose plan is the same."""
    folder = RunFolder(args.out)
    facts = {"args": _plan_facts(args), "versions": versions()}
    if (args.out / "run.json").exists():
        if not args.resume:
            raise KbError(f"{args.out} holds a run: add --resume to go on with it, or choose another --out")
        if folder.facts()["args"] != json.loads(json.dumps(facts["args"], default=str)):
            raise KbError(f"{args.out} was planned otherwise: repeat its arguments, or choose another --out")
    else:
        folder.begin(facts)
    return folder


def _plan_facts(args: Args) -> dict[str, Any]:
    """The arguments that decide results; how many workers play them does not."""
    free = ("out", "resume", "json", "ray", "workers", "evaluators")
    return {key: value for key, value in dataclasses.asdict(args).items() if key not in free}


def remaining(streams: Sequence[Stream], folder: RunFolder) -> list[tuple[Stream, list[Episode]]]:
    """Streams with an episode still to play, each with its finished first ones."""
    work = []
    for stream in streams:
        done: list[Episode] = []
        for name in stream.names:
            episode = folder.load(name)
            if episode is None:
                break
            done.append(episode)
        if len(done) < len(stream.tasks):
            work.append((stream, done))
    return work


def played(
    args: Args, work: Sequence[tuple[Stream, list[Episode]]], conditions: Conditions
) -> Iterator[tuple[Stream, Episode | str]]:
    """Episodes as they end, by one worker here or by a pool."""
    if args.ray == "none":
        evaluator = make_evaluator(args.backend)
        try:
            for stream, done in work:
                for episode in play_stream(stream, evaluator, conditions, done):
                    yield stream, episode
        finally:
            evaluator.close()
        return
    from experiments.ray_pool import PoolSpec, RayPool

    with RayPool(PoolSpec(args.backend, args.workers, args.evaluators, args.ray)) as pool:
        yield from pool.run(work, conditions)


def tables(episodes: Sequence[Episode], steps: int) -> tuple[list[Summary], list[Difference]]:
    """A row per policy, best first, and each policy's difference from random search."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.policy, []).append(episode)
    rows = [summarize(policy, group, steps) for policy, group in groups.items()]
    gaps = [
        difference(group, groups["random"], (policy, "random"))
        for policy, group in groups.items()
        if policy != "random" and "random" in groups
    ]
    return sorted(rows, key=lambda row: -row.geomean), gaps


def show(rows: Sequence[Summary], gaps: Sequence[Difference], source: str) -> None:
    table = Table(title=f"final best speedup over the initial program, {source}")
    for name in (
        "policy",
        "geomean",
        "95 % interval",
        "improved",
        "valid",
        ">=1.5",
        ">=2",
        "steps",
        "evals",
        "seconds",
    ):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        table.add_row(
            row.policy, f"{row.geomean:.3f}", f"[{row.low:.3f}, {row.high:.3f}]", f"{row.improved:.0%}",
            f"{row.valid:.0%}", f"{row.fast15:.0%}", f"{row.fast2:.0%}", f"{row.steps:.1f}", f"{row.evaluations:.1f}",
            f"{row.seconds:.1f}",
        )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    for gap in gaps:
        console.print(
            f"{gap.first} - {gap.second}: mean log ratio {gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}], "
            f"{gap.pairs} pairs",
            highlight=False,
        )


def main(args: Args) -> int:
    if args.seeds < 1 or args.steps < 1 or args.workers < 1:
        raise KbError("--seeds, --steps and --workers must be at least 1")
    folder = prepare_folder(args)
    policies = names(args.policies, ())
    if "random" not in policies:
        policies.insert(0, "random")
    streams = plan(policies, names(args.tasks, builtin_names()), range(args.seeds))
    settings = {key: value for key, value in (("model", args.model), ("base_url", args.base_url)) if value}
    start = str(args.memory) if args.memory is not None else None
    conditions = Conditions(args.steps, {}, settings, start, args.hold_out_family)
    total = sum(len(stream.tasks) for stream in streams)
    work = remaining(streams, folder)
    count = total - sum(len(stream.tasks) - len(done) for stream, done in work)
    print(f"{total} episodes, {count} of them finished; {explain(args.backend)}", flush=True)
    failures = []
    for stream, outcome in played(args, work, conditions):
        if isinstance(outcome, str):
            failures.append(f"{stream.label}, seed {stream.seed}, {', '.join(stream.tasks)}: {outcome}")
            print(f"failed: {failures[-1]}", file=sys.stderr, flush=True)
            continue
        folder.finish(outcome)
        count += 1
        print(
            f"[{count}/{total}] {outcome.task} {outcome.policy} seed {outcome.seed}: "
            f"{outcome.best_speedup:.3f} {outcome.source} ({len(outcome.steps)} steps)",
            flush=True,
        )
    episodes = list(folder.episodes())
    if episodes:
        rows, gaps = tables(episodes, args.steps)
        show(rows, gaps, episodes[0].source)
        print(f"report: {write_report(folder)}")
        if args.json:
            found = {
                "rows": [dataclasses.asdict(r) for r in rows],
                "differences": [dataclasses.asdict(g) for g in gaps],
            }
            print(json.dumps({**found, "episodes": len(episodes), "failures": failures}))
    return 2 if failures else 0
