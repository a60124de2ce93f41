"""``kb check TASK FILE``: verify and time one program, and say what is wrong with it."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from kb_env.backends import make_evaluator
from kb_env.evaluators import Purpose
from kb_env.observe import clean
from kb_env.task import load_task
from kb_env.types import PROFILE_NAMES, Evaluation, KbError, Program, Task


@dataclass(frozen=True)
class Args:
    """Verify FILE as a program for TASK and time it against the task's initial program."""

    task: Annotated[str, tyro.conf.Positional]
    """a built-in task's name or a task folder"""
    file: Annotated[Path, tyro.conf.Positional]
    """the CUDA source to check"""
    backend: str = "auto"
    """auto, gpu, sim, sim:DEVICE or replay:FILE"""
    profile: bool = False
    """ask for a profile as well"""
    sanitize: bool = False
    """look for races, bounds, uninitialised reads and barrier errors as well, on the CPU"""
    json: bool = False
    """print one JSON object as the last line"""


def read_program(path: Path, task: str) -> Program:
    """The program text of a file, any bytes kept; KbError if it cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise KbError(f"cannot read {path}: {error.strerror}; name a CUDA source file") from error
    return Program(task, text)


def summary(evaluation: Evaluation, seconds: float) -> dict[str, Any]:
    """The flat facts of an evaluation that scripts read (``--json``); absent is null."""
    timings = evaluation.timings or ()

    def median(name: str) -> float | None:
        values = [statistics.median(getattr(timing, name)) for timing in timings]
        return math.exp(statistics.fmean(map(math.log, values))) if values else None

    facts: dict[str, Any] = {
        "status": str(evaluation.status),
        "trust": evaluation.trust,
        "source": evaluation.source,
        "device": evaluation.device,
        "speedup": evaluation.speedup,
        "speedup_low": evaluation.speedup_low,
        "speedup_high": evaluation.speedup_high,
        "candidate_us": median("candidate_us"),
        "baseline_us": median("baseline_us"),
        "message": evaluation.message,
        "limiter": evaluation.limiter,
        "seconds": round(seconds, 4),
        "phases": dict(evaluation.seconds),
        "cached": evaluation.build.cached,
        "worst": evaluation.verification.worst if evaluation.verification else None,
    }
    if evaluation.profile is not None:
        numbers = {name: getattr(evaluation.profile, name) for name in PROFILE_NAMES}
        facts["profile"] = {name: None if math.isnan(value) else value for name, value in numbers.items()}
    return facts


def sanitized(task: Task, program: Program, file: str) -> list[dict[str, Any]] | None:
    """The simulator's findings as plain data, whatever the backend; None if the program cannot be run there."""
    from kb_env.sim.evaluator import SimEvaluator
    from kb_env.types import Fault

    with SimEvaluator() as simulator:
        found = simulator.findings(task, program)
    if isinstance(found, Fault):
        return None
    named = [dataclasses.replace(item, file=file if item.line else item.file) for item in found]
    return [{**dataclasses.asdict(item), "text": item.text} for item in named]


def printable(text: str) -> list[str]:
    """Lines of a text that a candidate may have written, without what a terminal would obey."""
    return [clean(line) for line in text.splitlines()]


def words(facts: dict[str, Any]) -> str:
    """The same facts for a person; modelled time is called modelled."""
    lines = [f"{facts['status']}  ({facts['trust']}, {facts['source']}, {facts['device']})"]
    if facts["speedup"] is not None:
        lines.append(
            f"speedup {facts['speedup']:.3f} [{facts['speedup_low']:.3f}, {facts['speedup_high']:.3f}] "
            f"{facts['source']}: {facts['candidate_us']:.1f} us against {facts['baseline_us']:.1f} us initially"
        )
    if facts["limiter"]:
        lines.append(f"limited by {facts['limiter']}")
    if facts["message"]:
        lines += printable(facts["message"])
    if "findings" in facts:
        found = facts["findings"]
        lines.append("sanitizer: not run" if found is None else f"sanitizer: {len(found)} findings")
        lines += [f"  {line}" for item in found or () for line in printable(item["text"])]
    lines.append(" ".join(f"{name} {value:.2f}s" for name, value in facts["phases"].items()))
    return "\n".join(lines)


def main(args: Args) -> int:
    task = load_task(args.task)
    program = read_program(args.file, task.name)
    evaluator = make_evaluator(args.backend)
    started = time.perf_counter()
    try:
        evaluation = evaluator.evaluate(task, program, Purpose(profile=args.profile))
    finally:
        evaluator.close()
    facts = summary(evaluation, time.perf_counter() - started)
    clean = True
    if args.sanitize:
        facts["findings"] = sanitized(task, program, args.file.name)
        clean = facts["findings"] == []
    print(words(facts))
    if args.json:
        print(json.dumps(facts))
    return 0 if evaluation.verified and clean else 1
