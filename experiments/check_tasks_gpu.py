"""Compile, check and time every task's programs on the GPU of this machine, without the evaluator.

    python -m experiments.check_tasks_gpu [--wrong] [--out FILE] [TASK ...]

A plain, independent look at the task folders: each program becomes a shared library, runs on torch
tensors between guard bands, is compared with numerics.Reference in every check and bench case, and
timed cold (L2 flushed) beside PyTorch eager. These times are for whoever writes tasks; they are no
verdicts of the evaluator (programs run in this process, trusted).
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import torch

from kb_env.files import write_atomic
from kb_env.numerics import Comparison, Reference
from kb_env.task import builtin_names, expected_status, load_task, solutions
from kb_env.types import Case, KbError, Program, Status, Task, arithmetic

#: Measured copy bandwidth and data sheet peaks of an H200, per second.
COPY_BYTES = 4.3e12
PEAKS = {"float32": 67e12, "float16": 989e12, "bfloat16": 989e12, "int32": 33e12, "float64": 34e12}

RUNS = 20
CHECK_SECONDS = 60
GUARD = 4096
NVCC = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-O3", "-std=c++17"]
NVCC += ["-gencode", "arch=compute_90a,code=sm_90a", "-include", "pool.h"]

# Workspace comes from a pool, so that the launcher's allocations stay out of the timed window, and is
# filled with NaN patterns when handed out, because a program may not rely on its content.
POOL = """
#include <cuda_runtime.h>
#include <map>
static std::multimap<size_t, void*> kb_idle;
static std::map<void*, size_t> kb_live;
template <class T> static cudaError_t kb_malloc(T** p, size_t n) {
    auto it = kb_idle.find(n);
    void* got = nullptr;
    cudaError_t error = cudaSuccess;
    if (it != kb_idle.end()) { got = it->second; kb_idle.erase(it); }
    else { error = cudaMalloc(&got, n); cudaMemset(got, 0xff, n); }
    kb_live[got] = n;
    *p = (T*)got;
    return error;
}
static inline cudaError_t kb_free(void* p) {
    auto it = kb_live.find(p);
    if (it != kb_live.end()) { kb_idle.insert({it->second, p}); kb_live.erase(it); }
    return cudaSuccess;
}
#define cudaMalloc kb_malloc
#define cudaFree kb_free
"""

CTYPES = {"int32": ctypes.c_int, "int64": ctypes.c_longlong, "float32": ctypes.c_float}
CTYPES |= {"float64": ctypes.c_double}


def programs(task: Task, wrong: bool) -> dict[str, Program]:
    found = {"kernel": task.initial}
    found |= {f"right/{name}": program for name, program in solutions(task, "right").items()}
    if wrong:
        programs_wrong = solutions(task, "wrong")
        found |= {label: programs_wrong[label.partition("/")[2]] for label in only_wrong(task)}
    return found


def compile_program(task: Task, label: str, program: Program, folder: Path) -> str | None:
    """Build one shared library with a C entry point. Returns the compiler's log if it failed."""
    base = folder / f"{task.name}_{label.replace('/', '_')}"
    names = ", ".join(argument.name for argument in task.arguments)
    parameters = ", ".join(argument.cpp for argument in task.arguments)
    entry = f'\nextern "C" void kb_entry({parameters}) {{ {task.entry}({names}); }}\n'
    base.with_suffix(".cu").write_text(program.text + entry)
    command = [*NVCC, "-I", str(folder), "-o", f"{base}.so", f"{base}.cu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr


def compile_all(tasks: list[Task], wrong: bool, folder: Path) -> dict[tuple[str, str], str | None]:
    (folder / "pool.h").write_text(POOL)
    jobs = [(task, label, program) for task in tasks for label, program in programs(task, wrong).items()]
    with ThreadPoolExecutor(16) as pool:
        logs = list(pool.map(lambda job: compile_program(job[0], job[1], job[2], folder), jobs))
    return {(task.name, label): log for (task, label, _), log in zip(jobs, logs, strict=True)}


class Bench:
    """One task's programs on this process's GPU."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task, self.folder = task, folder
        self.reference = Reference(task)
        self.flush = torch.empty(1 << 26, dtype=torch.float32, device="cuda")

    def load(self, label: str) -> Callable[..., None]:
        return ctypes.CDLL(str(self.folder / f"{self.task.name}_{label.replace('/', '_')}.so")).kb_entry

    def buffers(self, case: Case, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Every array argument between guard bands; outputs poisoned with NaN patterns."""
        found = {}
        for argument in self.task.arguments:
            if argument.kind == "scalar":
                continue
            size = argument.nbytes(case.sizes)
            raw = torch.full((size + 2 * GUARD + 256,), 0xFF, dtype=torch.uint8, device="cuda")
            view = raw[GUARD : GUARD + size].view(getattr(torch, argument.dtype))
            found[argument.name] = view.view(argument.dims(case.sizes))
            if argument.kind != "output":
                found[argument.name].copy_(inputs[argument.name])
        return found

    def arguments(self, case: Case, buffers: dict[str, torch.Tensor]) -> list[object]:
        return [
            CTYPES[a.dtype](a.scalar(case.sizes))  # type: ignore[arg-type]
            if a.kind == "scalar"
            else ctypes.c_void_p(buffers[a.name].data_ptr())
            for a in self.task.arguments
        ]

    def check(self, label: str, case: Case, seed: int) -> str | None:
        """None if the program is right, else what is wrong."""
        inputs = self.reference.inputs(case, seed, "cuda")
        expected = self.reference.expected(case, inputs)
        buffers = self.buffers(case, inputs)
        torch.cuda.synchronize()
        self.load(label)(*self.arguments(case, buffers))
        torch.cuda.synchronize()
        verdict: Comparison = self.reference.compare(expected, buffers)
        if not verdict.ok:
            return f"{case.name}: {verdict.fault}: {verdict.message}"
        for argument in self.task.arguments:
            if argument.kind == "scalar":
                continue
            view = buffers[argument.name]
            raw = torch.empty(0, dtype=torch.uint8, device="cuda").set_(view.untyped_storage())
            end = GUARD + argument.nbytes(case.sizes)
            if not bool((raw[:GUARD] == 0xFF).all() and (raw[end:] == 0xFF).all()):
                return f"{case.name}: wrote outside {argument.name}"
            if argument.kind == "input" and not torch.equal(view, inputs[argument.name]):
                return f"{case.name}: changed its input {argument.name}"
        return None

    def time(self, call: Callable[[], object]) -> float:
        """Median microseconds of cold runs; the queue is kept busy so that host time does not count."""
        times = []
        for _ in range(RUNS + 3):
            self.flush.zero_()
            torch.cuda._sleep(400_000)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(1000.0 * start.elapsed_time(end))
        return median(times[3:])

    def times(self, labels: list[str], case: Case) -> Iterator[dict[str, object]]:
        inputs = self.reference.inputs(case, 7, "cuda")
        eager_us = None
        if self.reference.has_eager:
            eager_us = self.time(lambda: self.reference.eager(inputs, case))
        floor = self.floor_us(case)
        buffers = self.buffers(case, inputs)
        arguments = self.arguments(case, buffers)
        for label in labels:
            entry = self.load(label)
            us = self.time(lambda entry=entry: entry(*arguments))  # type: ignore[misc]
            yield {"label": label, "case": case.name, "us": us, "eager_us": eager_us, "floor_us": floor}

    def floor_us(self, case: Case) -> float:
        moved = float(arithmetic(self.task.bytes_moved, case.sizes)) / COPY_BYTES
        work = float(arithmetic(self.task.flops, case.sizes)) / PEAKS[self.task.unit]
        return 1e6 * max(moved, work)

    def oracle(self, case: Case) -> str:
        """How long inputs, expected result and comparison take in this case, milliseconds (second call)."""
        parts = []
        for _ in range(2):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            inputs = self.reference.inputs(case, 3, "cuda")
            torch.cuda.synchronize()
            drawn = time.perf_counter()
            expected = self.reference.expected(case, inputs)
            torch.cuda.synchronize()
            known = time.perf_counter()
            outputs = {k: v.to(self.buffers_dtype(k)) for k, v in expected.values.items()}
            torch.cuda.synchronize()
            ready = time.perf_counter()
            verdict = self.reference.compare(expected, outputs)
            parts = [drawn - begin, known - drawn, time.perf_counter() - ready, float(verdict.ok)]
        return "inputs {:.2f} expected {:.2f} compare {:.2f} ms".format(*(1e3 * p for p in parts[:3]))

    def buffers_dtype(self, name: str) -> torch.dtype:
        return next(getattr(torch, a.dtype) for a in self.task.arguments if a.name == name)


def work(task: Task, labels: list[str], folder: Path) -> None:
    """The child's side: check, then time, one JSON line per finding. A crash loses only what follows.

    Many children check at once, holding the lock shared; whoever times holds it alone.
    """
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Nobody waits for a hung kernel: the default action of the alarm ends the process.
        signal.alarm(CHECK_SECONDS)
        bench = Bench(task, folder)
        good = []
        for label in labels:
            begin = time.perf_counter()
            say(task, starts=label)
            faults = [
                fault
                for case in task.check + task.check_small + (() if label.startswith("wrong") else task.bench)
                for seed in (11, 12)
                if (fault := bench.check(label, case, seed))
            ]
            say(task, label=label, faults=faults, seconds=round(time.perf_counter() - begin, 2))
            if not faults and not label.startswith("wrong"):
                good.append(label)
        torch.cuda.empty_cache()
        fcntl.flock(lock, fcntl.LOCK_UN)
        if not good:
            return
        signal.alarm(0)
        fcntl.flock(lock, fcntl.LOCK_EX)
        signal.alarm(CHECK_SECONDS)
        for case in task.bench:
            say(task, oracle=f"{case.name}: {bench.oracle(case)}")
            for row in bench.times(good, case):
                say(task, **row)


def say(task: Task, **facts: object) -> None:
    print(json.dumps({"task": task.name, **facts}), flush=True)


class Child:
    """A process that works on one task's programs and writes its findings to a file."""

    def __init__(self, task: Task, labels: list[str], folder: Path, name: str) -> None:
        self.task, self.labels = task, labels
        self.out, self.error = folder / f"{name}.out", folder / f"{name}.err"
        command = [sys.executable, "-m", "experiments.check_tasks_gpu", "--child", str(folder)]
        command += ["--labels", ",".join(labels), task.name]
        with self.out.open("w") as out, self.error.open("w") as error:
            self.process = subprocess.Popen(command, stdout=out, stderr=error)

    def rows(self) -> list[dict[str, object]]:
        """What the child found, once it has ended; what it did not get to is a finding, too."""
        ended = f"exit code {self.process.poll()}"
        rows = [json.loads(line) for line in self.out.read_text().splitlines() if line.startswith("{")]
        checked = {row["label"] for row in rows if "faults" in row}
        last = self.error.read_text().strip().splitlines()[-1:] or [""]
        for label in self.labels:
            if label not in checked:
                started = any(row.get("starts") == label for row in rows)
                fault = f"{'CRASHED' if started else 'NOT REACHED'}, {ended}: {last[0][:150]}"
                rows.append({"task": self.task.name, "label": label, "faults": [fault]})
        return rows


def run_children(children: list[Child], limit: float) -> list[dict[str, object]]:
    deadline = time.monotonic() + limit
    for child in children:
        try:
            child.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
    return [row for child in children for row in child.rows()]


def table(tasks: list[Task], rows: list[dict[str, object]]) -> str:
    lines = [f"{'task':28}{'program':28}{'case':8}{'us':>10}{'eager us':>10}{'x eager':>9}{'roofline':>9}"]
    for row in rows:
        if "us" in row:
            us, eager, floor = row["us"], row["eager_us"], row["floor_us"]
            beside = f"{eager:>10.1f}{eager / us:>9.2f}" if eager else f"{'-':>10}{'-':>9}"  # type: ignore[operator]
            share = 100.0 * floor / us  # type: ignore[operator]
            lines.append(f"{row['task']:28}{row['label']:28}{row['case']:8}{us:>10.1f}{beside}{share:>8.1f}%")
    lines.append("")
    lines += [f"{row['task']} {row['oracle']}" for row in rows if "oracle" in row]
    lines.append("")
    for row in rows:
        if "faults" in row:
            faults, wrong = row["faults"], str(row["label"]).startswith("wrong")
            if wrong != bool(faults):
                lines.append(f"UNEXPECTED {row['task']} {row['label']}: {faults or 'passes'}"[:400])
            elif wrong:
                lines.append(f"rejected {row['task']} {row['label']}: {faults[0]}"[:230])  # type: ignore[index]
            elif row.get("seconds", 0) > 3:  # type: ignore[operator]
                lines.append(f"slow to check: {row['task']} {row['label']} {row['seconds']} s")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--wrong", action="store_true", help="also run the wrong/ programs")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for all runs together")
    parser.add_argument("--out", type=Path, help="also write the table here")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--labels", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        work(load_task(options.tasks[0]), options.labels.split(","), options.child)
        return
    tasks = []
    for name in options.tasks or builtin_names():
        try:
            tasks.append(load_task(name))
        except KbError as error:
            print(error)
    with tempfile.TemporaryDirectory() as name:
        folder, begin = Path(name), time.perf_counter()
        logs = compile_all(tasks, options.wrong, folder)
        print(f"compiled {len(logs)} programs in {time.perf_counter() - begin:.0f} s", flush=True)
        for (task_name, label), log in logs.items():
            if log:
                print(f"DOES NOT COMPILE {task_name} {label}: {log[:600]}")
        children = []
        for task in tasks:
            labels = [label for label in programs(task, False) if logs[task.name, label] is None]
            children.append(Child(task, labels, folder, task.name))
            labels = [label for label in only_wrong(task) if options.wrong and logs[task.name, label] is None]
            if labels:
                children.append(Child(task, labels, folder, f"{task.name}.wrong"))
        rows = run_children(children, options.limit)
    text = table(tasks, rows)
    print(text)
    if options.out:
        write_atomic(options.out, f"{text}\n".encode())


def only_wrong(task: Task) -> list[str]:
    """The wrong/ programs that end in a wrong result: those that crash would take the others along."""
    found = solutions(task, "wrong").items()
    return [f"wrong/{name}" for name, program in found if expected_status(program.text) == (Status.WRONG,)]


if __name__ == "__main__":
    main()
