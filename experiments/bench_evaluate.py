"""How long one sealed evaluation takes, how often an A/A interval holds 1, how many fit in a second.

    python -m experiments.bench_evaluate --tasks softmax gelu --repeats 7 --aa 20 --ahead 40

Needs an NVIDIA GPU with nvcc. Prints a table and writes everything as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kb_env.evaluators import Prepared, Purpose
from kb_env.files import write_atomic
from kb_env.gpu.evaluator import GpuEvaluator
from kb_env.prepare import prepare
from kb_env.task import load_task
from kb_env.types import Evaluation, KbError, Program, Task


@dataclass(frozen=True)
class Args:
    """Options of the benchmark."""

    tasks: tuple[str, ...] = ("softmax", "gelu")
    #: cold and cached evaluations per task
    repeats: int = 7
    #: A/A measurements per task
    aa: int = 20
    #: programs built ahead of the GPU for the throughput figure; 0 leaves it out
    ahead: int = 0
    #: processes that build ahead
    builders: int = 16
    #: also time one profiled evaluation per task
    profile: bool = False
    index: int = 0
    out: Path = Path("bench_evaluate.json")


def main(args: Args) -> int:
    """Run the benchmark, print one line a task, write the figures; 0, or KbError."""
    results = measure(args)
    write_atomic(args.out, json.dumps(results, indent=1).encode())
    for name in args.tasks:
        print(_line(name, results[name]))  # type: ignore[arg-type]
    return 0


def measure(args: Args) -> dict[str, object]:
    """The figures, by task."""
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, GpuEvaluator(args.index, Path(folder)) as gpu:
        results["device"] = gpu.facts.name
        for name in args.tasks:
            task = load_task(name)
            gpu.evaluate(task, task.initial)  # the first start of the oracle belongs to no evaluation
            results[name] = {"phases": phases(gpu, task, args.repeats), "aa": control(gpu, task, args.aa)}
            if args.profile:
                found = gpu.evaluate(task, task.initial, Purpose(profile=True))
                results[name]["profile"] = {  # type: ignore[index]
                    "seconds": found.seconds.get("profile"), **vars(found.profile or object()),
                }  # fmt: skip
            print(json.dumps({name: results[name]}), flush=True)
            if args.ahead:
                results[name]["per_second"] = throughput(gpu, task, args)  # type: ignore[index]
    return results


def variants(task: Task) -> Iterator[Program]:
    """Endless programs with the initial program's code, each new to the build store."""
    for number in range(1 << 30):
        text = f"// {time.time_ns()} {number}\n{task.source}\nnamespace {{ int kb_variant_{number}; }}\n"
        yield Program(task.name, text)


def phases(gpu: GpuEvaluator, task: Task, repeats: int) -> dict[str, dict[str, float]]:
    """Median seconds of each phase, cold (new source) and cached (same source again)."""
    seen: dict[str, list[dict[str, float]]] = {"cold": [], "cached": []}
    programs = variants(task)
    for _ in range(repeats):
        program = next(programs)
        for kind in ("cold", "cached"):
            started = time.monotonic()
            found = gpu.evaluate(task, program)
            total = time.monotonic() - started
            _timed(found)
            waits = {f"wait {name}": seconds for name, seconds in gpu.waits.items()}
            seen[kind].append({**found.seconds, "total": total, "pairs": _pairs(found), **waits})
    return {
        kind: {name: round(statistics.median(run.get(name, 0.0) for run in runs), 4) for name in runs[0]}
        for kind, runs in seen.items()
    }


def control(gpu: GpuEvaluator, task: Task, runs: int) -> dict[str, object]:
    """The initial program against itself: how often the interval contains 1, and how wide it is."""
    prepared = gpu.prepare(task, task.initial)
    inside, widths, times = 0, [], []
    for _ in range(runs):
        found = gpu.measure(prepared)
        _timed(found)
        for timing in found.timings or ():
            inside += timing.speedup_low <= 1.0 <= timing.speedup_high
            widths.append((timing.speedup_high - timing.speedup_low) / 2)
            times.append(statistics.median(timing.candidate_us))
    if not widths:
        return {}
    return {
        "runs": len(widths),
        "contain_1": inside,
        "median_half_width_percent": round(100 * statistics.median(widths), 3),
        "median_us": round(statistics.median(times), 2),
        "us": [round(value, 2) for value in times],
    }


def throughput(gpu: GpuEvaluator, task: Task, args: Args) -> float:
    """Full evaluations a second on one GPU with builds ahead in other processes, as rollouts have them."""
    programs = variants(task)
    cases, architecture = (*task.check, *task.bench), gpu.facts.architecture
    with ProcessPoolExecutor(args.builders, multiprocessing.get_context("spawn")) as pool:
        waiting: list[Future[Prepared]] = [
            pool.submit(prepare, task, next(programs), architecture, gpu.store, cases)
            for _ in range(args.ahead)
        ]
        waiting[0].result()
        started = time.monotonic()
        for future in waiting:
            _timed(gpu.measure(future.result()))
        return round(args.ahead / (time.monotonic() - started), 2)


def _pairs(found: Evaluation) -> float:
    return float(sum(len(timing.candidate_us) for timing in found.timings or ()))


def _timed(found: Evaluation) -> None:
    if not found.verified or not found.timings:
        raise KbError(f"an honest program was not timed: {found.status} {found.message}")


def _line(name: str, figures: dict[str, dict[str, dict[str, float]]]) -> str:
    cold, cached = figures["phases"]["cold"], figures["phases"]["cached"]
    control_ = figures["aa"]
    text = f"{name}: cold {cold['total']:.2f} s, cached {cached['total']:.2f} s"
    if control_:
        text += f", A/A {control_['contain_1']}/{control_['runs']} contain 1"
        text += f", half width {control_['median_half_width_percent']} %"
    return text + (f", {figures['per_second']} evaluations/s" if "per_second" in figures else "")


if __name__ == "__main__":
    import tyro

    raise SystemExit(main(tyro.cli(Args)))
