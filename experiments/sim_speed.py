"""How long a step takes on the simulator, cold and cached: ``python -m experiments.sim_speed``.

For each built-in task the initial program is evaluated first (not counted: a step follows a reset),
then every right/ program with an empty store, then each again. Processor seconds of this process
and all its children tell on a busy machine what wall seconds cannot.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from kb_env.files import write_atomic
from kb_env.sim.evaluator import SimEvaluator
from kb_env.task import builtin_names, load_task, solutions


@dataclass(frozen=True)
class Args:
    """Time of a simulated step by task."""

    tasks: tuple[str, ...] = ()
    """names of built-in tasks (default: all)"""
    programs: int = 2
    """right/ programs of each task"""
    out: Path | None = None
    """a JSON file for the rows"""


@dataclass(frozen=True)
class Row:
    """Seconds of one evaluation; ``cpu`` counts every process it used, ``build`` is wall time of the compiler."""

    task: str
    program: str
    cached: bool
    status: str
    wall: float
    cpu: float
    phases: dict[str, float]


def cpu_seconds(resident: int | None) -> float:
    """Processor time so far of this process, its ended children, and the simulator process with its own."""
    own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    if resident is None:
        return own
    fields = Path(f"/proc/{resident}/stat").read_text().rpartition(")")[2].split()
    return own + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measure(name: str, programs: int) -> list[Row]:
    """Cold and cached evaluations of one task."""
    task, rows = load_task(name), []
    with tempfile.TemporaryDirectory() as folder, SimEvaluator(store=Path(folder)) as evaluator:
        evaluator.evaluate(task, task.initial)
        for cached in (False, True):
            for label, program in list(solutions(task, "right").items())[:programs]:
                started, before = time.perf_counter(), cpu_seconds(evaluator._client.pid)
                found = evaluator.evaluate(task, program)
                wall = time.perf_counter() - started
                cpu = cpu_seconds(evaluator._client.pid) - before
                phases = {key: round(value, 3) for key, value in found.seconds.items()}
                rows.append(
                    Row(name, label, cached, str(found.status), round(wall, 3), round(cpu, 3), phases)
                )
    return rows


def main(args: Args) -> int:
    rows: list[Row] = []
    for name in args.tasks or builtin_names():
        for row in measure(name, args.programs):
            rows.append(row)
            kind = "cached" if row.cached else "cold"
            times = f"wall {row.wall:7.3f} cpu {row.cpu:6.3f} {row.phases}"
            print(f"{row.task:28s} {row.program:22s} {kind:6s} {row.status:10s} {times}", flush=True)
    for cached in (False, True):
        mine = [row for row in rows if row.cached == cached]
        wall, cpu = (statistics.median(getattr(row, key) for row in mine) for key in ("wall", "cpu"))
        print(
            f"{'cached' if cached else 'cold'}: median {wall:.3f} s wall, {cpu:.3f} s of processor, {len(mine)} steps"
        )
    if args.out:
        write_atomic(args.out, json.dumps([vars(row) for row in rows], indent=1).encode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
