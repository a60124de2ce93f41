"""The numbers of a report's charts and tables, from episodes alone."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.charts import Bar, Line, bars, lines
from experiments.metrics import COSTS, Array, best_against, best_so_far, bootstrap, log_table, spent
from kb_env.types import Episode, Status, StepRecord

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
    grid = tuple(float(k) for k in range(steps + 1))
    return [_band(name, group, grid, lambda e: best_so_far(e, steps)) for name, group in groups.items()]


def against(groups: Mapping[str, Sequence[Episode]], name: str) -> list[Line]:
    """Geometric mean of the best once so much of cost ``name`` was spent, with its band."""
    found = []
    for policy, group in groups.items():
        total = max(spent(episode)[name] for episode in group)
        if total > 0:
            grid = tuple(float(x) for x in np.linspace(0.0, total, 25))
            found.append(_band(policy, group, grid, partial(best_against, name=name, grid=grid)))
    return found


def _band(
    name: str, group: Sequence[Episode], grid: tuple[float, ...], curve: Callable[[Episode], Array]
) -> Line:
    """The geometric mean of the episodes' curves at each point of ``grid``, with its bootstrap band."""
    curves: dict[str, list[Array]] = {}
    for episode in group:
        curves.setdefault(episode.task, []).append(np.log(curve(episode)))
    rows = [
        bootstrap({task: np.array([c[k] for c in kept]) for task, kept in curves.items()}, ROUNDS)
        for k in range(len(grid))
    ]
    mid, low, high = (tuple(math.exp(row[i]) for row in rows) for i in range(3))
    return Line(name, grid, mid, low, high)


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


def endings(groups: Mapping[str, Sequence[Episode]]) -> list[dict[str, Any]]:
    """How each policy's steps ended, most often first, and what was said most often about it."""
    rows = []
    for policy, group in groups.items():
        steps = [step for episode in group for step in episode.steps]
        for status, count in Counter(str(step.status) for step in steps).most_common():
            told = Counter(reason(step) for step in steps if str(step.status) == status)
            words = "" if status == "TIMED" else "; ".join(f"{n} x {text}" for text, n in told.most_common(3))
            rows.append({"policy": policy, "status": status, "steps": count, "reasons": words})
    return rows


def reason(step: StepRecord) -> str:
    """Why a step failed, in its first line; numbers are left out, so that like reasons count together."""
    text = str(step.notes.get("edit_fault") or step.feedback).strip()
    line = re.sub(r"\d+", "#", next(iter(text.splitlines()), ""))
    return line if len(line) <= 160 else f"{line[:160]} ..."


def costs(groups: Mapping[str, Sequence[Episode]]) -> list[dict[str, Any]]:
    """What each policy spent in all: steps, evaluations, seconds, tokens, money; ``cached`` are programs seen
    before, which are charged like others."""
    found = []
    for name, group in groups.items():
        each = [spent(episode) for episode in group]
        row: dict[str, Any] = {"policy": name, "episodes": len(group)}
        for key in COSTS:
            total = sum(item[key] for item in each)
            row[key.replace(" ", "_")] = (
                int(total) if key in ("steps", "evaluations", "tokens") else round(total, 4)
            )
        row["cached"] = sum(step.cached for episode in group for step in episode.steps)
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
    paid = [Bar(r["policy"], "evaluations", *[r["evaluations"] / r["episodes"]] * 3) for r in costs(groups)]
    found = {
        "fast_p": lines(f"fast_p ({source})", ("p", "share of episodes faster than p"), fast_p(groups)),
        "best_so_far": lines(
            f"best so far ({source}), 95 % bands", ("steps", "speedup over initial"), progress(groups)
        ),
        "tasks": bars(f"final best by task ({source})", "speedup over initial", task_bars(groups)),
        "techniques": bars("technique use", "steps", used + raised),
        "cost": bars("cost of an episode", "evaluations", paid),
    }
    for name in ("evaluations", "device seconds", "tokens"):
        curves = against(groups, name)
        # On the simulator it is the simulator's own time that was spent.
        shown = name if "measured" in source else name.replace("device", "simulator")
        if curves:
            title = f"best by {shown} ({source}), 95 % bands"
            found[f"best_by_{name.replace(' ', '_')}"] = lines(title, (shown, "speedup over initial"), curves)
    return found
