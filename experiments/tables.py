"""The tables of a comparison: policies at an equal budget, differences, and speedups over a library."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.metrics import Difference, Summary, bootstrap, difference, log_table, summarize, valid
from kb_env.types import Episode, KbError


def tables(episodes: Sequence[Episode], steps: int) -> tuple[list[Summary], list[Difference]]:
    """A row per policy, best first, and each policy's difference from random search.

    Raises:
        KbError: if the episodes' times come from more than one source or device.
    """
    kinds = {(e.source, e.device) for e in episodes}
    if len(kinds) > 1:
        raise KbError(f"times of {sorted(kinds)} in one table: compare them in a folder each")
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


@dataclass(frozen=True)
class LibraryRow:
    """The columns of the seed paper's tables (arXiv 2602.14293): one policy, one group of tasks.

    ``valid_rate`` is the share of episodes with a verified program, ``geomean_valid`` their geometric
    mean over the library's time, ``geomean`` that over all episodes, where a failure scores the initial
    program's own ratio; ``fast1`` is the share of episodes faster than the library.
    """

    policy: str
    group: str
    library: str
    episodes: int
    valid_rate: float
    geomean_valid: float
    geomean: float
    low: float
    high: float
    fast1: float


def read_baselines(path: Path, source: str, device: str) -> dict[str, dict[str, float]]:
    """By task, how many times faster than the initial program each library is, from a file of bench_tasks.

    Raises:
        KbError: if the file is not one, or speaks of another device than ``device``, or ``source`` says
            that the speedups to be set against its measured times are modelled.
    """
    if source != "measured":
        raise KbError(f"library times are measured and these speedups {source}: leave --baselines out")
    try:
        content = json.loads(path.read_text())
        rows, found = content["rows"], content["device"]
        if found != device:
            raise KbError(f"{path} holds library times of {found}, these speedups are of {device}")
        return {
            row["task"]: {name: row["initial_us"] / us for name, us in row["library_us"].items() if us}
            for row in rows
            if row["initial_us"] and row["library_us"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KbError(
            f"{path} holds no library times ({error}): make one with kb bench tasks --out"
        ) from error


def library_rows(
    episodes: Sequence[Episode], baselines: Mapping[str, Mapping[str, float]], groups: Mapping[str, str]
) -> list[LibraryRow]:
    """Speedups over each task's fastest library; tasks without a library time are left out."""
    found = []
    best = {task: max(times.items(), key=lambda item: item[1]) for task, times in baselines.items() if times}
    for policy in sorted({e.policy for e in episodes}):
        mine = [e for e in episodes if e.policy == policy and e.task in best]
        for group in sorted({groups.get(e.task, "") for e in mine}):
            chosen = [e for e in mine if groups.get(e.task, "") == group]

            def score(episode: Episode) -> float:
                return math.log(episode.best_speedup / best[episode.task][1])

            point, low, high = bootstrap(log_table(chosen, score))
            kept = [e for e in chosen if valid(e)]
            found.append(
                LibraryRow(
                    policy=policy,
                    group=group,
                    library=" or ".join(sorted({best[e.task][0] for e in chosen})),
                    episodes=len(chosen),
                    valid_rate=len(kept) / len(chosen),
                    geomean_valid=math.exp(bootstrap(log_table(kept, score), 1)[0]) if kept else math.nan,
                    geomean=math.exp(point),
                    low=math.exp(low),
                    high=math.exp(high),
                    fast1=float(np.mean([score(e) > 0 for e in chosen])),
                )
            )
    return found


def _console() -> Console:
    # A file or pipe has no width: nothing is cut there.
    return Console(width=None if sys.stdout.isatty() else 240)


def show(rows: Sequence[Summary], gaps: Sequence[Difference], source: str, budget: str) -> None:
    """Print the table of policies and the differences from random search."""
    table = Table(title=f"final best speedup over the initial program, {source}; equal for all: {budget}")
    columns = (
        "policy", "geomean", "95 % interval", "IQM", "of valid", "ValidRate", "improved", ">=1.5", ">=2", "area",
        "steps", "valid", "evals", "device s", "s", "tokens", "money",
    )  # fmt: skip
    for name in columns:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.policy, f"{row.geomean:.3f}", f"[{row.low:.3f}, {row.high:.3f}]", f"{row.iqm:.3f}",
            f"{row.geomean_valid:.3f}", f"{row.validity:.0%}", f"{row.improved:.0%}", f"{row.fast15:.0%}",
            f"{row.fast2:.0%}", f"{row.area:.3f}", f"{row.steps:.1f}", f"{row.valid:.0%}", f"{row.evaluations:.1f}",
            f"{row.device_seconds:.1f}", f"{row.seconds:.1f}", f"{row.tokens:.0f}", f"{row.money:.2f}",
        )  # fmt: skip
    console = _console()
    console.print(table, markup=False)
    if len({(row.episodes, row.tasks, row.seeds) for row in rows}) > 1:
        console.print("Not all episodes are there: rows are of other tasks; compare the pairs below.")
    for gap in gaps:
        console.print(
            f"{gap.first} - {gap.second}: mean log ratio {gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}], "
            f"better in {gap.better:.0%} of {gap.pairs} pairs, sign-flip p {gap.p:.3f}",
            highlight=False,
            markup=False,
        )


def show_library(rows: Sequence[LibraryRow], source: str) -> None:
    """Print the table with the seed paper's columns."""
    title = f"speedup over the library ({source}; library times as given, fastest of each task)"
    table = Table(title=title)
    for name in (
        "policy",
        "tasks",
        "library",
        "ValidRate",
        "geomean (valid)",
        "geomean (all)",
        "fast_1",
        "n",
    ):
        table.add_column(name, justify="left" if name in ("policy", "tasks", "library") else "right")
    for row in rows:
        table.add_row(
            row.policy, row.group, row.library, f"{row.valid_rate:.0%}", f"{row.geomean_valid:.3f}",
            f"{row.geomean:.3f} [{row.low:.3f}, {row.high:.3f}]", f"{row.fast1:.0%}", str(row.episodes),
        )  # fmt: skip
    _console().print(table, markup=False)
