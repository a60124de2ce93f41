"""Does the sanitizer find what is wrong, and only that: ``python -m experiments.bench_sanitize``.

A file of ``tests/planted`` holds one kernel with one bug of ours: the lines marked ``// BUG`` are its
places, ``// expect:`` its kind, ``// hidden:`` says why a GPU would not show it. Honest programs are
those of ``tests/redteam/honest`` and the built-in tasks' initial and right/ programs: each finding there
is a false alarm.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro

from kb_env.build import toolchain
from kb_env.files import write_atomic
from kb_env.plan import PLAN_SCHEMA, Buffer, Launch, LaunchPlan, Pointer
from kb_env.sim.evaluator import SimEvaluator
from kb_env.sim.findings import Finding
from kb_env.sim.machine import Machine, SimFault
from kb_env.task import builtin_names, load_task, solutions
from kb_env.types import Fault, KbError, Program

TESTS = Path(__file__).resolve().parent.parent / "tests"
BUDGET = 2_000_000


@dataclass(frozen=True)
class Args:
    """Planted bugs found, and false alarms on honest programs."""

    planted: bool = True
    """run the planted bugs"""
    honest: bool = True
    """run the honest programs"""
    out: Path | None = None
    """a JSON file for the rows"""


@dataclass(frozen=True)
class Planted:
    """A kernel with a bug. ``buffers``: (name, kind, dtype, elements); ``arguments``: buffer names and numbers."""

    name: str
    text: str
    expect: tuple[str, ...]
    hidden: bool
    lines: tuple[int, ...]
    buffers: tuple[tuple[str, str, str, int], ...]
    sizes: tuple[int, int, int]  # blocks, threads, bytes of shared memory
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """What became of one program: for a planted bug, whether it was found at its line; else the false alarms."""

    name: str
    planted: bool
    good: bool
    note: str
    seconds: float


def planted_bugs(folder: Path = TESTS / "planted") -> list[Planted]:
    """The planted bugs, by name.

    Raises:
        KbError: if a file does not say what it plants.
    """
    return [_read(path) for path in sorted(folder.glob("*.cu"))]


def _read(path: Path) -> Planted:
    text = path.read_text()
    expect = re.search(r"^// expect: (.*)$", text, re.M)
    launch = re.search(r"^// launch: (\w+)<<<(\d+), (\d+)(?:, (\d+))?>>>\((.*)\)$", text, re.M)
    lines = tuple(number for number, line in enumerate(text.splitlines(), 1) if line.endswith("// BUG"))
    if not expect or not launch or not lines:
        raise KbError(f"{path} does not say what it plants: give it expect, launch and a line marked // BUG")
    buffers = re.findall(r"^// buffer: (\w+) (in|out|zero) (int|float) (\d+)$", text, re.M)
    blocks, threads, shared = (int(launch.group(k) or 0) for k in (2, 3, 4))
    return Planted(
        path.stem, text, tuple(expect.group(1).split("|")), "// hidden: yes" in text, lines,
        tuple((name, kind, dtype, int(count)) for name, kind, dtype, count in buffers),
        (blocks, threads, shared), tuple(item.strip() for item in launch.group(5).split(",")),
    )  # fmt: skip


def compiled(bugs: Sequence[Planted]) -> str:
    """One PTX module of all of them; their line numbers are those of their files."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "planted.cu", Path(folder) / "planted.ptx"
        source.write_text("".join(f'#line 1 "{bug.name}.cu"\n{bug.text}' for bug in bugs))
        command = [toolchain().nvcc, "-ptx", "-arch=sm_90a", "-lineinfo", str(source), "-o", str(out)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        return out.read_text()


def run(bug: Planted, ptx: str) -> tuple[Finding, ...]:
    """The sanitizer's findings on one planted bug."""
    dtypes = {"int": np.int32, "float": np.float32}
    memory, buffers, given = [], [], []
    for name, kind, dtype, count in bug.buffers:
        values = (np.arange(count) * 7919 % 64).astype(dtypes[dtype]) * (kind == "in")
        memory.append(values.view(np.uint8).copy())
        buffers.append(Buffer("argument", name, memory[-1].nbytes))
        given.append(kind != "out")
    names = [item[0] for item in bug.buffers]
    parameters = tuple(bytes(8) if item in names else struct.pack("<i", int(item)) for item in bug.arguments)
    pointers = tuple(
        Pointer(k, 0, names.index(item), 0) for k, item in enumerate(bug.arguments) if item in names
    )
    blocks, threads, shared = bug.sizes
    launch = Launch(bug.name, (blocks, 1, 1), (threads, 1, 1), shared, parameters, pointers)
    machine = Machine(ptx, sanitize=True)
    try:
        machine.run(
            LaunchPlan(PLAN_SCHEMA, "planted", tuple(buffers), (launch,)), memory, budget=BUDGET, given=given
        )
    except SimFault as fault:
        if not machine.findings:
            raise KbError(f"{bug.name}: {fault.message}") from fault
    return tuple(machine.findings)


def found(bug: Planted, findings: Sequence[Finding]) -> bool:
    """Whether a finding of the right kind names one of the bug's lines, or the access that its other side is."""
    kinds = [item for item in findings if item.kind in bug.expect]
    return any(item.kind == "hang" or {item.line, item.other_line} & set(bug.lines) for item in kinds)


def planted_rows() -> Iterator[Row]:
    bugs = planted_bugs()
    ptx = compiled(bugs)
    for bug in bugs:
        started = time.perf_counter()
        findings = run(bug, ptx)
        note = "; ".join(f"{item.kind} at line {item.line}" for item in findings) or "nothing"
        yield Row(bug.name, True, found(bug, findings), note, round(time.perf_counter() - started, 2))


def honest_programs() -> Iterator[tuple[str, Program]]:
    """Honest programs by name: those of the red team, then the built-in tasks' own."""
    for path in sorted((TESTS / "redteam" / "honest").glob("*.cu")):
        text = path.read_text()
        yield path.stem, Program(text.partition("// task: ")[2].split()[0], text)
    for name in builtin_names():
        task = load_task(name)
        yield f"{name}/initial", task.initial
        for label, program in solutions(task, "right").items():
            yield f"{name}/{label}", program


def honest_rows() -> Iterator[Row]:
    with SimEvaluator() as evaluator:
        for name, program in honest_programs():
            started = time.perf_counter()
            answer = evaluator.findings(load_task(program.task), program)
            seconds = round(time.perf_counter() - started, 2)
            if isinstance(answer, Fault):
                yield Row(name, False, False, f"not run: {answer.status}: {answer.message[:160]}", seconds)
            else:
                yield Row(name, False, not answer, "; ".join(item.text for item in answer[:3]), seconds)


def main(args: Args) -> int:
    rows: list[Row] = []
    for wanted, make in ((args.planted, planted_rows), (args.honest, honest_rows)):
        for row in make() if wanted else ():
            rows.append(row)
            print(
                f"{'ok ' if row.good else 'BAD'} {row.name:44s} {row.seconds:7.2f} s  {row.note}", flush=True
            )
    for kind in (True, False):
        mine = [row for row in rows if row.planted == kind]
        unrun = sum(row.note.startswith("not run") for row in mine)
        if mine and kind:
            print(f"planted bugs found: {sum(row.good for row in mine)} of {len(mine)}")
        elif mine:
            alarms = sum(not row.good for row in mine) - unrun
            print(f"honest programs: {len(mine)}, false alarms: {alarms}, not run: {unrun}")
    if args.out:
        write_atomic(args.out, json.dumps([asdict(row) for row in rows], indent=1).encode())
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
