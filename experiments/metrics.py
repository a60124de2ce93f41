"""What a comparison says: speedups over tasks, best-so-far curves, costs, intervals, paired tests.

Speedups are of the final best verified program against the initial one; a run that found nothing
counts with its own 1.0, so no task is dropped. Intervals are stratified bootstraps: seeds are
resampled within each task (Agarwal et al. 2021, arXiv 2108.13264, who also argue for the
interquartile mean and the probability of improvement). Costs count what was spent: repairs, samples
and repeated programs are charged like any other step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kb_env.types import Episode, Evaluation, Status, StepRecord

Array = NDArray[np.float64]
#: Phases of an evaluation that hold the device.
ON_DEVICE = ("control", "start", "verify", "time", "profile")
#: What a step can cost, in the order of tables.
COSTS = ("steps", "evaluations", "device seconds", "seconds", "tokens", "money")


@dataclass(frozen=True)
class Summary:
    """One policy's row.

    ``geomean`` is over all tasks and seeds, ``geomean_valid`` over the episodes that verified at least
    one program of the policy's own, whose share is ``validity``; ``iqm`` is the interquartile mean.
    ``improved``, ``fast15`` and ``fast2`` are shares of episodes above 1, 1.5 and 2; ``valid`` is the
    share of steps that were verified and timed. ``area`` is the mean over steps of the log of the best
    so far. Costs are means over episodes.
    """

    policy: str
    episodes: int
    tasks: int
    seeds: int
    geomean: float
    low: float
    high: float
    geomean_valid: float
    validity: float
    iqm: float
    improved: float
    valid: float
    fast15: float
    fast2: float
    area: float
    steps: float
    evaluations: float
    device_seconds: float
    seconds: float
    tokens: float
    money: float


def _device_seconds(evaluation: Evaluation | None) -> float:
    found = evaluation.seconds if evaluation is not None else {}
    return sum(found.get(name, 0.0) for name in ON_DEVICE)


def _noted(step: StepRecord, *names: str) -> float:
    return sum(v for name in names if isinstance(v := step.notes.get(name), (int, float)))


def edits(step: StepRecord) -> bool:
    """Whether the step tried a program: ending the episode and going back to the best are not tries."""
    return step.action.strip() not in ("submit", "revert")


def cost(step: StepRecord) -> dict[str, float]:
    """What one step cost, by the names in COSTS. A program seen before is charged as an evaluation."""
    # Where nothing was tried the step carries the evaluation of the program it stands on.
    fresh = _device_seconds(step.evaluation) if edits(step) and not step.cached else 0.0
    return {
        "steps": 1.0,
        "evaluations": float(edits(step)) + (step.confirmation is not None),
        "device seconds": fresh + _device_seconds(step.confirmation),
        "seconds": sum(step.seconds.values()),
        "tokens": _noted(step, "prompt_tokens", "answer_tokens"),
        "money": _noted(step, "money"),
    }


def spent(episode: Episode) -> dict[str, float]:
    """What an episode cost in all."""
    total = dict.fromkeys(COSTS, 0.0)
    for step in episode.steps:
        for name, value in cost(step).items():
            total[name] += value
    return total


def best_so_far(episode: Episode, steps: int) -> Array:
    """Confirmed best speedup after 0, 1, ..., ``steps`` steps; constant after the episode's end."""
    curve = [1.0, *(step.best_speedup for step in episode.steps)][: steps + 1]
    return np.array(curve + [curve[-1]] * (steps + 1 - len(curve)))


def best_against(episode: Episode, name: str, grid: Sequence[float]) -> Array:
    """Best speedup once so much of cost ``name`` was spent, for each amount in ``grid``."""
    paid = np.cumsum([cost(step)[name] for step in episode.steps])
    values = np.array([1.0, *(step.best_speedup for step in episode.steps)])
    found: Array = values[np.searchsorted(paid, np.asarray(grid), side="right")]
    return found


def log_table(
    episodes: Sequence[Episode], score: Callable[[Episode], float] | None = None
) -> dict[str, Array]:
    """A score by task, over seeds in order; default: the log of the final best speedup."""
    table: dict[str, dict[int, float]] = {}
    for episode in episodes:
        value = score(episode) if score is not None else math.log(max(episode.best_speedup, 1e-9))
        table.setdefault(episode.task, {})[episode.seed] = value
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


def interquartile_mean(values: Array) -> float:
    """Mean of the middle half of all values, whole values at the ends weighed by their share in it."""
    ordered = np.sort(values)
    edges = np.arange(len(ordered) + 1) / len(ordered)
    inside = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    return float((ordered * inside).sum() / inside.sum())


def valid(episode: Episode) -> bool:
    """Whether the policy got one program of its own verified and timed."""
    return any(step.status is Status.TIMED and edits(step) for step in episode.steps)


def summarize(policy: str, episodes: Sequence[Episode], steps: int) -> Summary:
    """The row of one policy."""
    table = log_table(episodes)
    point, low, high = bootstrap(table)
    speedups = np.array([episode.best_speedup for episode in episodes])
    tried = [step for episode in episodes for step in episode.steps if edits(step)]
    kept = [episode for episode in episodes if valid(episode)]
    mean = {name: float(np.mean([spent(e)[name] for e in episodes])) for name in COSTS}
    return Summary(
        policy=policy,
        episodes=len(episodes),
        tasks=len(table),
        seeds=len({episode.seed for episode in episodes}),
        geomean=math.exp(point),
        low=math.exp(low),
        high=math.exp(high),
        geomean_valid=math.exp(bootstrap(log_table(kept), 1)[0]) if kept else math.nan,
        validity=len(kept) / len(episodes),
        iqm=math.exp(interquartile_mean(np.concatenate(list(table.values())))),
        improved=float(np.mean(speedups > 1.0)),
        valid=float(np.mean([step.status is Status.TIMED for step in tried])) if tried else 0.0,
        fast15=float(np.mean(speedups >= 1.5)),
        fast2=float(np.mean(speedups >= 2.0)),
        area=float(np.mean([area(episode, steps) for episode in episodes])),
        steps=mean["steps"],
        evaluations=mean["evaluations"],
        device_seconds=mean["device seconds"],
        seconds=mean["seconds"],
        tokens=mean["tokens"],
        money=mean["money"],
    )


def area(episode: Episode, steps: int) -> float:
    """Mean over 0, 1, ..., ``steps`` steps of the log of the best so far."""
    return float(np.log(best_so_far(episode, steps)).mean())


@dataclass(frozen=True)
class Difference:
    """``first`` against ``second`` over the (task, seed) pairs both played.

    ``mean`` is of the differences of log speedups (or another score), with its interval; ``better`` the share of pairs
    where ``first`` is ahead, ties counting half; ``p`` of a sign-flip test with tasks as units.
    """

    first: str
    second: str
    mean: float
    low: float
    high: float
    pairs: int
    better: float = math.nan
    p: float = math.nan


def difference(
    first: Sequence[Episode],
    second: Sequence[Episode],
    names: tuple[str, str],
    score: Callable[[Episode], float] | None = None,
) -> Difference:
    """Paired by task and seed; positive where ``first`` is better.

    Of ``score``; default: the log of the final best speedup.
    """
    other = {(item.task, item.seed): item for item in second}
    gaps: dict[str, list[float]] = {}
    for item in first:
        rival = other.get((item.task, item.seed))
        if rival is not None:
            gap = score(item) - score(rival) if score else math.log(item.best_speedup / rival.best_speedup)
            gaps.setdefault(item.task, []).append(gap)
    if not gaps:
        return Difference(*names, math.nan, math.nan, math.nan, 0)
    point, low, high = bootstrap({task: np.array(row) for task, row in gaps.items()})
    flat = np.array([gap for row in gaps.values() for gap in row])
    better = float(np.mean(flat > 0) + np.mean(flat == 0) / 2)
    p = sign_flip(np.array([np.mean(row) for row in gaps.values()]))
    return Difference(*names, point, low, high, len(flat), better, p)


def sign_flip(gaps: Array, rounds: int = 10_000, seed: int = 0) -> float:
    """Two-sided p value of a mean as far from 0 as that of ``gaps``, if each sign were chance.

    Exact for up to 13 gaps; else from ``rounds`` random flips, the data's own among them.
    """
    count = len(gaps)
    if 1 << count <= rounds:
        signs = 1.0 - 2.0 * ((np.arange(1 << count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], (rounds, count))
        signs[0] = 1.0
    means = np.abs(signs @ gaps)
    return float(np.mean(means >= abs(gaps.sum()) * (1 - 1e-12)))


def transfer(later: Sequence[Episode], control: Sequence[Episode], steps: int) -> tuple[float, float, float]:
    """Forward transfer: how much larger the area under the best-so-far curve (log) is after learning.

    ``later`` and ``control`` are episodes of the same tasks with and without what was learned, of other
    seeds perhaps; seeds are resampled within tasks on both sides. (Mean, low, high).
    """
    tables = [log_table(group, lambda episode: area(episode, steps)) for group in (later, control)]
    shared = sorted(set(tables[0]) & set(tables[1]))
    if not shared:
        return math.nan, math.nan, math.nan
    rng = np.random.default_rng(0)
    draws = [
        np.mean([row[rng.integers(0, len(row), (2000, len(row)))].mean(1) for row in rows], axis=0)
        for rows in ([table[task] for task in shared] for table in tables)
    ]
    point = float(np.mean([tables[0][task].mean() - tables[1][task].mean() for task in shared]))
    low, high = np.quantile(draws[0] - draws[1], [0.025, 0.975])
    return point, float(low), float(high)
