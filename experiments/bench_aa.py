"""How honest the intervals are: A/A coverage over many kernels, and candidates measured again in fresh processes.

    python -m experiments.bench_aa --runs 20 --again 20 --out aa.json

A/A: each kernel against itself. The 95 % interval should hold 1 in 92 to 98 % of at least 400 runs, with a
median half width of at most 1 % for kernels over 20 us; every run is in the output, none is left out. Again:
right solutions against their initial programs, all of them once in one evaluator, then once in another one
whose processes are all new. Needs an NVIDIA GPU with nvcc. Writes after every kernel, so that a stopped run
keeps what it has.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from kb_env.evaluators import Prepared, Purpose
from kb_env.files import write_atomic
from kb_env.gpu.evaluator import GpuEvaluator
from kb_env.task import builtin_names, load_task, solutions
from kb_env.types import Evaluation, KbError, Program, Task

#: The figures to reach: share of intervals that hold 1, and their half width.
COVERAGE, HALF_WIDTH_PERCENT, LONG_US = (0.92, 0.98), 1.0, 20.0


@dataclass(frozen=True)
class Args:
    """Options of the benchmark."""

    #: kernels: the initial programs, then right solutions
    kernels: int = 20
    #: A/A runs of each kernel
    runs: int = 20
    #: candidates that are measured again in fresh processes
    again: int = 20
    #: stop A/A runs after this many seconds, with what there is
    seconds: float = 1e9
    builders: int = 16
    index: int = 0
    store: Path | None = None
    out: Path = Path("bench_aa.json")


@dataclass(frozen=True)
class Run:
    """One A/A run: its interval, the kernel's time, the pairs it took."""

    kernel: str
    low: float
    high: float
    us: float
    pairs: int
    seconds: float

    @property
    def holds(self) -> bool:
        return self.low <= 1.0 <= self.high

    @property
    def half_width_percent(self) -> float:
        return 50.0 * (math.log(self.high) - math.log(self.low))


@dataclass(frozen=True)
class Pair:
    """One candidate's two measurements: speedup, lower and upper end."""

    candidate: str
    first: tuple[float, float, float]
    second: tuple[float, float, float]

    @property
    def overlap(self) -> bool:
        return self.first[1] <= self.second[2] and self.second[1] <= self.first[2]

    @property
    def z(self) -> float:
        """Difference over its 95 % half width: about 1 in 20 honest pairs is over 1."""
        halves = [0.5 * (math.log(m[2]) - math.log(m[1])) for m in (self.first, self.second)]
        return abs(math.log(self.first[0] / self.second[0])) / math.hypot(*halves)


def programs() -> list[tuple[str, Task, Program]]:
    """Initial programs of all tasks, then their right solutions."""
    tasks = [load_task(name) for name in builtin_names()]
    found = [(f"{task.name}/kernel", task, task.initial) for task in tasks]
    for task in tasks:
        found += [
            (f"{task.name}/{label}", task, program) for label, program in solutions(task, "right").items()
        ]
    return found


def prepare_all(
    gpu: GpuEvaluator, chosen: Sequence[tuple[str, Task, Program]], builders: int
) -> list[Prepared]:
    assert gpu.facts.sm_count > 0  # starts what the threads ask
    with ThreadPoolExecutor(builders) as pool:
        return list(pool.map(lambda item: gpu.prepare(item[1], item[2]), chosen))


def aa_runs(gpu: GpuEvaluator, args: Args, results: dict[str, object]) -> list[Run]:
    """A/A runs, one round of all kernels after the other, so that drift falls on all alike."""
    chosen = programs()[: args.kernels]
    prepared = prepare_all(gpu, chosen, args.builders)
    found: list[Run] = []
    end = time.monotonic() + args.seconds
    for _ in range(args.runs):
        for (name, _task, program), ready in zip(chosen, prepared, strict=True):
            if time.monotonic() > end:
                return found
            started = time.monotonic()
            evaluation = gpu.measure(ready, Purpose(baseline=program, baseline_name="itself"))
            _timed(name, evaluation)
            for timing in evaluation.timings or ():
                us = statistics.median(timing.candidate_us)
                seconds = time.monotonic() - started
                found.append(
                    Run(name, timing.speedup_low, timing.speedup_high, us, len(timing.candidate_us), seconds)
                )
        results["aa"] = summary(found)
        write_atomic(args.out, json.dumps(results, indent=1).encode())
    return found


def summary(runs: Sequence[Run]) -> dict[str, object]:
    """Coverage and widths, in all and by kernel, and every run."""
    long = [run for run in runs if run.us > LONG_US]
    by_kernel = {}
    for name in dict.fromkeys(run.kernel for run in runs):
        own = [run for run in runs if run.kernel == name]
        by_kernel[name] = {
            "us": round(statistics.median(run.us for run in own), 2),
            "holds": f"{sum(run.holds for run in own)} of {len(own)}",
            "half_width_percent": round(statistics.median(run.half_width_percent for run in own), 3),
            "pairs": statistics.median(run.pairs for run in own),
            "seconds": round(statistics.median(run.seconds for run in own), 3),
        }
    return {
        "runs": len(runs),
        "holds": sum(run.holds for run in runs),
        "coverage": round(sum(run.holds for run in runs) / len(runs), 4),
        "half_width_percent_over_20_us": round(
            statistics.median(run.half_width_percent for run in long) if long else math.nan, 3
        ),
        "kernels": by_kernel,
        "all": [asdict(run) for run in runs],
    }


def measure_again(args: Args, store: Path) -> list[Pair]:
    """The candidates twice, each time in an evaluator of its own, all of whose processes are new."""
    chosen = [item for item in programs() if not item[0].endswith("/kernel")]
    chosen = chosen[:: max(1, len(chosen) // args.again)][: args.again]
    rounds: list[list[tuple[float, float, float]]] = []
    for _ in range(2):
        with GpuEvaluator(args.index, store) as gpu:
            prepared = prepare_all(gpu, chosen, args.builders)
            found = []
            for (name, _, _), ready in zip(chosen, prepared, strict=True):
                evaluation = gpu.measure(ready)
                _timed(name, evaluation)
                ends = evaluation.speedup, evaluation.speedup_low, evaluation.speedup_high
                found.append(tuple(round(value or math.nan, 5) for value in ends))
            rounds.append(found)  # type: ignore[arg-type]
    return [Pair(item[0], a, b) for item, a, b in zip(chosen, *rounds, strict=True)]


def _timed(name: str, found: Evaluation) -> None:
    if not found.verified or not found.timings:
        raise KbError(f"{name} is honest and was not timed: {found.status} {found.message}")


def main(args: Args) -> int:
    """Run both parts and print them; 0 if all figures are reached, else 1."""
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = args.store or Path(folder)
        ok = True
        if args.runs:
            with GpuEvaluator(args.index, store) as gpu:
                results["device"] = gpu.facts.name
                runs = aa_runs(gpu, args, results)
            results["aa"] = found = summary(runs)
            width = found["half_width_percent_over_20_us"]
            print(
                f"A/A: {found['holds']} of {found['runs']} intervals hold 1 ({found['coverage']:.1%}), "
                f"median half width {width} % over {LONG_US:.0f} us"
            )
            for name, line in found["kernels"].items():  # type: ignore[attr-defined]
                print(f"  {name:40} {line}")
            ok = COVERAGE[0] <= found["coverage"] <= COVERAGE[1] and width <= HALF_WIDTH_PERCENT  # type: ignore[operator]
        if args.again:
            pairs = measure_again(args, store)
            results["again"] = [
                asdict(pair) | {"overlap": pair.overlap, "z": round(pair.z, 3)} for pair in pairs
            ]
            agree = sum(pair.overlap for pair in pairs)
            far = sum(pair.z > 1.0 for pair in pairs)
            print(
                f"again: {agree} of {len(pairs)} pairs of intervals overlap; {far} differ by more than both"
            )
            ok = ok and agree == len(pairs)
        write_atomic(args.out, json.dumps(results, indent=1).encode())
    return 0 if ok else 1


if __name__ == "__main__":
    import tyro

    raise SystemExit(main(tyro.cli(Args)))
