"""``kb compare``: policies x tasks x seeds at one equal budget, resumable, random search always in it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.model_args import NO_MODEL, ModelOptions, chat_settings, deciding
from experiments.progress import Load, Progress
from experiments.report import write_report
from experiments.run_folder import Origin, RunFolder, lean
from experiments.streams import Conditions, Stream, names, plan, play_stream
from experiments.tables import LibraryRow, library_rows, read_baselines, show, show_library, tables
from experiments.workers import WorkerPool
from kb_env.backends import explain, make_evaluator
from kb_env.files import write_atomic
from kb_env.task import builtin_names, load_task
from kb_env.types import Episode, KbError

#: Plays streams under conditions; yields (stream, episode) or (stream, why it failed).
Player = Callable[
    [Sequence[tuple[Stream, list[Episode]]], Conditions], Iterator[tuple[Stream, Episode | str]]
]


@dataclass(frozen=True)
class Args:
    """Compare policies over tasks and seeds at one equal budget; the other costs are reported.

    The budget is --steps, or one of --evaluations, --device-seconds, --tokens and --money; --steps then
    is only the most that an episode may take.
    """

    policies: str = "random,hillclimb,tune"
    """comma-separated; random search is added if missing"""
    tasks: str = "all"
    """comma-separated names or folders, or all"""
    seeds: int = 3
    """seeds 0 to this, exclusive"""
    steps: int = 10
    """steps of each episode: the budget that is equal for all, unless another is given"""
    evaluations: int | None = None
    """equal evaluations of each episode: repeated programs and confirmations are charged"""
    device_seconds: float | None = None
    """equal seconds of the device (of the simulator's processor time, if there is none)"""
    tokens: int | None = None
    """equal tokens of each episode; policies without a model are bound by --steps"""
    money: float | None = None
    """equal money of each episode, in the unit of the prices given"""
    backend: str = "auto"
    """auto, gpu, sim, sim:DEVICE, replay:FILE or spool:DIR"""
    ray: str = "none"
    """none (processes of this machine), local, auto or a cluster's address"""
    workers: int = 1
    """rollouts at once"""
    evaluators: int = 0
    """devices to measure on (with --ray); 0: all GPUs, or one a worker on the simulator"""
    evaluator_gpus: float | None = None
    """GPUs that an evaluator claims of Ray; default: one with a GPU backend, else none"""
    counters: bool = True
    """profiles with hardware counters, seconds each on a GPU; else static ones"""
    memory: Path | None = None
    """memory that remembering policies start from; default: empty"""
    hold_out_family: bool = False
    """hide the operator family of the task at hand from the memory"""
    llm: ModelOptions = NO_MODEL
    """the model of the LLM policies"""
    record: Path | None = None
    """append every evaluation to this file, for --backend replay:FILE"""
    baselines: Path | None = None
    """library times (rows of kb bench tasks --out): adds a table over the fastest library"""
    out: Path = Path("runs/compare")
    """run folder"""
    resume: bool = False
    """go on with the plan in the run folder"""
    json: bool = False
    """print one JSON object as the last line"""


def budget(args: Args) -> tuple[dict[str, float], str]:
    """The limits of an episode beside its steps, and the equal budget in words."""
    names = ("evaluations", "device_seconds", "tokens", "money")
    given = {name.replace("_", " "): v for name in names if (v := getattr(args, name)) is not None}
    if len(given) > 1:
        raise KbError(f"one budget is equal in a table: choose one of {', '.join(given)}")
    if any(value <= 0 for value in given.values()):
        raise KbError("a budget must be more than 0")
    for name, value in given.items():
        return {name: float(value)}, f"{value:g} {name} (at most {args.steps} steps)"
    return {}, f"{args.steps} steps"


def prepare_folder(args: Args) -> RunFolder:
    """The run folder: new, or with ``--resume`` one whose plan is the same."""
    folder = RunFolder(args.out)
    folder.plan(_plan_facts(args), args.resume)
    return folder


def _plan_facts(args: Args) -> dict[str, Any]:
    """The arguments that decide results; how many workers play them does not."""
    free = (
        "out",
        "resume",
        "json",
        "ray",
        "workers",
        "evaluators",
        "evaluator_gpus",
        "llm",
        "record",
        "baselines",
    )
    facts = {key: value for key, value in dataclasses.asdict(args).items() if key not in free}
    return {**facts, **deciding(args.llm)}


def remaining(streams: Sequence[Stream], folder: RunFolder) -> list[tuple[Stream, list[Episode]]]:
    """Streams with an episode still to play, each with its finished first ones."""
    work = []
    for stream in streams:
        done = folder.finished(stream.names)
        if len(done) < len(stream.tasks):
            work.append((stream, done))
    # The longest first: a remembering stream plays its tasks one after the other and would end last.
    # Then by seed: a run that is cut off has its first seeds whole, for every policy.
    return sorted(work, key=lambda item: (len(item[1]) - len(item[0].tasks), item[0].seed))


@contextlib.contextmanager
def player(args: Args, folder: RunFolder) -> Iterator[tuple[Player, Load | None]]:
    """How streams are played: by one worker here, by several processes, or by a Ray cluster."""
    record = str(args.record) if args.record is not None else None
    if args.ray != "none":
        from experiments.ray_pool import PoolSpec, RayPool

        spec = PoolSpec(
            args.backend,
            args.workers,
            args.evaluators,
            args.ray,
            record=record,
            gpus_each=args.evaluator_gpus,
            counters=args.counters,
        )
        with RayPool(spec) as pool:
            kind = pool.kind()
            folder.accept(Origin(kind.trust, kind.source, kind.device))
            yield pool.run, pool.load
        return
    if args.workers > 1:
        with WorkerPool(args.backend, args.workers, record=record, counters=args.counters) as crew:
            for device in crew.devices:
                folder.accept(Origin(device.kind.trust, device.kind.source, device.kind.device))
            yield crew.run, crew.load if crew.devices else None
        return
    evaluator = make_evaluator(args.backend, record=record, counters=args.counters)

    def alone(
        work: Sequence[tuple[Stream, list[Episode]]], conditions: Conditions
    ) -> Iterator[tuple[Stream, Episode | str]]:
        for stream, done in work:
            try:
                for episode in play_stream(stream, evaluator, conditions, done):
                    yield stream, episode
            except (KbError, OSError) as error:
                yield stream, str(error)

    try:
        folder.accept(Origin(evaluator.trust, evaluator.source, evaluator.device))
        yield alone, None
    finally:
        evaluator.close()


def play_plan(args: Args, streams: Sequence[Stream], conditions: Conditions, folder: RunFolder) -> list[str]:
    """Play what is left of the plan into the folder; returns the failures."""
    work = remaining(streams, folder)
    names = [name for stream in streams for name in stream.names]
    total = len(names)
    left = sum(len(stream.tasks) - len(done) for stream, done in work)
    print(f"{total} episodes, {total - left} of them finished; {explain(args.backend)}", flush=True)
    failures: list[str] = []
    if not work:
        return failures
    finished = (episode for name in names if (episode := folder.load(name)) is not None)
    with player(args, folder) as (play, load), Progress(streams, finished, load) as progress:
        begun = time.monotonic()
        try:
            for stream, outcome in play(work, conditions):
                if isinstance(outcome, str):
                    failures.append(progress.failed(stream, outcome))
                else:
                    folder.finish(outcome)
                    progress.episode(outcome)
            tell_use(folder, load, time.monotonic() - begun)
        except KeyboardInterrupt:
            tell_use(folder, load, time.monotonic() - begun)
            print(
                f"{progress.count} of {total} episodes are kept in {args.out}: --resume goes on", flush=True
            )
            raise
    return failures


def tell_use(folder: RunFolder, load: Load | None, seconds: float) -> None:
    """Print how busy the devices were and what they got through, and add it to the folder's ``use.json``."""
    devices = load() if load is not None else ()
    if not devices:
        return
    busy, count = sum(item[0] for item in devices), sum(item[1] for item in devices)
    path = folder.path / "use.json"
    uses = json.loads(path.read_text()) if path.exists() else []
    uses.append({"seconds": seconds, "devices": len(devices), "busy_seconds": busy, "evaluations": count})
    write_atomic(path, json.dumps(uses, indent=1).encode())
    rate = count / (seconds * len(devices)) * 3600
    print(
        f"{len(devices)} devices {busy / (seconds * len(devices)):.0%} busy over {seconds:.0f} s, "
        f"{count} evaluations, {rate:.0f} per device and hour",
        flush=True,
    )


def library_table(args: Args, episodes: Sequence[Episode], tasks: Sequence[str]) -> list[LibraryRow]:
    """The table over libraries, shown, if their times were given."""
    if args.baselines is None:
        return []
    loaded = [load_task(name) for name in tasks]
    baselines = read_baselines(args.baselines, episodes[0].source, episodes[0].device)
    rows = library_rows(episodes, baselines, {task.name: task.suite for task in loaded})
    show_library(rows, episodes[0].source)
    return rows


def main(args: Args) -> int:
    if args.seeds < 1 or args.steps < 1 or args.workers < 1:
        raise KbError("--seeds, --steps and --workers must be at least 1")
    limits, words = budget(args)
    folder = prepare_folder(args)
    policies = names(args.policies, ())
    if "random" not in policies:
        policies.insert(0, "random")
    tasks = names(args.tasks, builtin_names())
    streams = plan(policies, tasks, range(args.seeds))
    settings = chat_settings(args.llm)
    start = str(args.memory) if args.memory is not None else None
    failures = play_plan(
        args, streams, Conditions(args.steps, limits, settings, start, args.hold_out_family), folder
    )
    episodes = [lean(episode) for episode in folder.episodes()]
    if episodes:
        rows, gaps = tables(episodes, args.steps)
        show(rows, gaps, episodes[0].source, words)
        library = library_table(args, episodes, tasks)
        print(f"report: {write_report(folder)}")
        if args.json:
            found = {
                "source": episodes[0].source,
                "device": episodes[0].device,
                "rows": [dataclasses.asdict(r) for r in rows],
                "differences": [dataclasses.asdict(g) for g in gaps],
                "library": [dataclasses.asdict(r) for r in library],
            }
            print(json.dumps({**found, "episodes": len(episodes), "failures": failures}))
    if failures:
        print(f"{len(failures)} streams failed: --resume plays them again", file=sys.stderr)
    return 2 if failures else 0
