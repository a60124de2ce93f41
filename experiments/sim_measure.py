"""The hardware's side of the time model: ``kb bench sim --calibrate FILE`` on a machine with a GPU.

Measures, on the GPU with number ``index``,

- every program of the corpus (sim_corpus.py), sealed: median microseconds of each bench case, the
  medians of the even and the odd runs (what repeats is the most that any model can get right), registers;
- hardware counters of a few programs a task, where Nsight Compute may read them;
- the microbenchmarks of sim_micro.cu.

FILE is rewritten after each task, so that a run that is cut short keeps what it has.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.sim_corpus import Entry, load, program, text_hash
from kb_env.cubin import read_cubin
from kb_env.evaluators import Prepared
from kb_env.files import write_atomic
from kb_env.gpu.bench import Bench
from kb_env.gpu.controls import Controls
from kb_env.gpu.crew import Crew
from kb_env.gpu.evaluator import GpuEvaluator
from kb_env.gpu.ncu import Ncu, known_metrics
from kb_env.store import default_store
from kb_env.task import load_task
from kb_env.types import Case, Evaluation, KbError, Task

BUILDERS = 16
#: Counters to ask for; those that the GPU does not have are left out.
METRICS = (
    "gpu__time_duration.sum", "sm__cycles_elapsed.max", "dram__bytes_read.sum", "dram__bytes_write.sum",
    "lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum", "lts__t_sectors_op_atom.sum",
    "lts__t_sectors_op_red.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum", "l1tex__data_pipe_lsu_wavefronts.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "smsp__sass_inst_executed_op_shared_ld.sum", "smsp__sass_inst_executed_op_shared_st.sum",
    "smsp__inst_executed.sum", "smsp__inst_executed_pipe_fma.sum", "smsp__inst_executed_pipe_alu.sum",
    "smsp__inst_executed_pipe_lsu.sum", "smsp__inst_executed_pipe_xu.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active", "launch__registers_per_thread",
    "launch__waves_per_multiprocessor",
)  # fmt: skip


@dataclass(frozen=True)
class Args:
    """Measure the corpus and the microbenchmarks on this machine's GPU."""

    out: Path
    """file to write"""
    index: int = 0
    """number of the GPU"""
    tasks: tuple[str, ...] = ()
    """only these tasks"""
    counted: int = 3
    """programs of each task whose hardware counters are read: one held out, the rest from calibration"""
    seconds: float = 3600.0
    """start nothing after so long"""
    store: Path | None = None
    """folder of the build cache"""


@dataclass
class Measured:
    """What was measured so far; its fields are the file's."""

    device: str
    cases: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    programs: list[dict[str, Any]] = field(default_factory=list)
    counters: list[dict[str, Any]] = field(default_factory=list)
    micro: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        write_atomic(path, json.dumps(vars(self), indent=1).encode() + b"\n")


def main(args: Args) -> int:
    end = time.monotonic() + args.seconds
    entries = [entry for entry in load() if not args.tasks or entry.task in args.tasks]
    tasks = {name: load_task(name) for name in dict.fromkeys(entry.task for entry in entries)}
    store = args.store or default_store()
    with ThreadPoolExecutor(BUILDERS) as pool:
        with GpuEvaluator(args.index, store) as gpu:
            found = Measured(gpu.facts.name)
            found.cases = {n: {c.name: dict(c.sizes) for c in t.bench} for n, t in tasks.items()}
            waiting = [
                (entry, pool.submit(gpu.prepare, tasks[entry.task], program(entry))) for entry in entries
            ]
            found.micro = microbenchmarks(gpu.facts.architecture)
            found.write(args.out)
            for entry, future in waiting:
                if time.monotonic() < end:
                    _measure(gpu, tasks[entry.task], entry, future, found)
                if entry.name == "initial":
                    found.write(args.out)
        found.write(args.out)
        ready = {(entry.task, entry.name): future.result() for entry, future in waiting}
        chosen = list(_counted(entries, args.counted))
        for entry, rows in _counters(args.index, [(e, ready[e.task, e.name]) for e in chosen], tasks, end):
            found.counters.append(
                {"task": entry.task, "name": entry.name, "part": entry.part, "launches": rows}
            )
        found.write(args.out)
    for failure in found.failures:
        print(failure)
    print(
        f"{len(found.programs)} programs measured on {found.device}, counters of {len(found.counters)}: {args.out}"
    )
    return 0


def _measure(gpu: GpuEvaluator, task: Task, entry: Entry, future: Future[Prepared], found: Measured) -> None:
    """One sealed evaluation into the record; what a program or the harness did wrong is noted."""
    try:
        prepared = future.result()
        evaluation = gpu.measure(prepared)
    except KbError as error:
        found.failures.append(f"{entry.task}/{entry.name}: harness: {str(error)[:300]}")
        return
    if not evaluation.timings:
        found.failures.append(f"{entry.task}/{entry.name}: {evaluation.status}: {evaluation.message[:300]}")
        return
    found.programs.append({**_row(entry), **_times(evaluation), "registers": _registers(prepared)})


def _row(entry: Entry) -> dict[str, Any]:
    return {"task": entry.task, "name": entry.name, "part": entry.part, "sha256": text_hash(entry.text)}


def _times(evaluation: Evaluation) -> dict[str, Any]:
    """Medians of all, of the even and of the odd runs, and of the initial program beside them."""
    timings = evaluation.timings or ()
    return {
        "measured_us": {t.case: round(statistics.median(t.candidate_us), 3) for t in timings},
        "halves_us": {
            t.case: [round(statistics.median(t.candidate_us[k::2]), 3) for k in (0, 1)] for t in timings
        },
        "initial_us": {t.case: round(statistics.median(t.baseline_us), 3) for t in timings},
    }


def _registers(prepared: Prepared) -> dict[str, int]:
    return {kernel.name: kernel.registers for kernel in read_cubin(prepared.image).kernels()}


def _counted(entries: Sequence[Entry], number: int) -> Iterator[Entry]:
    """The programs whose counters are read: of each task the first held-out one, then calibration ones."""
    for task in dict.fromkeys(entry.task for entry in entries):
        mine = [entry for entry in entries if entry.task == task]
        held = [entry for entry in mine if entry.part == "held-out"]
        rest = [entry for entry in mine if entry.part == "calibration" and entry.name != "initial"]
        yield from [*held[:1], *rest][:number]


def _counters(
    index: int, chosen: Sequence[tuple[Entry, Prepared]], tasks: dict[str, Task], end: float
) -> Iterator[tuple[Entry, list[dict[str, float]]]]:
    """Raw hardware counters of each launch of the first bench case."""
    ncu = shutil.which("ncu")
    known = known_metrics(ncu) if ncu is not None else frozenset()
    wanted = tuple(m for m in METRICS if m.startswith("launch__") or m.split(".")[0] in known)
    if not known:
        return
    crew = Crew(index)
    try:
        facts = crew.facts
        profiler = Ncu(index, crew.mirror, wanted)
        oracle = crew.oracle()
        for entry, prepared in chosen:
            if time.monotonic() > end or prepared.fault is not None:
                continue
            case: Case = tasks[entry.task].bench[0]
            rows = profiler.rows(
                lambda runner: Bench(runner, oracle, facts, Controls(), crew.mirror), prepared, case
            )
            if rows:
                yield entry, rows
    finally:
        crew.close()


def microbenchmarks(architecture: str) -> dict[str, float]:
    """Figures of sim_micro.cu by name.

    Raises:
        KbError: if there is no nvcc, or the program does not compile or run.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise KbError("the microbenchmarks need nvcc on the PATH: install the CUDA toolkit")
    source = Path(__file__).parent / "sim_micro.cu"
    with tempfile.TemporaryDirectory() as folder:
        binary = str(Path(folder) / "micro")
        for command in (
            [nvcc, "-O3", "-std=c++17", f"-arch={architecture}", "-o", binary, str(source)],
            [binary],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                raise KbError(f"{Path(command[0]).name} failed on the microbenchmarks: {done.stderr[:500]}")
    return {name: float(value) for name, value in json.loads(done.stdout).items()}
