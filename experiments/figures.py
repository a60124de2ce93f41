"""The numbers of a report's charts and tables, from episodes alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.charts import Bar, Line, bars, lines
from experiments.metrics import best_so_far, bootstrap, log_table
from kb_env.types import Episode, Status

#: Resamplings of the intervals in charts.
ROUNDS = 500


def by_policy(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.policy, []).append(episode)
    return dict(sorted(groups.items()))


def fast_p(groups: Mapping[str, Sequence[Episode]]) -> list[Line]:
    """Share of episodes whose verified best is more than p times as fast as the initial program."""
    top = max([2.0, *(episode.best_speedup for group in groups.values() for episode in group)])
    grid = tuple(float(p) for p in np.linspace(1.0, min(top, 20.0), 60))
    return [
        Line(name, grid, tuple(float(np.mean([e.best_speedup > p for e in group])) for p in grid))
        for name, group in groups.items()
    ]


def progress(groups: Mapping[str, Sequence[Episode]]) -> list[Line]:
    """Geometric mean of the best so far after each step, with its stratified bootstrap band."""
    steps = max((len(episode.steps) for group in groups.values() for episode in group), default=1)
    found = []
    for name, group in groups.items():
        curves: dict[str, list[Any]] = {}
        for episode in group:
            curves.setdefault(episode.task, []).append(np.log(best_so_far(episode, steps)))
        rows = [
            bootstrap({task: np.array([c[k] for c in kept]) for task, kept in curves.items()}, ROUNDS)
            for k in range(steps + 1)
        ]
        mid, low, high = (tuple(math.exp(row[i]) for row in rows) for i in range(3))
        found.append(Line(name, tuple(float(k) for k in range(steps + 1)), mid, low, high))
    return found


def task_bars(groups: Mapping[str, Sequence[Episode]]) -> list[Bar]:
    """Geometric mean over seeds by task; the interval is over seeds, or the measurement's own for one seed."""
    found = []
    for name, group in groups.items():
        for task, row in log_table(group).items():
            ends = [(e.best_low, e.best_high) for e in group if e.task == task]
            point, low, high = (math.exp(v) for v in bootstrap({task: row}, ROUNDS))
            if len(row) == 1 and ends[0][0] is not None and ends[0][1] is not None:
                low, high = ends[0][0], ends[0][1]
            found.append(Bar(task, name, point, low, high))
    return sorted(found, key=lambda bar: bar.group)


def techniques(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """How often each technique that a policy noted was tried, was valid, and raised the best."""
    found: dict[str, dict[str, Any]] = {}
    for episode in episodes:
        best = 1.0
        for step in episode.steps:
            name = str(step.notes.get("technique", "")) or "(none noted)"
            row = found.setdefault(name, {"technique": name, "tried": 0, "timed": 0, "raised": 0})
            row["tried"] += 1
            row["timed"] += step.status is Status.TIMED
            row["raised"] += step.best_speedup > best
            best = step.best_speedup
    return sorted(found.values(), key=lambda row: (-row["tried"], row["technique"]))


def costs(groups: Mapping[str, Sequence[Episode]]) -> list[dict[str, Any]]:
    """What each policy spent: steps, evaluations (same binaries charged nothing), seconds, tokens, money."""
    found = []
    for name, group in groups.items():
        steps = [step for episode in group for step in episode.steps]
        row: dict[str, Any] = {"policy": name, "episodes": len(group), "steps": len(steps)}
        row["evaluations"] = sum(not step.cached for step in steps)
        row["seconds"] = round(sum(sum(step.seconds.values()) for step in steps), 2)
        for key in sorted({key for step in steps for key in step.notes}):
            if key.endswith(("tokens", "usd", "money")) or key == "cost":
                row[key] = sum(v for s in steps if isinstance(v := s.notes.get(key), (int, float)))
        found.append(row)
    return found


def draw(episodes: Sequence[Episode]) -> dict[str, str]:
    """The SVG charts by name; each says whether its times were measured or modelled."""
    groups = by_policy(episodes)
    if not groups:
        return {}
    source = " and ".join(sorted({episode.source for episode in episodes}))
    used = [Bar(r["technique"], "tried", *[float(r["tried"])] * 3) for r in techniques(episodes)[:20]]
    raised = [
        Bar(r["technique"], "raised the best", *[float(r["raised"])] * 3) for r in techniques(episodes)[:20]
    ]
    spent = [Bar(r["policy"], "evaluations", *[r["evaluations"] / r["episodes"]] * 3) for r in costs(groups)]
    return {
        "fast_p": lines(f"fast_p ({source})", ("p", "share of episodes faster than p"), fast_p(groups)),
        "best_so_far": lines(
            f"best so far ({source}), 95 % bands", ("steps", "speedup over initial"), progress(groups)
        ),
        "tasks": bars(f"final best by task ({source})", "speedup over initial", task_bars(groups)),
        "techniques": bars("technique use", "steps", used + raised),
        "cost": bars("cost of an episode", "evaluations", spent),
    }
