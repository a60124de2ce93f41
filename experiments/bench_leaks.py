"""Nothing stays behind: many evaluations, a tenth of them of programs that hang, crash or want too much memory.

    python -m experiments.bench_leaks --runs 1000 --out leaks.json

Counts processes, GPU memory and files before the evaluator starts and after it is closed, and, from a tenth of
the run on, what its own processes hold while it works. After each faulty program the next evaluation must be
right and start within 3 s. A hang costs its watchdog's second, so hangs are a tenth of the faulty ones. The
schedule is cut to six pairs of a small case: this run is about what is left, not about times. Needs an NVIDIA
GPU with nvcc.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kb_env.evaluators import Prepared
from kb_env.files import write_atomic
from kb_env.gpu.controls import Controls
from kb_env.gpu.evaluator import GpuEvaluator
from kb_env.gpu.health import Monitor
from kb_env.task import load_task
from kb_env.types import Case, KbError, Program, Status

SOURCE = """#include <cuda_runtime.h>
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
    %s
}
void launch(const float* a, const float* b, float* c, int n) {
    %s
    add<<<(n + 255) / 256, 256>>>(a, b, c, n);
}
"""
#: What the faulty programs do, the status they must get (or TIMED_OUT, where the driver takes more than the
#: watchdog's second to report the fault), and their share of the faulty ones.
FAULTS: dict[str, tuple[str, str, Status, float]] = {
    "hang": ("while (*(volatile const float*)a < 1e30f) __nanosleep(100);", "", Status.TIMED_OUT, 0.1),
    "trap": ("__trap();", "", Status.CRASHED, 0.3),
    "illegal address": ("*(volatile float*)16 = 1.0f;", "", Status.CRASHED, 0.3),
    # Half a megabyte of stack for each of a quarter of a million threads, beside a workspace of half the GPU.
    "out of memory": (
        "volatile float room[130000]; for (int k = 0; k < 32; k++) room[(k * 7919 + i) % 130000] = k;"
        " if (room[i % 130000] == -1.0f) c[i] = 0.0f;",
        "void* room; cudaMalloc(&room, 60ull << 30);",
        Status.CRASHED,
        0.3,
    ),
}  # fmt: skip
START_LIMIT = 3.0


@dataclass(frozen=True)
class Args:
    """Options of the benchmark."""

    runs: int = 1000
    #: share of faulty programs
    faulty: float = 0.1
    #: runners started ahead
    standbys: int = 6
    #: stop after this many seconds, with what there is
    seconds: float = 1e9
    seed: int = 0
    index: int = 0
    store: Path | None = None
    out: Path = Path("bench_leaks.json")


@dataclass(frozen=True)
class Held:
    """What is held at one moment. Memory in MiB; GPU memory of all processes on the device."""

    processes: int
    descriptors: int
    files: int
    resident_mib: float
    gpu_mib: float


def held(monitor: Monitor | None) -> Held:
    """Count children (zombies too) and descriptors of this process, files of ours, and GPU memory."""
    scratch = sum(
        1
        for path in Path(tempfile.gettempdir()).iterdir()
        if path.name.startswith("kb-") and path.suffix != ".lock"
    )
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    used = monitor.read().get("memory_used_mib", -1.0) if monitor is not None else -1.0
    return Held(
        processes=len(_descendants()),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        files=scratch,
        resident_mib=round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        gpu_mib=round(float(used), 1),
    )


def _descendants() -> list[int]:
    """Processes whose parent, parent's parent and so on is this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat[1])
    found, known = [], {os.getpid()}
    while fresh := [pid for pid, parent in parents.items() if parent in known and pid not in known]:
        found += fresh
        known |= set(fresh)
    return found


def order(args: Args) -> list[str | None]:
    """What comes when: names of faults, None for an honest program; never one fault right after another."""
    rng = random.Random(args.seed)
    count = max(len(FAULTS), round(args.runs * args.faulty))
    kinds = [name for name, (*_, share) in FAULTS.items() for _ in range(max(1, round(count * share)))]
    rng.shuffle(kinds)
    places = sorted(rng.sample(range(args.runs // 2), len(kinds)))
    plan: list[str | None] = [None] * args.runs
    for kind, place in zip(kinds, places, strict=True):
        plan[2 * place] = kind
    return plan


def run(
    gpu: GpuEvaluator, prepared: dict[str | None, Prepared], plan: Sequence[str | None], args: Args
) -> dict[str, object]:
    """All evaluations; what was wrong, how long starts took after faults, what was held on the way."""
    wrong: list[str] = []
    starts: dict[str, list[float]] = {name: [] for name in FAULTS}
    walls: list[float] = []
    series: list[Held] = []
    monitor = Monitor(gpu.facts.uuid)
    end = time.monotonic() + args.seconds
    before: str | None = None
    for number, kind in enumerate(plan):
        if time.monotonic() > end:
            break
        started = time.monotonic()
        found = gpu.measure(prepared[kind])
        walls.append(time.monotonic() - started)
        wanted = (Status.TIMED,) if kind is None else (FAULTS[kind][2], Status.TIMED_OUT)
        if found.status not in wanted:
            wrong.append(f"{number} {kind}: {found.status} {found.message}")
        if before is not None:
            starts[before].append(found.seconds.get("start", 0.0) + found.seconds.get("control", 0.0))
        before = kind
        if number % max(1, args.runs // 10) == args.runs // 20:
            series.append(held(monitor))
    return {
        "runs": len(walls),
        "faulty": {name: sum(kind == name for kind in plan[: len(walls)]) for name in FAULTS},
        "wrong": wrong,
        "start_after_fault_max_s": {name: round(max(s), 3) for name, s in starts.items() if s},
        "start_after_fault_median_s": {name: round(statistics.median(s), 3) for name, s in starts.items() if s},
        "seconds_median": round(statistics.median(walls), 3),
        "held": [vars(item) for item in series],
    }  # fmt: skip


def main(args: Args) -> int:
    """Run, print, write; 0 if nothing leaked and every next evaluation was right and in time, else 1."""
    task = load_task("vector_add")
    task = replace(
        task, check=task.check[:2], bench=(Case("bench0", {"n": 1 << 20}),), workspace_bytes=64 << 30
    )
    controls = Controls(min_pairs=6, max_pairs=6, check_runs=1)
    with tempfile.TemporaryDirectory() as folder:
        gpu = GpuEvaluator(args.index, args.store or Path(folder), controls, standbys=args.standbys)
        monitor = Monitor(gpu.facts.uuid)  # starts and names the GPU
        gpu.close()
        _settle()
        before = held(monitor)
        started = time.monotonic()
        try:
            prepared = _prepare(gpu, task)
            found = run(gpu, prepared, order(args), args)
        finally:
            gpu.close()
        seconds = time.monotonic() - started
        _settle()
        after = held(monitor)
    found |= {"seconds": round(seconds, 1), "before": vars(before), "after": vars(after)}
    found["leaked"] = leaked = _leaked(before, after, found["held"])  # type: ignore[arg-type]
    late = [name for name, s in found["start_after_fault_max_s"].items() if s > START_LIMIT]  # type: ignore[attr-defined]
    write_atomic(args.out, json.dumps(found, indent=1).encode())
    print(json.dumps({key: value for key, value in found.items() if key != "held"}, indent=1))
    for item in found["held"]:  # type: ignore[attr-defined]
        print(item)
    return 1 if leaked or late or found["wrong"] else 0


def _prepare(gpu: GpuEvaluator, task: object) -> dict[str | None, Prepared]:
    assert gpu.facts.sm_count > 0
    texts: dict[str | None, tuple[str, str]] = {None: ("", "")}
    texts |= {name: (device, host) for name, (device, host, *_) in FAULTS.items()}
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(
            lambda item: gpu.prepare(task, Program("vector_add", SOURCE % item)),  # type: ignore[arg-type]
            texts.values(),
        )
        prepared = dict(zip(texts, made, strict=True))
    for name, item in prepared.items():
        if item.fault is not None:
            raise KbError(f"the program {name or 'honest'} was not prepared: {item.fault.message}")
    return prepared


def _settle() -> None:
    """Let the driver take apart what has just ended."""
    time.sleep(3.0)


def _leaked(before: Held, after: Held, series: Sequence[dict[str, float]]) -> list[str]:
    """What there is more of at the end than at the start, or ever more of on the way."""
    found = []
    for name in ("processes", "descriptors", "files"):
        if getattr(after, name) > getattr(before, name):
            found.append(f"{name}: {getattr(before, name)} before, {getattr(after, name)} after")
    if after.gpu_mib > before.gpu_mib + 16:
        found.append(f"GPU memory: {before.gpu_mib} MiB before, {after.gpu_mib} MiB after")
    if len(series) > 4:
        for name, room in (("descriptors", 8), ("files", 4), ("resident_mib", 64), ("gpu_mib", 2048)):
            first, last = series[1][name], series[-1][name]
            if last > first + room:
                found.append(f"{name} grew from {first} to {last} on the way")
    return found


if __name__ == "__main__":
    import tyro

    raise SystemExit(main(tyro.cli(Args)))
