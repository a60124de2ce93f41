"""``kb bench rollouts``: what Ray costs an evaluation, how rollouts scale, and what 10,000 of them weigh.

The evaluator is an instrument: it sleeps for a fixed time and finds every program as fast as the
initial one. Nothing is compiled and no result of a program is reported.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.progress import Progress
from experiments.report import write_report
from experiments.run_folder import RunFolder, lean
from experiments.streams import Conditions, Stream
from experiments.tables import tables
from kb_env.evaluators import Evaluator, Prepared, Purpose
from kb_env.types import (
    BuildResult,
    Episode,
    Evaluation,
    KbError,
    Program,
    Task,
    Timing,
    Verification,
    digest,
)

POLICY = "experiments.bench_rollouts:Counting"


@dataclass(frozen=True)
class Args:
    """Measure the pool with an evaluator of fixed cost."""

    overhead: int = 200
    """evaluations to measure Ray's overhead on; 0: leave it out"""
    workers: str = "1,8,32"
    """numbers of rollouts, and as many evaluators, to scale over; empty: leave it out"""
    cost: float = 0.5
    """seconds of one evaluation when scaling"""
    steps: int = 20
    """evaluations of each rollout when scaling"""
    episodes: int = 0
    """episodes of a plan whose driver is weighed; 0: leave it out"""
    image: int = 200_000
    """bytes of machine code that travel with each measurement"""
    json: bool = False
    """print one JSON object as the last line"""


@dataclass
class FixedCost:
    """An evaluator that takes ``seconds`` a measurement and always finds a ratio of 1."""

    seconds: float
    image: int = 0
    trust: str = "sealed"
    source: str = "modelled"
    device: str = "instrument"

    def prepare(self, task: Task, program: Program) -> Prepared:
        build = BuildResult(True, "", 0.0)
        return Prepared(task, program, build, {}, digest(program.text), image=bytes(self.image))

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        time.sleep(self.seconds)
        timing = Timing(
            "bench0", purpose.baseline_name, (1.0,), (1.0,), 1.0, 1.0, 1.0, self.source, floor_us=0.5
        )
        return Evaluation(
            build=prepared.build,
            verification=Verification(True, None, 1, ""),
            timings=(timing,),
            profile=None,
            trust=self.trust,
            source=self.source,
            device=self.device,
            key=prepared.key,
            seconds={"time": self.seconds},
        )

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        return self.measure(self.prepare(task, program), purpose)

    def close(self) -> None:
        """Nothing to stop."""


class Counting:
    """A policy that writes a number behind the program: a new program each step, at next to no cost."""

    name = "counting"

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._initial = task.source
        self._salt = int(rng.integers(1 << 60))

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        return f"```cuda\n{self._initial}\n// {self._salt} {len(history.steps)}\n```"

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Nothing."""

    def save(self, folder: Path) -> None:
        """Nothing."""

    def load(self, folder: Path) -> None:
        """Nothing."""


def streams(count: int, first: int = 0) -> list[Stream]:
    """One-episode streams of the counting policy, each with its own seed."""
    return [Stream("counting", POLICY, seed, ("vector_add",)) for seed in range(first, first + count)]


def make(seconds: float, image: int) -> Evaluator:
    return FixedCost(seconds, image)


def overhead(args: Args) -> dict[str, float]:
    """Milliseconds from a rollout's asking for a measurement that takes no time to its having it."""
    from experiments.ray_pool import PoolSpec, RayPool, latencies

    with RayPool(PoolSpec(partial(make, 0.0, args.image), 1, evaluators=1)) as pool:
        pool.kind()
        found = [1000 * value for value in latencies(pool, args.overhead)]
    cuts = statistics.quantiles(found, n=20)
    return {"median_ms": statistics.median(found), "p5_ms": cuts[0], "p95_ms": cuts[-1], "count": len(found)}


def scale(args: Args, count: int) -> dict[str, float]:
    """Evaluations a second of ``count`` rollouts on as many evaluators, all of them started before."""
    from experiments.ray_pool import PoolSpec, RayPool

    spec = PoolSpec(partial(make, args.cost, args.image), count, evaluators=count)
    with RayPool(spec) as pool:
        pool.kind()
        _all(pool, streams(count), 1)  # every process is up and has imported what it needs
        while pool.state()["live"] < count:
            time.sleep(0.5)
        _all(pool, streams(count, count), 1)
        begun = time.perf_counter()
        steps = _all(pool, streams(count, 2 * count), args.steps)
        wall = time.perf_counter() - begun
    ideal = (args.steps + 1) * args.cost  # and the initial program, once for each rollout at most
    return {
        "workers": count,
        "evaluations": steps,
        "seconds": wall,
        "rate": steps / wall,
        "ideal_seconds": ideal,
    }


def _all(pool: Any, plan: Sequence[Stream], steps: int) -> int:
    """Play every stream; returns the steps made. KbError if one fails."""
    total = 0
    for stream, outcome in pool.run([(item, []) for item in plan], Conditions(steps=steps)):
        if isinstance(outcome, str):
            raise KbError(f"{stream.names[0]} failed: {outcome}")
        total += len(outcome.steps)
    return total


def weigh(args: Args) -> dict[str, float]:
    """Peak memory of a driver (MB) that plays and then reports a plan of so many episodes of two steps."""
    from experiments.ray_pool import PoolSpec, RayPool

    plan = streams(args.episodes)
    folder = RunFolder(Path(tempfile.mkdtemp(prefix="kb-weigh-")))
    try:
        folder.begin({"args": {"episodes": args.episodes}})
        begun = time.perf_counter()
        with RayPool(PoolSpec(partial(make, 0.0, 1000), 4, evaluators=2)) as pool:
            with Progress(plan, (), pool.load, _quiet()) as progress:
                for stream, outcome in pool.run([(item, []) for item in plan], Conditions(steps=2)):
                    if isinstance(outcome, str):
                        raise KbError(f"{stream.names[0]} failed: {outcome}")
                    folder.finish(outcome)
                    progress.episode(outcome)
            played, seconds = _peak(), time.perf_counter() - begun
        rows, _ = tables([lean(episode) for episode in folder.episodes()], 2)
        page = write_report(folder)
        megabytes = page.stat().st_size / 1e6
    finally:
        shutil.rmtree(folder.path)
    return {
        "episodes": rows[0].episodes,
        "seconds": seconds,
        "peak_mb_played": played,
        "peak_mb_reported": _peak(),
        "page_mb": megabytes,
    }


def _quiet() -> Any:
    from rich.console import Console

    return Console(file=Path(os.devnull).open("w"))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(args: Args) -> int:
    found: dict[str, Any] = {"cores": os.cpu_count(), "python": platform.python_version(), "scaling": []}
    if args.overhead:
        found["overhead"] = row = overhead(args)
        print(
            f"Ray's overhead per evaluation: {row['median_ms']:.1f} ms at the median, 5 to 95 %: "
            f"{row['p5_ms']:.1f} to {row['p95_ms']:.1f} ms, {row['count']} evaluations",
            flush=True,
        )
    for count in [int(item) for item in args.workers.split(",") if item]:
        row = scale(args, count)
        first = found["scaling"][0] if found["scaling"] else row
        row["efficiency"] = row["rate"] / row["workers"] / (first["rate"] / first["workers"])
        found["scaling"].append(row)
        print(
            f"{count} workers: {row['rate']:.2f} evaluations a second, {row['seconds']:.1f} s where the "
            f"evaluations alone take {row['ideal_seconds']:.1f}, efficiency {row['efficiency']:.3f}",
            flush=True,
        )
    if args.episodes:
        found["driver"] = row = weigh(args)
        print(
            f"{row['episodes']} episodes in {row['seconds']:.0f} s: the driver's peak is "
            f"{row['peak_mb_played']:.0f} MB, with tables and report {row['peak_mb_reported']:.0f} MB "
            f"(page {row['page_mb']:.1f} MB)",
            flush=True,
        )
    if args.json:
        print(json.dumps(found))
    return 0
