"""Runs the init.cu of a KernelBlaster checkout on the simulator: ``python -m experiments.sim_level2 CHECKOUT``.

Each file is compiled as it is, with a caller of ours behind it that hands over the scalars of its
driver.cpp and one large buffer for each pointer. It then passes the same record step as every
candidate, and some blocks of each launch run in the limited child. What is shown: the PTX
translates, in what time, and runs to its end. Not shown: numbers, since the reference needs libtorch.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kb_env.build import build
from kb_env.device_answers import answers_for
from kb_env.files import write_atomic
from kb_env.plan import check_plan
from kb_env.record import record
from kb_env.sim.client import Client, Failure
from kb_env.sim.compiled import compile_kernel, keep
from kb_env.sim.ptx import PtxError, parse, split_list
from kb_env.sim.wire import Job, Request, close_all, memory_file
from kb_env.store import Store, default_store
from kb_env.types import Argument, Case, KbError, Program, Task

ENTRY = "launch_gpu_implementation"
#: Elements of each buffer (halves), and what every byte holds: 0x3838 is 0.53.
ELEMENTS, CONTENT = 1 << 25, 0x38
SAMPLE, BUDGET, SECONDS = 200_000, 400_000_000, 120.0
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_CONSTANT = re.compile(
    r"\b((?:static |const |constexpr )*(?:int|int64_t|float|double|bool|auto|size_t|std::vector<int64_t>)"
    r"\s+\w+\s*(?:=|\{)[^;]*);"
)


@dataclass(frozen=True)
class Args:
    """Run KernelBlaster's kernels on the simulator."""

    checkout: Annotated[Path, tyro.conf.Positional]
    """folder of a KernelBlaster checkout"""
    level: int = 2
    """1, 2 or 3"""
    only: str = ""
    """part of the problems' names"""
    out: Path | None = None
    """a JSON file for the rows; finished ones in it are not run again"""


@dataclass(frozen=True)
class Row:
    """What became of one file. ``outcome``: ran, or the stage that ended it."""

    name: str
    outcome: str
    message: str = ""
    kernels: int = 0
    compile_seconds: float = 0.0
    run_seconds: float = 0.0


def adapter(driver: str) -> tuple[str, int]:
    """C++ of a caller with pointer arguments only, and how many it has.

    Raises:
        KbError: if the driver's declaration or call is not understood.
    """
    text = _COMMENT.sub(" ", driver)
    declared = re.search(rf"void\s+{ENTRY}\s*\(([^)]*)\)\s*;", text)
    call = re.search(
        rf"(?<!void )\b{ENTRY}\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\s*;",
        text[declared.end() :] if declared else "",
    )
    if not declared or not call:
        raise KbError("the driver's declaration or call is not understood")
    types, values = split_list(declared.group(1)), split_list(call.group(1))
    if len(types) != len(values):
        raise KbError(f"{len(types)} parameters, {len(values)} arguments")
    arguments, pointers = [], 0
    for kind, value in zip(types, values, strict=True):
        if "*" in kind and "int64_t" not in kind:
            arguments.append(f"(void*)kb_{pointers}")
            pointers += 1
        elif re.search(r"->|\.\w+\(|model\.|defined", value):
            arguments.append("1")
        else:
            arguments.append(value)
    names = ", ".join(f"{'' if k == 0 else 'const '}short* kb_{k}" for k in range(pointers))
    body = "".join(f"    {item};\n" for item in needed(text, " ".join(arguments)))
    head = "\n#include <vector>\n#include <cstdint>\n" + (
        declared.group(0) if "std::" not in declared.group(0) else ""
    )
    return (
        f"{head}\nvoid kb_level_entry({names}) {{\n{body}    {ENTRY}({', '.join(arguments)});\n}}\n",
        pointers,
    )


def needed(text: str, wanted: str) -> list[str]:
    """The driver's constants that an expression needs, in order."""
    known = {
        re.split(r"[={]", m.group(1))[0].split()[-1]: m for m in reversed(list(_CONSTANT.finditer(text)))
    }
    chosen: dict[str, tuple[int, str]] = {}
    left = re.findall(r"[A-Za-z_]\w*", wanted)
    while left:
        name = left.pop()
        if name not in known or name in chosen:
            continue
        line = known[name].group(1)
        head, value = re.match(r"([^={]*)(.*)", line, re.S).groups()  # type: ignore[union-attr]
        if (
            re.search(r"torch|->|\.\w+\(|register_", value) or "," in head
        ):  # it comes from a tensor: any small number
            kind = "float" if re.search(r"float|double", head) else "int"
            line = f"{kind} {name} = {'0.5f' if kind == 'float' else '8'}"
        chosen[name] = (known[name].start(), line)
        left += re.findall(r"[A-Za-z_]\w*", line)
    return [line for _, line in sorted(chosen.values())]


def task_of(name: str, pointers: int, elements: int) -> Task:
    """A stand-in task with so many buffers, for the record step."""
    arguments = tuple(
        Argument(f"kb_{k}", "input" if k else "output", "int16", (elements,)) for k in range(pointers)
    )
    case = Case("only", {})
    return Task(
        name, name, "", "level", name, "", "", "kb_level_entry", arguments, (case,), (case,), "float16", "float32",
        "1", "1", workspace_bytes=8 << 30,
    )  # fmt: skip


def run_one(folder: Path, client: Client, store: Path) -> Row:
    """One problem, again with larger buffers if it needs them."""
    row = attempt(folder, client, store, ELEMENTS)
    return attempt(folder, client, store, 8 * ELEMENTS) if "out of bounds" in row.message else row


def attempt(folder: Path, client: Client, store: Path, elements: int) -> Row:
    """Build, record, compile and run one problem."""
    name = folder.name
    try:
        caller, pointers = adapter((folder / "driver.cpp").read_text())
    except KbError as error:
        return Row(name, "driver", str(error))
    program = Program(name, (folder / "init.cu").read_text() + caller)
    built = build(program, "sm_90a", store)
    if built.fault is not None:
        return Row(
            name, "nvcc", next((line for line in built.result.log.splitlines() if "error" in line), "")[:300]
        )
    task = task_of(name, pointers, elements)
    recording = record(task, built, answers_for("sm_90a"), task.check, store)
    if recording.fault is not None:
        return Row(name, "record", recording.fault.message[:300])
    plan = recording.plans["only"]
    try:
        check_plan(plan, task.workspace_bytes)
    except KbError as error:
        return Row(name, "record", f"out of bounds: {error}")
    started = time.process_time()
    kernels = list(dict.fromkeys(launch.kernel for launch in plan.launches))
    try:
        module = parse(built.ptx)
        for kernel in kernels:
            keep(Store(store), built.ptx, compile_kernel(module, kernel))
    except PtxError as error:
        return Row(name, "translate", str(error)[:300], len(kernels))
    compiling = round(time.process_time() - started, 2)
    started = time.perf_counter()
    job = Job(plan, (), (), CONTENT, SAMPLE, BUDGET)
    files = (memory_file(1), memory_file(1))
    try:
        answer = client.ask(Request(1, built.ptx, 1, 1, int(SECONDS), (job,)), files, SECONDS)
    finally:
        close_all(files)
    seconds = round(time.perf_counter() - started, 2)
    result = None if isinstance(answer, Failure) else answer.results[0]
    message = answer.message if isinstance(answer, Failure) else result.message if result else ""
    ran = result is not None and result.status is None
    return Row(name, "ran" if ran else "run", "" if ran else message[:300], len(kernels), compiling, seconds)


def main(args: Args) -> int:
    root = args.checkout / "data" / "kernelbench-cuda" / f"level{args.level}"
    folders = [
        path for path in sorted(root.glob("*")) if (path / "init.cu").exists() and args.only in path.name
    ]
    if not folders:
        raise KbError(f"{root} holds no problems: name the folder of a KernelBlaster checkout")
    done = (
        {row["name"]: Row(**row) for row in json.loads(args.out.read_text())}
        if args.out and args.out.exists()
        else {}
    )
    rows: list[Row] = []
    client = Client(default_store())
    try:
        for folder in folders:
            row = done.get(folder.name) or run_one(folder, client, default_store())
            rows.append(row)
            times = f"compile {row.compile_seconds:5.2f} s run {row.run_seconds:6.2f} s"
            print(f"{row.outcome:9s} {row.name:60s} {times} {row.message}", flush=True)
            if args.out:
                write_atomic(args.out, json.dumps([asdict(item) for item in rows], indent=1).encode())
    finally:
        client.close()
    accepted = [row for row in rows if row.outcome != "nvcc"]
    ran = sum(row.outcome == "ran" for row in accepted)
    print(f"{len(rows)} files, nvcc accepts {len(accepted)}, {ran} ran ({100 * ran / max(len(accepted), 1):.1f} %), "
          f"slowest compile {max((row.compile_seconds for row in rows), default=0.0):.2f} s of processor")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
