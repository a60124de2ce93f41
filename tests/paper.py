"""A deterministic evaluator on paper, for tests of what stands above evaluators.

It builds and runs nothing: a program says in comments how it fares. ``// us: 500`` is its time,
``// fault: WRONG`` its end. Lines that start with ``// note`` are no code: they leave its key alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from kb_env.evaluators import Prepared, Purpose
from kb_env.types import (
    BuildResult,
    Evaluation,
    Fault,
    KbError,
    Profile,
    Program,
    Status,
    Task,
    Timing,
    Verification,
    digest,
)


def code(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if line and not line.startswith("// note"))


def written(text: str, word: str) -> str | None:
    found = re.search(rf"// {word}: *(\S+)", text)
    return found[1] if found else None


@dataclass
class PaperEvaluator:
    """``noise`` is the relative spread of one speedup; ``calls`` counts what was measured."""

    noise: float = 0.0
    source: str = "modelled"
    trust: str = "sealed"
    device: str = "Paper"
    calls: list[tuple[str, str]] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def prepare(self, task: Task, program: Program) -> Prepared:
        build = BuildResult(True, "", 0.25, registers=32, shared_bytes=0, spills=0)
        fault = written(program.text, "fault")
        if fault == "HARNESS":
            raise KbError("the disk is full: free some space")
        key = None if fault == "BUILD_FAILED" else digest(code(program.text))
        failed = (
            Fault(Status(fault), "build", "\x1b[31merror\x1b[0m " + "x" * 50_000) if key is None else None
        )
        return Prepared(task, program, build, {}, key, fault=failed, seconds={"build": 0.25})

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        text = prepared.program.text
        fault = written(text, "fault") or (purpose.baseline and written(text, "later"))
        self.calls.append((prepared.program.key, purpose.baseline_name))
        timings = verification = None
        if fault is None:
            baseline = purpose.baseline or prepared.task.initial
            timings = (self._timing(baseline.text, text, purpose.baseline_name),)
            verification = Verification(True, None, 5, "", 0.125)
        return Evaluation(
            build=prepared.build,
            verification=verification,
            timings=timings,
            profile=Profile("sim", dram_percent=50.0, registers=32.0) if purpose.profile else None,
            trust=self.trust,
            source=self.source,
            device=self.device,
            key=prepared.key,
            fault=Fault(Status(fault), "verify", "element 3: expected 1, got 2") if fault else None,
            seconds={"time": 0.5},
        )

    def _timing(self, baseline: str, candidate: str, name: str) -> Timing:
        before, after = (float(written(text, "us") or 1000.0) for text in (baseline, candidate))
        speedup = float(before / after * np.exp(self.noise * self.random.standard_normal()))
        low, high = speedup * np.exp(-1.96 * self.noise), speedup * np.exp(1.96 * self.noise)
        return Timing(
            "bench0", name, (after,), (before,), speedup, float(low), float(high), self.source, floor_us=100.0
        )

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        return self.measure(self.prepare(task, program), purpose)

    def close(self) -> None:
        self.calls.append(("", "closed"))
