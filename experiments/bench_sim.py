"""``kb bench sim``: how well the simulator's modelled times agree with measured ones.

    kb bench sim --calibrate mine.json      on a machine with a GPU: measure the corpus, then compare
    kb bench sim --measured experiments/sim_corpus/h200.json --part held-out
    kb bench sim --speed                    seconds of a step, cold and cached
    kb bench sim --stored --json            the last stored comparison

The measured side is a JSON file:

    {"device": "H200", "programs": [
        {"task": "softmax", "name": "vec4", "text": "...source...", "measured_us": {"bench0": 36.1}}]}

``file`` (a path, relative to the JSON file) or ``sha256`` (of a program of the corpus, see
sim_corpus.py) may stand in place of ``text``; ``part`` says whether the model was calibrated on the
program or it was held out; ``cases`` may give the sizes by task and bench case. Without such a file the
built-in tasks' own programs are modelled and nothing is compared. Every modelled figure is called so.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from experiments import sim_measure
from experiments.sim_corpus import load, text_hash
from experiments.sim_counters import Pair, pairs, report
from kb_env.files import write_atomic
from kb_env.sim.evaluator import SimEvaluator
from kb_env.store import default_store
from kb_env.task import builtin_names, load_task, solutions
from kb_env.types import Case, Fault, KbError, Program, Status, Task

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
    part: str = "all"
    """held-out, calibration or all: which programs of the file"""
    calibrate: Path | None = None
    """measure the corpus and the microbenchmarks on this machine's GPU into this file, then compare with it"""
    counters: bool = False
    """compare the simulator's counters with the file's hardware counters instead"""
    speed: bool = False
    """time steps of the built-in tasks instead: cold, then cached"""
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
    part: str = ""
    #: medians of the even and of the odd runs on hardware: what repeats there
    halves_us: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figures:
    """Agreement of modelled with measured times.

    ``spearman`` is the mean over tasks of the rank correlation inside each, ``spearman_worst_task``
    the smallest; ``pairs_right`` is the share of pairs of one task that differ by more than 10 % on
    hardware and are ordered the same; ``mape`` is the median of exp(|log(modelled/measured)|) - 1.
    ``spearman_repeat`` is ``spearman`` of one half of the hardware's runs with the other half: no
    model can be expected to do better.
    """

    spearman: float | None
    spearman_worst_task: float | None
    worst_task: str | None
    pairs_right: float | None
    pairs: int
    mape: float | None
    programs: int
    tasks: int
    spearman_repeat: float | None = None


def figures(rows: Sequence[Row]) -> Figures:
    """Agreement over the rows that have both times."""
    by_task: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.modelled_us is not None and row.measured_us is not None:
            by_task.setdefault(row.task, []).append((row.modelled_us, row.measured_us))
    both = [pair for times in by_task.values() for pair in times]
    ranks = {task: _spearman(times) for task, times in by_task.items()}
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
        spearman_repeat=_repeat(rows),
    )


def _repeat(rows: Sequence[Row]) -> float | None:
    by_task: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.halves_us is not None and row.modelled_us is not None:
            by_task.setdefault(row.task, []).append(row.halves_us)
    ranks = [rank for times in by_task.values() if (rank := _spearman(times)) is not None]
    return statistics.fmean(ranks) if ranks else None


def _spearman(times: Sequence[tuple[float, float]]) -> float | None:
    modelled, measured = [p[0] for p in times], [p[1] for p in times]
    if len(set(modelled)) < 2 or len(set(measured)) < 2:
        return None  # no ranks to compare
    return float(spearmanr(modelled, measured).statistic)


def _ordered(by_task: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[int, int]:
    """Settled pairs in the right order, and settled pairs."""
    right = total = 0
    for times in by_task.values():
        for (a, real_a), (b, real_b) in itertools.combinations(times, 2):
            if max(real_a, real_b) > SETTLED * min(real_a, real_b):
                total += 1
                right += (a < b) == (real_a < real_b) and a != b
    return right, total


@dataclass(frozen=True)
class Item:
    """A program and what hardware took for it, by bench case; nothing where it was not measured."""

    task: str
    name: str
    text: str
    part: str = ""
    measured_us: Mapping[str, float] = field(default_factory=dict)
    halves_us: Mapping[str, Sequence[float]] = field(default_factory=dict)


def model_one(evaluator: SimEvaluator, task: Task, item: Item) -> Row:
    """Model one program; verify it too, where hardware has not done so."""
    names = [case.name for case in task.bench]
    known = all(name in item.measured_us for name in names)
    started = time.perf_counter()
    program = Program(task.name, item.text)
    modelled: float | None = None
    if known:
        found = evaluator.modelled(task, program)
        fault = found if isinstance(found, Fault) else None
        results = [] if isinstance(found, Fault) else found
        limiter = max(results, key=lambda r: r.modelled.us).modelled.limiter if results else None
        modelled = _mean([max(r.modelled.us, r.floor_us) for r in results]) if results else None
    else:
        evaluation = evaluator.evaluate(task, program)
        fault, limiter, timings = evaluation.fault, evaluation.limiter, evaluation.timings
        modelled = _mean([t.candidate_us[0] for t in timings]) if timings else None
    halves = None
    if all(len(item.halves_us.get(name, ())) == 2 for name in names):
        halves = _mean([item.halves_us[n][0] for n in names]), _mean([item.halves_us[n][1] for n in names])
    return Row(
        task=task.name,
        name=item.name,
        status=str(Status.TIMED if fault is None else fault.status),
        modelled_us=modelled,
        measured_us=_mean([item.measured_us[name] for name in names]) if known else None,
        limiter=limiter,
        seconds=time.perf_counter() - started,
        message=fault.message if fault is not None else "",
        part=item.part,
        halves_us=halves,
    )


def _mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def read_measured(path: Path) -> tuple[str | None, list[Item]]:
    """Device and programs of a measured file.

    Raises:
        KbError: if the file is not of that form, or names a program that is not in the corpus.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        corpus = {}
        if any("sha256" in item for item in data["programs"]):
            corpus = {text_hash(entry.text): entry.text for entry in load()}
        return data.get("device"), [_item(item, path.parent, corpus) for item in data["programs"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise KbError(
            f"cannot read measured times from {path}: {error!r}; see kb bench sim --help"
        ) from error


def _item(item: Mapping[str, Any], folder: Path, corpus: Mapping[str, str]) -> Item:
    text = item.get("text")
    if text is None:
        file = item.get("file")
        text = corpus[item["sha256"]] if file is None else (folder / file).read_text(encoding="utf-8")
    times = {str(case): float(us) for case, us in item["measured_us"].items()}
    if not all(0 < us < math.inf for us in times.values()):
        raise ValueError(f"{item['name']}: a time is not a positive number")
    part, halves = str(item.get("part", "")), dict(item.get("halves_us", {}))
    return Item(str(item["task"]), str(item["name"]), str(text), part, times, halves)


def measured_task(name: str, file: Path | None) -> Task:
    """The task, with the bench cases' sizes that ``file`` was measured at, where it says so."""
    task = load_task(name)
    cases = {} if file is None else json.loads(file.read_text(encoding="utf-8")).get("cases", {})
    if name not in cases:
        return task
    return replace(task, bench=tuple(Case(case, dict(sizes)) for case, sizes in cases[name].items()))


def programs(args: Args) -> tuple[str, list[Item]]:
    """The GPU to model and what to model on it."""
    file = args.calibrate or args.measured
    if file is not None:
        device, items = read_measured(file)
        wanted = [
            item
            for item in items
            if (not args.tasks or item.task in args.tasks) and args.part in ("all", item.part)
        ]
        # The driver calls it NVIDIA H200, the descriptions H200.
        return (device or args.device).removeprefix("NVIDIA ").split()[0], wanted
    chosen = []
    for name in args.tasks or builtin_names():
        task = load_task(name)
        chosen.append(Item(name, "initial", task.initial.text))
        chosen += [
            Item(name, f"right/{label}", program.text) for label, program in solutions(task, "right").items()
        ]
    return args.device, chosen


def show(row: Row) -> str:
    """One line of the table."""
    modelled = f"{row.modelled_us:10.1f}" if row.modelled_us is not None else f"{row.status:>10}"
    measured = f"{row.measured_us:10.1f}" if row.measured_us is not None else " " * 10
    both = row.modelled_us is not None and row.measured_us is not None
    ratio = f"{row.modelled_us / row.measured_us:6.2f}" if both else " " * 6  # type: ignore[operator]
    last = row.message.splitlines()[0][:80] if row.message else row.limiter or ""
    return f"{row.task:<28} {row.name:<24} {modelled} {measured} {ratio} {row.seconds:6.2f} s  {last}"


def worst(rows: Sequence[Row], number: int = 12) -> list[Row]:
    """The rows whose modelled time is furthest from the measured one."""
    both = [row for row in rows if row.modelled_us is not None and row.measured_us is not None]
    return sorted(both, key=lambda row: -abs(math.log(row.modelled_us / row.measured_us)))[:number]  # type: ignore[operator]


def main(args: Args) -> int:
    if args.stored:
        return _print_stored(args)
    if args.speed:
        return speed(args)
    if args.calibrate is not None:
        sim_measure.main(sim_measure.Args(args.calibrate, tasks=args.tasks, store=args.store))
    if args.counters:
        return counters(args)
    device, chosen = programs(args)
    file = args.calibrate or args.measured
    tasks = {name: measured_task(name, file) for name in dict.fromkeys(item.task for item in chosen)}
    rows = []
    print(f"{'task':<28} {'program':<24} {'modelled':>10} {'measured':>10} {'ratio':>6} (us on {device})")
    with SimEvaluator(device, args.store or default_store()) as evaluator:
        for item in chosen:
            rows.append(model_one(evaluator, tasks[item.task], item))
            print(show(rows[-1]), flush=True)
    found = figures(rows)
    if found.programs:
        print("\nwhere the model is most wrong:")
        for row in worst(rows):
            print(show(row))
        print()
        for task in tasks:
            mine = figures([row for row in rows if row.task == task])
            print(f"{task:<28} {_facts(mine)}")
    result: dict[str, Any] = {"source": "modelled", "device": device, "part": args.part, **asdict(found)}
    if args.save:
        kept = [asdict(row) for row in rows]
        write_atomic(STORED, json.dumps({**result, "rows": kept}, indent=1).encode() + b"\n")
    _print(result, args.json)
    return 0


def _facts(found: Figures) -> str:
    parts = [("spearman", found.spearman), ("pairs right", found.pairs_right), ("median error", found.mape)]
    return "  ".join(f"{name} {value:.2f}" for name, value in parts if value is not None)


def counters(args: Args) -> int:
    """Sectors, bank conflicts, occupancy and DRAM reads against those of the file."""
    if args.measured is None:
        raise KbError("--counters needs --measured FILE with hardware counters")
    name, items = programs(args)
    texts = {(item.task, item.name): item for item in items}
    found: list[Pair] = []
    with SimEvaluator(name, args.store or default_store()) as evaluator:
        for row in json.loads(args.measured.read_text(encoding="utf-8")).get("counters", ()):
            item = texts.get((row["task"], row["name"]))
            if item is None:
                continue
            results = evaluator.modelled(
                measured_task(item.task, args.measured), Program(item.task, item.text)
            )
            if not isinstance(results, Fault):
                where = f"{item.task}/{item.name}"
                found += pairs(evaluator.model, where, results[0], row["launches"])
    result = {"source": "counted", "device": name, "part": args.part, "figures": report(found)}
    if args.json:
        print(json.dumps(result))
    return 0


def speed(args: Args) -> int:
    """Seconds of one step (build, record, check, count and model) of each task's right/ programs.

    The task's reference and its initial program are known, as in the second step of an episode.
    """
    cold: list[Mapping[str, float]] = []
    cached: list[Mapping[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, SimEvaluator(args.device, Path(folder)) as evaluator:
        for name in args.tasks or builtin_names():
            task = load_task(name)
            evaluator.evaluate(task, task.initial)
            for label, program in solutions(task, "right").items():
                for kept in (cold, cached):
                    kept.append(_timed(evaluator, task, program))
                line = "  ".join(f"{phase} {value:.2f}" for phase, value in cold[-1].items())
                print(f"{name:<28} {label:<24} cold: {line}  cached: {cached[-1]['total']:.2f}", flush=True)
    result: dict[str, Any] = {"source": "modelled", "device": args.device, "programs": len(cold)}
    for label, kept in (("cold", cold), ("cached", cached)):
        for phase in ("total", "build", "record", "verify", "time"):
            result[f"{label}_{phase}_seconds"] = statistics.median(item.get(phase, 0.0) for item in kept)
    _print(result, args.json)
    return 0


def _timed(evaluator: SimEvaluator, task: Task, program: Program) -> dict[str, float]:
    started = time.perf_counter()
    found = evaluator.evaluate(task, program)
    return {"total": time.perf_counter() - started, **found.seconds}


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
