"""What a comparison says: speedups over tasks, best-so-far curves, intervals, paired differences.

Speedups are of the final best verified program against the initial one; a run that found nothing
counts with its own 1.0, so no task is dropped. Intervals are stratified bootstraps: seeds are
resampled within each task (Agarwal et al. 2021, arXiv 2108.13264).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kb_env.types import Episode, Status

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """One policy's row. ``geomean`` is over tasks and seeds; ``improved`` the share of episodes above 1."""

    policy: str
    episodes: int
    tasks: int
    seeds: int
    geomean: float
    low: float
    high: float
    improved: float
    valid: float
    fast15: float
    fast2: float
    area: float
    steps: float
    evaluations: float
    seconds: float


def best_so_far(episode: Episode, steps: int) -> Array:
    """Confirmed best speedup after 0, 1, ..., ``steps`` steps; constant after the episode's end."""
    curve = [1.0, *(step.best_speedup for step in episode.steps)][: steps + 1]
    return np.array(curve + [curve[-1]] * (steps + 1 - len(curve)))


def log_table(episodes: Sequence[Episode]) -> dict[str, Array]:
    """Log of the final best speedup by task, over seeds in order."""
    table: dict[str, dict[int, float]] = {}
    for episode in episodes:
        table.setdefault(episode.task, {})[episode.seed] = math.log(max(episode.best_speedup, 1e-9))
    return {task: np.array([row[seed] for seed in sorted(row)]) for task, row in sorted(table.items())}


def bootstrap(table: Mapping[str, Array], rounds: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """Mean over tasks of the mean over seeds, with its 95 % stratified bootstrap interval."""
    rng = np.random.default_rng(seed)
    point = float(np.mean([row.mean() for row in table.values()]))
    draws = np.mean(
        [row[rng.integers(0, len(row), (rounds, len(row)))].mean(axis=1) for row in table.values()], axis=0
    )
    low, high = np.quantile(draws, [0.025, 0.975])
    return point, float(low), float(high)


def summarize(policy: str, episodes: Sequence[Episode], steps: int) -> Summary:
    """The row of one policy."""
    table = log_table(episodes)
    point, low, high = bootstrap(table)
    speedups = np.array([episode.best_speedup for episode in episodes])
    tried = [step for episode in episodes for step in episode.steps if step.action.strip() != "submit"]
    curves = np.array([best_so_far(episode, steps) for episode in episodes])
    charged = [sum(0.0 if step.cached else 1.0 for step in episode.steps) for episode in episodes]
    seconds = [sum(sum(step.seconds.values()) for step in episode.steps) for episode in episodes]
    return Summary(
        policy=policy,
        episodes=len(episodes),
        tasks=len(table),
        seeds=len({episode.seed for episode in episodes}),
        geomean=math.exp(point),
        low=math.exp(low),
        high=math.exp(high),
        improved=float(np.mean(speedups > 1.0)),
        valid=float(np.mean([step.status is Status.TIMED for step in tried])) if tried else 0.0,
        fast15=float(np.mean(speedups >= 1.5)),
        fast2=float(np.mean(speedups >= 2.0)),
        area=float(np.mean(np.log(curves))),
        steps=float(np.mean([len(episode.steps) for episode in episodes])),
        evaluations=float(np.mean(charged)),
        seconds=float(np.mean(seconds)),
    )


@dataclass(frozen=True)
class Difference:
    """Mean difference of log speedups over the (task, seed) pairs both policies played, and its interval."""

    first: str
    second: str
    mean: float
    low: float
    high: float
    pairs: int


def difference(first: Sequence[Episode], second: Sequence[Episode], names: tuple[str, str]) -> Difference:
    """Paired by task and seed; positive where ``first`` is better."""
    other = {(item.task, item.seed): item.best_speedup for item in second}
    gaps: dict[str, list[float]] = {}
    for item in first:
        if (item.task, item.seed) in other:
            gaps.setdefault(item.task, []).append(math.log(item.best_speedup / other[item.task, item.seed]))
    if not gaps:
        return Difference(*names, math.nan, math.nan, math.nan, 0)
    point, low, high = bootstrap({task: np.array(row) for task, row in gaps.items()})
    return Difference(*names, point, low, high, sum(map(len, gaps.values())))
