"""``kb bench sim``: how well the simulator's modelled times agree with measured ones.

The measured side is a JSON file made on a machine with the GPU:

    {"device": "H200", "programs": [
        {"task": "softmax", "name": "vec4", "text": "...source...", "measured_us": {"bench0": 36.1}}]}

``file`` (a path, relative to the JSON file) may stand in place of ``text``. Without such a file the
built-in tasks' own programs are modelled and nothing is compared. Every modelled figure is called so.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from kb_env.sim.evaluator import SimEvaluator
from kb_env.store import default_store
from kb_env.task import builtin_names, load_task, solutions
from kb_env.types import KbError, Program, Task

#: The last stored comparison, printed by ``--stored``.
STORED = Path(__file__).parent / "stored" / "bench_sim.json"
#: Pairs closer than this on hardware are not counted: which is faster is not settled there.
SETTLED = 1.10


@dataclass(frozen=True)
class Args:
    """Model programs and compare with measured times, if there are any."""

    measured: Path | None = None
    """JSON file of measured programs (see the module's text)"""
    device: str = "H200"
    """the GPU to model, where the file names none"""
    tasks: tuple[str, ...] = ()
    """only these tasks"""
    store: Path | None = None
    """folder of the build cache"""
    save: bool = False
    """keep this comparison as the stored one"""
    stored: bool = False
    """print the last stored comparison and do nothing else"""
    json: bool = False
    """print one JSON object as the last line"""


@dataclass(frozen=True)
class Row:
    """One program: geometric means over the bench cases, in microseconds; None where there is none."""

    task: str
    name: str
    status: str
    modelled_us: float | None
    measured_us: float | None
    limiter: str | None
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class Figures:
    """Agreement of modelled with measured times.

    ``spearman`` is the mean over tasks of the rank correlation inside each, ``spearman_worst_task``
    the smallest; ``pairs_right`` is the share of pairs of one task that differ by more than 10 % on
    hardware and are ordered the same; ``mape`` is the median of exp(|log(modelled/measured)|) - 1.
    """

    spearman: float | None
    spearman_worst_task: float | None
    worst_task: str | None
    pairs_right: float | None
    pairs: int
    mape: float | None
    programs: int
    tasks: int


def figures(rows: Sequence[Row]) -> Figures:
    """Agreement over the rows that have both times."""
    by_task: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.modelled_us is not None and row.measured_us is not None:
            by_task.setdefault(row.task, []).append((row.modelled_us, row.measured_us))
    both = [pair for pairs in by_task.values() for pair in pairs]
    ranks = {task: _spearman(pairs) for task, pairs in by_task.items()}
    known = {task: value for task, value in ranks.items() if value is not None}
    worst = min(known, key=lambda task: known[task], default=None)
    right, total = _ordered(by_task)
    return Figures(
        spearman=statistics.fmean(known.values()) if known else None,
        spearman_worst_task=known[worst] if worst is not None else None,
        worst_task=worst,
        pairs_right=right / total if total else None,
        pairs=total,
        mape=statistics.median(math.exp(abs(math.log(a / b))) - 1 for a, b in both) if both else None,
        programs=len(both),
        tasks=len(by_task),
    )


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    modelled, measured = [p[0] for p in pairs], [p[1] for p in pairs]
    if len(set(modelled)) < 2 or len(set(measured)) < 2:
        return None  # no ranks to compare
    return float(spearmanr(modelled, measured).statistic)


def _ordered(by_task: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[int, int]:
    """Settled pairs in the right order, and settled pairs."""
    right = total = 0
    for pairs in by_task.values():
        for (a, real_a), (b, real_b) in itertools.combinations(pairs, 2):
            if max(real_a, real_b) > SETTLED * min(real_a, real_b):
                total += 1
                right += (a < b) == (real_a < real_b) and a != b
    return right, total


def model_one(
    evaluator: SimEvaluator, task: Task, name: str, program: Program, measured: Mapping[str, float]
) -> Row:
    """Verify and model one program."""
    started = time.perf_counter()
    found = evaluator.evaluate(task, program)
    seconds = time.perf_counter() - started
    real = [measured[case.name] for case in task.bench if case.name in measured]
    return Row(
        task=task.name,
        name=name,
        status=str(found.status),
        modelled_us=_mean([t.candidate_us[0] for t in found.timings]) if found.timings else None,
        measured_us=_mean(real) if len(real) == len(task.bench) else None,
        limiter=found.limiter,
        seconds=seconds,
        message=found.message if found.fault is not None else "",
    )


def _mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def read_measured(path: Path) -> tuple[str | None, list[tuple[str, str, str, dict[str, float]]]]:
    """Device and (task, name, source text, microseconds by case) of a measured file.

    Raises:
        KbError: if the file is not of that form.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found = []
        for item in data["programs"]:
            text = item.get("text")
            if text is None:
                text = (path.parent / item["file"]).read_text(encoding="utf-8")
            times = {str(case): float(us) for case, us in item["measured_us"].items()}
            if not all(0 < us < math.inf for us in times.values()):
                raise ValueError(f"{item['name']}: a time is not a positive number")
            found.append((str(item["task"]), str(item["name"]), str(text), times))
        return data.get("device"), found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise KbError(
            f"cannot read measured times from {path}: {error!r}; see kb bench sim --help"
        ) from error


def programs(args: Args) -> tuple[str, list[tuple[Task, str, Program, dict[str, float]]]]:
    """The GPU to model and what to model on it."""
    if args.measured is not None:
        device, rows = read_measured(args.measured)
        tasks = {name: load_task(name) for name in dict.fromkeys(row[0] for row in rows)}
        chosen = [
            (tasks[task], name, Program(task, text), times)
            for task, name, text, times in rows
            if not args.tasks or task in args.tasks
        ]
        return device or args.device, chosen
    chosen = []
    for name in args.tasks or builtin_names():
        task = load_task(name)
        chosen.append((task, "initial", task.initial, {}))
        chosen += [(task, label, program, {}) for label, program in solutions(task, "right").items()]
    return args.device, chosen


def show(row: Row) -> str:
    """One line of the table."""
    modelled = f"{row.modelled_us:10.1f}" if row.modelled_us is not None else f"{row.status:>10}"
    measured = f"{row.measured_us:10.1f}" if row.measured_us is not None else " " * 10
    both = row.modelled_us is not None and row.measured_us is not None
    ratio = f"{row.modelled_us / row.measured_us:6.2f}" if both else " " * 6  # type: ignore[operator]
    last = row.message.splitlines()[0][:80] if row.message else row.limiter or ""
    return f"{row.task:<28} {row.name:<24} {modelled} {measured} {ratio} {row.seconds:6.2f} s  {last}"


def main(args: Args) -> int:
    if args.stored:
        return _print_stored(args)
    device, chosen = programs(args)
    rows = []
    print(f"{'task':<28} {'program':<24} {'modelled':>10} {'measured':>10} {'ratio':>6} (us on {device})")
    with SimEvaluator(device, args.store or default_store()) as evaluator:
        for task, name, program, times in chosen:
            rows.append(model_one(evaluator, task, name, program, times))
            print(show(rows[-1]), flush=True)
    result: dict[str, Any] = {"source": "modelled", "device": device, **asdict(figures(rows))}
    if args.save:
        draft = STORED.with_suffix(".draft")
        draft.parent.mkdir(exist_ok=True)
        draft.write_text(json.dumps({**result, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
        draft.replace(STORED)
    _print(result, args.json)
    return 0


def _print_stored(args: Args) -> int:
    if not STORED.exists():
        raise KbError("no comparison is stored: run kb bench sim --measured FILE --save")
    data = json.loads(STORED.read_text(encoding="utf-8"))
    data.pop("rows", None)
    _print(data, args.json)
    return 0


def _print(result: Mapping[str, Any], as_json: bool) -> None:
    for key, value in result.items():
        print(f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}")
    if as_json:
        print(json.dumps(result))
