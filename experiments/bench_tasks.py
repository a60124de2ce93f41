"""The table of all tasks on this machine's GPU: every right/ verified, every wrong/ rejected, times, baselines.

    python -m experiments.bench_tasks --out bench_tasks

Builds run ahead on CPU threads; then one task after the other is measured, sealed. Writes OUT.json and
OUT.md. Library times come from a torch process of their own (same flush, events and sizes) and are
labelled so. Exit code 1 if any program got a status it should not have.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kb_env.backends import gpu_obstacle
from kb_env.evaluators import Prepared, Purpose
from kb_env.files import write_atomic
from kb_env.gpu.beside import LibraryBaselines
from kb_env.gpu.evaluator import GpuEvaluator
from kb_env.gpu.roofline import describe, roofline_us
from kb_env.task import builtin_names, expected_status, load_task, solutions
from kb_env.types import Evaluation, KbError, Program, Status, Task

_COMPILERS = 6


@dataclass(frozen=True)
class Args:
    """Options of the benchmark."""

    #: names or folders; default: all built-in tasks
    tasks: tuple[str, ...] = ()
    #: library baselines to time: eager, compile, max-autotune
    library: tuple[str, ...] = ("eager", "compile")
    #: profile the initial and the best program as well
    profile: bool = False
    builders: int = 16
    index: int = 0
    store: Path | None = None
    #: path without suffix
    out: Path = Path("bench_tasks")


@dataclass
class Row:
    """What was found of one task. Times in microseconds, medians of the first bench case."""

    task: str
    initial_us: float | None = None
    best: str | None = None
    best_us: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    roofline_us: float | None = None
    library_us: dict[str, float] = field(default_factory=dict)
    #: the best program's speedup over each library, with its interval, paired by block
    over: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    programs: dict[str, dict[str, object]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def roofline_percent(self) -> float | None:
        if self.best_us is None or self.roofline_us is None:
            return None
        return 100.0 * self.roofline_us / self.best_us


def main(args: Args) -> int:
    """Measure all tasks; writes after each task, so that a broken run keeps what it has."""
    tasks = [load_task(name) for name in args.tasks or builtin_names()]
    obstacle = gpu_obstacle()
    if obstacle is not None:
        raise KbError(f"times of tasks are measured, which needs a GPU: {obstacle}")
    rows = []
    with GpuEvaluator(args.index, args.store) as gpu, ThreadPoolExecutor(args.builders) as pool:
        waiting = {task.name: _prepare_all(gpu, task, pool) for task in tasks}
        _compile_ahead(tasks, args)
        for task in tasks:
            row = measure_task(gpu, task, waiting[task.name], args)
            rows.append(row)
            _write(rows, gpu.facts.name, args.out)
            print(json.dumps(vars(row)), flush=True)
    print(args.out.with_suffix(".md").read_text())
    faults = [f"{row.task}: {fault}" for row in rows for fault in row.faults]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _compile_ahead(tasks: list[Task], args: Args) -> None:
    """Fill torch's on-disk cache of compiled graphs in a few processes, so that timing need not wait for it."""
    kinds = [kind for kind in args.library if kind != "eager"]
    if not kinds:
        return

    def work(share: list[Task]) -> None:
        with LibraryBaselines(args.index) as library:
            for task in share:
                for kind in kinds:
                    with contextlib.suppress(KbError):  # it is told when it is timed
                        library.times(task, task.bench[0], kind, (1,))

    with ThreadPoolExecutor(_COMPILERS) as pool:
        list(pool.map(work, [tasks[i::_COMPILERS] for i in range(_COMPILERS)]))


def _prepare_all(gpu: GpuEvaluator, task: Task, pool: ThreadPoolExecutor) -> dict[str, Future[Prepared]]:
    programs: dict[str, Program] = {"kernel.cu": task.initial}
    for verdict in ("right", "wrong"):
        programs |= {f"{verdict}/{name}": program for name, program in solutions(task, verdict).items()}
    return {name: pool.submit(gpu.prepare, task, program) for name, program in programs.items()}


def measure_task(gpu: GpuEvaluator, task: Task, waiting: dict[str, Future[Prepared]], args: Args) -> Row:
    """Every program of one task, then the best one again with the libraries beside it."""
    started = time.monotonic()
    row = Row(task.name)
    device = describe(gpu.facts)
    if device is not None:
        row.roofline_us = roofline_us(device, task, task.bench[0])
    for name, future in waiting.items():
        try:
            found = gpu.measure(
                future.result(), Purpose(profile=args.profile and not name.startswith("wrong"))
            )
        except KbError as error:
            row.programs[name] = {"message": str(error)[:300]}
            row.faults.append(f"{name}: harness failure: {error}")
            continue
        _note(row, name, found, future.result().program)
    if args.library:
        _libraries(row, gpu, waiting[row.best or "kernel.cu"].result(), args)
    row.seconds = time.monotonic() - started
    return row


def _libraries(row: Row, gpu: GpuEvaluator, best: Prepared, args: Args) -> None:
    """Library times, block by block with the best program on the same inputs."""
    try:
        found = gpu.measure(best, Purpose(libraries=args.library))
    except KbError as error:
        row.faults.append(f"with libraries: harness failure: {error}")
        return
    for kind in args.library:
        row.programs[kind] = {"message": str(found.health.get(f"library_{kind}", found.message))}
    for timing in found.libraries:
        if timing.case == best.task.bench[0].name:
            row.library_us[timing.baseline] = statistics.median(timing.baseline_us)
            row.over[timing.baseline] = timing.speedup, timing.speedup_low, timing.speedup_high


def _note(row: Row, name: str, found: Evaluation, program: Program) -> None:
    """Enter one evaluation into the row; a status that should not be is a fault."""
    facts: dict[str, object] = {"status": str(found.status), "message": found.message[:300]}
    facts["seconds"] = {phase: round(value, 3) for phase, value in found.seconds.items()}
    if found.timings and found.verification is not None:
        timing = found.timings[0]
        facts["us"] = statistics.median(timing.candidate_us)
        facts["baseline_us"] = statistics.median(timing.baseline_us)
        facts["speedup"] = (timing.speedup_low, timing.speedup, timing.speedup_high)
        facts["pairs"] = len(timing.candidate_us)
        facts["worst"] = found.verification.worst
    if found.profile is not None:
        facts["profile"] = vars(found.profile)
    row.programs[name] = facts
    allowed = expected_status(program.text) if name.startswith("wrong") else (Status.TIMED,)
    if found.status not in allowed:
        row.faults.append(
            f"{name} is {found.status}, not {'|'.join(map(str, allowed))}: {found.message[:200]}"
        )
    if found.status is not Status.TIMED or not found.timings or name.startswith("wrong"):
        return
    microseconds = statistics.median(found.timings[0].candidate_us)
    if name == "kernel.cu":
        row.initial_us = microseconds
    elif row.best_us is None or microseconds < row.best_us:
        timing = found.timings[0]
        row.best, row.best_us, row.speedup = name, microseconds, timing.speedup
        row.speedup_low, row.speedup_high = timing.speedup_low, timing.speedup_high


def _write(rows: list[Row], device: str, out: Path) -> None:
    data = {"device": device, "rows": [vars(row) for row in rows]}
    write_atomic(out.with_suffix(".json"), json.dumps(data, indent=1).encode())
    write_atomic(out.with_suffix(".md"), table(rows, device).encode())


def table(rows: list[Row], device: str) -> str:
    """The rows as Markdown."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.library_us))
    head = ["task", "initial us", "best us", "best", "speedup (95 %)", "roofline %"]
    head += [f"{kind} us" for kind in kinds] + ["best over eager", "right", "wrong rejected"]
    lines = [
        f"Measured on {device}, sealed; libraries cross-process, by block on the same inputs; cold L2, medians.", "",
        "| " + " | ".join(head) + " |", "|" + " --- |" * len(head),
    ]  # fmt: skip
    for row in rows:
        speedup = "-"
        if row.speedup is not None:
            speedup = f"{row.speedup:.2f} ({row.speedup_low:.2f} to {row.speedup_high:.2f})"
        cells = [row.task, _cell(row.initial_us), _cell(row.best_us), row.best or "-", speedup]
        cells += [_cell(row.roofline_percent), *(_cell(row.library_us.get(kind)) for kind in kinds)]
        cells += [_over(row.over.get("eager")), _counts(row, "right"), _counts(row, "wrong")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _over(found: tuple[float, float, float] | None) -> str:
    return "-" if found is None else f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})"


def _cell(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _counts(row: Row, verdict: str) -> str:
    """Programs of a folder that ended as they should, of how many."""
    names = [name for name in row.programs if name.startswith(f"{verdict}/")]
    bad = sum(fault.startswith(f"{verdict}/") for fault in row.faults)
    return f"{len(names) - bad} of {len(names)}"


if __name__ == "__main__":
    import tyro

    raise SystemExit(main(tyro.cli(Args)))
